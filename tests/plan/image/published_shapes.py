#!/usr/bin/env python3
"""Names and shapes of the tensors of published pipelines, as diffusers and transformers make them of the published configurations.

  published_shapes.py           prints shapes.json: for each component its parameters, its tensors, and a hash of their names and shapes
  published_shapes.py --check   compares what it would print with shapes.json; exits with 2 where there is no diffusers

Models are made on PyTorch's meta device, which has shapes and no memory.
"""
import importlib
import json
import pathlib
import sys

STORED = pathlib.Path(__file__).parent / "shapes.json"


def models():
    """(pipeline, component, model): the config.json of each component, what is silent left to the library."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel

    def clip(width, layers, heads, mlp, projection=None):
        config = CLIPTextConfig(vocab_size=49408, max_position_embeddings=77, hidden_size=width, num_hidden_layers=layers,
                                num_attention_heads=heads, intermediate_size=mlp, projection_dim=projection or 512)
        return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)

    def unet(channels, attention, heads, context, **more):
        levels = len(channels)
        return UNet2DConditionModel(
            block_out_channels=channels, attention_head_dim=heads, cross_attention_dim=context,
            down_block_types=["CrossAttnDownBlock2D" if attention[i] else "DownBlock2D" for i in range(levels)],
            up_block_types=["CrossAttnUpBlock2D" if attention[i] else "UpBlock2D" for i in reversed(range(levels))], **more)

    def autoencoder(channels=(128, 256, 512, 512), layers=2, **more):
        return AutoencoderKL(block_out_channels=channels, layers_per_block=layers, down_block_types=["DownEncoderBlock2D"] * len(channels),
                             up_block_types=["UpDecoderBlock2D"] * len(channels), **more)

    yield "digits", "text_encoder", CLIPTextModel(CLIPTextConfig(vocab_size=27, max_position_embeddings=8, hidden_size=32, num_hidden_layers=2,
                                                                 num_attention_heads=4, intermediate_size=64))
    yield "digits", "denoiser", unet([32, 64], [1, 1], 4, 32, layers_per_block=1, norm_num_groups=8)
    yield "digits", "autoencoder", autoencoder([16, 32, 32], 1, in_channels=1, out_channels=1, norm_num_groups=8)
    yield "sd-1.5", "text_encoder", clip(768, 12, 12, 3072)
    yield "sd-1.5", "denoiser", unet([320, 640, 1280, 1280], [1, 1, 1, 0], 8, 768)
    yield "sd-1.5", "autoencoder", autoencoder()
    yield "sd-2.1", "text_encoder", clip(1024, 23, 16, 4096)
    yield "sd-2.1", "denoiser", unet([320, 640, 1280, 1280], [1, 1, 1, 0], [5, 10, 20, 20], 1024, use_linear_projection=True)
    yield "sd-2.1", "autoencoder", autoencoder()
    yield "sdxl", "text_encoder", clip(768, 12, 12, 3072)
    yield "sdxl", "text_encoder_2", clip(1280, 32, 20, 5120, 1280)
    yield "sdxl", "denoiser", unet([320, 640, 1280], [0, 1, 1], [5, 10, 20], 2048, use_linear_projection=True, transformer_layers_per_block=[1, 2, 10],
                                   addition_embed_type="text_time", addition_time_embed_dim=256, projection_class_embeddings_input_dim=2816)
    yield "sdxl", "autoencoder", autoencoder()
    for name, guided in (("flux.1-dev", True), ("flux.1-schnell", False)):
        yield name, "text_encoder", clip(768, 12, 12, 3072)
        yield name, "text_encoder_2", T5EncoderModel(T5Config(vocab_size=32128, d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64,
                                                              feed_forward_proj="gated-gelu"))
        yield name, "denoiser", FluxTransformer2DModel(guidance_embeds=guided)
        yield name, "autoencoder", autoencoder(latent_channels=16, use_quant_conv=False, use_post_quant_conv=False)


def shapes_of(model):
    """Names as published files have them: CLIP's begin with "text_model.", and T5's table of tokens is there once."""
    shapes = {}
    for name, tensor in model.state_dict().items():
        if name == "encoder.embed_tokens.weight":
            continue
        if type(model).__name__ == "CLIPTextModel" and not name.startswith("text_model."):
            name = "text_model." + name
        shapes[name] = list(tensor.shape)
    return shapes


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def figures():
    import math

    import torch

    result = {}
    with torch.device("meta"):
        for pipeline, component, model in models():
            shapes = shapes_of(model)
            lines = "".join(f"{name} {shape}\n" for name, shape in sorted(shapes.items()))
            result.setdefault(pipeline, {})[component] = {"parameters": sum(math.prod(s) for s in shapes.values()), "tensors": len(shapes),
                                                          "hash": fnv1a(lines)}
    return result


def main(stored, packages, figures):
    """Prints what figures() gives, and by which packages, or with --check compares it with the file `stored`."""
    try:
        versions = [f"{name} {importlib.import_module(name).__version__}" for name in packages]
    except ImportError as error:
        print(error)
        sys.exit(2)
    text = json.dumps({"made_with": ", ".join(versions), "pipelines": figures()}, indent=1)
    if sys.argv[1:] == ["--check"]:
        same = json.loads(text)["pipelines"] == json.loads(stored.read_text())["pipelines"]
        print("the same" if same else f"{stored.name} has other figures than\n{text}")
        sys.exit(not same)
    print(text)


if __name__ == "__main__":
    main(STORED, ["diffusers", "transformers"], figures)
