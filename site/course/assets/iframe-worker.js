// Browsers start no worker for a page that was opened from a folder. There the search runs in a hidden frame instead, which speaks as a worker does.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const own = new URL(url, document.baseURI);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const load = (address) => new Promise((loaded, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, own);
        script.onload = loaded;
        script.onerror = failed;
        inside.document.head.append(script);
      });
      inside.importScripts = (...addresses) => addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(own);
      this.ready.catch(() => this.dispatchEvent(new Event("error")));
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data: inside.structuredClone(data) })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
