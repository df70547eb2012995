"use strict";
// Asks bench/fit: unpacks the program out of the page, and has a worker run it.

// What a script element of the page holds that is no script: base64 of a gzip file.
async function unpacked(element) {
  const packed = Uint8Array.from(atob(element.textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// The only address that may become a script here: the worker's own, made of this page's text.
function workerAddress(text) {
  const address = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  if (!window.trustedTypes) return address;
  return trustedTypes.createPolicy("worker", { createScriptURL: (made) => (made === address ? made : "") }).createScriptURL(address);
}

class Planner {
  constructor() {
    this.address = workerAddress(document.getElementById("worker").textContent);
    this.module = unpacked(document.getElementById("program")).then((bytes) => WebAssembly.compile(bytes));
    this.worker = null;
    this.number = 0;
    this.waiting = new Map();
  }

  // What is being computed is not wanted any more: its promises stay open.
  forget() {
    if (this.waiting.size === 0) return;
    this.worker.terminate();
    this.worker = null;
    this.waiting.clear();
  }

  // The worker did not start, or died: whoever waits is told, and the next question gets another one.
  fail(why) {
    for (const answer of this.waiting.values()) answer({ code: null, out: "", err: "", broken: why });
    this.waiting.clear();
    if (this.worker) this.worker.terminate();
    this.worker = null;
  }

  async ask(words, files = {}) {
    const module = await this.module;
    if (!this.worker) {
      this.worker = new Worker(this.address);
      this.worker.onmessage = ({ data }) => {
        const answer = this.waiting.get(data.number);
        this.waiting.delete(data.number);
        if (answer) answer(data);
      };
      this.worker.onerror = this.worker.onmessageerror = (event) => this.fail(event.message || "worker");
    }
    const number = ++this.number;
    return new Promise((resolve) => {
      this.waiting.set(number, resolve);
      this.worker.postMessage({ number, module, words: ["fit", ...words], files });
    });
  }
}
