"""Where nvcc and a GPU are: the reader's file as nvcc compiles it, and the same judge on the GPU, after the host runtime's modes.

Only what has passed those is run so: the driver needs the system calls that the host's modes forbid. What stays are the limits of limits.py.
"""
import pathlib
import shutil

from . import build
from .catalog import ROOT

LIBRARY = ("judge.cpp", "spy.cpp", "host_memory.cpp", "sandbox.cpp", "on_gpu.cpp")
WRAPPED = ("__cudaPushCallConfiguration", "cudaLaunchKernelExC", "__cxa_allocate_exception")  # calls that ours stand in for
HEADERS = ("judge.h", "spy.h", "watch.h")
MODE = build.Mode("gpu", None, {"CUDA_CACHE_DISABLE": "1"})
PASSED_ON = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")  # of the reader's environment
OPEN_FILES = 1024  # the driver has a few hundred


def nvcc():
    """Its path, or None."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def is_here():
    """Whether judging on a GPU is worth a try."""
    return bool(nvcc()) and (any(pathlib.Path("/dev").glob("nvidia[0-9]*")) or pathlib.Path("/dev/dxg").exists())


class Compiler:
    """What build.Compiler is for the host. `architectures`: options of nvcc."""
    mode = MODE

    def __init__(self, architectures=("-arch=native",), folder=ROOT / "build/puzzle/gpu"):
        if not nvcc():
            raise build.CannotBuild("nvcc is missing: it comes with the CUDA toolkit")
        self.command = [nvcc(), "-std=c++20", "-O1", "-lineinfo", *architectures]
        self.kept = folder
        self.kept.mkdir(parents=True, exist_ok=True)

    def _object(self, source, name):
        def make(file):
            build.run([*self.command, "-I", ROOT, "-I", build.HERE, "-c", source, "-o", file], f"compiling {name}")
        return build.cached(self.kept, self.command, name + ".o", [source, *(build.HERE / header for header in HEADERS)], make)

    def program(self, puzzle, file, scratch):
        """(the object of the reader's file, the program)."""
        mine, out = scratch / "gpu.o", scratch / "gpu"
        self._checked([*self.command, "-I", build.HERE, "-include", "spy.h", "-c", scratch / "puzzle.cu", "-o", mine], "does_not_compile", scratch, file)
        objects = [mine, self._object(puzzle.folder / "judge.cpp", puzzle.id), *(self._object(build.HERE / name, name) for name in LIBRARY)]
        self._checked([*self.command, *(f"-Xlinker=--wrap={name}" for name in WRAPPED), *objects, "-o", out], "does_not_link", scratch, file)
        return mine, out

    @staticmethod
    def _checked(command, kind, scratch, file):
        code, text = build.with_limits(command, "nvcc")
        if code:
            lines = [line.replace(str(scratch / "puzzle.cu"), file.name) for line in text.splitlines()]
            raise build.Wrong(kind, text="\n".join([line for line in lines if "error" in line][:3] or lines[-1:]))
