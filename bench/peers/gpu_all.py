#!/usr/bin/env python3
"""What pytorch_training.py, huggingface_training.py and huggingface_generation.py measure on a GPU, in one process, the most valuable first.

  pip install torch transformers peft
  bench/peers/gpu_all.py [--seconds N] [--resume] [--out FOLDER] [--snapshots FOLDER]

For a machine that is there for minutes: packages are imported once. Result files as each script's own --device cuda writes them, in --out, by default
bench/results/peers/; and with --snapshots PyTorch's memory snapshots. It stops after N seconds and says what is left. Exit code 3 where the
device gave up: again with --resume. Each script's --text then adds what is predicted, on any machine that has built it.
"""
import argparse
import pathlib
import time

import gpu
import gpu_snapshots
import huggingface_generation
import huggingface_training
import pytorch_training

TRAINING, GENERATION, MODULES = huggingface_training.SCRIPT, huggingface_generation.SCRIPT, pytorch_training.SCRIPT
FIRST = ((TRAINING, 0, 12), (GENERATION, 0, 4), (MODULES, 0, 4))  # script, from, to: of its settings
THEN = ((TRAINING, 12, 18), (GENERATION, 4, 7), (MODULES, 4, 9), (TRAINING, 18, None), (GENERATION, 7, None), (MODULES, 9, None))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=gpu.FOLDER)
    gpu.add_options(parser, "cuda")
    arguments = parser.parse_args()
    until = time.perf_counter() + arguments.seconds
    counter = gpu.Counter(arguments.device)
    slug = gpu.about(counter)["slug"]
    folder = arguments.out

    def measure(parts):
        for script, start, end in parts:
            arguments.out = folder / f"{script.name}_{slug}.json"
            settings = script.settings()
            gpu.measure(script, counter, settings[start:end], settings, arguments, until)

    measure(FIRST)  # each script once

    if arguments.snapshots:
        for script in (TRAINING, GENERATION, MODULES):
            gpu_snapshots.snapshots(script, counter, [script.setting_of(words) for words in script.snapshots], arguments.snapshots, until, arguments.small)
    arguments.resume = True
    measure(THEN)


if __name__ == "__main__":
    main()
