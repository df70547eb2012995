#!/usr/bin/env python3
"""Closed, full and broken standard descriptors: descriptors_test.py ROOT PROGRAMS. They cost neither the run nor its files."""
import json
import os
import pathlib
import shlex
import subprocess
import sys

import tries

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
RUNS = {"00_anatomy": "--quick --steps 1", "02_gradient_accumulation": "--quick --plan", "16_capstone": "--quick --plan --watch --no-claims --filter textbook"}


def attempt(line, folder, **environment):
    return tries.check(tries.attempt(line, folder=folder, environment={"OMP_NUM_THREADS": "1", **environment}), (0, 1))


def files_are_written(folder):
    for program, options in RUNS.items():
        run = f"{shlex.quote(str(PROGRAMS / program))} {options} --json out.json --trace trace.json --snapshot snap.pickle"
        # What standard error is costs nothing; a table that could not be written is an error, and the files are there.
        lost = {"2>&-": 0, "2>/dev/full": 0, "<&-": 0, ">&-": 1, ">/dev/full": 1, ">&- 2>&-": 1, "<&- >&- 2>&-": 1,
                ">/dev/full 2>&1": 1,
                "<&- 2>&-": 0, "--quiet >&-": 0, "--quiet <&- >&- 2>&-": 0, "| head -n 1": None, "2>/dev/null | true": None}
        for where, code in lost.items():
            outcome = attempt(f"{run} {where}", folder)
            assert code in (None, outcome.code), f"{run} {where}: {outcome.code}, not {code}\n{outcome.text}"
            found = tries.files(folder)
            assert found.keys() == {"out.json", "trace.json", "snap.pickle"}, f"{run} {where}: {found.keys()}"
            assert json.loads(found["out.json"])["passed"] is True, f"{run} {where}"
            json.loads(found["trace.json"])
            if code == 1 and "2>" not in where:
                assert "could not be written" in outcome.err, f"{run} {where}: {outcome.err}"
            for name in found:
                (folder / name).unlink()


def nothing_is_computed_for_nobody(folder):
    """Without a file, and with nowhere for the table, a run that would take for ever ends at once."""
    program = shlex.quote(str(PROGRAMS / "00_anatomy"))
    for where in (">/dev/full", ">&-"):
        outcome = attempt(f"{program} --quick --steps 100000000 {where}", folder)
        assert outcome.code == 1 and outcome.err.count("\n") == 1, outcome.text


def messages_go_to_no_file(_):
    """What is opened while standard error is closed does not take its number, and its messages with it."""
    program = shlex.quote(str(PROGRAMS / "00_anatomy"))
    environment = {**os.environ, "OOMLAB_HOST_SHARED": "children", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(["bash", "-c", f"exec {program} --quick --steps 100000000 2>&-"], env=environment,
                               stdout=subprocess.PIPE)
    try:
        assert b"00_anatomy" in process.stdout.readline()  # it has begun
        assert os.readlink(f"/proc/{process.pid}/fd/2") == "/dev/null", os.readlink(f"/proc/{process.pid}/fd/2")
    finally:
        process.kill()
        process.communicate()


def tools_say_when_their_output_is_lost(folder):
    for line in ("fit --model gpt2 --gpu t4", "fit --help", "00_anatomy --help", "00_anatomy --list", "00_anatomy --version",
                 "oomlab_system",
                 "bench_allocators --help"):
        for where in (">/dev/full", ">&-"):
            outcome = attempt(f"{shlex.quote(str(PROGRAMS))}/{line} {where}", folder)
            assert outcome.code == 1 and "could not be written" in outcome.err, f"{line} {where}: {outcome.code} {outcome.err}"


def main():
    tries.run_cases(files_are_written, nothing_is_computed_for_nobody, messages_go_to_no_file,
                    tools_say_when_their_output_is_lost)


main()
