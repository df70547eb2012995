#!/usr/bin/env python3
"""A lesson's exit code, and its last line.

  expect.py pass PROGRAM     0 and PASS
  expect.py fail PROGRAM     1 and "FAIL: what"
  expect.py switch PROGRAM   --with and --without pass, each with a line that the other has not; another word fails

Exits with 2, as the program does, when it cannot run here.
"""
import re
import subprocess
import sys

expected, program = sys.argv[1:]


def run(expected, *arguments):
    """Its lines, if it ended as expected."""
    code, last = {"pass": (0, "PASS"), "fail": (1, "FAIL: .+")}[expected]
    done = subprocess.run([program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(f"{done.stdout}exit code {done.returncode}")
    if done.returncode == 2:
        sys.exit(2)
    lines = done.stdout.splitlines()
    if done.returncode != code or not re.fullmatch(last, (lines or [""])[-1]):
        sys.exit(f"expected: {expected}")
    return set(lines)


if expected == "switch":
    one, other = run("pass", "--with"), run("pass", "--without")
    if one <= other or other <= one:
        sys.exit("expected: lines of its own from each way")
    run("fail", "--neither")
else:
    run(expected)
