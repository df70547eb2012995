#!/usr/bin/env python3
"""bench/fit answers what is true, and what it prints can be pasted, whatever it is asked.

  fit_test.py ROOT PROGRAMS [--tries N]     so many of the questions with many answers
"""
import json
import pathlib
import shlex
import sys
import tempfile

import tries
from tries import MEMORY, attempt, check, refused

ARGUMENTS = tries.arguments(tries=1)
PROGRAMS = ARGUMENTS.programs.resolve()
# The longest sequence that is in the course's text.
TEXT = (ARGUMENTS.root / "common/data/text/course_text.txt").stat().st_size - 1
READERS = ["02_gradient_accumulation", "03_mixed_precision", "04_checkpointing", "07_multi_gpu --dp 2", "08_attention_and_loss",
           "11_inference", "12_quantisation", "13_optimizer_memory", "16_capstone"]
# Questions with many answers: how many combinations there are at least, how many are planned at most, and what may be resident. By day the
# first: half as much again as it takes. What all of them take is in proportion to the combinations.
BIG = {"--model llama-3.1-70b --gpus 1024xh100-sxm --batch 1024": (10_000_000, 2000, 50 << 20),
       "--model gpt3-175b --gpus 1024xh100-sxm --batch 1024": (2_000_000, 2000, MEMORY),
       "--model llama-3.1-70b --gpus 1024xh100-sxm --batch 720720": (50_000_000, 2000, MEMORY)}


def fit(question, codes=(0, 1)):
    return check(attempt([PROGRAMS / "fit", "--engine", "oomlab", *shlex.split(question)]), codes)


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
        for question in (f"--model llama-3.2-1b --seq {tokens} --gpu h100-sxm",
                         f"--model llama-3.1-8b --task infer --seq {tokens} --gpu l4"):
            for row in rows_of(answer(question)):
                planned(row["command"])
    for reader in READERS:
        chapter, *options = reader.split()
        check(attempt([PROGRAMS / chapter, "--plan", "--quiet", "--model", "llama-3.2-1b", "--batch", "2", "--seq", str(TEXT + 1),
                       "--steps", "1", "--budget", "none", *options]), (0,))


def a_thousand_cards():
    """First of all: `resident` is the most that any process had so far."""
    for question, (least, most, resident) in [*BIG.items()][:ARGUMENTS.tries]:
        run = fit(f"{question} --json")
        found = json.loads(run.out)
        assert found["combinations"] >= least and 0 < found["planned"] <= most, (found["combinations"], found["planned"])
        assert run.resident < resident, f"{question}: {run.resident >> 20} MB"
        assert all(line.startswith("fit: still comparing") for line in run.err.splitlines()), run.err


def layers_on_the_processor():
    """Their keys and values are in host memory: 4 bytes each, K and V, of 8 heads of 128 values."""
    many = "--task infer --model llama-3.1-8b --batch 4096 --seq 131072 --gpu t4 --without weights"
    assert not answer(many)["fits"], "140 TB of host memory"
    for batch, tokens, card in ((32, 8192, "--memory 12GB"), (4096, 131072, "--gpu t4 --host-memory 200000GB")):
        question = f"--task infer --model llama-3.1-8b --batch {batch} --seq {tokens} {card} --without weights"
        row = answer(question)["cheapest"]
        layers = int(row["options"].rsplit(" ", 1)[1])
        cache = batch * tokens * layers * 2 * 8 * 128 * 4
        assert row["host_bytes"] > cache, (row["options"], row["host_bytes"], cache)
        assert row["least_seconds"] > cache / 614.4e9, row
        assert not answer(f"{question} --host-memory {cache}")["fits"]


def rows_that_do_not_fit_have_no_command_that_does():
    found = answer("--task infer --model llama-3.1-8b --batch 64 --seq 8192 --gpu rtx3060 --without processor,weights")
    assert not found["fits"] and found["closest"]["command"] is None
    for question in ("--task infer --model llama-3.1-70b --batch 8 --seq 4096 --gpu rtx3060 --without processor",
                     "--task infer --model llama-3.1-8b --precision fp16 --batch 64 --seq 8192 --gpu t4"):
        for row in rows_of(answer(question)):
            if row["command"] and row["least_seconds"] is not None:
                assert (planned(row["command"])["outcome"] == "ok") == row["fits"], row


def one_card_of_two():
    for batch in (4,):  # one layer of one head: two ranks share the samples, and their buffers are too much
        question = f"--model gpt:1-1-3072 --batch {batch} --seq 512 --gpus 2xrtx3060 --memory 1.2GB"
        words, found = fit(question).out, answer(question)
        assert "(uses 1 of the 2 cards, with no NCCL" in words and " -1" not in words.replace("--", ""), words
        last = found["ladder"][-1]
        assert last["cards"] == 1 and last["left_bytes"] == found["room"]["left_bytes"] + found["room"]["nccl_bytes"]
        assert planned(last["command"])["outcome"] == "ok"


def what_is_left_out_is_said():
    assert "vocabulary of 258" in fit("--model gpt:48-25-1600 --gpu a100-80").out
    assert "vocabulary of 258" in answer("--model gpt:48-25-1600 --gpu a100-80")["notes"][0]
    assert answer("--model gpt2-xl --gpu a100-80")["parameters"] == 1557611200
    no_bf16 = "--task infer --model llama-3.1-8b --precision bf16 --gpu t4"
    refused(attempt([PROGRAMS / "fit", *shlex.split(no_bf16)]), "BF16", "fp16 or fp32")
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        config.write_text(json.dumps({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 3, "num_attention_heads": 4,
            "vocab_size": 256, "max_position_embeddings": 512,
            "quantization_config": {"quant_method": "awq\x1b]0;x\x07", "bits": 4}}))
        for task in ("train", "infer"):
            assert "quantization_config ('awq\\x1b]0;x\\x07', 4 bits) is left out" in fit(f"--config {config} --task {task} --memory 1GB").out
        run = check(attempt([PROGRAMS / "12_quantisation", "--plan", "--config", config, "--seq", "64", "--steps", "1"]), (0,))
        assert run.err.count("quantization_config ('awq\\x1b]0;x\\x07', 4 bits) is left out") == 1, run.err


def images_of_any_size():
    """Of networks of images, a detector's backbone, and pipelines: what is no size is refused in a line, what is too much is no crash."""
    def asked(*words):
        return attempt([PROGRAMS / "fit", *words, "--gpu", "t4"])

    for model in ("resnet50", "fasterrcnn_resnet50_fpn", "unet:4-64"):
        for size in ("\x1b]0;x\x07", "8\n8", "0x0", "-1x5", "800x", "x1333", "x", "1x1x1", "99999999999999999999x1", "800 x 1333", "0x10x1", "\u0661x2",
                     "65537", "1e3", "8" * 10000):
            refused(asked("--model", model, "--input", size), "--input", "HEIGHTxWIDTH")
        for size in ("1", "1x65536", "65536x1", "65536"):
            for batch in ("1", "1000000"):
                run = asked("--model", model, "--input", size, "--batch", batch)
                assert run.code in (0, 1, 64) and run.resident < MEMORY, run
                check(run, (0, 1)) if run.code < 64 else refused(run)
    for words in (("--model", "gpt2", "--input", "224"), ("--model", "vit-b-16", "--input", "800x1333"), ("--model", "sdxl", "--input", "512")):
        refused(asked(*words), "--input")
    for model in ("fasterrcnn_resnet50_fpn_v2", "maskrcnn\x1b[31m", "yolo\n", "DETR" * 1000, "retinanet_resnet50_fpn"):
        refused(asked("--model", model), "fasterrcnn_resnet50_fpn")
    eager = ("--attn-implementation", "eager")
    for words in (("--size", "16384", "--batch", "65536"), ("--size", "16384", "--batch", "65536", *eager), ("--batch", "1000000"), ("--largest", "size", *eager)):
        run = asked("--model", "sdxl", *words)
        assert run.code in (0, 1, 64) and run.resident < MEMORY, run
        check(run, (0, 1)) if run.code < 64 else refused(run)


def main():
    a_thousand_cards()
    images_of_any_size()
    a_plan_needs_no_text()
    layers_on_the_processor()
    rows_that_do_not_fit_have_no_command_that_does()
    one_card_of_two()
    what_is_left_out_is_said()
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
