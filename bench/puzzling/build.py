"""Compiles a reader's file and a puzzle's judge into a program, in one of the host runtime's modes.

The runtime and what judges are linked with are taken from a build that is there (build/host), and otherwise built: build/puzzle/MODE.
"""
import concurrent.futures
import fcntl
import hashlib
import json
import os
import pathlib
import re
import resource
import shlex
import shutil
import subprocess
import tempfile
import typing

from .catalog import ROOT

HERE = pathlib.Path(__file__).resolve().parent
REWRITTEN = pathlib.Path("rewritten/puzzle.cu")  # by either name a line is puzzle.cu's
STACK_ERRORS = ("frame size", "variable length array", "alloca")  # as GCC says it
LARGEST_FRAME = 2 << 10  # bytes of a function's own variables, in fast mode; sanitizers need more for the same
# A name that only CUDA may have.
OF_CUDA = re.compile(r"cuda\w+|atomic[A-Z]\w*|__[a-z]\w+|(?:make_)?(?:u?char|u?short|u?int|u?long|u?longlong|float|double)[1-4]|warpSize|tex\dD\w*|"
                     r"(?:min|max|rsqrtf?|rcbrtf?|norm\w+|exp10f?|sinpif?|cospif?|sincos\w*|saturate|clock(?:64)?)")


class Mode(typing.NamedTuple):
    name: str
    preset: str        # CMakePresets.json: the build that has it
    environment: dict


MODES = {mode.name: mode for mode in (
    Mode("fast", "host", {}),
    Mode("check", "host-check", {"TSAN_OPTIONS": "halt_on_error=1 exitcode=66 atexit_sleep_ms=0"}),
    Mode("asan", "host-asan", {"ASAN_OPTIONS": "detect_leaks=0 exitcode=67 handle_segv=1"}),
)}


class CannotBuild(Exception):
    """The machine lacks something; one line says what."""


class Wrong(Exception):
    """The reader's file does not become a program: a verdict."""
    def __init__(self, kind, **fields):
        super().__init__(kind)
        self.verdict = {"kind": kind, **fields}


def _is_fresh(folder):
    """Whether a build has the libraries, and none of what they are made of is newer."""
    link, commands = folder / "puzzle-link.txt", folder / "compile_commands.json"
    if not link.exists() or not commands.exists():
        return False
    libraries = [pathlib.Path(word) for word in link.read_text().split() if word.endswith(".a")]
    compiled = commands.read_text()
    sources = [f for room in (HERE, ROOT / "common/host", ROOT / "common/cuda/host") for f in room.rglob("*")
               if f.suffix == ".h" or (f.suffix == ".cpp" and (room != HERE or str(f) in compiled))]
    return all(library.exists() for library in libraries) and \
        max(library.stat().st_mtime for library in libraries) >= max(f.stat().st_mtime for f in sources)


COMPILING = {resource.RLIMIT_CPU: 90, resource.RLIMIT_AS: 4 << 30, resource.RLIMIT_FSIZE: 64 << 20}  # seconds, bytes; for one file of a reader's


def with_limits(command, what, **more):
    """Runs a compiler on a reader's file: (exit code, what it printed). Raises Wrong where it reaches a limit."""
    def limit():
        for which, most in COMPILING.items():
            resource.setrlimit(which, (most, most))
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          env={**os.environ, "LC_ALL": "C"}, preexec_fn=limit, **more)
    if done.returncode < 0 or re.search(r"out of memory allocating|memory exhausted|Killed signal|CPU time limit|File size limit|file too large", done.stdout):
        raise Wrong("over_compiling", what=what, seconds=COMPILING[resource.RLIMIT_CPU], memory=COMPILING[resource.RLIMIT_AS])
    return done.returncode, done.stdout


def run(command, what, **more):
    try:
        done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    except FileNotFoundError as error:
        raise CannotBuild(f"{error.filename} is missing; bench/run --no-install says which packages are") from None
    if done.returncode:
        raise CannotBuild(f"{what} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def _build_library(mode, folder, say):
    """CMake's part, of bench/puzzling alone."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_fresh(folder):
            return
        say(mode)
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        settings = next(p for p in presets if p["name"] == mode.preset)["cacheVariables"]
        values = {"CMAKE_BUILD_TYPE": "Release", "OOMLAB_TESTS": "OFF", "OOMLAB_BENCH": "OFF", **settings}
        run(["cmake", "-S", HERE, "-B", folder, "-G", "Ninja", *(f"-D{k}={v}" for k, v in values.items())], f"cmake for {mode.name}")
        run(["cmake", "--build", folder, "--target", "oomlab_puzzle"], f"building the host runtime ({mode.name})")


def cached(folder, command, name, sources, make):
    """A file in this folder, made of these sources by this compiler, once."""
    state = hashlib.sha256("\0".join(command).encode())
    for source in sources:
        state.update(source.read_bytes())
    file = folder / f"{state.hexdigest()[:16]}-{name}"
    if not file.exists():
        scratch = pathlib.Path(tempfile.mkdtemp(dir=folder))
        try:
            make(scratch / name)
            os.replace(scratch / name, file)
        finally:
            shutil.rmtree(scratch)
    return file


class Compiler:
    """Of one mode: where things are, and how they are compiled and linked."""

    def __init__(self, mode, say=lambda mode: None, builds=None):
        self.mode = mode
        folder = pathlib.Path((builds or {}).get(mode.name, ROOT / "build" / mode.preset))
        if mode.name not in (builds or {}) and not _is_fresh(folder):  # who names a build has seen to it
            folder = ROOT / "build/puzzle" / mode.name
            _build_library(mode, folder, say)
        commands = json.loads((folder / "compile_commands.json").read_text())
        command = shlex.split(next(c["command"] for c in commands if c["file"] == str(HERE / "spy.cpp")))
        if pathlib.Path(command[0]).name == "ccache":
            command = command[1:]
        # Without the file, and without the larger part of the optimisation, which takes longer than it gives.
        command = command[:command.index("-o")]
        # -Werror=vla stands here because precompiled headers are for files that are compiled with it, or for those without.
        self.command = [c for c in command if not re.fullmatch(r"-O\d", c)] + ["-O1", "-g1", "-Werror=vla"]
        options, self.libraries = (line.split() for line in (folder / "puzzle-link.txt").read_text().splitlines())
        self.link_options = options
        self.kept = folder / "puzzle-cache"
        self.kept.mkdir(exist_ok=True)

    def _cached(self, name, sources, make, *more):
        return cached(self.kept, [*self.command, *map(str, more)], name, sources, make)

    def headers(self):
        """What is included first, in a reader's file and in a judge, compiled once. The name that GCC looks for it by."""
        first = HERE / "precompiled.h"
        sources = [first, HERE / "blocks/device_functions.h", *sorted((ROOT / "common/host/include").glob("*.h")), *sorted((ROOT / "common/cuda/host").glob("*.h"))]

        def make(file):
            run([*self.command, "-x", "c++-header", first, "-o", file], "compiling headers")
        compiled = self._cached("precompiled.h.gch", sources, make)
        name = compiled.with_suffix("")
        if not name.exists():
            scratch = tempfile.NamedTemporaryFile("w", dir=self.kept, delete=False)
            with scratch:
                scratch.write(f'#include "{first}"\n')
            os.replace(scratch.name, name)
        return name

    def judge(self, puzzle):
        def make(file):
            run([*self.command, "-include", self.headers(), "-I", ROOT, "-c", puzzle.folder / "judge.cpp", "-o", file], f"compiling {puzzle.id}'s judge")
        return self._cached(f"{puzzle.id}.o", [puzzle.folder / "judge.cpp", HERE / "judge.h"], make, self.headers())

    def reader(self, file, scratch):
        """The reader's file as an object. Raises Wrong where it does not compile. `scratch`: a folder for it alone."""
        source, out = scratch / "puzzle.cu", scratch / f"{self.mode.name}.o"
        frame = LARGEST_FRAME if self.mode.name == "fast" else 16 * LARGEST_FRAME
        command = [*self.command, "-include", self.headers(), "-include", HERE / "spy.h", "-Werror=return-type", f"-Werror=frame-larger-than={frame}",
                   "-Werror=alloca", "-fmax-errors=20", "-MD", "-MF", scratch / f"{self.mode.name}.d", "-x", "c++", "-c", scratch / REWRITTEN, "-o", out]
        code, text = with_limits(command, "the compiler", cwd=scratch)
        if code:
            text = text.replace(str(source), file.name)
            lines = [line for line in text.splitlines() if "error:" in line]
            for line in lines:
                place = line.split(":")
                if len(place) > 2 and place[1].isdigit() and any(words in line for words in STACK_ERRORS):
                    raise Wrong("host_arrays", line=int(place[1]), allowed=LARGEST_FRAME)
                unknown = re.search(r"['‘](\w+)['’] (?:was not declared|does not name a type|has not been declared)", line)
                if unknown and OF_CUDA.fullmatch(unknown[1]) and len(place) > 2 and place[1].isdigit():
                    raise Wrong("no_such_name", name=unknown[1], line=int(place[1]))
            lines = lines[:3]
            raise Wrong("does_not_compile", text="\n".join(lines) or text[-1000:])
        return out

    def program(self, puzzle, file, scratch):
        """The object of the reader's file, and the program."""
        mine, judge = self.reader(file, scratch), self.judge(puzzle)
        out = scratch / self.mode.name
        code, text = with_limits([self.command[0], *self.link_options, mine, judge, *self.libraries, "-o", out], "the linker")
        if code:
            if missing := re.search(r"undefined reference to [`'](\w+\([^']*\)|\w+)'", text):
                asked_for = subprocess.run(["nm", "-C", "-u", str(mine)], stdout=subprocess.PIPE, text=True).stdout
                if re.search(rf"^\s*U {re.escape(missing[1])}$", asked_for, re.M):
                    raise Wrong("calls", what=missing[1].split("(")[0])
                raise Wrong("not_defined", name=missing[1])
            if twice := re.search(r"multiple definition of [`']([^']+)'", text):
                raise Wrong("defines", what=twice[1])
            raise Wrong("does_not_link", text=text.strip().splitlines()[-1] if text.strip() else "?")
        return mine, out


def _rewrite(source, rewritten):
    """Makes C++ of the reader's file. Raises Wrong where that does not work."""
    rewritten.parent.mkdir()
    code, text = with_limits(["cmake", f"-DINPUT={source}", f"-DOUTPUT={rewritten}", "-P", ROOT / "cmake/rewrite_lesson.cmake"], "rewriting")
    if code:
        raise Wrong("does_not_compile", text=text[-1000:])
    for number, line in enumerate(rewritten.read_text(encoding="utf-8").splitlines(), -1):
        if re.search(r"\b__shared__\b", re.sub(r"//.*|/\*.*?\*/|\"[^\"]*\"", "", line)):
            raise Wrong("shared_form", line=number)  # the first two are ours


def programs(puzzle, file, text, compilers, scratch):
    """Compiles in all modes at a time: {mode: (object, program)}. Raises Wrong, of the first mode that says so."""
    source, rewritten = scratch / "puzzle.cu", scratch / REWRITTEN
    if not rewritten.exists():
        source.write_text(text, encoding="utf-8")
        _rewrite(source, rewritten)
    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        made = {c.mode.name: pool.submit(c.program, puzzle, file, scratch) for c in compilers}
        return {name: future.result() for name, future in made.items()}


def line_of(program, offsets):
    """The line of puzzle.cu that the code at the first of these places comes from that is in it; None where all are elsewhere."""
    try:
        found = subprocess.run(["addr2line", "-i", "-e", str(program), *map(hex, offsets)], stdout=subprocess.PIPE, text=True).stdout
    except OSError:
        return None
    line = re.search(r"puzzle\.cu:(\d+)", found)
    return int(line[1]) if line else None
