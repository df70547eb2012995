#!/usr/bin/env python3
"""The peak of a training step of Hugging Face's own modules, measured on a CPU, and what is predicted for it.

  pip install torch transformers peft
  cmake --build --preset host --target fit_huggingface
  bench/peers/huggingface_training.py                      the settings below, to bench/results/peers/huggingface_training.json and .txt
  bench/peers/huggingface_training.py --random 60 --seed 1     others, drawn at random; printed only, unless --out FILE.json is given
  bench/peers/huggingface_training.py 'family=llama layers=2 width=256 heads=8 mlp=688 vocabulary=1000 batch=2 seq=128'
  bench/peers/huggingface_training.py --text               predicts again for what was measured, and writes each .json and .txt; measures nothing
  bench/peers/huggingface_training.py --device cuda        models of real sizes, then the settings below, on a GPU, as gpu.py says; predicts nothing

Measured: transformers' modules with random weights, peft's adapters around them, two steps, in a fresh model each; the profiler's
record of every allocation and release of PyTorch's CPU allocator, live bytes at their highest from the first step on. With one thread,
because the CPU's kernels take scratch per thread. The predictions are those for a CPU's operators (device=cpu): with dropout in attention
a CPU has no fused kernel, and it keeps a mask of dropout in the type of the values.

A step is model(input_ids=..., labels=..., use_cache=False).loss.backward(), as the Trainer sets use_cache; AdamW as a GPU gets it without asking
(foreach), fused, or the others; with gradient accumulation two or more passes.
"""
import argparse
import gc
import importlib.metadata
import json
import pathlib
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gpu  # noqa: E402
from huggingface_drawn import FAMILIES, random_settings  # noqa: E402,F401
from shared.results_files import save  # noqa: E402

RESULTS = ROOT / "bench/results/peers/huggingface_training.json"
DRAWN = ROOT / "bench/results/peers/huggingface_training_random.json"
WORDS = {"family", "autocast", "weights", "attention", "optimizer", "targets", "device", "parallel", "compute", "reduce"}
DEFAULTS = {"weights": "fp32", "attention": "sdpa", "optimizer": "adamw_foreach", "checkpoint": 0, "micro_batches": 1}
EXPERTS = ("mixtral", "qwen3_moe")  # mixtures of experts, which are not drawn
SETTINGS = """
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=160
family=llama layers=2 width=384 heads=6 mlp=1024 vocabulary=2000 tied=1 batch=3 seq=256 checkpoint=1 micro_batches=2
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=96 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=llama layers=2 width=384 heads=6 mlp=1024 vocabulary=2000 tied=1 batch=2 seq=192 weights=bf16 checkpoint=1
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=80 lora=16 targets=all weights=bf16 checkpoint=1
family=llama layers=2 width=384 heads=6 mlp=1024 vocabulary=2000 tied=1 batch=2 seq=150 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=mistral layers=2 width=256 heads=8 kv_heads=2 head_dim=64 mlp=704 vocabulary=4000 window=64 batch=4 seq=160
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=3 seq=256 checkpoint=1 micro_batches=2
family=mistral layers=2 width=256 heads=8 kv_heads=2 head_dim=64 mlp=704 vocabulary=4000 window=64 batch=4 seq=96 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=192 weights=bf16 checkpoint=1
family=mistral layers=2 width=256 heads=8 kv_heads=2 head_dim=64 mlp=704 vocabulary=4000 window=64 batch=4 seq=80 lora=16 targets=all weights=bf16 checkpoint=1
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=150 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=4 seq=160 attention=eager
family=qwen2 layers=2 width=256 heads=4 kv_heads=4 mlp=768 vocabulary=2000 batch=3 seq=256 autocast=bf16
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=4 seq=96 autocast=bf16 micro_batches=2
family=qwen2 layers=2 width=256 heads=4 kv_heads=4 mlp=768 vocabulary=2000 batch=2 seq=192 weights=bf16 optimizer=adafactor
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=4 seq=80 lora=16 targets=all autocast=bf16 weights=bf16 optimizer=adamw_fused
family=qwen2 layers=2 width=256 heads=4 kv_heads=4 mlp=768 vocabulary=2000 batch=2 seq=150 lora=8 targets=default lora_dropout_percent=5 autocast=bf16 attention=eager
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=4 seq=160 attention=eager
family=qwen3 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=768 vocabulary=3000 batch=3 seq=256 autocast=bf16
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=4 seq=96 autocast=bf16 micro_batches=2
family=qwen3 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=768 vocabulary=3000 batch=2 seq=192 weights=bf16 optimizer=adafactor
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=4 seq=80 lora=16 targets=all autocast=bf16 weights=bf16 optimizer=adamw_fused
family=qwen3 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=768 vocabulary=3000 batch=2 seq=150 lora=8 targets=default lora_dropout_percent=5 autocast=bf16 attention=eager
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=4 seq=160
family=gemma2 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=1024 vocabulary=2000 window=48 full_every=2 batch=3 seq=256 checkpoint=1 micro_batches=2
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=4 seq=96 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=gemma2 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=1024 vocabulary=2000 window=48 full_every=2 batch=2 seq=192 weights=bf16 checkpoint=1
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=4 seq=80 lora=16 targets=all weights=bf16 checkpoint=1
family=gemma2 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=1024 vocabulary=2000 window=48 full_every=2 batch=2 seq=150 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=gemma3 layers=6 width=128 heads=4 kv_heads=2 head_dim=64 mlp=512 vocabulary=2000 window=48 full_every=6 batch=4 seq=160
family=gemma3 layers=3 width=256 heads=4 kv_heads=1 head_dim=128 mlp=768 vocabulary=3000 batch=3 seq=256 checkpoint=1 micro_batches=2
family=gemma3 layers=6 width=128 heads=4 kv_heads=2 head_dim=64 mlp=512 vocabulary=2000 window=48 full_every=6 batch=4 seq=96 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=gemma3 layers=3 width=256 heads=4 kv_heads=1 head_dim=128 mlp=768 vocabulary=3000 batch=2 seq=192 weights=bf16 checkpoint=1
family=gemma3 layers=6 width=128 heads=4 kv_heads=2 head_dim=64 mlp=512 vocabulary=2000 window=48 full_every=6 batch=4 seq=80 lora=16 targets=all weights=bf16 checkpoint=1
family=gemma3 layers=3 width=256 heads=4 kv_heads=1 head_dim=128 mlp=768 vocabulary=3000 batch=2 seq=150 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=phi3 layers=3 width=256 heads=8 mlp=704 vocabulary=2500 batch=4 seq=160 attention=eager
family=phi3 layers=2 width=384 heads=6 kv_heads=2 mlp=768 vocabulary=3000 tied=1 batch=3 seq=256 autocast=bf16
family=phi3 layers=3 width=256 heads=8 mlp=704 vocabulary=2500 batch=4 seq=96 autocast=bf16 micro_batches=2
family=phi3 layers=2 width=384 heads=6 kv_heads=2 mlp=768 vocabulary=3000 tied=1 batch=2 seq=192 weights=bf16 optimizer=adafactor
family=phi3 layers=3 width=256 heads=8 mlp=704 vocabulary=2500 batch=4 seq=80 lora=16 targets=all autocast=bf16 weights=bf16 optimizer=adamw_fused
family=phi3 layers=2 width=384 heads=6 kv_heads=2 mlp=768 vocabulary=3000 tied=1 batch=2 seq=150 lora=8 targets=default lora_dropout_percent=5 autocast=bf16 attention=eager
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=4 seq=160 dropout_percent=10 attention=eager
family=gpt2 layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=3 seq=256 dropout_percent=10 autocast=bf16
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=4 seq=96 dropout_percent=10 autocast=bf16 micro_batches=2
family=gpt2 layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=2 seq=192 weights=bf16 optimizer=adafactor
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=4 seq=80 dropout_percent=10 lora=16 targets=all autocast=bf16 weights=bf16 optimizer=adamw_fused
family=gpt2 layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=2 seq=150 dropout_percent=10 lora=8 targets=default lora_dropout_percent=5 autocast=bf16 attention=eager
family=bert layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=4 seq=160 dropout_percent=10
family=bert layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=512 batch=3 seq=256 dropout_percent=10 checkpoint=1 micro_batches=2
family=bert layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=4 seq=96 dropout_percent=10 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=bert layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=512 batch=2 seq=192 weights=bf16 checkpoint=1
family=bert layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=4 seq=80 dropout_percent=10 lora=16 targets=all weights=bf16 checkpoint=1
family=bert layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=512 batch=2 seq=150 dropout_percent=10 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=vit layers=4 width=192 heads=6 mlp=768 positions=50 patch=8 channels=3 labels=100 batch=8 seq=1
family=vit layers=3 width=256 heads=8 mlp=1024 positions=65 patch=16 channels=3 labels=1000 batch=6 seq=1 checkpoint=1 micro_batches=2
family=vit layers=4 width=192 heads=6 mlp=768 positions=50 patch=8 channels=3 labels=100 batch=8 seq=1 autocast=bf16 checkpoint=1 optimizer=adamw_fused
family=vit layers=3 width=256 heads=8 mlp=1024 positions=65 patch=16 channels=3 labels=1000 batch=6 seq=1 weights=bf16 checkpoint=1
family=vit layers=4 width=192 heads=6 mlp=768 positions=50 patch=8 channels=3 labels=100 batch=8 seq=1 lora=16 targets=all weights=bf16 checkpoint=1
family=vit layers=3 width=256 heads=8 mlp=1024 positions=65 patch=16 channels=3 labels=1000 batch=6 seq=1 lora=32 targets=default lora_dropout_percent=10 optimizer=sgd
family=mixtral layers=2 width=256 heads=8 kv_heads=2 mlp=384 experts=4 active=2 vocabulary=3000 batch=4 seq=160
family=mixtral layers=3 width=128 heads=4 kv_heads=2 mlp=256 experts=8 active=2 vocabulary=2000 batch=3 seq=256 autocast=bf16 checkpoint=1 micro_batches=2
family=mixtral layers=2 width=256 heads=8 kv_heads=4 mlp=384 experts=4 active=2 vocabulary=3000 batch=4 seq=80 weights=bf16 checkpoint=1
family=qwen3_moe layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=96 experts=16 active=4 vocabulary=4000 tied=1 batch=4 seq=160 attention=eager
family=qwen3_moe layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=128 experts=8 active=3 vocabulary=3000 batch=3 seq=192 autocast=bf16 optimizer=adamw_fused
family=qwen3_moe layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=128 experts=8 active=2 vocabulary=3000 batch=2 seq=192 weights=bf16 optimizer=sgd
""".split("\n")[1:-1]
# On a GPU, the most valuable first. A model's name stands for its shape, which huggingface_models.json has.
REAL = """
model=openai-community/gpt2 dropout_percent=10 batch=8 seq=1024
model=openai-community/gpt2 dropout_percent=10 batch=8 seq=1024 autocast=bf16
model=meta-llama/Llama-3.1-8B weights=bf16 lora=16 targets=all checkpoint=1 batch=2 seq=2048
model=meta-llama/Llama-3.1-8B weights=bf16 lora=16 targets=all batch=1 seq=2048
model=Qwen/Qwen2.5-0.5B autocast=bf16 batch=4 seq=1024
model=Qwen/Qwen2.5-1.5B autocast=bf16 checkpoint=1 batch=4 seq=2048
model=Qwen/Qwen2.5-1.5B autocast=bf16 batch=1 seq=2048 optimizer=adamw_fused
model=meta-llama/Llama-3.2-1B autocast=bf16 batch=2 seq=1024
model=mistralai/Mistral-7B-v0.3 weights=bf16 lora=16 targets=default checkpoint=1 batch=1 seq=2048
model=Qwen/Qwen2.5-7B weights=bf16 optimizer=sgd checkpoint=1 batch=1 seq=1024
model=Qwen/Qwen2.5-0.5B autocast=bf16 batch=2 seq=2048 micro_batches=2
model=google-bert/bert-base-uncased dropout_percent=10 batch=32 seq=512 autocast=bf16
model=meta-llama/Llama-3.2-1B weights=bf16 checkpoint=1 batch=2 seq=2048
model=Qwen/Qwen2.5-7B weights=bf16 checkpoint=1 batch=1 seq=512
model=Qwen/Qwen2.5-0.5B autocast=bf16 checkpoint=1 batch=4 seq=2048 optimizer=adamw_fused
model=meta-llama/Llama-3.1-8B weights=bf16 lora=64 targets=all lora_dropout_percent=5 checkpoint=1 batch=1 seq=4096 autocast=bf16
model=Qwen/Qwen2.5-0.5B batch=1 seq=512
model=google-bert/bert-large-uncased dropout_percent=10 batch=16 seq=512
model=meta-llama/Llama-3.1-8B weights=bf16 lora=16 targets=default batch=2 seq=1024
model=Qwen/Qwen2.5-1.5B weights=bf16 batch=2 seq=1024
model=google/vit-base-patch16-224 batch=64 seq=1 autocast=bf16
model=google/gemma-2-2b weights=bf16 lora=16 targets=all checkpoint=1 batch=1 seq=2048
model=openai-community/gpt2 dropout_percent=10 batch=4 seq=1024 attention=eager autocast=bf16
model=Qwen/Qwen2.5-1.5B autocast=bf16 checkpoint=1 batch=1 seq=8192
model=meta-llama/Llama-3.1-8B weights=bf16 lora=16 targets=all batch=4 seq=2048
model=Qwen/Qwen2.5-7B weights=bf16 optimizer=adamw_fused checkpoint=1 batch=2 seq=2048
""".split("\n")[1:-1]
SNAPSHOTS = """
model=openai-community/gpt2 layers=4 dropout_percent=10 batch=4 seq=512 autocast=bf16
model=Qwen/Qwen2.5-0.5B layers=4 autocast=bf16 batch=1 seq=1024
model=Qwen/Qwen2.5-0.5B layers=6 autocast=bf16 checkpoint=1 batch=2 seq=1024 micro_batches=2 optimizer=adamw_fused
model=meta-llama/Llama-3.1-8B layers=4 weights=bf16 lora=16 targets=all checkpoint=1 batch=1 seq=1024
model=google-bert/bert-base-uncased layers=4 dropout_percent=10 batch=8 seq=256
model=Qwen/Qwen2.5-1.5B layers=4 weights=bf16 batch=1 seq=1024 optimizer=sgd
""".split("\n")[1:-1]


def setting_of(words):
    setting = dict(word.split("=") for word in words.split())
    name = setting.pop("model", None)
    if name:
        setting = dict(word.split("=") for word in shapes()[name].split()) | setting
    return {key: value if key in WORDS else int(value) for key, value in setting.items()}


def shapes():
    """The words of each model in huggingface_models.json."""
    return {row["name"]: row["setting"] for row in json.loads((gpu.FOLDER / "huggingface_models.json").read_text())["rows"]}


def words_of(setting):
    return " ".join(f"{key}={value}" for key, value in setting.items())


# ------------------------------------------------------------------------------------------------ Hugging Face

def config_of(setting):
    """transformers' configuration of a shape."""
    import transformers
    family = setting["family"]
    old = family in ("gpt2", "bert", "vit")
    width, heads = setting["width"], setting["heads"]
    dropout = setting.get("dropout_percent", 0) / 100
    tied = bool(setting.get("tied", (old and family != "vit") or family.startswith("gemma")))
    if family == "gpt2":
        return transformers.GPT2Config(
            n_embd=width, n_layer=setting["layers"], n_head=heads, n_inner=setting["mlp"], vocab_size=setting["vocabulary"],
            n_positions=setting["positions"], attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, tie_word_embeddings=tied)
    common = {"hidden_size": width, "num_hidden_layers": setting["layers"], "num_attention_heads": heads, "intermediate_size": setting["mlp"]}
    if family == "vit":
        side = setting["patch"] * round((setting["positions"] - 1)**0.5)
        return transformers.ViTConfig(**common, image_size=side, patch_size=setting["patch"], num_channels=setting["channels"],
                                      num_labels=setting["labels"], hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    common |= {"vocab_size": setting["vocabulary"], "max_position_embeddings": setting.get("positions", 4096), "tie_word_embeddings": tied,
               "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    if family == "bert":
        return transformers.BertConfig(**common, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    common["num_key_value_heads"] = setting.get("kv_heads", heads)
    if family in ("llama", "mistral", "qwen3", "gemma2", "gemma3", *EXPERTS):
        common["head_dim"] = setting.get("head_dim", width // heads)
    if setting.get("window") and family in ("mistral", "phi3", "gemma2", "gemma3"):
        common["sliding_window"] = setting["window"]
    if family in EXPERTS:
        common |= {"num_experts_per_tok": setting["active"], "num_local_experts" if family == "mixtral" else "num_experts": setting["experts"]}
    if family == "qwen3_moe":
        common |= {"moe_intermediate_size": setting["mlp"], "norm_topk_prob": True}
    kinds = {"mixtral": "MixtralConfig", "qwen3_moe": "Qwen3MoeConfig", "llama": "LlamaConfig", "mistral": "MistralConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config", "gemma2": "Gemma2Config",
             "gemma3": "Gemma3TextConfig", "phi3": "Phi3Config"}
    return getattr(transformers, kinds[family])(**common)


def model_of(setting):
    import torch
    import transformers
    kinds = {"bert": transformers.AutoModelForMaskedLM, "vit": transformers.AutoModelForImageClassification}
    maker = kinds.get(setting["family"], transformers.AutoModelForCausalLM)
    types = {"fp32": torch.float32, "bf16": torch.bfloat16}
    model = maker.from_config(config_of(setting), dtype=types[setting.get("weights", "fp32")], 
                              attn_implementation="eager" if setting["family"] == "gemma2" else setting.get("attention", "sdpa"))
    if setting.get("checkpoint"):
        model.gradient_checkpointing_enable()
    if "lora" in setting:
        import peft
        targets = {"gpt2": ["c_attn"], "bert": ["query", "value"], "vit": ["q_proj", "v_proj"], "phi3": ["qkv_proj"]}
        chosen = "all-linear" if setting.get("targets", "all") == "all" else targets.get(setting["family"], ["q_proj", "v_proj"])
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=setting["lora"], target_modules=chosen, lora_dropout=setting.get("lora_dropout_percent", 0) / 100,
            fan_in_fan_out=setting["family"] == "gpt2"))
    return model.train()


def optimizer_of(setting, parameters):
    import torch
    import transformers
    rule = setting.get("optimizer", "adamw_foreach")
    if rule == "sgd":
        return torch.optim.SGD(parameters, lr=1e-3)
    if rule == "adafactor":
        return transformers.Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)
    return torch.optim.AdamW(parameters, **({"foreach": True} if rule == "adamw_foreach" else {"fused": True}))


def batch_of(setting):
    import torch
    if setting["family"] == "vit":
        side = setting["patch"] * round((setting["positions"] - 1)**0.5)
        return {"pixel_values": torch.rand(setting["batch"], setting["channels"], side, side),
                "labels": torch.randint(setting["labels"], (setting["batch"],))}
    tokens, labels = (torch.randint(3, setting["vocabulary"], (setting["batch"], setting["seq"])) for _ in range(2))
    return {"input_ids": tokens, "labels": labels} | ({} if setting["family"] == "bert" else {"use_cache": False})


def prepared(setting, wrapped=lambda model: model):
    """What a step needs."""
    model = wrapped(model_of(setting))
    groups = {}  # no list of foreach holds DTensors and plain tensors
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(type(parameter), []).append(parameter)
    optimizer = optimizer_of(setting, [{"params": group} for group in groups.values()])
    return {"model": model, "optimizer": optimizer, "batch": batch_of(setting)}


def loss_of(setting, state, device="cpu"):
    import torch
    with torch.autocast(device, torch.bfloat16, enabled="autocast" in setting):
        return state["model"](**state["batch"]).loss


def step(setting, state, device="cpu"):
    state["optimizer"].zero_grad(set_to_none=True)
    for _ in range(setting.get("micro_batches", 1)):
        loss_of(setting, state, device).backward()
    state["optimizer"].step()


def run(setting, wrapped):
    """Two steps of a new model. The profiler sees when they begin."""
    import torch
    state = prepared(setting, wrapped)
    with torch.profiler.record_function("steps begin"):
        pass
    for _ in range(2):
        step(setting, state)


def work_of(setting, device):
    """For gpu.measured()."""
    def make():
        import torch
        torch.manual_seed(0)
        return prepared(setting)

    return make, lambda state: step(setting, state, device.type), lambda state: loss_of(setting, state, device.type)


def named(words):
    """A setting's words, with the name of a model in place of its shape where it is that of one."""
    found = next(((name, shape) for name, shape in shapes().items() if words.startswith(shape + " ")), None)
    return words.replace(found[1], found[0].split("/")[1]) if found else words.removeprefix("family=")


SCRIPT = gpu.Script("huggingface_training", REAL, SETTINGS, SNAPSHOTS, named, setting_of, words_of, work_of)


def measured(setting, wrapped=lambda model: model):
    """The highest live bytes of the steps, in this process. `wrapped`: what is made of a model."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        run(setting, wrapped)
    gc.collect()
    return highest_live(record)


def highest_live(record):
    """Of a profile: live bytes at their highest, after the mark "steps begin"."""
    events = record.profiler.kineto_results.events()
    begin = next(e.start_ns() for e in events if e.name() == "steps begin")
    live = highest = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        if event.start_ns() >= begin:
            highest = max(highest, live)
    return highest


# ------------------------------------------------------------------------------------------------- predictions

def ours(settings, program, device="cpu", replay=0):
    text = "".join(words_of(s | {"device": device, "replay": replay}) + "\n" for s in settings)
    answers = subprocess.run([program], input=text, capture_output=True, text=True)
    if answers.returncode:
        sys.exit(answers.stderr.strip())
    return [json.loads(line) for line in answers.stdout.splitlines()]


def error(row):
    return row["predicted"]["peak"] / row["measured"] - 1


def figures(rows):
    errors = [abs(error(row)) for row in rows]
    return len(errors), statistics.median(errors), max(errors)


def table(results):
    wide = max(len(row["setting"]) for row in results["rows"]) - len("family=")
    lines = [f"$ {results['command']}",
             f"PyTorch {results['torch']}, transformers {results['transformers']}, peft {results['peft']}, 1 thread. MiB.",
             "CPU allocator, profiler: a GPU's may differ by its kernels' scratch.", "",
             f"{'setting':<{wide}} {'measured':>9} {'predicted here':>18}"]
    for row in results["rows"]:
        predicted = row["predicted"]["peak"] / 2**20
        lines.append(f"{row['setting'].replace('family=', ''):<{wide}} {row['measured'] / 2**20:>9.1f} {f'{predicted:.1f} ({error(row):+z.2%})':>18}")
    count, median, worst = figures(results["rows"])
    lines += ["", f"{count} settings, error: median {median:.2%}, worst {worst:.2%}"]
    return "\n".join(lines) + "\n"


def say(row):
    print(f"{row['setting']}: {error(row):+.2%} of {row['measured'] / 2**20:.1f} MiB, {row['predicted']['moment']}", file=sys.stderr, flush=True)


def finish(results, out):
    """Prints the table; writes it and the figures to `out` and its neighbour .txt, if there is one."""
    print(table(results), end="")
    if out:
        save(out, (json.dumps(results, indent=1) + "\n").encode())
        out.with_suffix(".txt").write_text(table(results))


def predict_again(script, files, program):
    """Of what was measured: today's predictions; on GPUs, too, where `script` is not None."""
    if script:
        gpu.predict_again(script, lambda settings: ours(settings, program, "cuda", 1))
    for file in files:
        results = json.loads(file.read_text())
        for row, now in zip(results["rows"], ours([setting_of(row["setting"]) for row in results["rows"]], program)):
            row["predicted"] = now
        save(file, (json.dumps(results, indent=1) + "\n").encode())
        file.with_suffix(".txt").write_text(table(results))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/host/bin/fit_huggingface")
    gpu.add_options(parser)
    arguments = parser.parse_args()
    if arguments.text:
        return predict_again(SCRIPT, (RESULTS, DRAWN), arguments.program)
    given = [setting_of(words) for words in arguments.settings] + random_settings(arguments.random, arguments.seed)
    if arguments.device:
        return gpu.run(SCRIPT, given, arguments)
    settings = given or [setting_of(words) for words in SETTINGS]
    rows = [{"setting": words_of(s), "predicted": p} for s, p in zip(settings, ours(settings, arguments.program))]
    import torch
    torch.set_num_threads(1)
    for row, setting in zip(rows, settings):
        row["measured"] = measured(setting)
        say(row)
    options = f" --random {arguments.random} --seed {arguments.seed}" if arguments.random else ""
    results = {"command": "bench/peers/huggingface_training.py" + options + "".join(" " + shlex.quote(w) for w in arguments.settings)}
    results |= {name: importlib.metadata.version(name).split("+")[0] for name in ("torch", "transformers", "peft")}
    results["rows"] = rows
    finish(results, arguments.out or (None if given else RESULTS))


if __name__ == "__main__":
    main()
