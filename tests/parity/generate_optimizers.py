#!/usr/bin/env python3
"""Makes optimizers.json beside it: what bitsandbytes and PyTorch compute. Run by hand; nothing needs it to build.

  pip install torch bitsandbytes && tests/parity/generate_optimizers.py

codes: bitsandbytes' dynamic maps, signed and unsigned, as the bits of floats.
blocks: numbers of many kinds through bitsandbytes' blockwise quantiser and back, in blocks of 256. It is the reference of the
package in PyTorch, which rounds as its CUDA kernels do. (Its library for processors is another one: in 0.50 it takes 0 for
code 131, 4e-6, and is not asked.)
adafactor: torch.optim.Adafactor, some steps of a matrix and of a vector.
"""
import json
import math
import pathlib

import bitsandbytes
import bitsandbytes.functional as functional
import torch

folder = pathlib.Path(__file__).resolve().parent


def bits(tensor):
    return tensor.contiguous().view(torch.int32).reshape(-1).tolist()


def kinds(signed):
    torch.manual_seed(13)
    n = 256
    code = functional.create_dynamic_map(signed)
    normal = torch.randn(2 * n)
    mixed = torch.randn(n) * 10.0 ** torch.randint(-9, 3, (n,))
    ladder = torch.logspace(-8, 0, n)
    of = {
        "random": normal,
        "of many sizes": mixed,
        "zero": torch.zeros(n),
        "denormal": torch.randn(n) * 1e-41,
        "nearly denormal": torch.randn(n) * 3e-38,
        "huge": torch.randn(n).clamp(-3, 3) * 1e38,
        "constant": torch.full((n,), 0.7),
        "negative": -torch.rand(n) - 0.01,
        "one": torch.cat([torch.tensor([5.0]), torch.zeros(n - 1)]),
        "ladder": torch.where(torch.arange(n) % 2 == 0, ladder, -ladder),
        "the code": code,
        "halfway": torch.cat([(code[:-1] + code[1:]) / 2, torch.ones(1)]),
    }
    both = ("random", "zero", "denormal", "huge", "ladder", "the code", "halfway")
    return {name: x if signed else x.abs() for name, x in of.items() if signed or name in both}


def quantised(x, signed):
    code = functional.create_dynamic_map(signed)
    reference = torch._C.DispatchKeySet(torch._C.DispatchKey.CompositeExplicitAutograd)
    q, absmax = torch.ops.bitsandbytes.quantize_blockwise.default.redispatch(reference, x, code, 256)
    back = code[q.long()] * absmax.repeat_interleave(256)[:x.numel()]
    return {"x": bits(x), "codes": q.reshape(-1).tolist(), "absmax": bits(absmax), "back": bits(back)}


def adafactor(shape, steps, lr, decay):
    torch.manual_seed(7)
    w = torch.nn.Parameter(torch.randn(shape) * 0.1)
    optimizer = torch.optim.Adafactor([w], lr=lr, weight_decay=decay, foreach=False)
    start, gradients, weights = bits(w.detach()), [], []
    for step in range(steps):
        g = torch.randn(shape) * torch.rand(shape[-1]) * (10.0 if step == 2 else 0.1)
        w.grad = g
        optimizer.step()
        gradients.append(bits(g))
        weights.append(bits(w.detach()))
    return {"shape": list(shape), "lr": lr, "weight_decay": decay, "start": start, "gradients": gradients, "weights": weights}


out = {
    "versions": {"torch": torch.__version__.split("+")[0], "bitsandbytes": bitsandbytes.__version__},
    "codes": {name: bits(functional.create_dynamic_map(signed)) for name, signed in (("signed", True), ("unsigned", False))},
    "blocks": [{"kind": kind, "signed": signed, **quantised(x, signed)} for signed in (True, False) for kind, x in kinds(signed).items()],
    "adafactor": [adafactor((5, 12), 4, 1e-2, 0.0), adafactor((24,), 4, 1e-2, 0.01), adafactor((7, 3), 4, 1.0, 0.1)],
}
assert all(math.isfinite(a) for b in out["blocks"] for a in torch.tensor(b["absmax"], dtype=torch.int32).view(torch.float32).tolist())
(folder / "optimizers.json").write_text(json.dumps(out, separators=(",", ":")).replace("},{", "},\n{") + "\n")
