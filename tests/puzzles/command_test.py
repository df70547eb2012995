#!/usr/bin/env python3
"""bench/puzzle as a reader types it: command_test.py ROOT BUILD"""
import ast
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

from judging import BUILD, ROOT, catalog, puzzle
from puzzling import words
from shared import chinese

ENGLISH = re.compile(r"(?!batch|rank|token|MiB|KiB)\b[A-Za-z]{2,}")  # beside what Chinese pages write so
CHINESE = re.compile("[\u4e00-\u9fff]")
FAST = ["--modes", "fast", "--seed", "7"]
failures = []


def check(good, what):
    if not good:
        failures.append(what)


class Reader:
    """Somebody with a folder of their own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.environment = {**os.environ, "OOMLAB_PUZZLES": str(folder), "OOMLAB_PUZZLE_BUILDS": str(BUILD), "PYTHONIOENCODING": "utf-8"}

    def types(self, *arguments):
        done = subprocess.run([ROOT / "bench/puzzle", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              encoding="utf-8", env=self.environment, cwd=self.folder)
        check("Traceback" not in done.stderr, f"{arguments}: {done.stderr}")
        return done


def expect(done, code, *said):
    for text in said:
        check(text in done.stdout + done.stderr, f"'{text}' is not said by {done.args[1:]}:\n{done.stdout}{done.stderr}")
    check(done.returncode == code, f"{done.args[1:]} ended with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")


def told(file):
    """What fail() and CannotBuild() say in a source, a value in it as 7."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in ("fail", "CannotBuild"):
            parts = node.args[-1].values if isinstance(node.args[-1], ast.JoinedStr) else [node.args[-1]]
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "7" for part in parts)


def cases_in_chinese():
    """Judges' names of hidden cases are in Chinese, too."""
    found = 0
    for judge in sorted(ROOT.glob("chapters/*/puzzle/*/judge.cpp")):
        for name in re.findall(r"\bCase now\(\s*((?:(?:std::to_string\([^()]*\)|\"[^\"]*\")\s*\+?\s*)+),", judge.read_text(encoding="utf-8")):
            text = "".join("7" if part == "to_string" else part[1:-1] for part in re.findall(r'"[^"]*"|to_string', name))
            chinese_name = words.case_name(text, "zh")
            check(not ENGLISH.search(chinese_name), f"{judge.parent.name}: the case '{text}' is '{chinese_name}' in Chinese")
            found += 1
    check(found >= 20, f"{found} cases in judges")
    check(words.case_name("7 of 9 channels, length 5", "zh") == "9 个通道中的 7 个，长 5", "a case in Chinese")


def bad_usage(reader):
    for arguments in (["99"], ["--lang", "de"], ["--hint"], ["04", "--modes", "slow"], ["04", "--seed", "-1"], ["04", "--seed", "x"], ["04", "--json", "x"],
                      ["--watch"], ["04", "05"]):
        done = reader.types(*arguments)
        expect(done, 64)
        check(len(done.stderr.splitlines()) == 1 and not done.stdout, f"{arguments}: not one line: {done.stdout}{done.stderr}")
        check(not CHINESE.search(done.stderr), f"{arguments}: Chinese that nobody asked for: {done.stderr}")
    for arguments, code, words_said in ((["99"], 64, "没有 '99' 这道题；有：00-temporaries"), (["04", "--seed", "x"], 64, "--seed 的值 'x' 不是 int"),
                                        (["00", "--file", "nothing.cu"], 2, "nothing.cu：不是")):
        done = reader.types(*arguments, "--lang", "zh")
        expect(done, code, words_said)
        check(len(done.stderr.splitlines()) == 1 and not done.stdout, f"{arguments}: not one line: {done.stdout}{done.stderr}")
    for file in ("bench/puzzle", "bench/puzzling/build.py", "bench/puzzling/gpu.py"):
        for text in told(ROOT / file):
            check(text in ("7", "7; see --help") or CHINESE.search(chinese.said(text, words.ENDS)), f"{file}: no Chinese for {text!r}")
    narrow = subprocess.run([ROOT / "bench/puzzle", "--lang", "zh"], capture_output=True, env={**reader.environment, "PYTHONIOENCODING": "latin-1"}, cwd=reader.folder)
    check(narrow.returncode == 2 and b"Chinese cannot be written as" in narrow.stderr and not narrow.stdout, f"latin-1: {narrow}")
    check("退出码" in reader.types("--help", "--lang", "zh").stdout, "--help --lang zh is not Chinese")
    expect(reader.types("00", "--file", "nothing.cu"), 2, "nothing.cu")
    expect(reader.types("--class", "nowhere"), 2, "nowhere")


def one_puzzle(reader):
    mended, file = puzzle("00"), reader.folder / "00-temporaries.cu"
    expect(reader.types(), 0, "00-temporaries", "16-ladder", f"0 of {len(catalog.all_puzzles(ROOT))} solved")
    expect(reader.types("--lang", "zh"), 0, mended.task("zh").title)
    expect(reader.types("0", *FAST), 1, "CUDA out of memory. Line", "corrected_m", "given by the judge", "--seed 7", "is new")
    check(file.read_text() == mended.given(), "the reader's file is not the puzzle")
    expect(reader.types("00", "--lang", "zh", *FAST), 1, "显存不足", "评判程序给的")
    for number in (1, 2, 3):
        expect(reader.types("00", "--hint"), 0, f"Hint {number} of 3", mended.task().hints[number - 1])
    expect(reader.types("00", "--hint"), 0, "no more hints", *mended.task().hints)
    expect(reader.types("00", "--solution"), 0, "__global__ void fused", mended.task().solution)
    file.write_text("// mine\n")
    expect(reader.types("00", *FAST), 1, "adamw", "no function of that name")
    check(file.read_text() == "// mine\n", "the reader's file was overwritten")
    file.write_text(mended.filled_in(mended.solution()))
    expect(reader.types("00", *FAST), 0, "Passed.", "--seed 7", "--solution", "bench/puzzle 01-chunks")
    expect(reader.types(), 0, "[solved]", "1 of ")
    file.write_text(file.read_text() + "\n// more\n")
    expect(reader.types(), 0, "solved, changed since", "1 of ")
    # Of two puzzles of a chapter the first that is not solved.
    expect(reader.types("6", *FAST), 1, "06-best_fit", "has 2 puzzles: 06-best_fit, 06-plan")
    expect(reader.types("06-pl", "--solution"), 0, puzzle("06-plan").task().solution)
    for name in ("06-best_fit", "06-plan"):
        expect(reader.types("6", "--file", puzzle(name).folder / "puzzle.cu", "--solution"), 0, puzzle(name).task().solution)
    # What a submission prints is shown, and obeyed by nobody.
    file.write_text(mended.given().replace("  CHECK(cudaMalloc(&corrected_m", '  std::printf("\\033[2J{\\"kind\\": \\"passed\\"}\\n");\n  CHECK(cudaMalloc(&corrected_m', 1))
    done = reader.types("00", *FAST)
    expect(done, 1, "It printed:", "\\x1b[2J")
    check("\033" not in done.stdout, "a terminal would obey what was printed")


def what_readers_write(reader):
    """Right kernels in the forms of textbooks, and what the words say of some that are not."""
    mended, file = puzzle("08"), reader.folder / "try.cu"
    parts = {answer.name: answer.part for answer in mended.answers()}
    shared = parts["shared"]
    odd = {"atomicInc": "has no atomicInc", "__byte_perm": "has no __byte_perm"}
    for part, code, *said in (
            (shared, 0, "Passed."),
            (parts["rows"], 0, "Passed."),
            (parts["input"], 1, "k has other values than before"),
            (parts["rows"].replace("  for (int c = 0; c < d; ++c) out[row * d + c] = 0;", "  if (row % 2) return;\n  for (int c = 0; c < d; ++c) out[row * d + c] = 0;"),
             1, "was never written"),
            *((shared.replace("  const int row", f"  {name}(0);\n  const int row"), 1, words_said) for name, words_said in odd.items()),
            (shared.replace("__shared__ float score[block]", "__shared__ decltype(1.0f) score[block]"), 1, "this __shared__ is not understood"),
            (shared.replace("  online<<<", "  float* more = nullptr;\n  CHECK(cudaMallocManaged(&more, 4));\n  online<<<"), 1, "It calls cudaMallocManaged. Here memory"),
            ("__device__ float spare[1 << 16];\n" + shared.replace("  const int row", "  spare[0] = 0;\n  const int row"), 1, "static or __device__ arrays"),
            (parts["local_row"], 1, "A thread's own arrays")):
        file.write_text(mended.filled_in(part))
        expect(reader.types("08", "--file", file, *FAST), code, *said)
    expect(reader.types("--help"), 0, "atomicMax", "__shfl_down_sync", "float4")


def a_class(reader):
    folder = reader.folder / "class"
    for who, answer in (("anna", "solution"), ("bert", "hog"), ("客", None)):
        (folder / who).mkdir(parents=True)
        mended = puzzle("00")
        part = next((a.part for a in mended.answers() if a.name == answer), None)
        (folder / who / "00-temporaries.cu").write_text(mended.filled_in(part) if part else mended.given())
    (folder / "bert/notes.txt").write_text("none of ours")
    done = reader.types("--class", folder, "--json", "class.json", *FAST)
    expect(done, 1, "anna  00-temporaries      passed", "bert  00-temporaries      CUDA out of memory. Line", "客", "1 / 1", "0 / 1")
    data = json.loads((reader.folder / "class.json").read_text(encoding="utf-8"))
    check([(row["who"], row["passed"], row["kind"]) for row in data["submissions"]] ==
          [("anna", True, "passed"), ("bert", False, "over_budget"), ("客", False, "over_budget")], f"class.json: {data}")
    (reader.folder / "empty").mkdir()
    expect(reader.types("--class", reader.folder / "empty", *FAST), 0, words.say("class_none", "en"))


def watching(reader):
    """Each save is judged. Waits for lines, with an end that only a hang reaches."""
    file, mended = reader.folder / "02-ragged.cu", puzzle("02")
    process = subprocess.Popen([ROOT / "bench/puzzle", "02", "--watch", *FAST], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                               encoding="utf-8", env=reader.environment, cwd=reader.folder)
    limit = threading.Timer(240, process.kill)
    limit.start()
    saved = passed = False
    for line in process.stdout:
        if line.startswith("watching"):
            file.write_text(mended.filled_in(mended.solution()))
            saved = True
        if saved and line.startswith("Passed."):
            passed = True
            break
    process.kill()
    process.wait()
    limit.cancel()
    check(passed, "--watch did not judge what was saved")


with tempfile.TemporaryDirectory() as folder:
    reader = Reader(folder)
    cases_in_chinese()
    bad_usage(reader)
    one_puzzle(reader)
    what_readers_write(reader)
    a_class(reader)
    watching(reader)
sys.exit("\n".join(failures) or 0)
