#!/usr/bin/env python3
"""No test passes or fails by a time, or by a ratio of times. Reads the sources of all that tests/run and .ci/run run.

  clockless_test.py ROOT

A test that would judge a time has to read a clock, to ask a program for the times that it measured, to sleep and then look, or
to give a limit that a busy machine reaches. None of these stands in a test but for ALLOWED and COMPUTED, each with its reason;
what is allowed and not there any more is a complaint, too. Times are judged by tests/run bench; what a test means by seconds it
says in calls, bytes, steps.
"""
import pathlib
import re
import sys

LEAST_LIMIT = 120  # seconds: what a hang reaches and a busy machine does not


def any_of(*expressions):
    return re.compile("|".join(expressions), re.S)


CLOCKS = any_of(
    "steady_clock", "system_clock", "high_resolution_clock", r"\bClock::now", r"\bstd::clock\b", r"[^_\w.]clock\(\)",
    "CLOCKS_PER_SEC", "clock_gettime", "gettimeofday", "timespec_get", r"\btime\((nullptr|NULL|0)\)", r"\btimes\(&",
    r"\brusage\b", "getrusage", r"\bwait4\b", "ru_[us]time", r"\brdtsc", "omp_get_wtime", "MPI_Wtime",
    "EventElapsedTime", "elapsed_ms", "seconds_now", r"/stat\"",
    r"\btime\.(time|monotonic|perf_counter|process_time|thread_time|clock)", r"\bos\.times", r"\btimeit\b", r"datetime\.now",
    r"\bSECONDS\b", "EPOCHREALTIME", "EPOCHSECONDS", r"\bdate \+", "/usr/bin/time", "TIMEFORMAT", r"(^|[;&|(] *)time -?[a-z./]")
TIMES = "|".join((
    "throughput", "per_second", "seconds", r"_ms\b", "milliseconds", "elapsed", r"\btook\b", "duration", r"\brates?\b",
    r"\bwaited\b(?! for)(?!\[)", r"\bfaster\b", r"\bslower\b", r"\bspeed"))
KINDS = {
    "reads a clock": CLOCKS,
    "asserts a time": any_of(rf"\b(?:EXPECT|ASSERT)_\w+\(.*(?:{TIMES})", rf"\bassert\b.*(?:{TIMES})",
                             rf"\bsys\.exit\(.*(?:{TIMES})", rf"\bif\b.*(?:{TIMES}).*(?:exit|fail|return [1-9])"),
    "sleeps": any_of("sleep_for", "sleep_until", r"\busleep\(", "nanosleep", r"time\.sleep",
                     r"(^|[;&|] *|\bdo |\bthen |COMMAND )sleep [\d.]", r"\bpause\(\)", r"wait_until\(",
                     r"\bwait_for\((?!lambda|condition)"),
    "runs alone": any_of("RUN_SERIAL"),
    "is a benchmark": any_of(r"add_test\([^)]*COMMAND[^)]*(\bbench(_|/benchmarks)|_bench\b)", r"LABELS [^)]*\bbench\b",
                             r"^[^\"]*(tests/run bench|bench/benchmarks)"),
}
LIMITS = any_of(r"\bTIMEOUT\s+\"?(\d+)", r"\btimeout=([\d.]+)", r"\.wait\(([\d.]+)\)", r"\bHANG = ([\d.]+)",
                r"NCCL_TIMEOUT\W{1,5}([\d.]+)", r"\b(?:seconds|minutes)\(([\d.]+)\)", r"\balarm\((\d+)\)",
                r"(?<!t)\btimeout (?:-\S+ )*(\d+)")

# Files in which a time is computed, or made up, and not measured.
COMPUTED = {
    "chapters/16_capstone/tests/ladder_test.cpp": "least times by a card's data sheet",
    "tests/fit/fit_test.cpp": "least times by a card's data sheet",
    "tests/harness/cli_test.cpp": "least times by a card's data sheet",
    "tests/harness/least_time_test.cpp": "least times by a card's data sheet",
    "tests/memory/shared_budget_test.cpp": "patience: the sum of the pauses that were asked for",
    "tests/plan/card_test.cpp": "least times by a card's data sheet",
    "tests/results/compare_test.py": "verdicts on results that are made up",
    "tests/results/tensorboard_test.py": "rates that are made up, written and read back",
}
# What is allowed beside: file, text of the statement, reason.
ALLOWED = [
    (".ci/run", "SECONDS", "says how long it took"),
    ("tests/run", "SECONDS", "says how long it took"),
    ("tests/run", "bench/benchmarks", "its own command, tests/run bench"),
    ("tests/mutants/run", "time.monotonic()", "says how long it took; a test has ten times as long with a defect as without"),
    ("tests/mutants/CMakeLists.txt", "mutants.all", "nightly; it builds and tests by itself with all cores"),
    ("tests/mutants/verdicts_test.py", "sleep 3600", "a test that does not end by itself"),
    ("tests/mutants/verdicts_test.py", "time.sleep(0.05)", "between two looks at a condition"),
    ("tests/allocators/CMakeLists.txt", "bench_allocators --check", "judges bytes, not times"),
    ("tests/forked.h", "usleep(100)", "between two looks at a condition, for minutes"),
    ("tests/chapter/end_to_end_test.cpp", "/stat", "a condition: it has worked for some ticks; the processor's, not the clock's"),
    ("tests/chapter/end_to_end_test.cpp", "usleep(1000)", "between two looks at a condition"),
    ("tests/chapter/process.cpp", "rusage usage", "for the resident memory"),
    ("tests/chapter/process.cpp", "wait4", "for the resident memory"),
    ("tests/hostile/tries.py", "ru_maxrss", "for the resident memory"),
    ("tests/memory/shared_budget_test.cpp", "rusage", "counts how often a thread has given way"),
    ("tests/memory/shared_budget_test.cpp", "usleep(300)", "holds something a while; any while will do"),
    ("tests/contract/host_sharing.cpp", "usleep(random()", "until any moment"),
    ("tests/contract/host_runtime.cpp", "cudaEventElapsedTime", "the contract of the call: when it may be asked, and the sign"),
    ("tests/contract/streams.cu", "cudaEventElapsedTime", "the contract of the call: when it may be asked, and the sign"),
    ("tests/cuda/host_wrappers_test.cpp", "cudaEventElapsedTime", "when it may be asked"),
    ("tests/cuda/host_wrappers_test.cpp", "elapsed_ms", "it waits, so it does not throw"),
    ("tests/harness/host_devices_test.cpp", "pause()", "until it is killed"),
    ("tests/harness/harness_test.cpp", "timing_needs().seconds_a_round > 0", "how many steps were timed"),
    ("tests/harness/harness_test.cpp", '["throughput"]["within_budget"]', "whether a budget was in force"),
    ("tests/harness/harness_test.cpp", 'large.contains("throughput")', "whether it was timed"),
    ("tests/harness/harness_test.cpp", '["samples_per_second"].size()', "how many steps were timed"),
    ("tests/harness/harness_test.cpp", "p.seconds + p.warm_up_seconds, 0", "a pace in steps has no seconds"),
    ("tests/harness/harness_test.cpp", 'rates["', "quantiles of rates that are made up"),
    ("tests/harness/harness_test.cpp", 'throughput["repetitions"]', "of rates that are made up"),
    ("chapters/15_sharing/tests/neighbour_test.cpp", "sleep_for(pause)", "the pause between two looks at a condition"),
    ("chapters/15_sharing/tests/neighbour_test.cpp", "seen.waited_ms > 0", "the sum of the pauses: whether there was one"),
    ("chapters/15_sharing/tests/neighbour_test.cpp", "waited_ms, 0", "the sum of the pauses: that there was none"),
    ("tests/contract/host_sharing.cpp", "usleep(100)", "between two looks at a condition"),
    ("tests/hostile/fit_test.py", "least_seconds", "a least time by data sheets"),
    ("tests/fit/question_test.cpp", "*row.seconds", "a least time by data sheets"),
    ("tests/hostile/signals_test.py", "time.sleep(0.05)", "between two looks at a condition, for minutes"),
    ("tests/hostile/signals_test.py", "time.sleep(wait)", "until any moment"),
    ("tests/hostile/signals_test.py", "time.sleep(0.3)", "until any moment: whoever is stopped by then, Ctrl-C ends the chapter"),
    ("tests/hostile/runs_test.py", "sleep 0.05", "between two looks at a condition"),
    ("tests/hostile/runs_test.py", "time.sleep(0.02)", "between two looks at a condition, for minutes"),
    ("tests/hostile/runs_test.py", "tries.HANG", "gives up after minutes"),
    ("tests/hostile/runs_test.py", "give_up, process", "gives up after minutes"),
    ("tests/hostile/explain_test.py", "steps that grow faster", "counts steps"),
    ("tests/explain/kinds.py", "getrusage", "a row of tests/run bench, and no test"),
    ("tests/explain/kinds.py", "ru_utime", "a row of tests/run bench, and no test"),
    ("tests/processes/mpirun_test.py", "time.sleep(0.05)", "between two looks at a condition, for minutes"),
    ("tests/processes/nccl_rank.cpp", "sleep_for", "between two looks at a condition"),
    ("tests/processes/nccl_rank.cpp", '"0.2"', "patience that must be lost, with a rank that does not come before"),
    ("tests/contract/patience.h", '"0.2"', "patience that must be lost, with a rank that does not come before"),
    ("tests/results/runs_test.py", "sleep 0.02", "at least a tick of the file system's clock, so that a table is newer"),
]


def sources(root):
    """Everything that a test is made of, by its path from the root."""
    patterns = ["tests/**/*", "chapters/*/tests/**/*", "chapters/*/CMakeLists.txt", "cmake/*.cmake", "bench/**/CMakeLists.txt",
                "CMakeLists.txt", "CMakePresets.json", ".ci/run"]
    for file in sorted({f for pattern in patterns for f in root.glob(pattern) if f.is_file()}):
        name = str(file.relative_to(root))
        named = file.name in ("CMakeLists.txt", "CMakePresets.json")
        if not named and file.suffix not in (".cpp", ".cu", ".h", ".py", ".sh", ".cmake", ""):
            continue
        if "__pycache__" not in name and name != "tests/docs/clockless_test.py":
            yield name, file.read_text(encoding="utf-8")


def statements(name, text):
    """(line number, text) of statements, without comments: of C++ up to a semicolon or brace, of CMake a call, else a line."""
    marks = r"//[^\n]*" if name.endswith((".cpp", ".cu", ".h")) else r"(?<![\w$\"'{])#[^\n]*"
    text = re.sub(marks, "", text)
    if name.endswith((".cpp", ".cu", ".h")):
        pieces = re.finditer(r"[^;{}]*[;{}]?", text)
    elif name.endswith((".cmake", "CMakeLists.txt")):
        pieces = re.finditer(r"[^()]*\((?:[^()]|\([^()]*\))*\)|[^\n]*\n?", text)
    else:
        pieces = re.finditer(r"[^\n]*\n?", text)
    for piece in pieces:
        if piece[0].strip():
            blank = len(piece[0]) - len(piece[0].lstrip())
            yield text.count("\n", 0, piece.start() + blank) + 1, " ".join(piece[0].split())


def complaints(name, text):
    """(line number, statement, what is wrong with it)."""
    for number, statement in statements(name, text):
        for what, expression in KINDS.items():
            of_scripts = what == "is a benchmark" and name.endswith((".py", ".cpp", ".cu", ".h"))
            if expression.search(statement) and not of_scripts:
                yield number, statement, what
        for found in LIMITS.finditer(statement):
            value = float(next(filter(None, found.groups())))
            if value * (60 if found[0].startswith("minutes") else 1) < LEAST_LIMIT:
                yield number, statement, f"has a limit of {value:g} s, less than {LEAST_LIMIT}"


NOTICED = [
    ("a.cpp", "const auto start = std::chrono::steady_clock::now();"), ("a.cpp", "changed.wait_for(lock, limit);"),
    ("a.cpp", "EXPECT_LT(double(std::clock() - start) /\n CLOCKS_PER_SEC, 2.0);"),
    ("a.cu", "EXPECT_LT(elapsed_ms(start, stop), 5);"),
    ("a.cpp", "EXPECT_LE(outcome.processor_seconds, 1.0);"), ("a.cpp", "soon(f, std::chrono::seconds(20));"),
    ("a.cpp", "EXPECT_GT(result[\"throughput\"][\"median\"],\n other);"),
    ("a.cpp", 'setenv("OOMLAB_HOST_NCCL_TIMEOUT", "3", 1);'),
    ("a.cpp", "std::this_thread::sleep_for(std::chrono::milliseconds(50));"), ("a.py", "if time.monotonic() > end:"),
    ("a.py", "assert took < 10"), ("a.py", "start = time.process_time()"), ("a.py", "done = run(command, timeout=100)"),
    ("a.py", "time.sleep(3)"), ("a.py", "usage = resource.getrusage(resource.RUSAGE_CHILDREN)"), ("a.py", "job.wait(30)"),
    ("a.sh", "[ $SECONDS -lt 10 ]"), ("a.sh", "sleep 5"), ("a.sh", "/usr/bin/time -f %e program"), ("a.sh", "timeout 60 program"),
    ("a.sh", "tests/run bench"), ("a.cmake", "set_tests_properties(a PROPERTIES TIMEOUT 60)"),
    ("a.cmake", "set_tests_properties(a PROPERTIES RUN_SERIAL TRUE)"),
    ("a.cmake", "set_tests_properties(a PROPERTIES LABELS bench)"),
    ("a.cmake", "add_test(NAME a COMMAND bench_kernels\n --check 0.8)"),
    ("a.cmake", "add_test(NAME a COMMAND 13_optimizer_memory_bench)"),
]
NOT_NOTICED = [
    ("a.cpp", "// steady_clock::now()\nEXPECT_EQ(calls, 4u);"), ("a.cpp", "EXPECT_TRUE(comes_true([&] { return done; }));"),
    ("a.cmake", "set_tests_properties(a PROPERTIES TIMEOUT 600)"), ("a.py", "run(command, timeout=900)"),
    ("a.py", "wait_for(lambda: True, say)"), ("a.sh", "make -j2  # sleep 5"),
]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    wrong = [f"not noticed in {name}: {text}" for name, text in NOTICED if not list(complaints(name, text))]
    wrong += [f"noticed in {name}: {text}" for name, text in NOT_NOTICED if list(complaints(name, text))]
    used, files = set(), 0
    for name, text in sources(root):
        files += 1
        for number, statement, what in complaints(name, text):
            allowed = [entry for entry in ALLOWED if entry[0] == name and entry[1] in statement]
            used.update(allowed)
            if what == "asserts a time" and name in COMPUTED:
                used.add(name)
            elif not allowed:
                wrong.append(f"{name}:{number}: {what}: {statement[:150]}")
    wrong += [f"{entry[0]}: allowed, and not there: {entry[1]}" for entry in ALLOWED if entry not in used]
    wrong += [f"{name}: allowed, and no time is there" for name in COMPUTED if name not in used]
    print(*wrong, sep="\n")
    print(f"{files} files, {len(wrong)} complaints")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
