#!/usr/bin/env python3
"""Does common/plan stand alone? It says what a step needs without running it, on machines that could not run one.

  alone_test.py ROOT COMPILER [--all]

  - A file of common/plan includes the C++ library, fmt, nlohmann-json, common/plan and common/dtype.h, and nothing else: of
    the C++ library nothing that opens files, prints, starts threads or looks at a clock.
  - Each header and each source compiles by itself as C++20, where no other folder of common/ is to be found: with 32 bits
    of size_t where the compiler has libraries for that, and where it is clang, no size loses bits there. A twelfth of them,
    unless --all is given (nightly): which twelfth follows from what the folder holds, so that every change draws anew.
"""
import concurrent.futures
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

OURS = re.compile(r"plan/[\w/]+\.(h|inc)|dtype\.h")
OTHERS = re.compile(r"[a-z_]+|fmt/\w+\.h|nlohmann/json\.hpp")
NEVER = {"chrono", "condition_variable", "cstdio", "ctime", "filesystem", "fstream", "future", "iostream", "mutex", "thread"}
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]


def compiles(compiler, *flags, text="#include <string>\n"):
    return subprocess.run([compiler, *FLAGS, *flags, "-x", "c++", "-"], input=text, text=True, capture_output=True)


def wrong_includes(root, file):
    found = []
    for how, name in re.findall(r'^\s*#\s*include\s*([<"])([^">]+)[">]', file.read_text(encoding="utf-8"), re.MULTILINE):
        known = OURS if how == '"' else OTHERS
        if not known.fullmatch(name) or name in NEVER:
            found.append(f"{file.relative_to(root)} includes {name}")
    return found


def main():
    root, compiler = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    files = sorted(p for p in (root / "common/plan").rglob("*") if p.suffix in (".h", ".cpp"))
    wrong = [line for file in files for line in wrong_includes(root, file)]
    # A source begins with its header, which is then compiled by itself.
    headers = {file.with_suffix(".h") for file in files if file.suffix == ".cpp"}
    for file in files:
        first = re.search(r'#include "([^"]+)"', file.read_text(encoding="utf-8"))
        if file.suffix == ".cpp" and (file.with_suffix(".h") in files) != (first and root / "common" / first[1] == file.with_suffix(".h")):
            wrong.append(f"{file.relative_to(root)} does not begin with its header")
    alone = [file for file in files if file not in headers]
    if "--all" not in sys.argv:
        drawn = hashlib.sha256(b"".join(file.read_bytes() for file in files)).digest()[0] % 12
        alone = alone[drawn::12]
    # The first of these that can: clang says where a size loses bits.
    ways = (("clang++", "-m32", "-Wshorten-64-to-32"), (compiler, "-m32"), (compiler,))
    way = next(way for way in ways if shutil.which(way[0]) and compiles(*way).returncode == 0)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("plan", "dtype.h"):
            if (root / "common" / name).exists():
                (pathlib.Path(folder) / name).symlink_to(root / "common" / name)

        def look(file):
            include = f'#include "{file.relative_to(root / "common")}"\n'
            return file, compiles(*way, f"-I{folder}", text=include)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for file, done in pool.map(look, alone):
                if done.returncode:
                    wrong.append(f"{file.relative_to(root)} does not compile alone:\n{done.stderr}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(files)} files, {len(alone)} compiled: {' '.join(way)}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
