#!/usr/bin/env python3
"""What `with oomlab.watch():` costs a training loop of PyTorch: the time of its steps with it, by the time without.

  bench/benchmarks/watch.py [--steps N] [--turns N]    the ratio of the medians, and how far the turns are apart
    --judge                                            as a row for bench/benchmarks/run

Needs a Python with PyTorch. With a GPU the allocator is recorded, and the clock tells. On a processor nothing is recorded: what is left is
that watch() begins and ends, and the time of one processor tells, which depends less on what else the machine does. There a step takes
long, and its time varies little: two of them a turn (20 with a GPU) are as good as more.
"""
import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench/package"))
import oomlab  # noqa: E402

MOST = 1.02


def training(device):
    """A step of a small decoder with AdamW."""
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.Sequential(torch.nn.Embedding(1000, 256), torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.nn.Linear(256, 1000)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(1000, (4, 128), device=device)

    def step():
        loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return step


def seconds(step, steps, device, context):
    """Of `steps` steps inside `context`, its beginning and end included."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    start = clock()
    with context:
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
    return clock() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--judge", action="store_true")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps = options.steps or (20 if device == "cuda" else 2)
    torch.set_num_threads(1)  # threads that wait would be counted as work
    step = training(device)
    seconds(step, steps, device, oomlab.watch())
    took = {"with": [], "without": []}
    for turn in range(options.turns):
        # Each goes first in every other turn.
        ways = {"with": oomlab.watch, "without": contextlib.nullcontext}
        order = ("with", "without") if turn % 2 else ("without", "with")
        for way in order:
            took[way].append(seconds(step, steps, device, ways[way]()))
    median = statistics.median(took["with"]) / statistics.median(took["without"])
    ratios = [a / b for a, b in zip(took["with"], took["without"])]
    what = f"a loop of {steps} training steps ({device}), by the same without it"
    if options.judge:
        print(json.dumps({"benchmark": "watch", "what": what, "seen": median, "at": "most", "wanted": MOST, "unit": "times"}))
    else:
        print(f"oomlab.watch(): {what}: {median:.4f} by the medians, {min(ratios):.4f} to {max(ratios):.4f} in {options.turns} turns; PyTorch {torch.__version__}")


if __name__ == "__main__":
    sys.exit(main())
