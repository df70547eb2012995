#!/usr/bin/env python3
"""Makes diffusion.json beside it: what PyTorch, diffusers and transformers compute of an image model's operators, in FP32. Run by
hand; nothing needs it to build.

  pip install torch diffusers transformers && tests/parity/generate_diffusion.py

Images are stored channels last, as ours. Attention: what a text's tokens give to an image's pixels, with torch's
scaled_dot_product_attention; more pixels than tokens, and fewer.
"""
import json
import pathlib

import diffusers
import torch
import torch.nn.functional as F
import transformers
from diffusers.models.activations import GEGLU
from diffusers.models.embeddings import get_timestep_embedding
from transformers.activations import QuickGELUActivation


def short(shape, scale=1.0, about=0.0):
    """Random values of three decimals: they take little room in the file."""
    values = torch.randn(shape, dtype=torch.float64) * scale + about
    return torch.tensor([round(v, 3) for v in values.flatten().tolist()], dtype=torch.float32).reshape(shape)


def last(t):
    """Images and weights as we have them: channels last. As few digits as FP32 needs."""
    t = t.detach().permute(0, 2, 3, 1) if t.dim() == 4 else t.detach()
    return [float(str(v)) for v in t.flatten().numpy()]


def gradients(y, **tensors):
    """y, a gradient of it, and what it becomes for each tensor."""
    dy = short(y.shape)
    y.backward(dy)
    return {"y": last(y), "dy": last(dy), **{name: last(t) for name, t in tensors.items()},
            **{"d" + name: last(t.grad) for name, t in tensors.items()}}


def group_norm(batch, height, width, channels, groups, eps, silu):
    x = short((batch, channels, height, width), 2, 1).requires_grad_()
    gamma, beta = short(channels).requires_grad_(), short(channels).requires_grad_()
    y = F.group_norm(x, groups, gamma, beta, eps)
    return {"shape": [batch, height * width, channels, groups], "eps": eps, "silu": silu,
            **gradients(F.silu(y) if silu else y, x=x, gamma=gamma, beta=beta)}


def nearest(batch, height, width, channels, factor):
    x = short((batch, channels, height, width)).requires_grad_()
    return {"shape": [batch, height, width, channels, factor], **gradients(F.interpolate(x, scale_factor=factor, mode="nearest"), x=x)}


def transposed(batch, height, width, in_, out, factor):
    layer = torch.nn.ConvTranspose2d(in_, out, factor, stride=factor, bias=False)
    layer.weight.data = short(layer.weight.shape)  # [in, out, height, width]
    x = short((batch, in_, height, width)).requires_grad_()
    return {"shape": [batch, height, width, in_, out, factor], **gradients(layer(x), x=x, w=layer.weight)}


def embedding(width):
    steps = [0.0, 1.0, 12.5, 124.0, 999.0]
    y = get_timestep_embedding(torch.tensor(steps), width, flip_sin_to_cos=True, downscale_freq_shift=0)
    return {"width": width, "steps": steps, "y": last(y)}


def geglu(rows, width):
    gate = GEGLU(width, width)
    gate.proj = torch.nn.Identity()
    x = short((rows, 2 * width), 2).requires_grad_()
    return {"shape": [rows, width], **gradients(gate(x), x=x)}


def activation(name, function):
    x = torch.cat([torch.tensor([0.0, -30.0, 30.0, -1.278]), short(40, 3)])
    return {"name": name, "x": last(x), "y": last(function(x))}


def attention(batch, rows, tokens, heads, depth):
    q, k, v = (short((batch, n, heads * depth)).requires_grad_() for n in (rows, tokens, tokens))
    split = (t.view(batch, -1, heads, depth).transpose(1, 2) for t in (q, k, v))
    y = F.scaled_dot_product_attention(*split).transpose(1, 2).reshape(q.shape)
    return {"shape": [batch, rows, tokens, heads, depth], **gradients(y, q=q, k=k, v=v)}


def main():
    torch.manual_seed(18)
    made_by = f"PyTorch {torch.__version__}, diffusers {diffusers.__version__}, transformers {transformers.__version__}"
    content = {
        "made_by": f"tests/parity/generate_diffusion.py, {made_by}",
        "norms": [group_norm(2, 3, 5, 12, 4, 1e-5, True), group_norm(1, 4, 4, 16, 8, 1e-6, False), group_norm(2, 7, 3, 10, 1, 1e-6, True)],
        "nearest": [nearest(2, 3, 2, 4, 2), nearest(1, 2, 3, 5, 3)],
        "transposed": [transposed(2, 3, 2, 4, 3, 2), transposed(1, 2, 2, 3, 8, 3)],
        "embeddings": [embedding(32), embedding(7)],
        "geglu": [geglu(3, 8), geglu(5, 7)],
        "activations": [activation("silu", F.silu), activation("quick gelu", QuickGELUActivation())],
        "attention": [attention(2, 16, 5, 2, 6), attention(1, 3, 11, 3, 4)],
    }
    path = pathlib.Path(__file__).parent / "diffusion.json"
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


main()
