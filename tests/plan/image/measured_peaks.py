#!/usr/bin/env python3
"""measured_peaks.py: what small models of diffusers keep alive on a CPU, as the profiler recorded it; prints measured_peaks.json.

Of this repository's own pipeline `digits`, whose U-Net and autoencoder are instances of diffusers' classes, at two sizes. The inputs are there
before; weights are not counted. With one image PyTorch's convolutions on a CPU go another way, with a column matrix that no GPU has: slicing is
not measured here.
"""
import json

import diffusers
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0

torch.set_grad_enabled(False)
unet = UNet2DConditionModel(block_out_channels=(32, 64), layers_per_block=1, down_block_types=["CrossAttnDownBlock2D"] * 2,
                            up_block_types=["CrossAttnUpBlock2D"] * 2, attention_head_dim=4, cross_attention_dim=32, norm_num_groups=8).eval()
autoencoder = AutoencoderKL(in_channels=1, out_channels=1, block_out_channels=(16, 32, 64), layers_per_block=1, norm_num_groups=8,
                            down_block_types=["DownEncoderBlock2D"] * 3, up_block_types=["UpDecoderBlock2D"] * 3).eval()


def peak_of(work):
    with torch.profiler.profile(profile_memory=True) as record:  # + allocated, - freed: what is live is their sum
        work()
    memory = [(event.start_ns(), event.nbytes()) for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    return torch.tensor([0] + [size for _, size in sorted(memory)]).cumsum(0).max().item()


def sliced():
    unet.set_attn_processor(AttnProcessor())
    unet.set_attention_slice("auto")


rows = []
for side in (32, 64):
    latents, times, text = torch.randn(2, 4, side, side), torch.tensor([5, 5]), torch.randn(2, 8, 32)
    for name, prepare in (("sdpa", lambda: unet.set_attn_processor(AttnProcessor2_0())), ("eager", lambda: unet.set_attn_processor(AttnProcessor())),
                          ("sliced", sliced)):
        prepare()
        rows.append({"part": "denoiser", "size": 4 * side, "attention": name, "bytes": peak_of(lambda: unet(latents, times, text))})
    rows.append({"part": "decoder", "size": 4 * side, "attention": "sdpa", "bytes": peak_of(lambda: autoencoder.decode(latents))})
print(json.dumps({"made_with": f"diffusers {diffusers.__version__}, torch {torch.__version__}", "rows": rows}, indent=1))
