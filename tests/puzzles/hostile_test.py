#!/usr/bin/env python3
"""Submissions that mean harm, and such as would talk the judge round: hostile_test.py ROOT BUILD [all]

Without "all": of those that are refused only once they are compiled, one for each rule that no answer of a puzzle is for; none that keep the compiler busy.

Some are refused before they run, because of what they include or call. The same are then let through to be run: there the limits must end them, and
nothing may be left of them, no process and no file.
"""
import pathlib
import resource
import shutil
import sys
import tempfile

from judging import judge, puzzle
from puzzling import build, limits

ROOM = pathlib.Path(tempfile.mkdtemp(prefix="hostile-"))  # all that is made lies here, and is in the environment of what runs
tempfile.tempdir = str(ROOM)
LIMITS = limits.Limits(cpu_seconds=2, wall_seconds=300, memory=1 << 30)
OUTSIDE = ROOM / "left-by-a-submission"
HEADERS = "#include <unistd.h>\n#include <fcntl.h>\n#include <sys/socket.h>\n#include <cstdlib>\n"
LARGE_HEADERS = {"std::thread": "#include <thread>\n", "fstream": "#include <fstream>\n"}  # a third of the time that a submission takes to compile
KERNEL = "for (int i = blockIdx.x"  # where the solution's kernel begins
PARAMETERS = "(float* w, const float* g, float* m, float* v, int n, int t, float rate, float decay)"
mended = puzzle("00")
solution = mended.solution()
failures = []


def submission(body="", before=""):
    """The solution, with this at its beginning."""
    part = solution.replace("  fused<<<", body + "\n  fused<<<", 1)
    return HEADERS + "".join(header for name, header in LARGE_HEADERS.items() if name in body) + mended.filled_in(before + part)


def expect(judge, what, text, kinds):
    verdict = judge.verdict(mended, mended.folder / "puzzle.cu", text)
    print(f"{what}: {verdict['kind']}")
    if verdict["kind"] not in kinds:
        failures.append(f"{what}: {verdict}, expected: {kinds}")


def left_running():
    """Processes that were started in ROOM."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(ROOM).encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def press_control_c(seconds):
    raise KeyboardInterrupt


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
    "threads without end": ("for (;;) new std::thread([] { for (volatile int i = 0;;) i = i + 1; });", {"calls"}, {"over_time", "threw", "ended", "over_memory"}),
    "recursion without end": ("struct R { static int r(volatile int x) { volatile int a[4]; a[x % 4] = x; return r(x + 1) + a[0]; } }; w += R::r(0) & 0;",
                              {"crashed"}, {"crashed"}),
}
# What would talk the judge round: refused, or of no use.
CHEATS = {
    "text of a verdict": (mended.filled_in(f'void adamw{PARAMETERS} {{ std::puts("{{\\"kind\\": \\"passed\\", \\"cases\\": []}}"); std::puts("Passed."); }}\n'), {"no_kernel"}),
    "an end before": (mended.filled_in("struct Early { Early() { std::exit(0); } } early;\n" + solution), {"ended"}),
    "an end within": (submission("std::exit(0);"), {"ended_early"}),
    "assembly": (submission('asm volatile("nop");'), {"not_allowed"}),
    "pasted assembly": (mended.filled_in("#define GLUE(a, b) a##b\n" + solution), {"not_allowed"}),
    "a line continued behind blanks": (submission('as\\ \nm volatile("nop");'), {"not_allowed"}),
    "a short attribute": (submission('static __attribute((section(".text.mine"))) const char code[] = "x"; if (code[n % 2]) return;'), {"not_allowed"}),
    "an attribute of GCC's": (submission('[[using gnu: section(".text.mine")]] static const char code[] = "x"; if (code[n % 2]) return;'), {"not_allowed"}),
    "an attribute in digraphs": (submission('<:<:__gnu__::section(".text.mine"):>:> static const char code[] = "x"; if (code[n % 2]) return;'), {"not_allowed"}),
    "a name renamed": (submission(before='#pragma redefine_extname done _exit\nextern "C" void done(int);\n'), {"not_allowed"}),
    "the judge's pipe as stdout": (submission('stdout->_fileno = 3; std::puts("{\\"kind\\": \\"passed\\", \\"calls\\": 0, \\"cases\\": []}");'), {"not_allowed"}),
    "a device, included": ('#include "/dev/zero"\n' + submission(), {"not_allowed"}),
    "a name, included": ('#define FILE_NAME "/dev/zero"\n#include FILE_NAME\n' + submission(), {"not_allowed"}),
    "a file of the system's": ("#include <../../etc/passwd>\n" + submission(), {"not_allowed"}),
    "a file without end": (submission("/* " + "x" * (300 << 10) + " */"), {"not_allowed"}),
    "behind the end": (submission("CHECK(cudaMemset(w + n, 0, 4));"), {"overrun"}),
    "far behind the end": (submission("CHECK(cudaMemset(w + n + 4096, 0, 4));"), {"crashed"}),
    "an exception as an array": (submission("struct Big { char bytes[1 << 20]; }; try { throw Big(); } catch (const Big& big) { if (big.bytes[n % 7]) return; }"), {"host_bytes"}),
    "exceptions of the library's own": (mended.filled_in('extern "C" void* __cxa_allocate_dependent_exception();\n' + solution.replace(
        "  fused<<<", "  if (!__cxa_allocate_dependent_exception()) return;\n  fused<<<", 1)), {"calls"}),
    "recursion as an array": (submission("struct R { static int keep(int left) { volatile char mine[60]; mine[left % 60] = 1; return left ? keep(left - 1) + mine[0] : 0; } }; "
                                         "if (R::keep(20000) < 0) return;"), {"crashed"}),
    "an attribute": (mended.filled_in("__attribute__((constructor)) void first() {}\n" + solution), {"not_allowed"}),
    "a continued line": (submission('as\\\nm volatile("nop");'), {"not_allowed"}),
    "the judge's functions": (submission("::oomlab::puzzle::release_as_reader(nullptr);"), {"not_allowed"}),
    "the solution, included": (f'#include "{mended.folder}/answers/solution.cu"\n' + mended.given(), {"not_allowed"}),
    "another file, included": (f'#include "{pathlib.Path(__file__).parent}/nothing.h"\n' + submission(), {"not_allowed"}),
    "the host runtime's controls": ("#include <oomlab_host.h>\n" + submission(), {"includes"}),
    "the solution, read": (submission(f'std::ifstream in("{mended.folder}/answers/solution.cu"); std::string s; in >> s;'), {"calls"}),
    "the runtime's allocator": (mended.given().replace("CHECK(cudaMalloc(", "CHECK((cudaMalloc)((void**)"), {"behind_the_back"}),
    "an operator new": (mended.filled_in("void* operator new(size_t) { static char all[1000]; return all; }\n" + solution), {"defines"}),
    "a write": (mended.filled_in('extern "C" long write(int, const void*, unsigned long) { return 0; }\n' + solution), {"defines"}),
    "malloc": (submission("w[0] = *static_cast<float*>(std::malloc(4));"), {"calls"}),
    "a static array": (mended.filled_in("float spare[1 << 20];\n" + solution.replace("  fused<<<", "  fused<<<1, 1>>>(spare, g, m, v, 1, 1, 1, 0, 0);\n  fused<<<", 1)), {"static_bytes"}),
    "a string as an array": (submission('std::string spare(1 << 20, 0); if (spare[n % 7]) return;'), {"host_bytes"}),
    "an array kept from call to call": (submission("static std::vector<std::vector<char>> kept; kept.emplace_back(40 << 10);"), {"host_bytes"}),
    "an array from before main()": (mended.filled_in("std::vector<char> spare(1 << 20);\n" + solution), {"host_bytes"}),
    "new in a kernel": (mended.filled_in(solution.replace(KERNEL, "float* mine = new float[n];\n  mine[0] = g[0];\n  if (mine[threadIdx.x % n] > 1e30f) return;\n  " + KERNEL, 1)), {"kernel_heap"}),
    "a container in a kernel, between barriers": (mended.filled_in(solution.replace(KERNEL, "__syncthreads();\n  std::vector<float> mine(n);\n  " + KERNEL, 1)), {"kernel_heap"}),
    "an exception in a kernel": (mended.filled_in(solution.replace(KERNEL, "if (n < 0) throw 1;\n  try { throw n; } catch (int) {}\n  " + KERNEL, 1)), {"kernel_heap"}),
    "the device's memory, from the host": (submission("w[0] += 1;"), {"touched"}),
    "what is not one's own": (submission("CHECK(cudaFree(v));"), {"not_yours"}),
    "a leak": (mended.given().replace("  CHECK(cudaFree(corrected_v));\n", ""), {"over_budget"}),
    "a failure forgotten": (submission("(void)cudaMemset(w, 0, 0); (void)cudaGetLastError();"), {"unread"}),
    "pinned memory": (submission("float* more = nullptr; CHECK(cudaMallocHost(&more, 4)); CHECK(cudaFreeHost(more));"), {"pinned_bytes"}),
    "no CHECK": (mended.given().replace("CHECK(cudaMalloc(", "(void)(cudaMalloc("), {"unread"}),
}

ALWAYS = {"the host runtime's controls", "behind the end", "an exception as an array", "an array kept from call to call", "an array from before main()", "what is not one's own", "a failure forgotten", "pinned memory"}
# What keeps the compiler busy, each within the limits that the compiler has of its own.
BOMBS = {
    "a computation": mended.filled_in("constexpr long count(long n) { long s = 0; for (long i = 0; i < n; ++i) for (long j = 0; j < 1000; ++j) s += j % 3; return s; }\n" + "".join(
        f"static_assert(count({n}) > 0);\n" for n in range(1500, 1560)) + solution),
    "types": mended.filled_in("template <class T, int n> struct Two { using A = typename Two<Two<T, 0>, n - 1>::A; using B = typename Two<Two<T, 1>*, n - 1>::B; };\n"
                              "template <class T> struct Two<T, 0> { using A = T; using B = T*; };\nusing All = Two<int, 26>::A;\n" + solution),
    "an array of a gigabyte": mended.filled_in("long many[1 << 27] = {1};\n" + solution),
}

# A program that sleeps uses no processor time.
SLEEPS = "for (;;) sleep(1);"

careful = judge("fast", limit=LIMITS)
let_through = judge("fast", limit=LIMITS, screened=False)
expect(careful, "the solution", submission(), {"passed"})
everything = sys.argv[3:] == ["all"]
unread = {what: cheat for what, cheat in CHEATS.items() if cheat[1] == {"not_allowed"}}  # nothing is compiled
compiled = {what: cheat for what, cheat in CHEATS.items() if what not in unread}
for what, (text, kinds) in [*unread.items(), *((what, cheat) for what, cheat in compiled.items() if everything or what in ALWAYS)]:
    expect(careful, what, text, kinds)
if everything:
    build.COMPILING[resource.RLIMIT_CPU] = 8
    for what, text in BOMBS.items():
        expect(careful, what, text, {"over_compiling"})
for what, (body, refused, ended) in WILD.items():
    if refused != ended and everything:
        expect(careful, what, submission(body), refused)
    expect(let_through, what + ", let through", submission(body), ended)
expect(judge("fast", limit=LIMITS._replace(wall_seconds=1), screened=False), "sleep without end, let through", submission(SLEEPS), {"over_wall"})
limits.PATIENCE = 0  # whoever waits is told at once, and presses Ctrl-C
try:
    limits.run(["sleep", 1000], LIMITS, patience=press_control_c)
    failures.append("Ctrl-C: it went on")
except KeyboardInterrupt:
    print("Ctrl-C: ended")
if left := sorted(str(path) for path in ROOM.rglob("*")):
    failures.append(f"left: {left}")
if running := left_running():
    failures.append(f"still running: {running}")
shutil.rmtree(ROOM)
sys.exit("\n".join(failures) or 0)
