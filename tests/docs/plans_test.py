"""The published plans are what the programs print and write now: plans_test.py ROOT FOLDER-OF-PROGRAMS CHAPTER; with chapter 06 what
bench_allocators says of bytes is, too.

Bytes are planned, so every machine makes the same, and a plan takes a moment. (What fit prints, and what a run measured, is not looked at.)
"""
import concurrent.futures
import difflib
import importlib.machinery
import importlib.util
import pathlib
import sys

root, programs = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
sys.path.insert(0, str(root / "bench"))
loader = importlib.machinery.SourceFileLoader("publish", str(root / "bench/publish"))
publish = importlib.util.module_from_spec(importlib.util.spec_from_loader("publish", loader))
loader.exec_module(publish)


def difference(file, now):
    published = file.read_text() if file.exists() else ""
    return list(difflib.unified_diff(published.splitlines(), (now or "").splitlines(), str(file.relative_to(root)), "made now", "", "", 0))


def changes(plan):
    name, line = plan
    return [change for ending, now in zip(("txt", "json"), publish.plan_of(line, programs))
            for change in difference(root / f"bench/results/plan/{name}.{ending}", now)]


chosen = [(name, line) for name, line in publish.plans.items() if name.startswith(sys.argv[3]) and publish.only_planned(line)]
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    stale = [lines for lines in pool.map(changes, chosen) if lines]
if sys.argv[3] == "06":
    stale += filter(None, [difference(root / "bench/results/host/allocators.json", publish.allocators_of(programs))])
for lines in stale:
    print(*lines[:20], "bench/publish --plans makes it again", sep="\n")
print(f"{len(chosen)} plans, {len(stale)} stale")
sys.exit(1 if stale or not chosen else 0)
