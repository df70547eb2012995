#!/usr/bin/env python3
"""Makes lora.json beside it: what peft computes with adapters on the attention of diffusers' denoisers. Run by hand; nothing needs it to
build.

  pip install torch transformers diffusers peft && tests/parity/generate_lora.py

For the denoisers of generate_diffusers.py, and for the course's own with its weights (common/data/digit_images), in FP32: the loss of
predicting noise, and of the gradient of each A and B its length and its sum with signs of a hash. Values of adapters are a hash that
lora_parity_test.cpp computes, too: tensor number i, in the order of a forward pass, is stream 4096 + i. Latents and noise are channels
last, as nn/ops/convolution.h has them.
"""
import json
import pathlib

import diffusers
import peft
import safetensors.torch
import torch

import generate_diffusers as small
from generate import hashes, uniform

HERE = pathlib.Path(__file__).parent
NOISE, FIRST_ADAPTER, FIRST_SIGN = 4, 4096, 8192  # streams
RANK, ALPHA = 3, 6
DIGITS = {"channels": [32, 64], "transformers": [1, 1], "heads": [4, 4], "layers_per_block": 1, "context": 32, "in_channels": 4,
          "out_channels": 4, "groups": 8, "linear_projection": False, "mid_transformers": 1, "added_condition": 0, "added_time": 0,
          "size": [8, 8], "tokens": 8, "timesteps": [624.0, 31.0]}


def digits():
    model = diffusers.UNet2DConditionModel(
        block_out_channels=[32, 64], down_block_types=["CrossAttnDownBlock2D"] * 2, up_block_types=["CrossAttnUpBlock2D"] * 2,
        attention_head_dim=4, cross_attention_dim=32, layers_per_block=1, norm_num_groups=8)
    model.load_state_dict(safetensors.torch.load_file(HERE / "../../common/data/digit_images/denoiser.safetensors"))
    return model.float().eval()


def adapters(model):
    """A and B of each layer in the order of our forward pass: that of the layers' names with numbers as numbers, but down, middle, up."""
    found = [(name, p) for name, p in model.named_parameters() if p.requires_grad]

    def place(entry):
        name = entry[0]
        block = ["down_blocks", "mid_block", "up_blocks"].index(next(b for b in ("down_blocks", "mid_block", "up_blocks") if b in name))
        numbers = [int(part) for part in name.split(".attn")[0].split(".") if part.isdigit()]
        layer = ["attn1", "attn2"].index(next(a for a in ("attn1", "attn2") if a in name))
        matrix = next(i for i, m in enumerate(["to_q", "to_k", "to_v", "to_out"]) if m in name)
        return block, numbers, layer, matrix, "lora_B" in name

    return sorted(found, key=place)


def gradients(c, model):
    model.requires_grad_(False)
    model.add_adapter(peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
    found = adapters(model)
    with torch.no_grad():
        for i, (_, p) in enumerate(found):
            p.copy_(uniform(small.SEED, FIRST_ADAPTER + i, p.shape, 0.25, 0.0))
    batch = len(c["timesteps"])
    shape = (batch, *c["size"])
    sample = uniform(small.SEED, small.SAMPLE, (*shape, c["in_channels"]), 2.0, 0.0).permute(0, 3, 1, 2)
    noise = uniform(small.SEED, NOISE, (*shape, c["out_channels"]), 1.0, 0.0).permute(0, 3, 1, 2)
    context = uniform(small.SEED, small.CONTEXT, (batch, c["tokens"], c["context"]), 2.0, 0.0)
    conditions = small.conditions_of(c, batch)
    out = model(sample, torch.tensor(c["timesteps"]), context, added_cond_kwargs=conditions).sample
    loss = torch.nn.functional.mse_loss(out, noise)
    loss.backward()
    tensors = {}
    for i, (name, p) in enumerate(found):
        g = p.grad.double().flatten()
        signs = torch.from_numpy((hashes(small.SEED, FIRST_SIGN + i, g.numel()) % 2).astype("float64")) * 2 - 1
        tensors[name.replace(".default", "")] = [float(f"{x:.7g}") for x in (g.norm().item(), (g * signs).sum().item())]
    return {"loss": loss.item(), "parameters": sum(p.numel() for _, p in found), "gradients": tensors}


def main():
    made_by = f"tests/parity/generate_lora.py, PyTorch {torch.__version__}, diffusers {diffusers.__version__}, peft {peft.__version__}"
    cases = {}
    for name, c in small.UNETS.items():
        with torch.no_grad():
            model = small.denoiser(c)
        cases[name] = gradients(c, model)
    cases["digits"] = {**DIGITS, **gradients(DIGITS, digits())}
    path = HERE / "lora.json"
    path.write_text(json.dumps({"made_by": made_by, "rank": RANK, "alpha": ALPHA, "cases": cases}, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
