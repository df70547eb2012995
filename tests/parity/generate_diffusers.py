#!/usr/bin/env python3
"""Makes diffusers.json beside it: what diffusers and transformers compute with small models that make images. Run by hand; nothing needs
it to build.

  pip install torch transformers diffusers && tests/parity/generate_diffusers.py

For text encoders, denoisers and autoencoders of some shapes: their config, and what they make, in FP32. Weights and inputs are a hash that
diffusers_parity_test.cpp computes, too: tensor number i, sorted by name, is stream 16 + i. Images and latents are channels last, as
nn/ops/convolution.h has them.
"""
import json
import math
import pathlib

import diffusers
import torch
import transformers

from generate import hashes, numbers, uniform

SEED = 18
TOKENS, SAMPLE, CONTEXT, ADDED = range(4)  # streams of inputs

TEXTS = {
    "quick GELU": {"vocabulary": 27, "positions": 8, "width": 12, "layers": 2, "heads": 3, "mlp": 20, "activation": "quick_gelu", "projection": 0},
    "projected": {"vocabulary": 30, "positions": 5, "width": 16, "layers": 3, "heads": 2, "mlp": 32, "activation": "gelu", "projection": 6},
}
UNETS = {
    "two levels": {"channels": [8, 16], "transformers": [1, 1], "heads": [2, 4], "layers_per_block": 1, "context": 6, "in_channels": 4,
                   "out_channels": 4, "groups": 4, "linear_projection": False, "mid_transformers": 1, "added_condition": 0, "added_time": 0,
                   "size": [4, 6], "tokens": 5, "timesteps": [999.0, 17.0]},
    "the last without attention": {"channels": [8, 16, 24], "transformers": [1, 1, 0], "heads": [2, 2, 3], "layers_per_block": 2, "context": 8,
                                   "in_channels": 3, "out_channels": 5, "groups": 4, "linear_projection": True, "mid_transformers": 1,
                                   "added_condition": 0, "added_time": 0, "size": [8, 4], "tokens": 3, "timesteps": [251.0]},
    "added conditions": {"channels": [8, 16], "transformers": [0, 2], "heads": [2, 4], "layers_per_block": 2, "context": 10, "in_channels": 4,
                         "out_channels": 4, "groups": 8, "linear_projection": True, "mid_transformers": 2, "added_condition": 31,
                         "added_time": 4, "size": [6, 6], "tokens": 4, "timesteps": [500.0, 1.0]},
}
AUTOENCODERS = {
    "quantised": {"image_channels": 1, "channels": [8, 16, 16], "layers_per_block": 1, "latent_channels": 4, "groups": 4,
                  "quant_convolutions": True, "size": [3, 5], "batch": 2},
    "as they are": {"image_channels": 3, "channels": [8, 12], "layers_per_block": 2, "latent_channels": 6, "groups": 2,
                    "quant_convolutions": False, "size": [4, 4], "batch": 1},
}


def bound_of(shape, name):
    """Of a tensor's values, and about which value they lie."""
    if len(shape) == 1:
        return 0.25, 1.0 if name.endswith("weight") else 0.0
    return (1.0 if "embedding.weight" in name else math.sqrt(3 / math.prod(shape[1:]))), 0.0


def fill(model, prefix=""):
    """Names of CLIP's tensors begin with text_model in published files, whatever this version of transformers calls them."""
    state = {prefix + name if not name.startswith(("text_model.", "text_projection")) else name: t for name, t in model.state_dict().items()
             if not name.endswith("position_ids")}
    for stream, name in enumerate(sorted(state), 16):
        state[name].copy_(uniform(SEED, stream, state[name].shape, *bound_of(state[name].shape, name)))
    return model.eval()


def text(c):
    config = transformers.CLIPTextConfig(
        vocab_size=c["vocabulary"], hidden_size=c["width"], intermediate_size=c["mlp"], num_hidden_layers=c["layers"],
        num_attention_heads=c["heads"], max_position_embeddings=c["positions"], hidden_act=c["activation"], projection_dim=c["projection"] or 8,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, attn_implementation="eager")
    kind = transformers.CLIPTextModelWithProjection if c["projection"] else transformers.CLIPTextModel
    model = fill(kind(config), "" if c["projection"] else "text_model.")
    tokens = torch.from_numpy((hashes(SEED, TOKENS, 2 * c["positions"]) % c["vocabulary"]).astype("int64")).reshape(2, -1)
    hidden = model(tokens).last_hidden_state
    if not c["projection"]:
        return {"hidden": numbers(hidden)}
    ends = [c["positions"] - 1, 1]  # whichever token stands there: the rows that are projected are chosen by the caller here
    pooled = model.text_projection(torch.stack([rows[end] for rows, end in zip(hidden, ends)]))
    return {"hidden": numbers(hidden), "ends": ends, "pooled": numbers(pooled)}


def denoiser(c):
    cross = [n > 0 for n in c["transformers"]]
    added = {"addition_embed_type": "text_time", "addition_time_embed_dim": c["added_time"],
             "projection_class_embeddings_input_dim": c["added_condition"]} if c["added_condition"] else {}
    layers = [max(1, n) for n in c["transformers"]]
    assert c["mid_transformers"] == layers[-1]
    return fill(diffusers.UNet2DConditionModel(
        in_channels=c["in_channels"], out_channels=c["out_channels"], block_out_channels=c["channels"], layers_per_block=c["layers_per_block"],
        down_block_types=["CrossAttnDownBlock2D" if a else "DownBlock2D" for a in cross],
        up_block_types=["CrossAttnUpBlock2D" if a else "UpBlock2D" for a in cross[::-1]], attention_head_dim=c["heads"],
        transformer_layers_per_block=layers, cross_attention_dim=c["context"], norm_num_groups=c["groups"],
        use_linear_projection=c["linear_projection"], **added))


def conditions_of(c, batch):
    if not c["added_condition"]:
        return None
    pooled = c["added_condition"] - 6 * c["added_time"]
    ids = torch.tensor([[32.0, 24.0, 0.0, 4.0, 32.0, 16.0]]).repeat(batch, 1)
    return {"text_embeds": uniform(SEED, ADDED, (batch, pooled), 2.0, 0.0), "time_ids": ids}


def unet(c):
    model = denoiser(c)
    batch = len(c["timesteps"])
    sample = uniform(SEED, SAMPLE, (batch, *c["size"], c["in_channels"]), 2.0, 0.0).permute(0, 3, 1, 2)
    context = uniform(SEED, CONTEXT, (batch, c["tokens"], c["context"]), 2.0, 0.0)
    conditions = conditions_of(c, batch)
    out = model(sample, torch.tensor(c["timesteps"]), context, added_cond_kwargs=conditions).sample
    return {"out": numbers(out.permute(0, 2, 3, 1)), **({"numbers": numbers(conditions["time_ids"])} if conditions else {})}


def autoencoder(c):
    levels = len(c["channels"])
    model = fill(diffusers.AutoencoderKL(
        in_channels=c["image_channels"], out_channels=c["image_channels"], down_block_types=["DownEncoderBlock2D"] * levels,
        up_block_types=["UpDecoderBlock2D"] * levels, block_out_channels=c["channels"], layers_per_block=c["layers_per_block"],
        latent_channels=c["latent_channels"], norm_num_groups=c["groups"], use_quant_conv=c["quant_convolutions"],
        use_post_quant_conv=c["quant_convolutions"]))
    size = [n * 2 ** (levels - 1) for n in c["size"]]
    latents = uniform(SEED, SAMPLE, (c["batch"], *c["size"], c["latent_channels"]), 2.0, 0.0).permute(0, 3, 1, 2)
    images = uniform(SEED, CONTEXT, (c["batch"], *size, c["image_channels"]), 1.0, 0.0).permute(0, 3, 1, 2)
    return {"decoded": numbers(model.decode(latents).sample.permute(0, 2, 3, 1)),
            "moments": numbers(model.encode(images).latent_dist.parameters.permute(0, 2, 3, 1))}


def main():
    made_by = (f"tests/parity/generate_diffusers.py, PyTorch {torch.__version__}, diffusers {diffusers.__version__}, "
               f"transformers {transformers.__version__}")
    with torch.no_grad():
        content = {"made_by": made_by, "seed": SEED,
                   **{kind: {name: {**c, **make(c)} for name, c in cases.items()}
                      for kind, cases, make in (("texts", TEXTS, text), ("unets", UNETS, unet), ("autoencoders", AUTOENCODERS, autoencoder))}}
    path = pathlib.Path(__file__).parent / "diffusers.json"
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
