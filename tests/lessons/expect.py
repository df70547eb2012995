#!/usr/bin/env python3
"""A lesson's exit code, and its last line.

  expect.py pass PROGRAM   0 and PASS
  expect.py fail PROGRAM   1 and "FAIL: what"

Exits with 2, as the program does, when it cannot run here.
"""
import re
import subprocess
import sys

expected, program = sys.argv[1:]
code, last = {"pass": (0, "PASS"), "fail": (1, "FAIL: .+")}[expected]
run = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
print(f"{run.stdout}exit code {run.returncode}")
if run.returncode == 2:
    sys.exit(2)
if run.returncode != code or not re.fullmatch(last, (run.stdout.splitlines() or [""])[-1]):
    sys.exit(f"expected: {expected}")
