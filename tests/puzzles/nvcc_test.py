#!/usr/bin/env python3
"""nvcc compiles all puzzles, as they are given and with their solutions: nvcc_test.py ROOT run, or nvcc_test.py ROOT write FILE

All are in one file, each in a namespace of its own, since headers take most of the time. Exit code 2: no nvcc here.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "bench"))
from puzzling import catalog  # noqa: E402

ARCHITECTURES = (75, 80, 90)


def all_in_one():
    parts, headers = [], set()
    for puzzle in catalog.all_puzzles(ROOT):
        for what, text in (("given", puzzle.given()), ("solved", puzzle.filled_in(puzzle.solution()))):
            headers |= set(re.findall(r"^#include <.+>$", text, re.M))
            body = re.sub(r"^#include <.+>$", "", text, flags=re.M)
            # Only the macro is shared, and it is the same in all of them.
            name = re.sub(r"\W", "_", f"{puzzle.id}_{what}")
            parts.append(f'namespace p{name} {{\n#line 1 "{puzzle.folder}/puzzle.cu ({what})"\n{body}\n}}\n#undef CHECK\n')
    return "\n".join(sorted(headers)) + "\n" + "\n".join(parts)


if sys.argv[2] == "write":
    pathlib.Path(sys.argv[3]).write_text(all_in_one(), encoding="utf-8")
    sys.exit(0)
nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
if not nvcc:
    print("no nvcc here")
    sys.exit(2)
with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder, "puzzles.cu")
    file.write_text(all_in_one(), encoding="utf-8")
    codes = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in ARCHITECTURES]
    done = subprocess.run([nvcc, "-std=c++20", *codes, "-c", str(file), "-o", os.devnull], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout)
    sys.exit(done.returncode or bool(done.stdout.strip()))
