#!/usr/bin/env python3
"""Parameters of adapters on the attention of published denoisers, as peft makes them beside diffusers' models (published_shapes.py).

  lora.py           prints lora.json: for some ranks the adapters' parameters and tensors
  lora.py --check   compares what it would print with lora.json; exits with 2 where there is no peft
"""
import pathlib

from published_shapes import main, models

STORED = pathlib.Path(__file__).parent / "lora.json"
TARGETS = ["to_q", "to_k", "to_v", "to_out.0"]  # of diffusers' train_text_to_image_lora.py


def figures():
    import peft
    import torch

    result = {}
    for rank in (4, 16):
        with torch.device("meta"):
            for pipeline, component, model in models():
                if component != "denoiser" or pipeline.startswith("flux"):
                    continue
                model.requires_grad_(False)
                model.add_adapter(peft.LoraConfig(r=rank, lora_alpha=rank, target_modules=TARGETS))
                trained = [p for p in model.parameters() if p.requires_grad]
                result.setdefault(pipeline, {})[str(rank)] = {"parameters": sum(p.numel() for p in trained), "tensors": len(trained)}
    return result


if __name__ == "__main__":
    main(STORED, ["diffusers", "peft", "transformers"], figures)
