#!/usr/bin/env python3
"""How long the page of site/fit takes from opening to its first answer, in Chromium: the median of five, as a row for bench/benchmarks/run. A
browser that has just started, on an address that it has not seen. bench/web builds the page first where that is needed."""
import importlib.machinery
import importlib.util
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
loader = importlib.machinery.SourceFileLoader("screenshots", str(ROOT / "bench/screenshots"))
screenshots = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshots", loader))
loader.exec_module(screenshots)
WATCH = """new MutationObserver(() => {
  if (!window.answeredAt && document.getElementById('text')?.textContent) window.answeredAt = performance.now();
}).observe(document, { subtree: true, childList: true, characterData: true });"""

page = pathlib.Path(subprocess.run([ROOT / "bench/web"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
seen = []
for _ in range(5):
    browser = screenshots.Browser()
    browser("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    browser("Page.navigate", url=page.as_uri())
    seen.append(browser.evaluate("new Promise(done => { const look = () => window.answeredAt ? done(window.answeredAt) : setTimeout(look, 20); look(); })") / 1000)
    browser.end()
row = {"benchmark": "site/fit", "what": "the page's first answer after opening, in Chromium", "seen": statistics.median(seen)}
print(json.dumps(row | {"at": "most", "wanted": 2, "unit": "s"}))
