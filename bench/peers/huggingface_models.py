#!/usr/bin/env python3
"""Parameters of the models in common/plan/model/huggingface_models.cpp, counted by transformers' own modules.

  pip install torch transformers
  cmake --build --preset host --target fit_huggingface
  bench/peers/huggingface_models.py     to bench/results/peers/huggingface_models.json

Each model is made on PyTorch's meta device, without memory, from the shape in the table. A test compares what is stored with today's counts.
`defaults`: models whose shape is the default of transformers' own configuration class, which is a source that does not come from here.
"""
import importlib.metadata
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from shared.results_files import save  # noqa: E402

RESULTS = ROOT / "bench/results/peers/huggingface_models.json"


def table(program):
    """The models, as fit_huggingface --models prints them."""
    lines = subprocess.run([program, "--models"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def counted(row):
    """Parameters of transformers' model of this shape; tied ones once."""
    import torch
    import huggingface_training as peer
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM
    config = peer.config_of(peer.setting_of(row["setting"]))
    maker = {"bert": AutoModelForMaskedLM, "vit": AutoModelForImageClassification}.get(config.model_type, AutoModelForCausalLM)
    with torch.device("meta"):
        model = maker.from_config(config)
    model.tie_weights()
    return sum(p.numel() for p in model.parameters())


# What a shape is, in config.json.
KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
        "image_size", "patch_size", "tie_word_embeddings")


def is_default(row):
    """Whether transformers' configuration class has these sizes where nobody says otherwise."""
    import huggingface_training as peer
    config = peer.config_of(peer.setting_of(row["setting"]))
    default = type(config)()

    def sizes(config):
        found = {key: getattr(config, key, None) for key in KEYS}
        heads = found["num_attention_heads"]
        found["num_key_value_heads"] = found["num_key_value_heads"] or heads
        found["head_dim"] = found["head_dim"] or found["hidden_size"] // heads
        return found
    return sizes(config) == sizes(default)


def main():
    rows = table(ROOT / "build/host/bin/fit_huggingface")
    for row in rows:
        row["counted"] = counted(row)
        print(f"{row['name']:<48} {row['counted']:>16,}{'' if row['counted'] == row['parameters'] else '   differs from ' + str(row['parameters'])}")
    results = {"command": "bench/peers/huggingface_models.py", "transformers": importlib.metadata.version("transformers"), "defaults": [row["name"] for row in rows if is_default(row)], "rows": rows}
    save(RESULTS, (json.dumps(results, indent=1) + "\n").encode())
    sys.exit(any(row["counted"] != row["parameters"] for row in rows))


if __name__ == "__main__":
    main()
