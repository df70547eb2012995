#!/usr/bin/env python3
"""Plans of any size: an answer or one line, within a laptop's memory, and an end.

  plan_test.py ROOT PROGRAMS [--tries N]

First the inputs that did not end; then options at random, large and small. (That a billion rounds take as many allocations as three
is counted in tests/memory.)
"""
import random

import tries

BILLION = "1000000000"
TEXT = ["02_gradient_accumulation", "03_mixed_precision", "04_checkpointing", "06_caching_allocator", "07_multi_gpu",
        "08_attention_and_loss", "13_optimizer_memory", "16_capstone"]
IMAGES = ["00_anatomy", "01_batch_reduction", "05_unified_memory", "15_sharing"]
SERVED = ["11_inference", "12_quantisation"]
FIXED = (
    [(f"{chapter} --model gpt:100000-1-64", 64) for chapter in TEXT]
    + [(f"{chapter} --model mlp:64-64x100000-10", 64) for chapter in IMAGES]
    + [(f"{chapter} --model llama:100000-2-2-64-64", 64) for chapter in SERVED]
    + [(f"{chapter} --batch {BILLION}", 0) for chapter in TEXT + IMAGES + ["11_inference", "09_input_size", "10_lighter_models"]]
    + [(f"{chapter} --memory-steps {BILLION}", 64 if chapter.startswith("06") else 0) for chapter in TEXT + IMAGES + SERVED]
    + [(f"{chapter} --batch {BILLION} --micro-batch 1", 0) for chapter in
       ("02_gradient_accumulation", "07_multi_gpu", "13_optimizer_memory", "16_capstone")]
    + [("12_quantisation --batch 1000000000", 64), ("11_inference --requests 65536", 64),
       ("11_inference --batches 4096", 0), ("11_inference --requests 8192", 0),
       ("07_multi_gpu --dp 1000000 --batch 1000000", 0), ("07_multi_gpu --dp 2000000 --batch 2000000", 64),
       ("02_gradient_accumulation --memory-steps 100000 --series --json x.json", 64),
       ("07_multi_gpu --model qwen2.5-7b", 0), ("07_multi_gpu --dp 1 --zero 3", 64), ("16_capstone --dp 1 --zero 3", 64)]
)


def run(programs, line, codes):
    name, *words = line.split()
    if not (programs / name).exists():
        return None
    outcome = tries.check(tries.attempt([programs / name, "--plan", "--quiet"] + words), codes)
    assert outcome.resident <= tries.MEMORY, f"{line}: {outcome.resident >> 20} MiB"
    if outcome.code == 64:
        tries.refused(outcome)
    return outcome


def drawn(draw):
    size = lambda: str(draw.choice([1, 2, 3, 7, 64, 1000, 4096, 10**5, 10**7, 10**9, 2**40, 2**62]))  # noqa: E731
    line = draw.choice(TEXT + IMAGES + SERVED + ["09_input_size", "10_lighter_models"])
    words = ["--batch", "--memory-steps", "--steps"]
    if line in TEXT + SERVED:
        words += ["--seq"]
    words += {"02": ["--micro-batch"], "07": ["--micro-batch", "--tp", "--pp", "--dp", "--devices"], "09": ["--input", "--tiles"],
              "10": ["--input", "--linear"], "11": ["--batches", "--requests", "--longest", "--processor-layers"],
              "12": ["--batches", "--group"], "16": ["--micro-batch", "--tp", "--pp", "--dp"]}.get(line[:2], [])
    for word in draw.sample(words, min(len(words), draw.randint(1, 4))):
        line += f" {word} {size()}"
    if draw.random() < 0.3:
        line += draw.choice([" --budget 1KiB", " --budget none", " --budget 64TiB", " --quick"])
    return line


def main():
    arguments = tries.arguments(tries=60, seed=38)
    draw = random.Random(arguments.seed)
    answers = 0
    for line, code in FIXED:
        outcome = run(arguments.programs, line, (code,))
        answers += outcome is not None and outcome.code == 0
    refused = 0
    for _ in range(arguments.tries):
        outcome = run(arguments.programs, drawn(draw), (0, 64))
        refused += outcome is not None and outcome.code == 64
    print(f"{len(FIXED)} plans that did not end, {answers} answered; {arguments.tries} drawn, {refused} refused")


main()
