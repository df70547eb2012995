#!/usr/bin/env python3
"""A lesson's exit code, and its last line.

  expect.py pass PROGRAM [SECONDS]   0 and PASS, in so many seconds: of the clock, or, on a busy machine, of processors.
                                     The best of three runs counts: the first one may get memory that has to be made first
  expect.py fail PROGRAM             1 and "FAIL: what"

Exits with 2, as the program does, when it cannot run here.
"""
import math
import re
import resource
import subprocess
import sys
import time

expected, program, *limit = filter(None, sys.argv[1:])
most = float(limit[0]) if limit else math.inf
code, last = {"pass": (0, "PASS"), "fail": (1, "FAIL: .+")}[expected]


def spent():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


for _ in range(3):
    start, before = time.monotonic(), spent()
    run = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seconds = min(time.monotonic() - start, spent() - before)
    print(f"{run.stdout}exit code {run.returncode}, {seconds:.2f} s")
    if run.returncode == 2:
        sys.exit(2)
    if run.returncode != code or not re.fullmatch(last, (run.stdout.splitlines() or [""])[-1]):
        sys.exit(f"expected: {expected}")
    if seconds <= most:
        sys.exit(0)
sys.exit(f"a lesson takes at most {limit[0]} s")
