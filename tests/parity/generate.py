#!/usr/bin/env python3
"""Makes the fixtures beside it: what PyTorch computes for two small transformers. Run by hand; nothing needs it to build.

  pip install torch && tests/parity/generate.py

For each style (gpt, bert): parameters, tokens, labels; logits, loss, all gradients and ten AdamW losses in FP32 and in
FP64; and, in BF16 with FP32 master weights, how far logits, gradients and losses are from FP64 (relative L2).
"""
import json
import math
import pathlib

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS, SEQUENCES, SEQ = 2, 2, 12, 29, 16, 3, 7
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEPS = 10


def shapes(style):
    """Names and shapes in the order of nn::tensors_of()."""
    def norm(name):
        return [(f"{name} gamma", (WIDTH,)), (f"{name} beta", (WIDTH,))]

    def linear(name, out, width):
        return [(f"{name} weight", (out, width)), (f"{name} bias", (out,))]

    all_ = [("token embedding", (VOCABULARY, WIDTH)), ("position embedding", (POSITIONS, WIDTH))]
    if style == "bert":
        all_ += [("type embedding", (2, WIDTH))] + norm("embedding norm")
    for layer in range(1, LAYERS + 1):
        name = f"layer {layer} "
        all_ += linear(name + "qkv", 3 * WIDTH, WIDTH) + linear(name + "projection", WIDTH, WIDTH) + norm(name + "norm 1")
        all_ += linear(name + "expand", 4 * WIDTH, WIDTH) + linear(name + "contract", WIDTH, 4 * WIDTH) + norm(name + "norm 2")
    if style == "bert":
        return all_ + linear("head dense", WIDTH, WIDTH) + norm("head norm") + [("head bias", (VOCABULARY,))]
    return all_ + norm("final norm")


def norm(p, name, x):
    return F.layer_norm(x, (WIDTH,), p[name + " gamma"], p[name + " beta"], 1e-5)


def linear(p, name, x):
    return F.linear(x, p[name + " weight"], p[name + " bias"])


def gelu(x):
    return F.gelu(x, approximate="tanh")


def attention(p, name, x, causal):
    q, k, v = linear(p, name + "qkv", x).split(WIDTH, dim=-1)
    q, k, v = (t.view(SEQUENCES, SEQ, HEADS, WIDTH // HEADS).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(WIDTH // HEADS)
    if causal:
        scores = scores.masked_fill(torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1), -math.inf)
    out = scores.softmax(-1) @ v
    return linear(p, name + "projection", out.transpose(1, 2).reshape(SEQUENCES, SEQ, WIDTH))


def mlp(p, name, x):
    return linear(p, name + "contract", gelu(linear(p, name + "expand", x)))


def logits(p, style, tokens):
    x = F.embedding(tokens, p["token embedding"]) + p["position embedding"][:SEQ]
    if style == "bert":
        x = norm(p, "embedding norm", x + p["type embedding"][0])
    for layer in range(1, LAYERS + 1):
        name = f"layer {layer} "
        if style == "bert":
            x = norm(p, name + "norm 1", x + attention(p, name, x, causal=False))
            x = norm(p, name + "norm 2", x + mlp(p, name, x))
        else:
            x = x + attention(p, name, norm(p, name + "norm 1", x), causal=True)
            x = x + mlp(p, name, norm(p, name + "norm 2", x))
    if style == "bert":
        x = norm(p, "head norm", gelu(linear(p, "head dense", x)))
        return F.linear(x, p["token embedding"], p["head bias"])
    return F.linear(norm(p, "final norm", x), p["token embedding"])


def loss_of(p, style, tokens, labels):
    out = logits(p, style, tokens)
    wide = out if out.dtype == torch.float64 else out.float()
    return out, F.cross_entropy(wide.view(-1, VOCABULARY), labels.view(-1), ignore_index=-1)


def run(initial, style, tokens, labels, dtype):
    """Logits, loss, gradients of the first step, and the loss of ten steps."""
    master = {name: t.to(torch.float64 if dtype == torch.float64 else torch.float32).clone() for name, t in initial.items()}
    if dtype == torch.bfloat16:  # the master weights are what BF16 holds at first
        master = {name: t.bfloat16().float() for name, t in master.items()}
    optimizer = torch.optim.AdamW(master.values(), **ADAMW)
    first, losses = None, []
    for _ in range(STEPS):
        p = {name: t.to(dtype).detach().requires_grad_() for name, t in master.items()}
        out, loss = loss_of(p, style, tokens, labels)
        loss.backward()
        losses.append(loss.item())
        if first is None:
            first = out.detach(), loss.item(), {name: t.grad.clone() for name, t in p.items()}
        for name, t in master.items():
            t.grad = p[name].grad.to(t.dtype)
        optimizer.step()
    return *first, losses


def flat(tensors):
    return torch.cat([t.double().flatten() for t in tensors])


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def numbers(t):
    return [float(f"{v:.9g}") for v in t.double().flatten().tolist()]


def main():
    for style in ("gpt", "bert"):
        torch.manual_seed(1)
        initial = {}
        for name, shape in shapes(style):
            noise = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
            initial[name] = noise + 1 if name.endswith("gamma") else noise
        tokens = torch.randint(VOCABULARY, (SEQUENCES, SEQ))
        labels = torch.randint(VOCABULARY, (SEQUENCES, SEQ))
        labels[torch.rand(SEQUENCES, SEQ) < 0.25] = -1
        # BF16 starts from what BF16 holds, so FP64 does too when the two are compared.
        held = {name: t.bfloat16().float() for name, t in initial.items()}
        out32, loss32, grad32, losses32 = run(initial, style, tokens, labels, torch.float32)
        out64, loss64, grad64, losses64 = run(held, style, tokens, labels, torch.float64)
        out16, loss16, grad16, losses16 = run(held, style, tokens, labels, torch.bfloat16)
        fixture = {
            "made_by": f"tests/parity/generate.py, PyTorch {torch.__version__}",
            "layers": LAYERS, "heads": HEADS, "width": WIDTH, "vocabulary": VOCABULARY, "positions": POSITIONS,
            "sequences": SEQUENCES, "seq": SEQ, "adamw": ADAMW,
            "tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(),
            "parameters": {name: numbers(t) for name, t in initial.items()},
            "fp32": {"logits": numbers(out32), "loss": loss32, "losses": losses32,
                     "gradients": {name: numbers(t) for name, t in grad32.items()}},
            "fp64_from_bf16": {"logits": numbers(out64), "loss": loss64, "losses": losses64,
                               "gradients": {name: numbers(t) for name, t in grad64.items()}},
            "bf16_error": {
                "logits": relative(out16.double(), out64), "loss": abs(loss16 - loss64) / loss64,
                "gradients": relative(flat(grad16.values()), flat(grad64.values())),
                "losses": relative(torch.tensor(losses16).double(), torch.tensor(losses64).double())},
        }
        path = pathlib.Path(__file__).parent / f"{style}.json"
        path.write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
        print(path, path.stat().st_size, fixture["bf16_error"], losses64[0], losses64[-1])


main()
