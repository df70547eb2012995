#!/usr/bin/env python3
"""How long bench/explain takes for a message: the slowest of 2,000 damaged ones of tests/explain/fuzz.py, in processor time, as
a row for bench/benchmarks/run."""
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/explain"))
import fuzz  # noqa: E402

slowest = 0.0
for number in range(2000):
    text = "".join(c for c, _ in fuzz.message(1, number)[1])
    start = time.process_time()
    fuzz.read(text, fuzz.explain.LANGUAGES[number % 2])
    slowest = max(slowest, time.process_time() - start)
row = {"benchmark": "explain", "what": "the slowest of 2,000 damaged messages", "seen": slowest}
print(json.dumps(row | {"at": "most", "wanted": 0.05, "unit": "s"}))
