"""Chromium, and the checks of tests/web that any page can be asked."""
import importlib.machinery
import importlib.util
import pathlib
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/web"), str(ROOT / "bench")]
from looks import CONTRAST, WATCH  # noqa: E402

loader = importlib.machinery.SourceFileLoader("screenshots", str(ROOT / "bench/screenshots"))
screenshots = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshots", loader))
loader.exec_module(screenshots)

screenshots.VIEWS |= {f"wide-{scheme}": (1500, 1000, False, scheme) for scheme in ("light", "dark")}  # with tabs, and the chapters on the left

# What a page asks for that is not in the folder.
FROM_ELSEWHERE = "performance.getEntriesByType('resource').map(e => e.name).filter(name => !name.startsWith('file:') && !name.startsWith('data:') && !name.startsWith('blob:'))"


def there():
    return any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))


class Page:
    def __init__(self):
        self.browser = screenshots.Browser()
        self.browser("Page.addScriptToEvaluateOnNewDocument", source=WATCH)

    def show(self, file, view="desktop-light"):
        self.browser.show(file, view)

    def js(self, script):
        return self.browser.evaluate(script)

    def until(self, condition):
        """Waits in the page, without a limit but the test's."""
        self.js(f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, 10); look(); }})")

    def wrong(self):
        """What overflows or has no text alternative, words whose colour is too near, errors of scripts, and what was fetched."""
        found, _ = self.js(screenshots.LOOK)
        contrast = self.js(CONTRAST)
        assert contrast["looked"] > 5, "no words"
        found += [f"contrast {ratio} of '{words}': {colour} on {back}" for words, ratio, colour, back in contrast["low"]]
        return found + [f"error: {said}" for said in self.js("window.seen")] + [f"fetched: {name}" for name in self.js(FROM_ELSEWHERE)]
