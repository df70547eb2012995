#!/usr/bin/env python3
"""What a terminal would obey, in whatever a program prints of the user's: terminal_test.py ROOT PROGRAMS. It is shown as text."""
import pathlib
import shlex
import subprocess
import sys

import tries

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
# OSC 0, 8 and 52, CSI (private, too), BEL, C1's CSI, DEL, what turns text around, what ends a line, and what is no UTF-8.
HOSTILE = ["\x1b]0;title\x07", "\x1b]8;;http://x\x1b\\", "\x1b]52;c;AAAA\x07", "\x1b[2J\x1b[?1049h", "\x07\x08", "\x9b31m",
           "\x7f", "\u202egpj",
           "\u2066\u2069\u200f", "a\nb\rc", "\udcff\udcfe"]


def shown(outcome, codes):
    tries.check(outcome, codes)
    if outcome.code == 64:
        assert outcome.err.count("\n") == 1 and not outcome.out, outcome.text


def option_values(folder):
    options = {"00_anatomy": ["--model", "--batch", "--budget", "--workspace", "--device", "--devices", "--steps", "--filter",
                              "--card", "--data"],
               "11_inference": ["--config", "--weights", "--text", "--precision", "--seq"], "16_capstone": ["--checkpoint",
                                                                                                            "--optimizer"],
               "fit": ["--model", "--config", "--gpu", "--gpus", "--memory", "--without", "--numbers", "--batch"]}
    for program, names in options.items():
        for i, name in enumerate(names):
            for text in HOSTILE[i % 3::3]:
                more = ["--model", "gpt2"] if program == "fit" and name not in ("--model", "--config") else []
                shown(tries.attempt([PROGRAMS / program, *more, name, text], folder=folder), (64,))
        for text in HOSTILE[::2]:
            shown(tries.attempt([PROGRAMS / program, text], folder=folder), (64,))
            shown(tries.attempt([PROGRAMS / program, f"--{text}"], folder=folder), (64,))
    for text in HOSTILE:
        shown(tries.attempt([PROGRAMS / "00_anatomy", f"--benchmark_{text}=1"], folder=folder), (64,))
        shown(tries.attempt([PROGRAMS / "00_anatomy", f"--benchmark_format={text}"], folder=folder), (64,))
        shown(tries.attempt([PROGRAMS / "00_anatomy", "--json", f"missing/{text}"], folder=folder), (64,))
        shown(tries.attempt([PROGRAMS / "bench_allocators", "--trace", text], folder=folder), (64,))
        shown(tries.attempt([PROGRAMS / "bench_allocators", text], folder=folder), (64,))


def names_that_are_used(folder):
    """Of a model, and so of variants, in the banner, the table, progress, and the commands that fit prints."""
    for i, text in enumerate(HOSTILE):
        name = f"{text}.json".replace("/", "_")
        (folder / name).write_text(tries.CONFIG)
        chapter, fit = ["--quick", "--plan", "--seq", "8"], ["--memory", "8GB", "--seq", "8"]
        runs = [("02_gradient_accumulation", chapter), ("11_inference", chapter), ("fit", fit), ("fit", [*fit, "--json"])]
        for program, more in runs[i % 2::2]:
            outcome = tries.attempt([PROGRAMS / program, "--config", name, *more], folder=folder)
            shown(outcome, (0, 1) if program == "fit" else (0, 64))
        trace = f"{text}.csv".replace("/", "_")
        (folder / trace).write_text("Thread,Time,Action,Pointer,Size,Stream\n0,0,allocate,0x10,512,0\n0,1,free,0x10,512,0\n")
        shown(tries.attempt([PROGRAMS / "bench_allocators", "--trace", trace], folder=folder), (0,))
        (folder / trace).write_text(f"Thread,Time,Action,Pointer,Size,Stream\n0,0,{text},0x10,512,0\n", errors="surrogateescape")
        shown(tries.attempt([PROGRAMS / "bench_allocators", "--trace", trace], folder=folder), (64,))


def what_fit_prints_can_be_pasted(folder):
    """Its command names the file so that bash reads the same name back."""
    name = "\x1b[1m it's \\ \u202e.json"
    (folder / name).write_text(tries.CONFIG)
    outcome = tries.check(tries.attempt([PROGRAMS / "fit", "--all", "--config", name, "--memory", "8GB", "--seq", "8"], folder=folder),
                          (0, 1))
    command = next(line for line in outcome.out.splitlines() if "--config" in line)
    quoted = command[command.index("$'"):]
    word = quoted[:quoted.index(".json'") + len(".json'")]
    said = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, env={"LC_ALL": "C.UTF-8"}, check=True).stdout
    assert said.decode() == str(folder / name), (word, said)


def the_programs_own_name(folder):
    chapter, fit = (shlex.quote(str(PROGRAMS / name)) for name in ("00_anatomy", "fit"))
    for name in ("$'\\e]0;x\\a'", "$'a\\nb'", "$'\\xe2\\x80\\xae'"):
        for line in (f"{chapter} --plan", f"{chapter} --help", f"{chapter} --nosuch", f"{chapter} --version", f"{fit} --nosuch"):
            shown(tries.attempt(f"exec -a {name} {line}", folder=folder), (0, 64))


def main():
    tries.run_cases(option_values, names_that_are_used, what_fit_prints_can_be_pasted, the_programs_own_name)


main()
