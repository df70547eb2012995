#!/usr/bin/env python3
"""The host runtime against PyTorch on the same processor, with the same number of threads: one training step of the same
model on the same shapes, FP32, AdamW. Both are run in turns, several times; the figure is the ratio of medians.

  pip install torch && bench/peers/pytorch_steps.py [--rounds 5] [--bin build/host/bin]

Fairness: PyTorch runs as its users run it: modules, scaled_dot_product_attention (which never forms the probabilities
that ours keeps), and its own AdamW, fused. Our step includes making the batch and copying it; PyTorch's does not.
Each side's BLAS picks its kernels for the processor itself: OPENBLAS_CORETYPE and MKL_ENABLE_INSTRUCTIONS are not passed on.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

for pinned in ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS"):
    os.environ.pop(pinned, None)

import torch  # noqa: E402
import torch.nn as nn
import torch.nn.functional as F

root = pathlib.Path(__file__).resolve().parents[2]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, s, c))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, positions):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token.weight)


def perceptron(widths):
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers += [nn.Linear(a, b)] + ([nn.ReLU()] if i + 2 < len(widths) else [])
    return nn.Sequential(*layers)


def pytorch(model, x, y, steps):
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    seconds = []
    for _ in range(steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out.view(-1, out.shape[-1]), y.view(-1)).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return x.shape[0] / statistics.median(seconds[2:])  # samples a second


def ours(program, options, variant, threads):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        subprocess.run([program, *options, "--filter", variant, "--quiet", "--budget", "none", "--json", path], check=True,
                       env={**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)})
        return json.loads(path.read_text())["variants"][0]["throughput"]["median"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/host/bin")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    widths = [512, 1024, 2048, 4096, 8192, 10]
    gpt, mlp = Gpt(4, 4, 128, 256, 256), perceptron(widths)
    cases = []
    for batch in (4, 32):
        tokens = torch.randint(256, (batch, 129))
        cases.append((f"bytes-gpt, batch {batch}, seq 128", gpt, tokens[:, :-1], tokens[:, 1:].contiguous(),
                      arguments.bin / "02_gradient_accumulation",
                      ["--batch", str(batch), "--micro-batch", str(batch), "--steps", "10"], "^full batch"))
    for batch in (32, 128):
        cases.append((f"mlp, batch {batch}", mlp, torch.rand(batch, 512), torch.randint(10, (batch,)),
                      arguments.bin / "00_anatomy", ["--batch", str(batch), "--steps", "10"], "^adamw$"))
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, medians of {arguments.rounds} rounds, samples/s")
    print(f"{'step':<30} {'ours':>9} {'PyTorch':>9} {'ratio':>6}")
    for name, model, x, y, program, options, variant in cases:
        rounds = [(ours(program, options, variant, arguments.threads), pytorch(model, x, y, 10))
                  for _ in range(arguments.rounds)]
        a, b = (statistics.median(column) for column in zip(*rounds))
        print(f"{name:<30} {a:>9.1f} {b:>9.1f} {a / b:>6.2f}")


main()
