"""What the tests of puzzles share: ROOT and the build from the command line, and a judge that uses that build alone."""
import pathlib
import sys

ROOT, BUILD = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "bench"))
from puzzling import catalog, judging  # noqa: E402

SEED = 20  # of the hidden data: the same in every run, so that a failure can be repeated


def judge(mode, **more):
    return judging.Judge([mode], SEED, builds={mode: BUILD}, **more)


def puzzle(name):
    (found,) = catalog.find(catalog.all_puzzles(ROOT), name)
    return found
