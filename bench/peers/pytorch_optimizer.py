#!/usr/bin/env python3
"""One update of AdamW, ours and PyTorch's, in turns on this processor: 16 matrices of 1024 x 1024, FP32, nothing else.

  pip install torch
  cmake --build --preset host --target 13_optimizer_memory_bench && bench/peers/pytorch_optimizer.py [--rounds 7] [--threads N]

PyTorch's is torch.optim.AdamW(fused=True). Ours is the table that 13_optimizer_memory_bench prints. A ratio above 1 means that ours
is faster. Both have the same number of threads, and the machine should have nothing else to do.
"""
import argparse
import os
import pathlib
import re
import statistics
import subprocess
import time

import torch

root = pathlib.Path(__file__).resolve().parents[2]


def theirs():
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.rand(1024, 1024) * 0.2 - 0.1) for _ in range(16)]
    for w in weights:
        w.grad = torch.rand(1024, 1024) * 0.2 - 0.1
    optimizer = torch.optim.AdamW(weights, fused=True)
    times = []
    for _ in range(11):
        start = time.perf_counter()
        optimizer.step()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times[2:])


def ours(threads):
    text = subprocess.run([root / "build/host/bin/13_optimizer_memory_bench"], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads)}).stdout
    return {m[1].strip(): float(m[2]) for m in re.finditer(r"^(\S.{0,80}?)\s{1,40}([\d.]{1,20}) ms ", text, re.MULTILINE)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rounds = [(theirs(), ours(arguments.threads)) for _ in range(arguments.rounds)]
    fused = statistics.median(t for t, _ in rounds)
    print(f"PyTorch {torch.__version__}, AdamW(fused=True): {fused:.2f} ms, {arguments.threads} threads, {arguments.rounds} rounds in turns")
    for name in rounds[0][1]:
        ms = statistics.median(o[name] for _, o in rounds)
        ratio = statistics.median(t / o[name] for t, o in rounds)
        print(f"  ours, {name:<16} {ms:8.2f} ms   {ratio:5.2f} x PyTorch's fused AdamW")


if __name__ == "__main__":
    main()
