#!/usr/bin/env python3
"""Submissions that mean harm, and such as would talk the judge round: hostile_test.py ROOT BUILD [all]

Without "all": every third of those that only have to be refused.

Some are refused before they run, because of what they include or call. The same are then let through to be run: there the limits must end them, and
nothing may be left of them, no process and no file.
"""
import os
import pathlib
import sys
import tempfile

from judging import judge, puzzle
from puzzling.limits import Limits

LIMITS = Limits(cpu_seconds=2, wall_seconds=300, memory=1 << 30)
OUTSIDE = pathlib.Path(tempfile.gettempdir(), f"left-by-a-submission-{os.getpid()}")
HEADERS = "#include <unistd.h>\n#include <fcntl.h>\n#include <sys/socket.h>\n#include <cstdlib>\n#include <fstream>\n"
PARAMETERS = "(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay)"
mended = puzzle("00")
solution = mended.solution()
failures = []


def submission(body="", before=""):
    """The solution, with this at its beginning."""
    part = solution.replace("  fused<<<", body + "\n  fused<<<", 1)
    return HEADERS + mended.filled_in(before + part)


def expect(judge, what, text, kinds):
    verdict = judge.verdict(mended, mended.folder / "puzzle.cu", text)
    print(f"{what}: {verdict['kind']}")
    if verdict["kind"] not in kinds:
        failures.append(f"{what}: {verdict}, expected: {kinds}")


def left_running():
    """Processes with our mark in their environment that are not this one."""
    mark = b"OOMLAB_PUZZLE_CONFINED=1"
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes() and str(OUTSIDE).encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


# What ends them where they are run, and what refuses them before that.
WILD = {
    "a process": ("if (fork() == 0) for (volatile int i = 0;;) i = i + 1;", {"calls"}, {"over_call"}),
    "a program": ('execl("/bin/sh", "sh", "-c", "sleep 1000", nullptr);', {"calls"}, {"over_call"}),
    "a shell": (f'(void)!std::system("touch {OUTSIDE}");', {"calls"}, {"over_call", "passed"}),
    "no end": ("for (volatile int i = 0;;) i = i + 1;", {"over_time"}, {"over_time"}),
    "memory without end": ("static std::vector<std::vector<char>> all; for (;;) all.emplace_back(1 << 24, 'x');", {"over_memory", "threw", "host_bytes"},
                           {"over_memory", "threw", "host_bytes"}),
    "a file": (f'int f = open("{OUTSIDE}", O_CREAT | O_WRONLY, 0644); (void)!write(f, "x", 1);', {"calls"}, {"over_call"}),
    "a file of C++": (f'std::ofstream("{OUTSIDE}") << "x";', {"calls"}, {"over_call"}),
    "a gigabyte printed": ('for (long i = 0; i < (1L << 30) / 64; ++i) std::puts("0123456789012345678901234567890123456789012345678901234567890");',
                           {"over_output"}, {"over_output"}),
    "the network": ("socket(AF_INET, SOCK_STREAM, 0);", {"calls"}, {"over_call"}),
    "a kill": ("kill(-1, 9);", {"calls", "does_not_compile"}, {"over_call", "does_not_compile"}),
    "recursion without end": ("struct R { static int r(volatile int x) { volatile int a[1000]; a[x % 1000] = x; return r(x + 1) + a[0]; } }; w += R::r(0) & 0;",
                              {"crashed"}, {"crashed"}),
}
# What would talk the judge round: refused, or of no use.
CHEATS = {
    "text of a verdict": (mended.filled_in(f'void adamw{PARAMETERS} {{ std::puts("{{\\"kind\\": \\"passed\\", \\"cases\\": []}}"); std::puts("Passed."); }}\n'), {"no_kernel"}),
    "an end before": (mended.filled_in("struct Early { Early() { std::exit(0); } } early;\n" + solution), {"ended"}),
    "an end within": (submission("std::exit(0);"), {"ended_early"}),
    "assembly": (submission('asm volatile("nop");'), {"not_allowed"}),
    "pasted assembly": (mended.filled_in("#define GLUE(a, b) a##b\n" + solution), {"not_allowed"}),
    "an attribute": (mended.filled_in("__attribute__((constructor)) void first() {}\n" + solution), {"not_allowed"}),
    "a continued line": (submission('as\\\nm volatile("nop");'), {"not_allowed"}),
    "the judge's functions": (submission("::oomlab::puzzle::release_as_reader(nullptr);"), {"not_allowed"}),
    "the solution, included": (f'#include "{mended.folder}/answers/solution.cu"\n' + mended.given(), {"does_not_compile", "includes"}),
    "another file, included": (f'#include "{pathlib.Path(__file__).parent}/nothing.h"\n' + submission(), {"includes", "does_not_compile"}),
    "the host runtime's controls": ("#include <oomlab_host.h>\n" + submission(), {"includes"}),
    "the solution, read": (submission(f'std::ifstream in("{mended.folder}/answers/solution.cu"); std::string s; in >> s;'), {"calls"}),
    "the runtime's allocator": (mended.given().replace("CHECK(cudaMalloc(", "CHECK((cudaMalloc)((void**)"), {"behind_the_back"}),
    "an operator new": (mended.filled_in("void* operator new(size_t) { static char all[1000]; return all; }\n" + solution), {"defines"}),
    "a write": (mended.filled_in('extern "C" long write(int, const void*, unsigned long) { return 0; }\n' + solution), {"defines"}),
    "malloc": (submission("w[0] = *static_cast<float*>(std::malloc(4));"), {"calls"}),
    "a static array": (mended.filled_in("float spare[1 << 20];\n" + solution.replace("  fused<<<", "  fused<<<1, 1>>>(spare, g, m, v, 1, 1, 1, 0, 0);\n  fused<<<", 1)), {"static_bytes"}),
    "a string as an array": (submission('std::string spare(1 << 20, 0); if (spare[n % 7]) return;'), {"host_bytes"}),
    "the device's memory, from the host": (submission("w[0] += 1;"), {"touched"}),
    "what is not one's own": (submission("CHECK(cudaFree(v));"), {"not_yours"}),
    "a leak": (mended.given().replace("  CHECK(cudaFree(corrected_v));\n", ""), {"over_budget"}),
    "no CHECK": (mended.given().replace("CHECK(cudaMalloc(", "(void)(cudaMalloc("), {"unread"}),
}

careful = judge("fast", limit=LIMITS)
let_through = judge("fast", limit=LIMITS, screened=False)
expect(careful, "the solution", submission(), {"passed"})
step = 1 if sys.argv[3:] == ["all"] else 3
for what, (text, kinds) in list(CHEATS.items())[::step]:
    expect(careful, what, text, kinds)
for what, (body, refused, ended) in WILD.items():
    if refused != ended and step == 1:
        expect(careful, what, submission(body), refused)
    expect(let_through, what + ", let through", submission(body), ended)
if OUTSIDE.exists():
    failures.append(f"{OUTSIDE} was written")
    OUTSIDE.unlink()
if running := left_running():
    failures.append(f"still running: {running}")
sys.exit("\n".join(failures) or 0)
