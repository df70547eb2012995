"""bench/run, tests/run, bench/fit: two runs in one folder, full disks, results of another workload, somebody else's checkout.

The chapters are shell scripts, and there is nothing to build: what is tested is that no run loses another's tables, or its own.
"""
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import tries

ROOT = pathlib.Path(sys.argv[1])
# Notes that it began, waits while a file tells it to, prints its options, and as many lines as another file says.
PROGRAM = """#!/bin/bash
echo >"{folder}/$(basename "$0").began"
while [ -e "{folder}/$(basename "$0").waits" ]; do sleep 0.05; done
echo "table of $(basename "$0") $*"
[ ! -e "{folder}/long" ] || seq 100000
while [ $# -gt 1 ]; do [ "$1" != --json ] || echo '{{"passed": true}}' >"$2"; shift; done
"""
CHAPTERS = ("00_zero", "01_one", "10_ten")

folder = pathlib.Path(tempfile.mkdtemp())
folder.chmod(0o755)
root, tools = folder / "repository", folder / "tools"
results = root / "build/host/results/here"


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


for name in ("bench/run", "bench/fit", "bench/setup.sh", "tests/run"):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / name, root / name)
for name in CHAPTERS:
    (root / "chapters" / name).mkdir(parents=True)
    (root / "chapters" / name / "main.cu").touch()
    script(root / "build/host/bin" / name, PROGRAM.format(folder=folder))
(root / "chapters/README.md").touch()
(root / "common").mkdir()
script(tools / "cmake", "#!/bin/sh\n")
script(tools / "dpkg-query", "#!/bin/sh\necho installed\n")
script(root / "build/host/bin/oomlab_system", '#!/bin/sh\n[ "$1" = --slug ] && echo here || echo \'{"slug": "here"}\'\n')
subprocess.run(["git", "init", "-q"], cwd=root)
own = {"PATH": f"{tools}:{os.environ['PATH']}", "OOMLAB_PRESET": "host"}


def run(command, codes=(0,)):
    return tries.check(tries.attempt(command, folder=root, environment=own), codes)


def start(command):
    """Starts a run, and returns when its chapter has begun."""
    for file in folder.glob("*.began"):
        file.unlink()
    process = subprocess.Popen(["bash", "-c", command], cwd=root, env=os.environ | own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    give_up = time.monotonic() + tries.HANG
    while not list(folder.glob("*.began")):
        assert time.monotonic() < give_up, process.communicate()
        time.sleep(0.02)
    return process


def table(name):
    return (results / f"{name}.txt").read_text()


def left():
    """Files that are no result: of a run that has ended none may be there."""
    return [f.name for f in results.iterdir() if f.name.startswith(".") and f.name not in (".lock", ".finished")]


# Somebody lists, plans, and starts to measure while a run measures: it loses nothing, and the second measurement is refused.
waits = folder / "10_ten.waits"
waits.touch()
first = start("bench/run 10 --batch 5")
for _ in range(3):
    assert run("bench/run --list 00").out
    run("bench/run --plan 00")
second = run("bench/run 00", codes=(2,))
assert "another run measures" in second.err and not (results / "00_zero.txt").exists(), second
waits.unlink()
said = first.communicate(timeout=tries.HANG)[0]
assert first.returncode == 0 and "passed" in said and "--batch 5" in table("10_ten") and not left(), (said, left())
assert stat.S_IMODE((results / "10_ten.txt").stat().st_mode) == 0o666 & ~0o022, "as any other file of this user"
several = [start(f"bench/run --list {name[:2]}") for name in CHAPTERS for _ in range(3)]
assert all(process.wait(tries.HANG) == 0 for process in several), [process.communicate() for process in several]

# Nobody can be shown the table: it is saved all the same, and that is no success.
done = run("bench/run 01 --batch 6 >/dev/full", codes=(1,))
assert "could not be shown" in done.err and "--batch 6" in table("01_one") and not left(), done
done = run("bench/run 01 --batch 7 | true; exit ${PIPESTATUS[0]}", codes=(0, 1))
assert "--batch 7" in table("01_one")
# It cannot be saved: the old one stays, and that is no success either.
(folder / "long").touch()
done = run("ulimit -f 64; bench/run 01 --batch 8", codes=(1,))
assert "could not be saved" in done.err and "--batch 7" in table("01_one") and not left(), done
(folder / "long").unlink()

# A run is interrupted in its last chapter. What happens then to its tables, or beside it, is not taken for its own.
waits.touch()
process = start("exec setsid bench/run --batch 9")
while not (folder / "10_ten.began").exists():
    time.sleep(0.02)
os.killpg(process.pid, 15)
process.communicate(timeout=tries.HANG)
waits.unlink()
assert "--batch 9" in table("01_one") and "--batch 5" in table("10_ten")
run("bench/run 01 --batch 4")  # another run, which ends: the interrupted one is still to be gone on with
assert "had other options" in run("bench/run --batch 4 --resume", codes=(64,)).err
assert "nothing to go on with" in run("bench/run --plan --resume", codes=(64,)).err
done = run("bench/run --batch 9 --resume")
assert done.err.count("finished before") == 1 and all("--batch 9" in table(name) for name in CHAPTERS), done.err
assert "no run was interrupted" in run("bench/run --batch 9 --resume", codes=(64,)).err and not left()

# A chapter has a number and a name, and nothing else.
for words, name in (("1", "01_one"), ("01", "01_one"), ("0", "00_zero"), ("00_zero", "00_zero"), ("10", "10_ten")):
    assert run(f"bench/run --plan {words}").out.startswith(f"table of {name}"), words
for words in ("''", "README.md", "01_", "1_one", "2", "zero", "'*'", "'0?'", "001"):
    done = tries.refused(run(f"bench/run --plan {words}", codes=(64,)), "there is no chapter", "00_zero 01_one 10_ten")
    assert "README" not in done.err.split("there are:")[1], done.err

# Another user's checkout: one line, and nothing of an old log.
if os.getuid() == 0 and shutil.which("setpriv"):
    (root / "build/host.log").write_text("somebody else's log\n")
    (root / "build/host/bin/fit").unlink(missing_ok=True)
    for command in ("bench/run 01", "bench/fit --help", "tests/run"):
        done = tries.attempt(f"exec setpriv --reuid=65534 --regid=65534 --clear-groups {command}", folder=root, environment=own)
        tries.refused(done, "another user's", codes=(2,))
shutil.rmtree(folder)
print("ok")
