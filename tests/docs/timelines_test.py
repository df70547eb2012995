"""The timelines that pictures are drawn from are what the programs make: timelines_test.py ROOT FOLDER-OF-PROGRAMS"""
import importlib.machinery
import importlib.util
import pathlib
import sys

root, programs = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
sys.path.insert(0, str(root / "bench"))
loader = importlib.machinery.SourceFileLoader("publish", str(root / "bench/publish"))
publish = importlib.util.module_from_spec(importlib.util.spec_from_loader("publish", loader))
loader.exec_module(publish)

stale = [name for name, line in publish.timelines.items()
         if (root / "bench/results/plan" / f"{name}.csv").read_text() != publish.timeline_of(line, programs)]
print(*(f"bench/results/plan/{name}.csv is not what `{publish.timelines[name]}` makes; bench/publish {name[:2]} makes it again" for name in stale), sep="\n")
sys.exit(1 if stale or not publish.timelines else 0)
