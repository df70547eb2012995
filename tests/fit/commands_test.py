#!/usr/bin/env python3
"""Is what fit prints what the programs do? Asks fit random questions, and runs the commands that it recommends.

  commands_test.py PROGRAMS [--planned N] [--measured N] [--seed S]

  --planned N    of N questions: peak by category = the plan of the recommended command, to the byte
  --measured N   of N small ones: = the peak of a run without --plan, to the byte
"""
import argparse
import json
import pathlib
import random
import shlex
import subprocess
import sys
import tempfile

MODELS = ["bert-base", "bert-large", "gpt2", "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "llama-3.1-70b", "gpt3-175b", "bytes-gpt"]
DECODERS = ["llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "mistral-7b", "llama-3.1-70b", "bytes-llama"]
CARDS = ["t4", "v100-16", "rtx3060", "rtx-4090", "a100-40", "h100sxm", "l4", "B200"]


def ask(programs, question):
    """fit's answer. Nothing where it says that it makes no sense."""
    run = subprocess.run([programs / "fit", *shlex.split(question), "--engine", "oomlab", "--json"], capture_output=True, text=True)
    if run.returncode == 64:
        assert run.stderr.count("\n") == 1 and not run.stdout, run.stderr
        return None
    assert run.returncode in (0, 1), f"{question}: exit code {run.returncode}: {run.stderr}"
    answer = json.loads(run.stdout)
    assert answer["fits"] == (run.returncode == 0), question
    return answer


def done(programs, row, plan):
    """Peak bytes by category of the row's command, without cuBLAS's workspace; and of a run whether it was within its budget."""
    run, chapter, *options = shlex.split(row["command"])
    assert run == "bench/run", row["command"]
    options = [o for o in options if plan or o != "--plan"]
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "result.json"
        run = subprocess.run([programs / chapter, *options, "--quiet", "--steps", "1", "--json", file], capture_output=True, text=True)
        assert run.returncode == 0, f"{row['command']}: exit code {run.returncode}: {run.stderr}"
        result = json.loads(file.read_text())
    assert len(result["variants"]) == 1, row["command"]
    variant = result["variants"][0]
    bytes_ = dict(variant["by_category_bytes"])
    bytes_["workspace"] -= result["config"]["workspace_bytes"]
    return bytes_, variant["outcome"]


def check(programs, answer, question, plan):
    rows = [row for row in [answer["as_is"], *answer["ladder"], answer["cheapest"], answer["closest"]] if row] if plan else [answer["cheapest"]]
    for row in (row for row in rows if row["command"]):  # chapter 11 has none for what does not fit
        bytes_, outcome = done(programs, row, plan)
        said = {name: row["bytes"][name] for name in bytes_}
        assert said == bytes_, f"{question}: {row['command']}: said {said}, {'planned' if plan else 'measured'} {bytes_}"
        assert row["peak_bytes"] == sum(bytes_.values()), row["command"]
        if row["least_seconds"] is not None:
            assert (outcome == "ok") == row["fits"], f"{question}: {row['command']}: {outcome}, and fit says {row['fits']}"
    return len(rows)


def any_question(draw):
    infer = draw.random() < 0.3
    model = draw.choice(DECODERS if infer else MODELS)
    if draw.random() < 0.3:
        model = draw.choice(["gpt:6-4-256", "bert:5-8-128", "llama:7-8-4-256-688"]) if not infer else "llama:5-4-2-128-256"
    words = f"--model {model} --batch {draw.choice([1, 1, 2, 3, 4, 6, 8, 12, 32])} --seq {draw.choice([30, 64, 128, 200, 512])}"
    if infer:
        return words + f" --task infer --gpu {draw.choice(CARDS)}" + draw.choice(["", " --memory 6GB", " --memory 2GiB", " --without weights"])
    if draw.random() < 0.3:
        words += f" --gpus {draw.choice([2, 4, 6, 8])}x{draw.choice(CARDS)}"
    else:
        words += f" --gpu {draw.choice(CARDS)}"
    words += draw.choice(["", "", " --memory 3GB", " --memory 900MB", " --memory 5GiB"])
    words += draw.choice(["", "", " --numbers same", " --numbers any", " --precision bf16", " --without offload,in-backward"])
    return words


def small_question(draw):
    infer = draw.random() < 0.25
    model = "llama:3-4-2-64-128" if infer else draw.choice(["gpt:4-2-64", "bert:5-4-64", "llama:6-4-2-64-172", "gpt:3-4-96"])
    words = f"--model {model} --batch {draw.choice([1, 2, 4, 8])} --seq {draw.choice([32, 48, 64])} --context 0 --reserve 0 --nccl 0"
    if infer:
        return words + f" --task infer --memory {draw.choice(['800KB', '1MB', '2MB'])}"
    words += f" --memory {draw.choice(['1500KB', '2MB', '3MB', '5MB', '8MB'])}"
    words += draw.choice(["", "", " --gpus 2", " --gpus 4"])
    return words + draw.choice(["", "", " --numbers same", " --numbers any", " --without offload", " --without micro-batch,offload"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--planned", type=int, default=0)
    parser.add_argument("--measured", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    for plan, wanted, any_ in ((True, arguments.planned, any_question), (False, arguments.measured, small_question)):
        asked = fitted = commands = 0
        while asked < wanted:
            question = any_(draw)
            answer = ask(arguments.programs, question)
            if answer is None or (not plan and not answer["fits"]):
                continue
            asked += 1
            fitted += answer["fits"]
            commands += check(arguments.programs, answer, question, plan)
        if wanted:
            print(f"{asked} questions, {fitted} fit, {commands} commands {'planned' if plan else 'measured'}")
            assert fitted >= asked / 3


if __name__ == "__main__":
    sys.exit(main())
