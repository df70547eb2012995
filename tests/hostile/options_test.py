#!/usr/bin/env python3
"""Command lines drawn at random: options_test.py ROOT PROGRAMS [--tries N] [--seed S] [--only I].

Options come from each program's own --help, values from what its help says and from what nobody should write. Each try runs in a
fresh folder. No crash, no hang, no control character; one line and nothing else for what is refused; and no file that was not
asked for. Most only plan. Try I is the same whatever N is: --only I repeats it.
"""
import collections
import concurrent.futures
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import tries

SMALL = [str(n) for n in (1, 1, 2, 2, 3, 4, 5, 7, 8, 12, 16, 33)]
# Sizes whose plans may take long are for tests/hostile/plan_test.py; these are refused, or as quick as small ones.
HUGE = ["18446744073709551615", "18446744073709551616", "9223372036854775808", "1" + "0" * 40]
ODD = ["", "0", "-1", "-9223372036854775808", "+4", "4.5", "1e9", "0x10", "4 ", " 4", "4k", "nan", "inf", "\u0664", "many",
       "\u4e2d\u6587",
       "4\u202e", "\x1b]0;title\x07", "\x1b[2J", "4\n", "\t", "a" * 5000, "'", '"', "$(touch here)",
       "`touch here`", "--", "-", "=", "%s%n",
       "\udcff\udcfe", "../../..", "/", ".", "none", "auto", "all"]
SIZES = ["1B", "1KiB", "256KiB", "4MiB", "9MiB", "1GiB", "8GB", "none", "0.5MiB", "99999999999TiB", "1e3MiB", "-1MiB", "MiB",
         "12parsecs"]
FILTERS = [".", "^a", "a|b", "(", "[", "*", "(" * 400, "((((.*)*)*)*)*zz", "(a|a)*" * 50, "\\p{L}+", "(?i)ADAM", "(?=x)", "\\1",
           "a{1000}" * 30,
           "^$", "\\C", "x{2,1}", "[^\\x00-\\x7f]"]
MLPS = ["mlp", "mlp-small", "mlp:8-4-10", "mlp:64-12-10", "mlp:64-4x3-10", "mlp:0-1-10", "mlp:-1", "mlp:",
        "mlp:64-4-10,mlp:64-8-10"]
RESNETS = ["resnet:1-2", "resnet:2-4", "resnet:0-0", "mobilenet:4", "unet:1-2", "two-branch:2", "resnet18", "resnet:1-2-3",
           "RESNET18"]
LLAMAS = ["llama:1-2-1-8-8", "llama:2-2-2-8-12", "bytes-llama", "llama:1-2-3-8-8", "llama:0-0-0-0-0", "llama-3.2-1b", "gpt:1-1-4"]
TEXTS = ["gpt:1-1-4", "gpt:2-2-8", "gpt:4-2-16", "bert:1-1-4", "bert:2-2-8", "llama:1-2-1-8-8", "bytes-gpt", "bytes-llama",
         "gpt2", "bert-base",
         "gpt:0-0-0", "gpt:1-3-4", "GPT:1-1-4", "gpt:1-1", "gpt:1-1-4-5-6", "gpt:1-1-99999999999999999999", "bert:1-1-4 "]
CARDS = ["t4", "a100-40gb", "h100-sxm", "T4", "H100 SXM", "rtx-9999", "a100", "2xt4", "0xt4", "x"]
WORDS = ["fp32", "fp16", "bf16", "textbook", "tiled", "fused", "full", "chunked", "adamw8?", "adafactor", "sgd", "master",
         "stochastic", "stored", "same", "any", "micro-batch", "loss", "lean", "offload", "tp", "zero", "pages"]
# Options whose value a plan's time grows with, without a limit that makes it a mistake.
LOOPS = {"--batch", "--memory-steps", "--steps", "--requests", "--batches", "--longest", "--learn", "--tiles", "--seq",
         "--micro-batch",
         "--input", "--linear", "--devices", "--dp", "--tp", "--pp", "--gpus"}
BENCHMARK = ["--benchmark_filter=", "--benchmark_filter=-a", "--benchmark_filter=((((.*)*)*)*)*zz", "--benchmark_out=",
             "--benchmark_out=b.json",
             "--benchmark_repetitions=", "--benchmark_repetitions=1000001", "--benchmark_min_time=nan", "--benchmark_nosuch",
             "--benchmark_format=json", "--benchmark_context=a", "--benchmark_context=a=b,c=d", "--benchmark_list_tests=perhaps",
             "--benchmark_time_unit=h", "--benchmark_v=99999999999", "--benchmark_counters_tabular=x",
              "--benchmark_color=\x1b[1m"]


def options_of(program):
    """The program's options, each with the text of its help; an option without a value has None before it."""
    text = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        match = re.match(r" +(?:-h,)?(--[a-z0-9-]+)(?: ([A-Z]+|[A-Za-z,|]+))?  +(.*)", line)
        if match:
            found[match[1]] = (match[2] if match[2] and match[2] != "-h" else None, match[3])
    assert len(found) > 10, f"{program}: {text}"
    return found


def value_of(draw, name, about):
    """A value for an option: mostly one that may be right."""
    if draw.random() < 0.1:
        return draw.choice(ODD + ([] if name in LOOPS else HUGE) + HUGE[1:2])
    if name in ("--budget", "--workspace", "--memory", "--context", "--nccl"):
        return draw.choice(SIZES)
    if name == "--model":
        kinds = [models for word, models in (("resnet", RESNETS), ("mlp", MLPS), ("bytes-llama", LLAMAS)) if word in about]
        return draw.choice(kinds[0] if kinds else TEXTS)
    if name in ("--card", "--gpu"):
        return draw.choice(CARDS)
    if name == "--filter":
        return draw.choice(FILTERS)
    if name in ("--json", "--trace", "--snapshot"):
        return draw.choice(["out.json", "./out.json", "sub/../out.json", "t", "missing/x", "sub", "link", "given", "/dev/null",
                            "pipe", "/proc/x"])
    if name in ("--text", "--config", "--weights", "--data",
                "--quantised") and "file" in about.lower() + " file" * (name == "--config"):
        return draw.choice(["given", "config.json", "pipe", "sub", "missing", "/dev/zero", "/dev/null", "link", "./given",
                            "/proc/self/mem"])
    if name == "--save":
        return draw.choice(["q.", "missing/", "sub/q.", "/proc/"])
    if name == "--checkpoint":
        return draw.choice(["none", "1", "2", "solved", "0", "99"])
    if name == "--gpus":
        return draw.choice(["1", "2", "4", "8", "4xt4", "2xa100-40gb", "3"])
    if name == "--task":
        return draw.choice(["train", "infer"])
    words = re.findall(rf"\b(?:{'|'.join(WORDS)})\b", about)
    if name == "--device":
        return draw.choice(["0", "auto", "1"])
    if words and name not in LOOPS:
        return draw.choice(words)
    return draw.choice(SMALL)


def command_of(draw, program, options):
    quick = program.name != "fit"
    words = []
    for name in draw.sample(sorted(options), draw.choice([1, 2, 3, 3, 4, 5, 8])):
        if name in ("--help", "--version") and draw.random() < 0.9:
            continue
        takes, about = options[name]
        if not takes:
            flag = name if draw.random() < 0.95 else f"{name}={draw.choice(['true', 'x', '0', ''])}"
            words.append(["--plan=true" if flag == "--plan=0" else flag])  # which would run what is too large to run here
            continue
        value = value_of(draw, name, about)
        words.append([f"{name}={value}"] if draw.random() < 0.2 else [name, value] if draw.random() < 0.98 else [name])
    if not quick:
        for name, value in (("--model", draw.choice(TEXTS)), ("--gpu", draw.choice(CARDS[:3]))):
            if draw.random() < 0.8 and not any(w[0].startswith(name) for w in words):
                words.append([name, value])
    else:
        if draw.random() < 0.05:
            words.append([draw.choice(BENCHMARK)])
    if draw.random() < 0.03:
        words.append([draw.choice(ODD + ["--nosuch", "-x", "--batch-", "--BATCH"])])
    if ["--series"] in words and draw.random() < 0.8:
        words.append(["--json", "out.json"])
    draw.shuffle(words)
    if quick:  # first, so that no option without its value takes them. What runs, runs one step of something small
        sizes = ("--model", "--batches", "--requests", "--learn", "--budget")
        plan = draw.random() < 0.93 or any(word[0].startswith(sizes) for word in words)
        words = [["--quick"], ["--plan"] if plan else ["--steps", "1"]] + words
    line = [str(program)] + [word for group in words for word in group]
    return [word.replace("\0", "") for word in line]


def furnish(folder):
    """What options may name."""
    (folder / "sub").mkdir()
    (folder / "given").write_bytes(bytes(range(256)) * 20)
    (folder / "config.json").write_text(tries.CONFIG)
    (folder / "link").symlink_to("given")
    subprocess.run(["mkfifo", folder / "pipe"], check=True)


def attempt(number, seed, programs, codes):
    draw = random.Random(f"{seed} {number}")
    program, options = programs[draw.randrange(len(programs))]
    line = command_of(draw, program, options)
    shown = f"try {number}: {line[0].rsplit('/', 1)[-1]} " + " ".join(repr(word)[:80] for word in line[1:])
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        furnish(folder)
        before = tries.files(folder)
        try:
            outcome = tries.check(tries.attempt(line, folder=folder, environment={"OMP_NUM_THREADS": "1"}))
            codes[outcome.code] += 1
            after = tries.files(folder)
            if outcome.code == 64:
                assert outcome.err.count("\n") == 1 and not outcome.out, f"not one line: {outcome.text[:1000]}"
                assert after == before, f"refused, and left {after.keys() ^ before.keys()}, or changed one"
            if program.name != "fit":
                assert outcome.code != 1 or "pipe" in outcome.err, f"a check failed: {outcome.text[-1500:]}"
            for name in ("given", "config.json"):
                asked = any(word.endswith(("given", "link")) for word in line)
                assert after.get(name) == before[name] or asked, f"{name} has changed"
            new = {name for name in after if name not in before}
            named = {str(pathlib.Path(part)) for word in line for part in (word, word.split("=", 1)[-1])} | {"out.json"}
            assert all(name in named or re.fullmatch(r"(sub/)?q\.[a-z0-9_]+\.safetensors", name) for name in new), f"left {new}"
        except AssertionError as error:
            return f"{shown}\n    {error}"
    return None


def main():
    asked = tries.arguments(tries=300, seed="options", more=lambda parser: parser.add_argument("--only", type=int))
    asked.programs = asked.programs.resolve()
    chapters = sorted(folder.name for folder in pathlib.Path(asked.root, "chapters").iterdir() if (folder / "main.cu").exists())
    programs = [(asked.programs / name, options_of(asked.programs / name)) for name in chapters + ["fit"]]
    codes = collections.Counter()
    numbers = range(asked.tries) if asked.only is None else [asked.only]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        failed = [f for f in pool.map(lambda n: attempt(n, asked.seed, programs, codes), numbers) if f]
    by_code = ", ".join(f"{count} ended with {code}" for code, count in sorted(codes.items()))
    print(f"{len(numbers)} command lines of {len(programs)} programs: {by_code}; {len(failed)} failed")
    print("\n".join(failed[:20]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
