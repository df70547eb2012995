#!/usr/bin/env python3
"""Variables and limits under which a program cannot work: environment_test.py ROOT PROGRAMS. One line, and no crash."""
import pathlib
import shlex
import sys

import tries

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
CHAPTER = shlex.quote(str(PROGRAMS / "00_anatomy")) + " --quick --steps 1"


def refused(line, folder, word, codes=(64,), **environment):
    outcome = tries.attempt(line, folder=folder, environment=environment)
    tries.refused(outcome, word, codes=codes)
    assert not tries.files(folder), tries.files(folder).keys()


def settings_of_openmp(folder):
    for name, value in (("OMP_NUM_THREADS", "100000"), ("OMP_NUM_THREADS", "1025"), ("OMP_STACKSIZE", "64k"), ("OMP_STACKSIZE",
                                                                                                               "65536B"),
                        ("OMP_STACKSIZE", " 100 K ")):
        refused(CHAPTER, folder, name, **{name: value})
        refused(shlex.quote(str(PROGRAMS / "02_gradient_accumulation")) + " --plan", folder, name, **{name: value})
    for name, value in (("OMP_NUM_THREADS", "16"), ("OMP_STACKSIZE", "1M"), ("OMP_STACKSIZE", "512k")):
        outcome = tries.check(tries.attempt(CHAPTER, folder=folder, environment={"OMP_WAIT_POLICY": "passive", name: value}),
                              (0,))
        assert "PASS: " in outcome.out, outcome.text


def a_small_stack(folder):
    refused(f"ulimit -s 128; {CHAPTER}", folder, "ulimit -s")
    refused(f"ulimit -s 256; {CHAPTER} --quiet --json out.json", folder, "ulimit -s")
    for chapter in ("00_anatomy", "10_lighter_models", "16_capstone"):  # the least that is allowed is enough
        line = f"ulimit -s 512; {shlex.quote(str(PROGRAMS / chapter))} --quick --steps 1 --quiet"
        tries.check(tries.attempt(line, folder=folder, environment={"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}), (0,))


def lessons_and_tools(folder):
    for line in ("00_anatomy_lesson", "bench_attention", "oomlab_system"):
        outcome = tries.attempt(f"{shlex.quote(str(PROGRAMS))}/{line}", folder=folder, environment={"OMP_NUM_THREADS": "100000"})
        tries.check(outcome, (0, 1, 2, 64))
        assert outcome.code == 0 or "OMP_NUM_THREADS" in outcome.text, outcome.text


def a_device_without_memory(folder):
    """Nothing could be measured, so nothing has passed: the machine cannot run this."""
    for memory in ("1", "4096", "100KiB"):
        outcome = tries.attempt(CHAPTER, folder=folder, environment={"OOMLAB_HOST_MEMORY": memory, "OMP_NUM_THREADS": "1"})
        tries.check(outcome, (2,))
        assert "PASS" not in outcome.out and "no variant can run here" in outcome.err, outcome.text


def other_programs_variables(folder):
    """Google Benchmark would take flags from variables of these names."""
    variables = {"BENCHMARK_FILTER": "((((.*)*)*)*)*zz", "BENCHMARK_OUT": "stray.json", "BENCHMARK_FORMAT": "json",
                 "BENCHMARK_LIST_TESTS": "true", "BENCHMARK_REPETITIONS": "1000000", "OMP_NUM_THREADS": "1"}
    outcome = tries.check(tries.attempt(CHAPTER, folder=folder, environment=variables), (0,))
    assert "PASS: " in outcome.out and not tries.files(folder), outcome.text


def main():
    tries.run_cases(settings_of_openmp, a_small_stack, lessons_and_tools, a_device_without_memory, other_programs_variables)


main()
