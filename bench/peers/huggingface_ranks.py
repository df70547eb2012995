#!/usr/bin/env python3
"""The peak of a training step of Hugging Face's modules on one of several ranks, measured on a CPU, and what is predicted for it.

  pip install torch transformers peft
  cmake --build --preset host --target fit_huggingface
  bench/peers/huggingface_ranks.py                      the settings below, to bench/results/peers/huggingface_ranks.json and .txt
  bench/peers/huggingface_ranks.py --random 20 --seed 1     others, drawn at random; printed only, unless --out FILE.json is given
  bench/peers/huggingface_ranks.py 'family=llama layers=2 width=256 heads=8 mlp=688 vocabulary=1000 batch=2 seq=128 parallel=fsdp2 ranks=2'
  bench/peers/huggingface_ranks.py --text               predicts again for what was measured, and writes each .json and .txt; measures nothing

Measured as huggingface_training.py does, in two or four processes that talk by gloo: DistributedDataParallel, FSDP2's fully_shard of each
layer and of the whole model, or `parallel=tensor`, torch.distributed.tensor.parallel. `compute` and `reduce` are MixedPrecisionPolicy's param_dtype and reduce_dtype. The figure is the highest of all
ranks, and the lower of two runs: what a thread of gloo's frees the profiler does not see, so a run can only show too much. Gloo's own copies
of what it gathers and reduces are part of it, and of the prediction for a CPU; NCCL has none in PyTorch's memory.
"""
import argparse
import importlib.metadata
import os
import pathlib
import random
import shlex
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import huggingface_training as peer  # noqa: E402

RESULTS = ROOT / "bench/results/peers/huggingface_ranks.json"
DRAWN = ROOT / "bench/results/peers/huggingface_ranks_random.json"
RUNS = 2
SETTINGS = """
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=160 parallel=ddp ranks=2
family=llama layers=2 width=384 heads=6 mlp=1024 vocabulary=2000 tied=1 batch=2 seq=96 checkpoint=1 micro_batches=2 parallel=ddp ranks=4
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=2 seq=96 autocast=bf16 parallel=ddp ranks=2 bucket_view=1
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=2 seq=60 parallel=ddp ranks=2 bucket_view=1
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=2 seq=96 dropout_percent=10 optimizer=adamw_fused parallel=ddp ranks=2
family=bert layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=2 seq=96 dropout_percent=10 weights=bf16 parallel=ddp ranks=2
family=vit layers=4 width=192 heads=6 mlp=768 positions=50 patch=8 channels=3 labels=100 batch=4 seq=1 parallel=ddp ranks=4
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=100 lora=16 targets=all parallel=ddp ranks=2
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=160 parallel=fsdp2 ranks=2
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=2 seq=60 checkpoint=1 parallel=fsdp2 ranks=2
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=2 seq=60 parallel=fsdp2 ranks=4 compute=bf16 reduce=fp32
family=llama layers=2 width=384 heads=6 mlp=1024 vocabulary=2000 tied=1 batch=2 seq=60 parallel=fsdp2 ranks=2 compute=bf16 reduce=bf16 checkpoint=1
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=2 seq=60 autocast=bf16 parallel=fsdp2 ranks=2
family=llama layers=6 width=128 heads=4 mlp=352 vocabulary=500 batch=1 seq=40 optimizer=sgd parallel=fsdp2 ranks=4
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=100 micro_batches=2 parallel=fsdp2 ranks=2
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=100 lora=16 targets=all parallel=fsdp2 ranks=2
family=qwen2 layers=3 width=224 heads=7 kv_heads=1 mlp=608 vocabulary=4000 tied=1 batch=2 seq=96 parallel=fsdp2 ranks=4
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=2 seq=96 weights=bf16 optimizer=adamw_fused parallel=fsdp2 ranks=2
family=gemma2 layers=2 width=192 heads=6 kv_heads=3 head_dim=64 mlp=768 vocabulary=4000 batch=2 seq=60 parallel=fsdp2 ranks=2
family=gemma3 layers=6 width=128 heads=4 kv_heads=2 head_dim=64 mlp=512 vocabulary=2000 window=48 full_every=6 batch=2 seq=96 checkpoint=1 parallel=fsdp2 ranks=2
family=phi3 layers=3 width=256 heads=8 mlp=704 vocabulary=2500 batch=2 seq=96 compute=bf16 parallel=fsdp2 ranks=2
family=gpt2 layers=2 width=384 heads=6 mlp=1536 vocabulary=3000 positions=1024 batch=2 seq=96 dropout_percent=10 parallel=fsdp2 ranks=2
family=bert layers=3 width=256 heads=8 mlp=1024 vocabulary=2500 positions=512 batch=2 seq=96 dropout_percent=10 optimizer=adamw_fused parallel=fsdp2 ranks=4
family=vit layers=3 width=256 heads=8 mlp=1024 positions=65 patch=16 channels=3 labels=1000 batch=4 seq=1 checkpoint=1 parallel=fsdp2 ranks=2
family=llama layers=3 width=256 heads=8 kv_heads=2 mlp=704 vocabulary=3000 batch=4 seq=160 parallel=tensor ranks=2
family=llama layers=2 width=384 heads=6 kv_heads=2 mlp=1024 vocabulary=2000 tied=1 batch=2 seq=96 checkpoint=1 micro_batches=2 parallel=tensor ranks=2
family=llama layers=2 width=256 heads=8 kv_heads=4 mlp=704 vocabulary=4000 batch=2 seq=96 autocast=bf16 optimizer=adamw_fused parallel=tensor ranks=4
family=mistral layers=3 width=256 heads=8 kv_heads=4 mlp=896 vocabulary=2500 batch=2 seq=200 weights=bf16 parallel=tensor ranks=2
family=qwen2 layers=3 width=256 heads=4 kv_heads=4 mlp=768 vocabulary=2000 batch=3 seq=160 attention=eager optimizer=sgd parallel=tensor ranks=4
family=qwen3 layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=512 vocabulary=4000 tied=1 batch=4 seq=96 autocast=bf16 checkpoint=1 parallel=tensor ranks=2
family=llama layers=3 width=256 heads=8 mlp=512 vocabulary=100 batch=4 seq=256 optimizer=sgd checkpoint=1 parallel=tensor ranks=4
family=mixtral layers=2 width=256 heads=8 kv_heads=2 mlp=384 experts=4 active=2 vocabulary=3000 batch=2 seq=96 parallel=ddp ranks=2
family=mixtral layers=2 width=256 heads=8 kv_heads=2 mlp=384 experts=4 active=2 vocabulary=3000 batch=2 seq=96 parallel=fsdp2 ranks=2
family=qwen3_moe layers=3 width=192 heads=6 kv_heads=2 head_dim=64 mlp=96 experts=16 active=4 vocabulary=4000 tied=1 batch=2 seq=96 checkpoint=1 parallel=fsdp2 ranks=4 compute=bf16 reduce=fp32
""".split("\n")[1:-1]


# ---------------------------------------------------------------------------------------------------- a rank

def layers_of(model):
    """What fully_shard wraps one by one: the modules of a layer."""
    import torch
    lists = [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len)


def distributed(setting, model):
    import torch
    if setting["parallel"] == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=bool(setting.get("bucket_view", 0)))
    if setting["parallel"] == "tensor":
        return tensor_parallel(setting, model)
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    types = {"fp32": torch.float32, "bf16": torch.bfloat16, None: None}
    policy = MixedPrecisionPolicy(param_dtype=types[setting.get("compute")], reduce_dtype=types[setting.get("reduce")])
    for layer in layers_of(model):
        fully_shard(layer, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def tensor_parallel(setting, model):
    """Each layer's matrices by columns or by rows, and a head of its own by columns, as recipes for Llama have it."""
    import torch
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    mesh = torch.distributed.init_device_mesh("cpu", (setting["ranks"],))
    plan = {}
    for name, module in model.named_modules():
        last = name.rsplit(".", 1)[-1]
        if last in ("o_proj", "down_proj"):
            plan[name] = RowwiseParallel()
        elif last != "lm_head" and isinstance(module, torch.nn.Linear):
            plan[name] = ColwiseParallel()
    if not model.config.tie_word_embeddings:
        plan["lm_head"] = ColwiseParallel(output_layouts=Replicate())
    return parallelize_module(model, mesh, plan)


def frees_here(collective):
    """`collective`, whose copies go when the caller lets go of its work. Else gloo's thread may be the last to hold them, and the profiler does not see
    what that thread frees: live bytes would grow by chance."""
    def call(*args, async_op=False, **named):
        work = collective(*args, async_op=True, **named)
        work.wait()
        time.sleep(0.02)
    return call


def rank(number, count, port):
    """One of `count` processes: settings on standard input, and the highest live bytes of each on standard output."""
    import torch
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=number, world_size=count)
    torch.distributed.all_gather_single = frees_here(torch.distributed.all_gather_single)
    torch.distributed.reduce_scatter_single = frees_here(torch.distributed.reduce_scatter_single)
    for line in sys.stdin:
        setting = peer.setting_of(line)
        print(peer.measured(setting, lambda model: distributed(setting, model)), flush=True)
    torch.distributed.destroy_process_group()


class Ranks:
    """Processes that measure one setting after the other."""

    def __init__(self, count):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [sys.executable, __file__, "--rank"]
        self.processes = [subprocess.Popen(command + [f"{number},{count},{port}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                          for number in range(count)]

    def measured(self, setting):
        for process in self.processes:
            process.stdin.write(peer.words_of(setting) + "\n")
            process.stdin.flush()
        answers = [process.stdout.readline() for process in self.processes]
        if not all(answers):
            sys.exit(f"a rank has ended: {peer.words_of(setting)}")
        return max(int(answer) for answer in answers)

    def end(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            process.wait()


# ---------------------------------------------------------------------------------------------------- all settings

def random_settings(count, seed):
    """Those of huggingface_training.py, in ways of several ranks."""
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        setting = peer.random_settings(1, draw.randrange(10**6))[0]
        if "lora" in setting:
            continue
        setting |= {"parallel": draw.choice(("ddp", "fsdp2", "fsdp2")), "ranks": draw.choice((2, 4))}
        if setting["optimizer"] == "adafactor":
            setting["optimizer"] = "adamw_foreach"
        if setting["parallel"] == "ddp":
            setting["bucket_view"] = draw.randint(0, 1)
        elif "autocast" not in setting and "weights" not in setting and draw.random() < 0.5:
            setting["compute"] = "bf16"
            setting["reduce"] = draw.choice(("fp32", "bf16"))
        made.append(setting)
    return made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/host/bin/fit_huggingface")
    arguments = parser.parse_args()
    if arguments.rank:
        return rank(*(int(part) for part in arguments.rank.split(",")))
    if arguments.text:
        return peer.predict_again(None, (RESULTS, DRAWN), arguments.program)
    given = [peer.setting_of(words) for words in arguments.settings] + random_settings(arguments.random, arguments.seed)
    settings = given or [peer.setting_of(words) for words in SETTINGS]
    rows = [{"setting": peer.words_of(s), "predicted": p} for s, p in zip(settings, peer.ours(settings, arguments.program))]
    for count in sorted({setting["ranks"] for setting in settings}):
        ranks = Ranks(count)
        for row, setting in zip(rows, settings):
            if setting["ranks"] != count:
                continue
            row["measured"] = min(ranks.measured(setting) for _ in range(RUNS))
            peer.say(row)
        ranks.end()
    options = f" --random {arguments.random} --seed {arguments.seed}" if arguments.random else ""
    results = {"command": "bench/peers/huggingface_ranks.py" + options + "".join(" " + shlex.quote(w) for w in arguments.settings)}
    results |= {name: importlib.metadata.version(name).split("+")[0] for name in ("torch", "transformers", "peft")}
    results["rows"] = rows
    peer.finish(results, arguments.out or (None if given else RESULTS))


if __name__ == "__main__":
    main()
