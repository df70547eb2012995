"""bench/run and a kit's ./run, which run the chapters one after the other: with programs that are shell scripts."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
# Notes that it ran, prints a table, writes its JSON, and ends as the file beside it says. Like a real one it takes longer
# than a tick of the file system's clock: which table is newer than the run's beginning is told by that clock.
PROGRAM = """#!/bin/sh
echo "$(basename "$0") $*" >>"{log}"
sleep 0.02
echo "table of $*"
while [ $# -gt 1 ]; do [ "$1" != --json ] || echo '{{"passed": true}}' >"$2"; shift; done
code=$(cat "$0.ends" 2>/dev/null || echo 0)
[ "$code" -ge 0 ] || kill "$code" $$
exit "$code"
"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Place:
    """A folder with a way to start a run, two chapters, and where their results are."""

    def __init__(self, folder, command, programs, results, environment):
        self.folder, self.command, self.programs, self.results = folder, command, programs, results
        self.environment = os.environ | environment
        self.log = folder / "log"
        for name in ("01_one", "02_two"):
            script(programs / name, PROGRAM.format(log=self.log))

    def ends(self, **codes):
        for name in ("01_one", "02_two"):
            (self.programs / f"{name}.ends").write_text(str(codes.get(name[3:], 0)))

    def run(self, *arguments):
        """Exit code, and which chapters ran."""
        self.log.write_text("")
        done = subprocess.run([*self.command, *arguments], cwd=self.folder, env=self.environment, capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        self.said = done.stdout + done.stderr
        assert not list(self.results.glob("*.tmp")) if self.results.is_dir() else True, list(self.results.iterdir())
        return done.returncode, [line.split()[0][3:] for line in self.log.read_text().splitlines()]

    def table(self, name):
        path = self.results / f"{name}.txt"
        return path.read_text() if path.exists() else None


def both(place):
    place.ends()
    assert place.run("--batch", "7") == (0, ["one", "two"]), place.said
    assert "--batch 7" in place.table("01_one") and json.loads((place.results / "01_one.json").read_text())
    assert (place.results / "system.json").exists() and not (place.results / ".started").exists()
    assert place.run("02", "--batch", "8") == (0, ["two"])  # the 8 is the option's
    assert "--batch 7" in place.table("01_one") and "--batch 8" in place.table("02_two")
    assert place.run("03")[0] == 64 and "03" in place.said

    # A check that failed: the table is there to be read, the rest runs, and the exit code tells.
    place.ends(one=1)
    assert place.run("--batch", "9") == (1, ["one", "two"]) and "--batch 9" in place.table("01_one")
    # What cannot run here is no failure, and its table from before stays.
    place.ends(one=2)
    assert place.run("--batch", "10") == (0, ["one", "two"]), place.said
    assert "--batch 9" in place.table("01_one") and "--batch 10" in place.table("02_two")

    # Interrupted in the second chapter: nothing of it is kept, and --resume begins with it.
    place.ends(two=130)
    assert place.run("--batch", "11") == (130, ["one", "two"])
    assert "--batch 11" in place.table("01_one") and "--batch 10" in place.table("02_two")
    place.ends()
    assert place.run("--batch", "12", "--resume")[0] == 64, "an interrupted run with other options"
    assert place.run("--batch", "11", "--resume") == (0, ["two"]), place.said
    assert "--batch 11" in place.table("02_two")
    assert place.run("--batch", "11", "--resume")[0] == 64, "nothing was interrupted"


folder = pathlib.Path(tempfile.mkdtemp())
system = '#!/bin/sh\n[ "$1" = --slug ] && echo gpu-x || echo \'{"slug": "gpu-x", "device": "GPU X"}\'\n'

# bench/run, with a cmake that has nothing to build.
root, tools = folder / "repository", folder / "tools"
for name in ("run", "setup.sh"):
    (root / "bench").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "bench" / name, root / "bench" / name)
for name in ("01_one", "02_two"):
    (root / "chapters" / name).mkdir(parents=True)
    (root / "chapters" / name / "main.cu").touch()
script(tools / "cmake", "#!/bin/sh\n")
script(tools / "dpkg-query", "#!/bin/sh\necho installed\n")
script(root / "build/host/bin/oomlab_system", system)
bench = Place(root, ["bench/run"], root / "build/host/bin", root / "build/host/results/gpu-x",
              {"PATH": f"{tools}:{os.environ['PATH']}", "OOMLAB_PRESET": "host"})
both(bench)
old = bench.table("01_one")
assert bench.run("--first", "01")[0] == 64 and "alone" in bench.said
assert bench.run("--plan") == (0, ["one", "two"]) and bench.table("01_one") == old, "a plan replaces no measurement"

# A chapter for several GPUs, where NCCL is not, is not built: that is no reason to build none.
cache, listed = root / "build/host/CMakeCache.txt", root / "chapters/02_two/CMakeLists.txt"
listed.write_text("oomlab_chapter(NCCL DEVICES 8)\n")
cache.write_text("OOMLAB_NCCL:FILEPATH=OOMLAB_NCCL-NOTFOUND\n")
script(tools / "cmake", '#!/bin/sh\ncase "$*" in *02_two*) exit 1 ;; esac\n')
assert bench.run("--batch", "14") == (0, ["one"]) and "NCCL is not here" in bench.said, bench.said
cache.write_text("OOMLAB_NCCL:FILEPATH=/usr/lib/libnccl.so\n")
assert bench.run("--batch", "14") == (1, []), "a build that fails"
script(tools / "cmake", "#!/bin/sh\n")
assert bench.run("--batch", "14") == (0, ["one", "two"]), bench.said

# --tensorboard: the chapters keep a series, and what they wrote is handed on. (The package is an empty file here.)
(root / "build/tensorboard").mkdir()
(root / "build/tensorboard/tensorboardX.py").touch()
script(root / "bench/tensorboard", f'#!/bin/sh\necho "x tensorboard $*" >>"{bench.log}"\n')
assert bench.run("--tensorboard", "to here", "01")[0] == 0, bench.said
lines = bench.log.read_text()
assert "--memory-steps 20 --series --json" in lines and "tensorboard build/host/results/gpu-x/01_one.json to here" in lines, lines
bench.run("01", "--memory-steps", "7", "--tensorboard=there")
assert "--memory-steps 7 --series --json" in bench.log.read_text() and "json there" in bench.log.read_text()

# What bench/fit recommends is pasted as it is printed.
printed = [line.strip() for file in sorted((ROOT / "bench/results/plan").glob("fit_*.txt")) for line in file.read_text().splitlines()
           if line.startswith("  bench/run ")]
assert len(printed) >= 5, printed
script(root / "build/host/bin/01_one", "#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
for line in [*printed, "bench/run 12_quantisation --plan --config '/a b/c.json' --batch 1 --filter '^nf4, double$'"]:
    chapter, given = line.split(maxsplit=2)[1:]
    assert list(ROOT.glob(f"chapters/{chapter}/main.cu")), line
    done = subprocess.run(["bash", "-c", line.replace(chapter, "01_one")], cwd=root, env=bench.environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines() == shlex.split(given), (line, done)

# Packing a kit, of programs that are copies of one.
for name in ("common/data/text", "tests/memory", *(f"bench/{folder}" for folder in ("explaining", "peers", "reporting", "running", "shared", "traces"))):
    shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("*.cpp", "*.h", "__pycache__"))
for name in ("LICENSE", "README.md", "CONTRIBUTING.md", "bench/compare", "bench/report", "bench/explain"):
    shutil.copy(ROOT / name, root / name)
for name in ("01_one", "02_two"):
    (root / "chapters" / name / "README.md").touch()
    (root / "chapters" / name / "tests").mkdir()
    (root / "chapters" / name / "tests/bytes.txt").touch()
for name in ("01_one", "02_two", "plan/01_one", "plan/02_two", "memory_test", "parity_test", "bench_allocators"):
    (root / "build/cuda/bin" / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(shutil.which("true"), root / "build/cuda/bin" / name)
script(tools / "nvcc", "#!/bin/sh\n")
assert bench.run("--kit", folder / "packed")[0] == 0, bench.said
packed = {str(path.relative_to(folder / "packed")) for path in (folder / "packed").rglob("*")}
assert {"run", "kit.py", "bin/01_one", "bin/plan/02_two", "bin/memory_test", "chapters/01_one/tests/bytes.txt"} <= packed
assert {"tests/memory/check_snapshot.py", "tests/memory/check_trace.py"} <= packed, "what memory_test calls"
assert {"bin/bench_allocators", "bench/traces/bert_large.csv"} <= packed
assert subprocess.run([folder / "packed/bench/report", ROOT / "bench/results/host", "-o", folder / "page.html"], capture_output=True).returncode == 0
message = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 7.50 GiB already allocated; 100.00 MiB free; 7.60 GiB reserved in total by PyTorch)"
explained = subprocess.run([folder / "packed/bench/explain", message], cwd="/", capture_output=True, text=True)
assert explained.returncode == 0 and "live tensors fill the card" in explained.stdout and "chapters/01_one" in explained.stdout, explained
assert "bin/parity_test" not in packed
assert bench.run("--kit", folder / "packed")[0] == 64, "not empty"

# tests/run compute-sanitizer, with a tool that runs what it is given and finds what a file says.
for name in ("run", "compute_sanitizer"):
    shutil.copy(ROOT / "tests" / name, root / "tests" / name)
(root / "chapters/01_one/lesson.cu").touch()
script(tools / "nvidia-smi", "#!/bin/sh\nexit 9\n")


def sanitizer(*words, command=("tests/compute_sanitizer",)):
    done = subprocess.run([*command, *words], cwd=root, env=bench.environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


for command in (("tests/run", "compute-sanitizer"), ("tests/compute_sanitizer",)):
    code, said = sanitizer(command=command)
    assert code == 2 and "needs a GPU" in said and said.count("\n") == 1, said
assert sanitizer("nosuch")[0] == 64 and "memcheck" in sanitizer("nosuch")[1]
script(tools / "nvidia-smi", "#!/bin/sh\necho GPU 0: X\n")
script(tools / "compute-sanitizer", """#!/bin/sh
for program; do :; done
echo "$2 ${program##*/}" >>"$(dirname "$0")/ran"
[ "$(cat "$(dirname "$0")/finds")" != "$2 ${program##*/}" ] || exit 99
exec "$program"
""")
(tools / "finds").write_text("nothing")
for name in ("contract_test", "cuda_test", "allocator_test", "data_test", "nn_test", "01_one_lesson"):
    script(root / "build/cuda/bin" / name, "#!/bin/sh\n")
script(root / "build/cuda/bin/01_one_lesson", "#!/bin/sh\nexit 2\n")
code, said = sanitizer()
assert code == 0 and said.count("nothing found") == 18 and said.count("skipped") == 3, said
assert len((tools / "ran").read_text().splitlines()) == 21
(tools / "finds").write_text("racecheck nn_test")
assert sanitizer("memcheck")[0] == 0
code, said = sanitizer("memcheck", "racecheck")
assert code == 1 and "racecheck nn_test: FOUND SOMETHING" in said and said.count("nothing found") == 11, said
script(root / "build/cuda/bin/cuda_test", "#!/bin/sh\nexit 2\n")
assert sanitizer("synccheck")[0] == 1, "only lessons may be skipped"

# A kit, on a machine whose driver is another library under its name.
kit, driver = folder / "kit", folder / "driver"
kit.mkdir()
driver.mkdir()
shutil.copy(ROOT / "bench/running/kit.sh", kit / "run")
shutil.copy(ROOT / "bench/running/kit.py", kit)
shutil.copytree(ROOT / "bench/shared", kit / "bench/shared", ignore=shutil.ignore_patterns("__pycache__"))
libc = next(line.split()[-1] for line in open("/proc/self/maps") if "/libc.so" in line or "/libc-" in line)
script(kit / "bin/oomlab_system", system)
for name in ("01_one", "02_two"):
    script(kit / "bin/plan" / name, PROGRAM.format(log=kit / "log"))
(kit / "lib").mkdir()
(kit / "lib/needed").write_text("libcublas.so.99\n")
bare = folder / "no python"
bare.mkdir()
for tool in ("dirname", "readlink"):
    (bare / tool).symlink_to(shutil.which(tool))
lacking = subprocess.run(["/bin/sh", kit / "run", "--first"], env={"PATH": str(bare)}, capture_output=True, text=True)
assert lacking.returncode == 2 and lacking.stderr == "run: python3 is missing; it is what runs this kit's programs\n", lacking
place = Place(kit, ["./run"], kit / "bin", kit / "results/gpu-x", {"LD_LIBRARY_PATH": str(driver)})
assert place.run("--list") == (0, ["one", "two"]) and place.run("01", "--plan") == (0, ["one"])
if place.run()[0] == 2:  # else there is a real driver here
    assert "no NVIDIA driver" in place.said
    (driver / "libcuda.so.1").symlink_to(libc)
    assert place.run() == (2, []) and "libcublas.so.99" in place.said
(kit / "lib/needed").write_text("libc.so.6\n")
both(place)
place.ends(one=-9)
assert place.run("--batch", "13") == (1, ["one", "two"]) and "--batch 11" in place.table("01_one"), "killed is not passed"

# Packed where NCCL was not.
(kit / "bin/02_two").rename(kit / "bin/02_two.away")
place.ends()
assert place.run("--batch", "14") == (0, ["one"]) and "NCCL" in place.said, place.said
assert place.run("--plan", "02") == (0, ["two"]), place.said
(kit / "bin/02_two.away").rename(kit / "bin/02_two")

# The tests of a kit find what they call in it.
script(kit / "bin/good_test", '#!/bin/sh\n[ "$OOMLAB_CHECKERS $OOMLAB_CHAPTERS" = "$PWD/tests/memory $PWD/chapters" ] && "$OOMLAB_PYTHON" -c ""\n')
script(kit / "bin/chapter_checks", '#!/bin/sh\ncase "$OOMLAB_UNDER_TEST" in *02_two*) exit "$(cat "$0.ends")" ;; esac\n')
(kit / "bin/chapter_checks.ends").write_text("0")
assert place.run("--tests")[0] == 0 and place.said.count("passed") == 3, place.said
(kit / "bin/chapter_checks.ends").write_text("1")
assert place.run("--tests")[0] == 1 and "02_two, bytes: FAILED" in place.said
(kit / "bin/chapter_checks.ends").write_text("0")
script(kit / "bin/bad_test", "#!/bin/sh\nexit 1\n")
assert place.run("--tests")[0] == 1 and "bad_test: FAILED" in place.said
script(kit / "bin/bad_test", "#!/bin/sh\n")
script(kit / "bin/01_one_lesson", "#!/bin/sh\nexit 2\n")
assert place.run("--tests")[0] == 0 and "01_one_lesson: skipped" in place.said, "fewer devices than the lesson needs"
script(kit / "bin/01_one_lesson", "#!/bin/sh\nexit 1\n")
assert place.run("--tests")[0] == 1 and "01_one_lesson: FAILED" in place.said
script(kit / "bin/01_one_lesson", "#!/bin/sh\n")

# A first run on a new GPU: layer by layer, up to the first one that differs.
file = kit / "results/first-gpu-x.txt"
for name in ("contract_test", "cuda_test", "bench_kernels"):
    script(kit / "bin" / name, f"#!/bin/sh\necho says {name}\n")
assert place.run("--first", "--quick")[0] == 64 and not file.exists()
place.ends(one=0)
code, ran = place.run("--first")
text = file.read_text()
assert code == 0 and ran == ["one", "two"] and "nothing differs" in place.said and "nothing differs" in text, place.said
assert [place.said.index(f"== {layer}:") for layer in ("contract", "wrappers", "parts", "bytes", "lessons", "chapters", "benches")] == \
    sorted(place.said.index(f"== {layer}:") for layer in ("contract", "wrappers", "parts", "bytes", "lessons", "chapters", "benches"))
assert "says bench_kernels" in text and "says contract_test" not in text, "what passed is a line; measurements are whole"
script(kit / "bin/01_one_lesson", "#!/bin/sh\nexit 2\n")
assert place.run("--first")[0] == 0 and "01_one_lesson: skipped" in place.said
script(kit / "bin/cuda_test", "#!/bin/sh\necho how it differs\nexit 1\n")
code, ran = place.run("--first")
assert code == 1 and ran == [] and "the first layer that differs is 'wrappers'" in place.said and "parts" not in place.said
assert "how it differs" in file.read_text() and "== parts" not in file.read_text()
shutil.rmtree(folder)
print("ok")
