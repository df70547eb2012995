#!/usr/bin/env python3
"""Makes the fixtures beside it: what PyTorch computes for small transformers. Run by hand; nothing needs it to build.

  pip install torch numpy && tests/parity/generate.py

gpt.json and bert.json: parameters, tokens, labels; logits, loss, all gradients and ten AdamW losses in FP32.

bf16.json: in BF16 with FP32 master weights, how far logits, gradients and ten losses are from FP64 (relative L2), for 20
models of two shapes and both styles. Their values are a hash that parity_test.cpp computes, too; FP64's losses say whether
both began with the same.
"""
import json
import math
import pathlib
import typing

import numpy
import torch
import torch.nn.functional as F

ADAMW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEPS, SEEDS = 10, 20


class Shape(typing.NamedTuple):
    style: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int
    sequences: int
    seq: int


SHAPES = [Shape(style, *sizes) for style in ("gpt", "bert") for sizes in ((2, 2, 12, 29, 16, 3, 7), (3, 3, 33, 257, 64, 2, 37))]


def tensors(s):
    """Names and shapes in the order of nn::tensors_of()."""
    def norm(name):
        return [(f"{name} gamma", (s.width,)), (f"{name} beta", (s.width,))]

    def linear(name, out, width):
        return [(f"{name} weight", (out, width)), (f"{name} bias", (out,))]

    all_ = [("token embedding", (s.vocabulary, s.width)), ("position embedding", (s.positions, s.width))]
    if s.style == "bert":
        all_ += [("type embedding", (2, s.width))] + norm("embedding norm")
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        all_ += linear(name + "qkv", 3 * s.width, s.width) + linear(name + "projection", s.width, s.width) + norm(name + "norm 1")
        all_ += linear(name + "expand", 4 * s.width, s.width) + linear(name + "contract", s.width, 4 * s.width) + norm(name + "norm 2")
    if s.style == "bert":
        return all_ + linear("head dense", s.width, s.width) + norm("head norm") + [("head bias", (s.vocabulary,))]
    return all_ + norm("final norm")


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[name + " gamma"], p[name + " beta"], 1e-5)


def linear(p, name, x):
    return F.linear(x, p[name + " weight"], p[name + " bias"])


def gelu(x):
    return F.gelu(x, approximate="tanh")


def attention(p, s, name, x):
    q, k, v = linear(p, name + "qkv", x).split(s.width, dim=-1)
    q, k, v = (t.view(s.sequences, s.seq, s.heads, s.width // s.heads).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(s.width // s.heads)
    if s.style == "gpt":  # causal
        scores = scores.masked_fill(torch.ones(s.seq, s.seq, dtype=torch.bool).triu(1), -math.inf)
    out = scores.softmax(-1) @ v
    return linear(p, name + "projection", out.transpose(1, 2).reshape(s.sequences, s.seq, s.width))


def mlp(p, name, x):
    return linear(p, name + "contract", gelu(linear(p, name + "expand", x)))


def logits(p, s, tokens):
    x = F.embedding(tokens, p["token embedding"]) + p["position embedding"][:s.seq]
    if s.style == "bert":
        x = norm(p, "embedding norm", x + p["type embedding"][0])
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        if s.style == "bert":
            x = norm(p, name + "norm 1", x + attention(p, s, name, x))
            x = norm(p, name + "norm 2", x + mlp(p, name, x))
        else:
            x = x + attention(p, s, name, norm(p, name + "norm 1", x))
            x = x + mlp(p, name, norm(p, name + "norm 2", x))
    if s.style == "bert":
        x = norm(p, "head norm", gelu(linear(p, "head dense", x)))
        return F.linear(x, p["token embedding"], p["head bias"])
    return F.linear(norm(p, "final norm", x), p["token embedding"])


def loss_of(p, s, tokens, labels):
    out = logits(p, s, tokens)
    wide = out if out.dtype == torch.float64 else out.float()
    return out, F.cross_entropy(wide.view(-1, s.vocabulary), labels.view(-1), ignore_index=-1)


def run(initial, s, tokens, labels, dtype):
    """Logits, loss, gradients of the first step, and the loss of ten steps."""
    master = {name: t.to(torch.float64 if dtype == torch.float64 else torch.float32).clone() for name, t in initial.items()}
    optimizer = torch.optim.AdamW(master.values(), **ADAMW)
    first, losses = None, []
    for _ in range(STEPS):
        p = {name: t.to(dtype).detach().requires_grad_() for name, t in master.items()}
        out, loss = loss_of(p, s, tokens, labels)
        loss.backward()
        losses.append(loss.item())
        if first is None:
            first = out.detach(), loss.item(), {name: t.grad.clone() for name, t in p.items()}
        for name, t in master.items():
            t.grad = p[name].grad.to(t.dtype)
        optimizer.step()
    return *first, losses


def flat(all_):
    return torch.cat([t.double().flatten() for t in all_])


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def numbers(t):
    return [float(f"{v:.9g}") for v in t.double().flatten().tolist()]


def write(name, content):
    path = pathlib.Path(__file__).parent / name
    path.write_text(json.dumps({"made_by": f"tests/parity/generate.py, PyTorch {torch.__version__}", **content},
                               separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


def fp32_fixture(s):
    torch.manual_seed(1)
    initial = {}
    for name, shape in tensors(s):
        noise = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
        initial[name] = noise + 1 if name.endswith("gamma") else noise
    tokens = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels[torch.rand(s.sequences, s.seq) < 0.25] = -1
    out, loss, gradients, losses = run(initial, s, tokens, labels, torch.float32)
    write(f"{s.style}.json", {
        **s._asdict(), "adamw": ADAMW, "tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(),
        "parameters": {name: numbers(t) for name, t in initial.items()},
        "logits": numbers(out), "loss": loss, "losses": losses,
        "gradients": {name: numbers(t) for name, t in gradients.items()}})


def hashes(seed, stream, count):
    """The upper 24 bits of SplitMix64's finaliser over (seed, stream, index): parity_test.cpp has the same."""
    z = (numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(0x94D049BB133111EB) +
         numpy.uint64((seed * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9) % 2**64))
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return (z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)


def uniform(seed, stream, shape, bound, about):
    """BF16's values, as floats."""
    u = hashes(seed, stream, math.prod(shape)).astype(numpy.float32) * numpy.float32(2.0**-23) - numpy.float32(1)
    return torch.from_numpy(u * numpy.float32(bound) + numpy.float32(about)).reshape(shape).bfloat16().float()


def bf16_errors(s, seed):
    initial = {name: uniform(seed, i, shape, 0.5 if len(shape) == 2 else 0.25, float(name.endswith("gamma")))
               for i, (name, shape) in enumerate(tensors(s))}
    count, streams = s.sequences * s.seq, len(initial)
    tokens = torch.from_numpy((hashes(seed, streams, count) % numpy.uint64(s.vocabulary)).astype(numpy.int64))
    labels = torch.from_numpy((hashes(seed, streams + 1, count) % numpy.uint64(s.vocabulary)).astype(numpy.int64))
    labels[::4] = -1
    tokens, labels = tokens.reshape(s.sequences, s.seq), labels.reshape(s.sequences, s.seq)
    out64, _, grad64, losses64 = run(initial, s, tokens, labels, torch.float64)
    out16, _, grad16, losses16 = run(initial, s, tokens, labels, torch.bfloat16)
    return {"logits": relative(out16.double(), out64), "gradients": relative(flat(grad16.values()), flat(grad64.values())),
            "losses": relative(torch.tensor(losses16).double(), torch.tensor(losses64).double()), "fp64_losses": losses64}


def main():
    for style in ("gpt", "bert"):
        fp32_fixture(next(s for s in SHAPES if s.style == style))
    write("bf16.json", {"adamw": ADAMW, "shapes": [
        {**s._asdict(), "seeds": [bf16_errors(s, seed) for seed in range(1, SEEDS + 1)]} for s in SHAPES]})


main()
