#!/usr/bin/env python3
"""Ctrl-C and SIGTERM at random moments, of runs and of plans: they end with 130, say one line, and leave no file and no process.

  signals_test.py ROOT PROGRAMS [--tries N]

That a signal is heard within a step is counted in tests/harness, in launches and allocations. Here each try would go on for longer
than HANG if it were not.
"""
import os
import pathlib
import random
import signal
import subprocess
import tempfile
import time

import tries

# Each of these takes minutes or hours, in one step or one search.
LONG = [
    "02_gradient_accumulation --plan --watch --memory-steps 1000000000",
    "07_multi_gpu --plan --watch --memory-steps 1000000000",
    "11_inference --plan --watch --memory-steps 1000000000",
    "16_capstone --plan --watch --memory-steps 1000000000",
    "00_anatomy --batch 2000000 --budget none",
    "02_gradient_accumulation --batch 200000 --budget none",
    "07_multi_gpu --batch 200000 --budget none",
    "11_inference --requests 8192 --processor-layers 3 --filter processor",
    "13_optimizer_memory --batch 20000 --budget none",
    "15_sharing --steps 100000000",
]


def names(of):
    """The processes of a session, but for those that are over."""
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[3] == str(of) and fields[0] not in "ZX":
            found.append(int(folder.name))
    return found


def gone(session):
    """Waits until a session has no process any more; only what hangs does not get there."""
    for _ in range(tries.HANG * 20):
        if not names(session):
            return True
        time.sleep(0.05)
    return False


def interrupted(programs, line, wait, number):
    with tempfile.TemporaryDirectory() as folder:
        words = [str(programs / line.split()[0])] + line.split()[1:]
        words += ["--json", "result.json", "--trace", "trace.json", "--snapshot", "snapshot.pickle"]
        with open(os.devnull, "wb") as nowhere:
            process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=nowhere, stderr=subprocess.PIPE,
                                       start_new_session=True)
            # The banner is written when the handlers are there; before, the signal itself ends the program.
            time.sleep(wait)
            over = process.poll() is not None
            process.send_signal(number)
            try:
                err = process.communicate(timeout=tries.HANG)[1].decode(errors="replace")
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                raise AssertionError(f"goes on after signal {number}, {wait:.2f} s from its start: {line}") from None
        assert not over, f"was meant to take long: {line}: {process.returncode}\n{err[-500:]}"
        assert process.returncode in (130, -number), f"{line}: {process.returncode}\n{err[-500:]}"
        if process.returncode == 130:
            assert err.rstrip().endswith("interrupted; no result was written"), f"{line}:\n{err[-500:]}"
        assert gone(process.pid), f"leaves processes behind: {line}"
        left = tries.files(folder)
        assert not left, f"{line}: leaves {sorted(left)}"


def stopped(programs):
    """A neighbour or a fork server that is stopped answers nobody: Ctrl-C ends chapter 15 all the same, and all its processes."""
    for which in (1, 2):  # in order of birth: the chapter, its fork server, the neighbour
        process = subprocess.Popen([str(programs / "15_sharing"), "--steps", "100000000"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        for _ in range(tries.HANG * 20):
            born = sorted(names(process.pid))
            if len(born) > 2 or process.poll() is not None:
                break
            time.sleep(0.05)
        try:
            os.kill(born[min(which, len(born) - 1)], signal.SIGSTOP)
        except ProcessLookupError:  # a neighbour comes and goes
            pass
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        try:
            code = process.wait(timeout=tries.HANG)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"hangs when process {which} is stopped") from None
        assert code == 130, code
        assert gone(process.pid), "leaves a stopped process behind"


def is_ready(process):
    """Whether it is a neighbour that has asked to end with its parent, as its fork server did before; then it takes its name."""
    try:
        return pathlib.Path(f"/proc/{process}/comm").read_text() == "neighbour\n"
    except OSError:
        return False


def killed(programs):
    """And when the chapter itself is killed, nobody stays, stopped or not."""
    process = subprocess.Popen([str(programs / "15_sharing"), "--steps", "100000000"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    for _ in range(tries.HANG * 20):
        born = sorted(names(process.pid))
        if any(map(is_ready, born)):
            break
        time.sleep(0.05)
    for other in (born[1], *filter(is_ready, born[2:])):
        try:
            os.kill(other, signal.SIGSTOP)
        except ProcessLookupError:
            pass
    process.kill()
    process.wait()
    assert gone(process.pid), "leaves a stopped process behind"


def main():
    arguments = tries.arguments(tries=14, seed=51)
    draw = random.Random(arguments.seed)
    there = [line for line in LONG if (arguments.programs / line.split()[0]).exists()]
    for i in range(arguments.tries):
        wait = draw.choice([0.05, 0.2, 0.5]) * (0.5 + draw.random())
        interrupted(arguments.programs, there[i % len(there)], wait, draw.choice([signal.SIGINT, signal.SIGTERM]))
    if (arguments.programs / "15_sharing").exists():
        stopped(arguments.programs)
        killed(arguments.programs)
    print(f"{arguments.tries} interruptions, nothing left")


main()
