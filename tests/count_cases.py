"""Counts the tests of a ctest run: count_cases.py LOG FOLDER prints "PASSED FAILED SKIPPED".

A GoogleTest program that is one test for ctest counts as the cases that it had, by FOLDER/NAME.json. One that did not come to
its end (a crash, a time-out) is a failure, whatever it wrote. Exit 1 when nothing ran."""
import json
import pathlib
import re
import sys

log, folder = pathlib.Path(sys.argv[1]).read_text(errors="replace"), pathlib.Path(sys.argv[2])
outcomes = re.findall(r"^ *\d+/\d+ Test +#\d+: (.*?) \.+ *\**(Passed|Skipped|\w.*?)  +[\d.]+ sec", log, re.M)
counted = []
for name, outcome in outcomes:
    cases = []
    if (file := folder / f"{name}.json").exists():
        cases = ["Skipped" if case["result"] == "SKIPPED" else "Failed" if case.get("failures") else "Passed"
                 for suite in json.loads(file.read_text())["testsuites"] for case in suite["testsuite"] if case["status"] == "RUN"]
    if not cases or (outcome not in ("Passed", "Skipped") and "Failed" not in cases):
        cases.append(outcome)
    counted += cases
passed, skipped = counted.count("Passed"), counted.count("Skipped")
print(passed, len(counted) - passed - skipped, skipped)
sys.exit(0 if outcomes else 1)
