#!/usr/bin/env python3
"""The peak of generate() of Hugging Face's own modules, measured on a CPU, and what is predicted for it.

  pip install torch transformers
  cmake --build --preset host --target fit_huggingface
  bench/peers/huggingface_generation.py                 the settings below, to bench/results/peers/huggingface_generation.json and .txt
  bench/peers/huggingface_generation.py --random 30 --seed 1     others, drawn at random; printed only, unless --out FILE.json is given
  bench/peers/huggingface_generation.py 'family=llama layers=2 width=256 heads=8 mlp=688 vocabulary=1000 batch=2 prompt=128 new_tokens=16'
  bench/peers/huggingface_generation.py --text          predicts again for what was measured, and writes each .json and .txt; measures nothing
  bench/peers/huggingface_generation.py --device cuda   models of real sizes, then the settings below, on a GPU, as gpu.py says; predicts nothing

Measured as huggingface_training.py does: the model in eval(), generate() of `new_tokens` tokens without sampling, from prompts without padding.
"""
import argparse
import gc
import importlib.metadata
import pathlib
import random
import shlex
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gpu  # noqa: E402
import huggingface_training as peer  # noqa: E402

RESULTS = ROOT / "bench/results/peers/huggingface_generation.json"
DRAWN = ROOT / "bench/results/peers/huggingface_generation_random.json"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")
SETTINGS = """
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 prompt=160 new_tokens=20
family=llama layers=3 width=256 heads=8 kv_heads=8 mlp=352 vocabulary=1000 batch=4 prompt=16 new_tokens=120
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 prompt=100 new_tokens=20 static_cache=1
family=llama layers=3 width=256 heads=8 kv_heads=8 mlp=704 vocabulary=8000 batch=2 prompt=24 new_tokens=40 beams=4
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=2 prompt=60 new_tokens=20 weights=bf16
family=mistral layers=2 width=256 heads=8 kv_heads=2 head_dim=64 mlp=704 vocabulary=4000 window=64 batch=4 prompt=100 new_tokens=10
family=mistral layers=2 width=256 heads=8 kv_heads=8 mlp=352 vocabulary=1000 window=32 batch=4 prompt=8 new_tokens=60
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=4 prompt=160 new_tokens=8 attention=eager
family=qwen2 layers=3 width=224 heads=7 kv_heads=7 mlp=304 vocabulary=2000 tied=1 batch=4 prompt=16 new_tokens=80
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=3 prompt=120 new_tokens=10
family=qwen3 layers=2 width=256 heads=4 kv_heads=2 head_dim=128 mlp=768 vocabulary=3000 batch=2 prompt=30 new_tokens=20 static_cache=1 weights=bf16
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=2 prompt=80 new_tokens=8
family=gemma3 layers=6 width=128 heads=4 kv_heads=2 head_dim=64 mlp=512 vocabulary=2000 window=48 full_every=6 batch=4 prompt=100 new_tokens=10
family=phi3 layers=3 width=256 heads=8 mlp=704 vocabulary=2500 batch=4 prompt=120 new_tokens=10
family=phi3 layers=3 width=256 heads=8 kv_heads=8 mlp=352 vocabulary=2500 batch=2 prompt=16 new_tokens=30 beams=3
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=4 prompt=160 new_tokens=10
family=gpt2 layers=4 width=256 heads=8 mlp=512 vocabulary=1000 positions=512 batch=4 prompt=8 new_tokens=120 attention=eager
family=mixtral layers=3 width=256 heads=8 kv_heads=2 mlp=384 experts=4 active=2 vocabulary=3000 batch=4 prompt=100 new_tokens=20
family=qwen3_moe layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=96 experts=16 active=4 vocabulary=4000 tied=1 batch=2 prompt=60 new_tokens=20 weights=bf16
""".split("\n")[1:-1]
# On a GPU, the most valuable first.
REAL = """
model=meta-llama/Llama-3.1-8B weights=bf16 batch=1 prompt=1024 new_tokens=16
model=meta-llama/Llama-3.1-8B weights=bf16 batch=8 prompt=2048 new_tokens=16
model=meta-llama/Llama-3.1-8B weights=bf16 batch=1 prompt=8192 new_tokens=16
model=Qwen/Qwen2.5-7B weights=bf16 batch=4 prompt=2048 new_tokens=16
model=meta-llama/Llama-3.1-8B weights=bf16 batch=8 prompt=1024 new_tokens=16 static_cache=1
model=Qwen/Qwen2.5-7B weights=bf16 batch=1 prompt=4096 new_tokens=16
model=mistralai/Mistral-7B-v0.1 weights=bf16 window=4096 batch=2 prompt=6000 new_tokens=16
model=meta-llama/Llama-3.1-8B weights=bf16 batch=2 prompt=1024 new_tokens=16 beams=4
model=google/gemma-2-2b weights=bf16 batch=4 prompt=1024 new_tokens=16
model=openai-community/gpt2 batch=16 prompt=900 new_tokens=16
model=meta-llama/Llama-3.1-8B weights=bf16 batch=16 prompt=8192 new_tokens=4
""".split("\n")[1:-1]
SNAPSHOTS = """
model=meta-llama/Llama-3.1-8B layers=4 weights=bf16 batch=2 prompt=512 new_tokens=16
model=Qwen/Qwen2.5-0.5B layers=4 weights=bf16 batch=4 prompt=256 new_tokens=24 static_cache=1
""".split("\n")[1:-1]


def prepared(setting):
    """What generate() needs."""
    import torch
    tokens = torch.randint(3, setting["vocabulary"], (setting["batch"], setting["prompt"]))
    return {"model": peer.model_of(setting).eval(), "tokens": tokens}


def generate(setting, state):
    ways = {"cache_implementation": "static", "disable_compile": True} if setting.get("static_cache") else {}  # compiled on a GPU otherwise
    state["model"].generate(state["tokens"], max_new_tokens=setting["new_tokens"], min_new_tokens=setting["new_tokens"], do_sample=False, pad_token_id=0,
                            eos_token_id=None, num_beams=setting.get("beams", 1), **ways)


def work_of(setting, device):
    """For gpu.measured(). The first forward pass of generate() is enough to see attention's kernel."""
    def make():
        import torch
        torch.manual_seed(0)
        return prepared(setting)

    return make, lambda state: generate(setting, state), lambda state: generate(setting | {"new_tokens": 1}, state)


SCRIPT = gpu.Script("huggingface_generation", REAL, SETTINGS, SNAPSHOTS, peer.named, peer.setting_of, peer.words_of, work_of)


def measured(setting):
    """The highest live bytes of generate(), in this process."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    torch.manual_seed(0)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        state = prepared(setting)
        with torch.profiler.record_function("steps begin"):
            pass
        generate(setting, state)
    del state
    gc.collect()
    return peer.highest_live(record)


def random_settings(count, seed):
    """Shapes of huggingface_training.py, and what generate() is asked for."""
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        setting = peer.random_settings(1, draw.randrange(10**6))[0]
        if setting["family"] not in FAMILIES:
            continue
        for word in ("seq", "autocast", "checkpoint", "lora", "targets", "lora_dropout_percent", "optimizer", "micro_batches", "dropout_percent"):
            setting.pop(word, None)
        setting |= {"prompt": draw.choice((8, 32, 100, 200)), "new_tokens": draw.choice((1, 10, 60))}
        if draw.random() < 0.25:
            setting["beams"] = draw.randint(2, 4)
        elif draw.random() < 0.25:
            setting["static_cache"] = 1
        made.append(setting)
    return made


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
        return peer.predict_again(SCRIPT, (RESULTS, DRAWN), arguments.program)
    given = [peer.setting_of(words) for words in arguments.settings] + random_settings(arguments.random, arguments.seed)
    if arguments.device:
        return gpu.run(SCRIPT, given, arguments)
    settings = given or [peer.setting_of(words) for words in SETTINGS]
    rows = [{"setting": peer.words_of(s), "predicted": p} for s, p in zip(settings, peer.ours(settings, arguments.program))]
    import torch
    torch.set_num_threads(1)
    for row, setting in zip(rows, settings):
        row["measured"] = measured(setting)
        peer.say(row)
    options = f" --random {arguments.random} --seed {arguments.seed}" if arguments.random else ""
    results = {"command": "bench/peers/huggingface_generation.py" + options + "".join(" " + shlex.quote(w) for w in arguments.settings)}
    results |= {name: importlib.metadata.version(name).split("+")[0] for name in ("torch", "transformers", "peft")}
    results["rows"] = rows
    peer.finish(results, arguments.out or (None if given else RESULTS))


if __name__ == "__main__":
    main()
