#!/usr/bin/env python3
"""bench/fit answers what is true, and what it prints can be pasted, whatever it is asked.

  fit_test.py ROOT PROGRAMS
"""
import json
import pathlib
import shlex
import sys
import tempfile

from tries import attempt, check

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
TEXT = (pathlib.Path(sys.argv[1]) / "common/data/text/course_text.txt").stat().st_size - 1  # the longest sequence that is in it
READERS = ["02_gradient_accumulation", "03_mixed_precision", "04_checkpointing", "07_multi_gpu --dp 2", "08_attention_and_loss", "11_inference",
           "12_quantisation", "13_optimizer_memory", "16_capstone"]


def fit(question, codes=(0, 1)):
    return check(attempt([PROGRAMS / "fit", *shlex.split(question)]), codes)


def answer(question):
    return json.loads(fit(f"{question} --json").out)


def rows_of(found):
    return [row for row in (found["as_is"], *found["ladder"], found["cheapest"], found["closest"]) if row]


def planned(command):
    """The variant that a printed command plans."""
    run, chapter, *options = shlex.split(command)
    assert run == "bench/run" and "--plan" in options, command
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "result.json"
        check(attempt([PROGRAMS / chapter, *options, "--quiet", "--steps", "1", "--json", file]), (0,))
        variant, = json.loads(file.read_text())["variants"]
    return variant


def a_plan_needs_no_text():
    for tokens in (TEXT - 1, TEXT, TEXT + 1, 131072):
        for question in (f"--model llama-3.2-1b --seq {tokens} --gpu h100-sxm", f"--model llama-3.1-8b --task infer --seq {tokens} --gpu l4"):
            for row in rows_of(answer(question)):
                planned(row["command"])
    for reader in READERS:
        chapter, *options = reader.split()
        check(attempt([PROGRAMS / chapter, "--plan", "--quiet", "--model", "llama-3.2-1b", "--batch", "2", "--seq", str(TEXT + 1), "--steps", "1",
                       "--budget", "none", *options]), (0,))


def main():
    a_plan_needs_no_text()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
