"""The page of site/fit, opened in Chromium: what page_test.py types, presses and reads."""
import base64
import importlib.machinery
import importlib.util
import json
import pathlib
import shutil
import sys
import tempfile
import urllib.parse

from built import skip
from looks import WATCH

FOLDER = tempfile.TemporaryDirectory()
BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
loader = importlib.machinery.SourceFileLoader("screenshots", str(BENCH / "screenshots"))
screenshots = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshots", loader))
loader.exec_module(screenshots)


class Page:
    def __init__(self, built):
        if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
            skip("no Chromium here: apt-get install chromium")
        self.file = built.page
        self.browser = screenshots.Browser()
        self.browser("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.browser("Accessibility.enable")

    def js(self, script):
        return self.browser.evaluate(script)

    def until(self, condition):
        """Waits in the page, without a limit but the test's."""
        self.js(f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 10); look(); }})")

    def answered(self):
        self.until("document.readyState === 'complete' && document.getElementById('answer')?.getAttribute('aria-busy') === 'false'")

    def open(self, query="", view="desktop-light"):
        width, height, phone, scheme = screenshots.VIEWS[view]
        self.browser("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.browser("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")
        self.browser("Page.navigate", url=self.file.as_uri() + ("#" + query if query else ""))
        self.until("location.protocol === 'file:'")
        self.answered()

    def ask(self, view="desktop-light", **question):
        self.open(urllib.parse.urlencode({"lang": "en"} | {name.replace("_", "-"): value for name, value in question.items()}), view)

    def type(self, field, text):
        self.js(f"(() => {{ const field = document.querySelector({json.dumps(field)}); field.focus(); field.select?.(); }})()")
        self.browser("Input.insertText", text=text)

    def key(self, key, code, **more):
        for kind in ("rawKeyDown", "keyUp"):
            self.browser("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more)

    def ask_again(self, model):
        self.js("document.getElementById('answer').setAttribute('aria-busy', 'true')")
        self.type("[name=model]", model)
        self.answered()

    def text(self, of):
        return self.js(f"document.querySelector({json.dumps(of)}).textContent")

    def shown(self, of):
        return self.js(f"document.querySelector({json.dumps(of)}).checkVisibility()")

    def click(self, of):
        self.js(f"document.querySelector({json.dumps(of)}).click()")

    def answer(self):
        """What the page says, as the native program would be asked and answer."""
        self.answered()
        return self.text("#text")

    def drop(self, path):
        self.js(f"(() => {{ const all = new DataTransfer(), bytes = Uint8Array.from(atob({json.dumps(base64_of(path))}), c => c.charCodeAt(0));"
                f" all.items.add(new File([bytes], {json.dumps(path.name)})); document.getElementById('answer').setAttribute('aria-busy', 'true');"
                " document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: all, bubbles: true, cancelable: true })); })()")
        self.answered()


def base64_of(path):
    return base64.b64encode(path.read_bytes()).decode()


def written(name, contents):
    path = pathlib.Path(FOLDER.name) / name
    path.write_bytes(contents)
    return path
