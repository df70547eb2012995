#!/usr/bin/env python3
"""The program of the page says what bench/fit says, to the byte: same_test.py ROOT FIT [--count N] [--seed S]

Each question is asked as text and as JSON, of the native program and of the WebAssembly under node: standard output, messages and exit codes are
the same. Sizes have 32 bits there, and the C++ library is another one: what overflows, or depends on the order of a sort, shows here. Exit code
77 where the page was not built or there is no node.
"""
import argparse
import pathlib
import sys
import tempfile

from built import Built, Node
from drawn import question

from questions import draw  # of tests/wheel, which built.py knows

parser = argparse.ArgumentParser()
parser.add_argument("root")
parser.add_argument("fit")
parser.add_argument("--count", type=int, default=50)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--most-cards", type=int, default=8)
arguments = parser.parse_args()
built = Built(arguments.root, arguments.fit)
node = Node(built)
listed = built.listed()
assert node.ask(["--list"]) == built.natively(["--list"]) and node.ask(["--help"]) == built.natively(["--help"])
codes, wrong = {0: 0, 1: 0, 64: 0}, []
with tempfile.TemporaryDirectory() as folder:
    for number in range(arguments.count):
        # Every second one is of those that the wheel is asked; the others have files, too, and stranger values.
        words, files = (draw(1000 * arguments.seed + number), {}) if number % 2 else question(number, arguments.seed, listed, arguments.most_cards, folder)
        for path, contents in files.items():
            pathlib.Path(path).write_bytes(contents)
        for more in ([], ["--json"]):
            there, here = built.natively(words + more), node.ask(words + more, files)
            if there != here:
                wrong.append((words + more, files, there, here))
        codes[there["code"]] += 1
        if (number + 1) % 100 == 0:
            print(f"{number + 1} questions, {len(wrong)} answers differ", flush=True)
        assert not (there["code"] == 64 and there["err"].count("\n") != 1), (words, there)
node.end()
for words, files, there, here in wrong[:5]:
    print("differs:", words, files)
    for key in there:
        if there[key] != here[key]:
            print(f"  {key}: natively {str(there[key])[:3000]!r}\n        here {str(here[key])[:3000]!r}")
print(f"{arguments.count} questions as text and as JSON, {codes[0]} fit, {codes[1]} do not, {codes[64]} are refused; {len(wrong)} answers differ")
assert arguments.count < 50 or min(codes.values()) >= arguments.count // 25, codes
sys.exit(1 if wrong else 0)
