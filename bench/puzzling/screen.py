"""What a submission may not do, seen before it runs: in its text, in the files that it includes, and in the names that it links with.

This is what makes a judge that cannot be talked round: with no other calls than these there is no way to the files, to the judge's pipe or
around the counted calls of CUDA.
"""
import re
import subprocess

from .build import HERE, REWRITTEN, Wrong
from .catalog import ROOT

LARGEST_FILE = 256 << 10    # bytes of source
LARGEST_STATIC = 64 << 10   # bytes of static arrays

# The C library's functions that a puzzle may call.
C = set("""printf puts putchar fprintf fputs fputc fwrite fflush stdout stderr snprintf __printf_chk __fprintf_chk __snprintf_chk
memcpy memmove memset memcmp memchr strlen strcmp strncmp strchr __memcpy_chk __memmove_chk __memset_chk
exp expf exp2 exp2f expm1 expm1f log logf log2 log2f log1p log1pf log10 log10f sqrt sqrtf cbrt cbrtf pow powf tanh tanhf sinh cosh sin sinf
cos cosf tan tanf atan atanf atan2 atan2f erf erff fma fmaf fmod fmodf remainder floor floorf ceil ceilf round roundf rint rintf nearbyint
nearbyintf trunc truncf lround lroundf lrint lrintf llround llrint ldexp ldexpf frexp frexpf fmax fmaxf fmin fminf fabs fabsf hypot hypotf
abort exit qsort __assert_fail __stack_chk_fail _GLOBAL_OFFSET_TABLE_ __dso_handle __tls_get_addr _Unwind_Resume __gxx_personality_v0
blockIdx gridDim threadIdx blockDim""".split())
# The rest of C++: its library, without files, threads and clocks; exceptions; new and delete, which are counted.
CPP = re.compile(r"__cxa_(?:allocate_exception|init_primary_exception|free_exception|throw\w*|rethrow|begin_catch|end_catch|get_exception_ptr|guard_\w+|atexit"
                 r"|thread_atexit|pure_virtual|deleted_virtual|bad_\w+|call_\w+)|_ZN?K?S[tsaiod]\w+|_ZNKSt\w+|_ZT[VISh]\w+|_Zn[wa]m\w*|_Zd[la]Pv\w*|_ZGV\w+")
CPP_LEFT_OUT = re.compile(r"fstream|filebuf|filesystem|thread|random_device|chrono|_ZSt3cin|istream|locale|dlopen|semaphore|mutex")
# CUDA: what is spied on, and what takes and gives no memory.
SPIED = re.compile(r"_ZNK?6oomlab6puzzle(3Spy\w+|9Launching\w+)|_ZN6oomlab4host6detail\w+|_ZN6oomlab6lesson\w+")
CUDA = re.compile(r"_Z\d+cuda(GetErrorName|GetErrorString|Memcpy|Memset|DeviceSynchronize|Stream|Event)\w+")
STANDS_IN = re.compile(r"__|_ZNK?6oomlab|_Zn[wa]|_Zd[la]|_Z\d+cuda|_ZSt|_ZNK?St")
ALLOCATE = ("cudaMalloc", "cudaFree", "cudaMemGetInfo", "cudaMemPool", "cudaDeviceGetDefaultMemPool")  # and all that begin so
COUNTED = set(re.findall(r"^#define (cuda\w+)\(", (HERE / "spy.h").read_text(), re.M))


# What no puzzle needs and a cheat would: assembly, attributes of the compiler's own, names that are pasted together or renamed, the inside of the
# C library's files, files by their path.
REFUSED = re.compile(r"\basm\b|\b__asm\w*|\b__attribute\w*|##|%:%:|\bgnu\b|\b__gnu_?_?\b|\b__builtin_\w+|\bOOMLAB_\w+|\boomlab\b|\b_Pragma\b|\b_IO_\w+"
                     r"|\b_fileno\b|\\[uUN](?=[0-9a-fA-F{])|(?:#|%:)[ \t]*(?:pragma(?![ \t]+(?:unroll|once)\b)[^\n]*|(?:include\w*|import)(?![ \t]*<(?!/|\S*\.\.)[\w.+/-]+>)[^\n]*"
                     r"|/[/*][^\n]*)")


def text(source):
    """Refuses what the text alone shows."""
    if len(source.encode()) > LARGEST_FILE:
        raise Wrong("not_allowed", what="a file of more than 256 KiB", line=1)
    joined = re.sub(r"\\[ \t\f\v]*\r?\n", "", source)  # GCC takes blanks behind the backslash, too
    if found := REFUSED.search(joined):
        raise Wrong("not_allowed", what=found[0], line=joined[:found.start()].count("\n") + 1)


def includes(dependencies):
    """Refuses files that are neither the toolkit's nor C++'s. `dependencies`: what the compiler says it read, a rule of make."""
    names = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    ours = (f"{ROOT}/common/host/include/", f"{ROOT}/common/cuda/host/", f"{HERE}/spy.h", f"{HERE}/precompiled.h", f"{HERE}/blocks/device_functions.h", f"{dependencies.parent / REWRITTEN}")
    for name in names:
        if not name.startswith(("/usr/", *ours)) and "/puzzle-cache/" not in name or name.endswith("oomlab_host.h"):
            raise Wrong("includes", what=name)


def names(compiled):
    """Refuses calls of what is not listed above, definitions that would stand in for the judge's, and large static arrays."""
    lines = subprocess.run(["nm", "--format=posix", str(compiled)], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for line in sorted(lines, key=lambda line: line.startswith("free ")):  # who calls free calls malloc, which says more
        name, kind = line.split()[:2]
        if kind in "Uwv":
            plain = re.sub(r"^_Z\d+", "", name)
            if plain != name and plain.startswith(ALLOCATE):
                called = _readable(name).split("(")[0]
                raise Wrong("behind_the_back" if called in COUNTED else "not_for_puzzles", what=called)
            known = name in C or CUDA.fullmatch(name) or SPIED.fullmatch(name) or (CPP.fullmatch(name) and not CPP_LEFT_OUT.search(name))
            plain_thread_local = re.fullmatch(r"_ZT[HW](8blockIdx|7gridDim)", name)
            if not known and not plain_thread_local:
                raise Wrong("calls", what=_readable(name))
        elif kind in "TDBR" and (name in C or (kind == "T" and not name.startswith("_Z")) or STANDS_IN.match(name)):
            raise Wrong("defines", what=_readable(name))
    sections = subprocess.run(["size", "-A", "-d", str(compiled)], stdout=subprocess.PIPE, text=True, check=True).stdout
    held = sum(int(n) for n in re.findall(r"^\.(?:data|bss|tbss|tdata|rodata|ldata|lbss)\S*\s+(\d+)", sections, re.M))
    if held > LARGEST_STATIC:
        raise Wrong("static_bytes", bytes=held, allowed=LARGEST_STATIC)


def _readable(name):
    done = subprocess.run(["c++filt", name], stdout=subprocess.PIPE, text=True)
    return done.stdout.strip() or name
