#!/usr/bin/env python3
"""Runs the course's programs from a kit (made by bench/run --kit DIR). Needs an NVIDIA driver, cuBLAS and Python; no network,
no compiler, no packages.

  ./run                     every chapter; results in results/<device>/, for bench/compare and bench/report
  ./run 01 06 --quick       some of them, with options of theirs
  ./run --resume            go on with a run that was interrupted
  ./run --list [01 ...]     what there is: variants and claims; needs no GPU
  ./run --plan [01 ...]     bytes only; needs no GPU
  ./run --tests             the tests on this GPU: calls, kernels, operators, the lessons, bytes to the byte
  ./run --first             a first run on a new GPU: the tests and the chapters, what others build on first, up to the
                            first layer that differs; one file to attach to an issue, results/first-<device>.txt
  ./run --peers             PyTorch doing the same work, where PyTorch is installed
  bench/explain FILE        what an out-of-memory message in a log says; also bench/compare and bench/report; need no GPU

Exit code: 0; 1 something failed; 2 no CUDA device, or no cuBLAS; 64 bad usage; 130 interrupted.
"""
import ctypes
import fcntl
import glob
import hashlib
import json
import os
import pathlib
import subprocess
import sys

KIT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(KIT / "bench"))
from shared.results_files import save  # noqa: E402

CHAPTERS = sorted(p.name for p in (KIT / "bin/plan").iterdir() if p.name[:2].isdigit())
KNOWN_CUBLAS = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/cuda/targets/*/lib", "/usr/lib/x86_64-linux-gnu",
                *(f"{path}/nvidia/*/lib" for path in sys.path if path.endswith("-packages"))]


def die(code, text):
    print(f"run: {text}", file=sys.stderr)
    sys.exit(code)


def environment():
    paths = [str(KIT / "lib"), *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))]
    paths += [folder for pattern in KNOWN_CUBLAS for folder in sorted(glob.glob(pattern))]
    # What programs look for where they were built is in the kit.
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(paths), "OOMLAB_PYTHON": sys.executable,
            "OOMLAB_CHECKERS": str(KIT / "tests/memory"), "OOMLAB_CHAPTERS": str(KIT / "chapters"),
            "OOMLAB_TRACES": str(KIT / "bench/traces")}


def has(library, paths=()):
    for name in [library, *(f"{path}/{library}" for path in paths)]:
        try:
            ctypes.CDLL(name)
            return True
        except OSError:
            pass
    return False


def require_device():
    """The device as JSON, or an end with exit code 2 and one line that says why."""
    if not has("libcuda.so.1"):
        die(2, "no CUDA device: there is no NVIDIA driver here (libcuda.so.1). --list and --plan need none")
    cublas = (KIT / "lib/needed").read_text().split()
    env = environment()
    for library in cublas:
        if not has(library, env["LD_LIBRARY_PATH"].split(":")):
            die(2, f"{library} is not here: it belongs to the CUDA toolkit, or to a PyTorch of the same CUDA version "
                   "(LD_LIBRARY_PATH may name its folder)")
    done = subprocess.run([KIT / "bin/oomlab_system"], capture_output=True, text=True, env=env)
    if done.returncode != 0:
        die(2, done.stderr.strip() or "no CUDA device")
    return json.loads(done.stdout)


def chosen(words):
    chapters, options = [], []
    for i, word in enumerate(words):
        # A number after an option is the option's value.
        value = i > 0 and words[i - 1].startswith("--") and "=" not in words[i - 1] and words[i - 1] not in ("--quick", "--quiet", "--plan", "--list", "--resume")
        found = [c for c in CHAPTERS if not value and (word == c or word.isdigit() and word.zfill(2) == c[:2])]
        if found:
            chapters += found
        elif not value and not word.startswith("-"):
            die(64, f"there is no chapter '{word}'; there are: {' '.join(CHAPTERS)}")
        else:
            options.append(word)
    return chapters or CHAPTERS, options


def has_program(chapter):
    """Chapters for several GPUs are built where NCCL is. Their plans need none."""
    return (KIT / "bin" / chapter).exists()


def show(chapters, options):
    """--list and --plan: the programs with the host runtime below them."""
    codes = []
    for chapter in chapters:
        print(f"== {chapter}", flush=True)
        codes.append(subprocess.run([KIT / "bin/plan" / chapter, *options], env=environment()).returncode)
    return next((c for c in codes if c), 0)


def show_bytes(data):
    """To standard output, of which nothing is kept back: what a full disk refuses is not tried again at the end."""
    while data:
        data = data[os.write(1, data):]


def measure(chapters, options):
    resume = "--resume" in options
    options = [o for o in options if o != "--resume"]
    device = require_device()
    results = KIT / "results" / device["slug"]
    results.mkdir(parents=True, exist_ok=True)
    # Two runs at once would take each other's time, and their tables would be a mixture.
    lock = open(results / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        die(2, f"another run measures into {results}; wait until it ends")
    finished = results / ".finished"
    finished.mkdir(exist_ok=True)
    save(results / "system.json", (json.dumps(device, indent=2) + "\n").encode())
    # A run that has not ended has a mark, and a chapter that it has finished says which workload its table is of.
    workload = json.dumps(options)
    started = results / f".started.{hashlib.sha256(json.dumps([options, chapters]).encode()).hexdigest()[:16]}"
    state = lambda table: (workload + hashlib.sha256(table.read_bytes()).hexdigest()).encode()
    if resume and not started.exists():
        die(64, f"--resume: no run with these options and chapters was interrupted ({results})")
    if not resume:
        for chapter in chapters:
            (finished / chapter).unlink(missing_ok=True)
        save(started, b"")
    worst = 0
    for number, chapter in enumerate(chapters, 1):
        table = results / f"{chapter}.txt"
        if resume and table.exists() and (finished / chapter).exists() and (finished / chapter).read_bytes() == state(table):
            print(f"[{number}/{len(chapters)}] {chapter}: finished before", file=sys.stderr)
            continue
        print(f"[{number}/{len(chapters)}] {chapter}", file=sys.stderr)
        if not has_program(chapter):
            print(f"{chapter}: not in this kit, which was packed where NCCL was not; --list and --plan have it", file=sys.stderr)
            continue
        done = subprocess.run([KIT / "bin" / chapter, *options, "--json", results / f"{chapter}.json"], env=environment(),
                              stdout=subprocess.PIPE)
        code = done.returncode
        if code in (0, 1):
            save(table, done.stdout)
            save(finished / chapter, state(table))
        try:
            show_bytes(done.stdout)
        except OSError as error:
            worst = 1
            print(f"{chapter}: its table could not be shown: {error.strerror}; it is in {table}", file=sys.stderr)
        if code in (64, 130):
            return code
        worst = max(worst, 1 if code < 0 else code if code != 2 else 0)  # below 0: ended by a signal
    started.unlink()
    print(f"results: {results}", file=sys.stderr)
    return worst


def passes(what, command, log, more=None, skips=()):
    """Runs one test, its output to a log; says how it went."""
    with open(log, "w") as file:
        code = subprocess.run(command, env={**environment(), **(more or {})}, stdout=file, stderr=subprocess.STDOUT).returncode
    said = "passed" if code == 0 else "skipped, it cannot run on this machine" if code in skips else f"FAILED, see {log}"
    print(f"{what}: {said}", flush=True)
    return code == 0 or code in skips


def programs(pattern):
    return sorted((KIT / "bin").glob(pattern))


def bytes_of(chapter):
    """The command and environment that compare a chapter's predicted with its measured bytes, by its tests/bytes.txt."""
    return ([KIT / "bin" / "chapter_checks", "--gtest_filter=Bytes*"],
            {"OOMLAB_UNDER_TEST": f"{KIT / 'bin' / chapter}|{KIT / 'chapters' / chapter}|{KIT}|fast"})


def layers():
    """What a first run tries, each layer built on those before: its name, what it would show, and (name, command,
    environment) of its programs."""
    of = lambda pattern: [(p.name, [p], {}) for p in programs(pattern)]
    below = ["contract_test", "cuda_test"]
    return [
        ("contract", "the driver's and the libraries' calls behave as the course takes for granted", of("contract_test")),
        ("wrappers", "errors, owners of objects, launches", of("cuda_test")),
        ("parts", "memory resources, operators, data, the harness", [p for p in of("*_test") if p[0] not in below]),
        ("bytes", "predicted = measured", [(f"{c}, bytes", *bytes_of(c)) for c in CHAPTERS if has_program(c)]),
        ("lessons", "the plain CUDA of every chapter", of("*_lesson")),
        ("chapters", "the experiments, in their quick form", [(c, [KIT / "bin" / c, "--quick"], {}) for c in CHAPTERS if has_program(c)]),
        ("benches", "kernels and allocators against their floors", of("bench_*")),
    ]


def test():
    """Every layer but what only measures, to its end."""
    require_device()
    good, logs = [], KIT / "results/tests"
    logs.mkdir(parents=True, exist_ok=True)
    for name, _, tests in layers():
        for what, command, more in tests if name not in ("chapters", "benches") else []:
            good.append(passes(what, command, logs / f"{what.replace(', ', '.')}.log", more, skips=[2] if name == "lessons" else []))
    return 0 if all(good) else 1


def first():
    """All layers, or up to the first one that differs: what is built on it cannot be judged. One file says everything."""
    device = require_device()
    report = [f"a first run on {device['device']}", json.dumps(device, indent=2)]
    differs = None
    for name, shows, tests in layers():
        if not tests:
            continue
        print(f"== {name}: {shows}", flush=True)
        for what, command, more in tests:
            done = subprocess.run(command, env={**environment(), **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", cwd=KIT)
            cannot = done.returncode == 2 and name in ("lessons", "chapters")
            said = "passed" if done.returncode == 0 else "skipped, it cannot run on this machine" if cannot else "DIFFERS"
            report += ["", f"== {name}: {what}: {said}, exit code {done.returncode}"]
            lines = done.stdout.splitlines()
            report += lines if name in ("chapters", "benches") else lines[-60:] if said == "DIFFERS" else []
            print(f"{what}: {said}", flush=True)
            if said == "DIFFERS":
                differs = name
        if differs:
            break
    said = (f"the first layer that differs is '{differs}'; what is built on it was not tried" if differs else
            "nothing differs from what the course says")
    report.insert(1, said)
    file = KIT / "results" / f"first-{device['slug']}.txt"
    save(file, ("\n".join(report) + "\n").encode())
    print(f"{said}. All of it, to attach to an issue: {file}")
    return 1 if differs else 0


def main():
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        print(__doc__)
        return 0
    if "--tests" in words:
        return test()
    if "--first" in words:
        return first() if words == ["--first"] else die(64, "--first goes alone")
    if "--peers" in words:
        require_device()
        like = next((p.parent for p in (KIT / "results").glob("*/01_*.json")), None)
        if not like:
            die(64, "--peers repeats what a run did: run ./run first")
        return subprocess.run([sys.executable, KIT / "bench/peers/pytorch_peer.py", "--like", like, "--out",
                               KIT / "results" / f"pytorch-{like.name}", *(w for w in words if w != "--peers")]).returncode
    chapters, options = chosen(words)
    if "--list" in options or "--plan" in options:
        return show(chapters, options)
    return measure(chapters, options)


try:
    sys.exit(main())
except KeyboardInterrupt:
    sys.exit(130)
except OSError as error:
    die(1, f"{error.filename or 'output'}: {error.strerror}")
