"""bench/explain SNAPSHOT --html in a real browser, light and dark, on a desktop and on a phone: page_test.py ROOT

Nothing overflows, the timeline is drawn to its full height, the tables agree with --json, nothing is loaded from anywhere, and no name in a
snapshot becomes a script. Exit code 77 where there is no Chromium.
"""
import importlib.machinery
import importlib.util
import json
import shutil
import sys

from snapshot_run import HERE, ROOT, WORK, all_of, explained, written
from program import FORWARD, MIB, STEP, TORCH, OutOfMemory, Program, training

loader = importlib.machinery.SourceFileLoader("screenshots", str(ROOT / "bench/screenshots"))
screenshots = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshots", loader))
loader.exec_module(screenshots)
if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
    print("no Chromium here: apt-get install chromium")
    sys.exit(77)
BROWSER = screenshots.Browser()

# What the page shows: bands and their heights in the picture, rows of both tables, what was fetched, whether a name ran.
SEEN = """(() => ({
  bands: [...document.querySelectorAll('polygon')].map(p => p.getBBox().height),
  titles: [...document.querySelectorAll('polygon title')].map(t => t.textContent),
  dashed: document.querySelectorAll('polyline').length,
  tables: [...document.querySelectorAll('table')].map(t => [...t.rows].map(r => [...r.cells].map(c => c.textContent))),
  fetched: performance.getEntriesByType('resource').map(e => e.name),
  scripts: document.scripts.length,
  ran: typeof window.ran,
  heading: document.querySelector('h1').textContent
}))()"""


def everything():
    """A snapshot with every category, a refusal, a leak, other pools, and names that would be scripts."""
    program = Program(budget=900 * MIB)
    program.allocate(6 * MIB, TORCH[:-len("torch/")] + "vllm/runner.py:9 in _allocate_kv_cache_tensors")
    program.allocate(5 * MIB, STEP, *FORWARD, "at::cuda::blas::getCUDABlasLtWorkspace")
    program.allocate(4 * MIB, STEP, *FORWARD, stream=7)
    program.allocate(3 * MIB, "/home/me/" + "a_very_long_name_of_a_file" * 4 + ".py:1234 in " + "a_function_with_a_long_name" * 3)
    since = len(program.trace)  # what came before is older than the recording
    program.context = False
    program.free(program.allocate(2 * MIB))
    program.context = True
    try:
        training(program, 40, leak=20 * MIB)
    except OutOfMemory:
        pass
    program.frames["/home/me/train.py:23 in main"]["name"] = "main<script>window.ran=1</script><img src=x onerror=window.ran=1>"
    return program, since


def looked_at(file, page, languages=("en", "zh")):
    truth = json.loads(explained(file, "--json"))["devices"][0]
    for language in languages:
        explained(file, "--html", page, "--lang", language)
        for view in screenshots.VIEWS:
            BROWSER.show(page, view)
            wrong, _ = BROWSER.evaluate(screenshots.LOOK)
            assert not wrong, (file.name, language, view, wrong)
            seen = BROWSER.evaluate(SEEN)
            assert (seen["fetched"], seen["scripts"], seen["ran"]) == ([], 0, "undefined"), seen
            shown = [row[0] for row in seen["tables"][0][1:]]
            assert len(shown) == len(truth["by_category_bytes"]) and len(seen["tables"][1]) - 1 == min(50, len(truth["lines"])), (shown, truth)
            assert len(seen["bands"]) >= len(shown) and max(seen["bands"]) > 20 and all(seen["titles"]), seen["bands"]
            picture = BROWSER.picture(view, 0, 900)
            assert picture[:4] == b"\x89PNG" and len(picture) > 5000, len(picture)


def of_pages():
    program, since = everything()
    file = written(program, since=since)
    assert len(json.loads(explained(file, "--json"))["devices"][0]["by_category_bytes"]) >= 6
    looked_at(file, WORK / "page.html")
    for name in ("kept_graphs", "kept_outputs", "pieces", "plain", "sgd"):
        looked_at(HERE / f"snapshots/{name}.pickle", WORK / "page.html", ("en",))


try:
    all_of((of_pages,))
finally:
    BROWSER.end()
