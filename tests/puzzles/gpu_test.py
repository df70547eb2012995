#!/usr/bin/env python3
"""The judge on a GPU: gpu_test.py ROOT FOLDER [some|all]

nvcc builds solutions with their judges, for GPUs from sm_75 to sm_90, and they are run: where a GPU answers they pass, and a wrong answer fails; elsewhere
the program says in one line that none does. FOLDER is for what is compiled. Exit code 2: no nvcc here.
"""
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "bench"))
from puzzling import catalog, gpu, judging  # noqa: E402

CODES = [f"-gencode=arch=compute_{a},code=sm_{a}" for a in (75, 80, 86, 89)] + ["-gencode=arch=compute_90,code=[sm_90,compute_90]"]
SOME = ("13-momentum8",)  # shared memory, blocks of a least size, inputs that may not change
NONE = "no_gpu"
failures, seen = [], set()


def verdict(puzzle, part):
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        (scratch / "puzzle.cu").write_text(puzzle.filled_in(part), encoding="utf-8")
        _, program = compiler.program(puzzle, scratch / "puzzle.cu", scratch)
        return judge.in_mode(compiler, program)


if not gpu.nvcc():
    print("no nvcc here")
    sys.exit(2)
compiler = gpu.Compiler(CODES, pathlib.Path(sys.argv[2]))
judge = judging.Judge(["fast", gpu.MODE.name], 20)
for puzzle in catalog.all_puzzles(ROOT):
    if puzzle.id not in SOME and sys.argv[3:] != ["all"]:
        continue
    found = verdict(puzzle, puzzle.solution())
    print(f"{puzzle.id} solution: {found}")
    seen.add(found["kind"])
    if found["kind"] == NONE and not found["what"].startswith("cudaError") or found["kind"] not in (NONE, "passed"):
        failures.append(f"{puzzle.id}: {found}")
    if found["kind"] == "passed":
        hog = next(answer for answer in puzzle.answers() if answer.name == "hog")
        if (bad := verdict(puzzle, hog.part))["kind"] != hog.fails:
            failures.append(f"{puzzle.id} hog: {bad}, expected: {hog.fails}")
if len(seen) != 1:
    failures.append(f"a GPU answers some, and not all: {seen}")
sys.exit("\n".join(failures) or 0)
