"""Runs bench/explain on snapshots, for the tests of it."""
import json
import pathlib
import subprocess
import sys
import tempfile

import copied
from load import explain

ROOT = pathlib.Path(sys.argv[1]).resolve()
MIB = 1 << 20
HERE = pathlib.Path(__file__).resolve().parent
WORK = pathlib.Path(tempfile.mkdtemp(prefix="oomlab_snapshot_"))
EXPLAIN = ROOT / "bench/explain"


STARTED = set()  # exit codes of which an interpreter of its own was seen


def explained(*arguments, code=0):
    arguments = [str(argument) for argument in arguments]
    if code in STARTED:
        done = copied.run("bench/explain", explain.main, arguments)
    else:
        done = subprocess.run([sys.executable, EXPLAIN, *arguments], capture_output=True, timeout=300)
        STARTED.add(code)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == code, (arguments, done.returncode, done.stdout[-2000:], done.stderr)
    if code:
        assert done.stdout == "" and done.stderr.count("\n") == 1, (arguments, done)
        return done.stderr
    assert done.stderr == "", (arguments, done.stderr)
    for line in done.stdout.splitlines() if "--json" not in arguments else ():
        wide = sum(2 if ord(c) > 0x2E80 else 1 for c in line)
        assert wide <= 100, (arguments, wide, line)
    return done.stdout


def figures(file):
    return json.loads(explained(file, "--json"))["devices"][0]


def written(program, name="s.pickle", **how):
    program.write(WORK / name, **how)
    return WORK / name


def first_lines(text):
    """The answer, and what to do first."""
    return " ".join(text.split("\n\n")[1].split())


def all_of(tests):
    """Calls them, and leaves no file."""
    for test in tests:
        test()
        print(test.__name__)
    for file in WORK.iterdir():
        file.unlink()
    WORK.rmdir()
