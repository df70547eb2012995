"""Questions for bench/fit, drawn at random: of every engine, task and way to say how much memory there is; some are refused."""
import collections
import itertools
import random
import subprocess
import sys

MODELS = ("gpt2", "gpt2-xl", "bert-large", "llama-3.2-1b", "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "qwen3-8b", "mistral-7b", "gemma-2-2b", "phi-3.5-mini",
          "mixtral-8x7b", "llama-3.1-70b", "vit-l-16", "gpt:2-2-64", "resnet50", "unet:4-64", "maskrcnn_resnet50_fpn", "sdxl", "flux.1-dev", "bertha")
PIPELINES = {"--size": (512, 1000, 1024), "--with": ("enable_model_cpu_offload", "4-bits", "enable_vae_slicing"), "--largest": ("batch", "size"), "--task": ("image", "infer"),
             "--precision": ("bf16", "fp16", "fp32")}
SHORT = {"gpt2", "gpt2-xl", "bert-large", "gpt:2-2-64", "resnet50", "unet:4-64", "maskrcnn_resnet50_fpn"}  # of at most 1,024 tokens, or of none
CARDS = ("t4", "rtx3060", "4090", "NVIDIA GeForce RTX 3090", "a100-40gb", "a100-80gb", "h100-sxm", "b200", "l4", "gb10", "voodoo")
SIZES = ("6GB", "12GB", "16GiB", "24GB", "80GB", "8GB,12GB,24GB", "0.2GB", "1e3")
TRAINING = {"--method": ("lora", "qlora", "full"), "--optim": ("adamw_bnb_8bit", "adafactor", "sgd", "adamw_torch"), "--loss": ("chunked", "liger"),
            "--weights": ("bf16", "fp16", "fp32"), "--precision": ("bf16", "fp16", "fp32"), "--gradient-accumulation": (1, 2, 4, 16),
            "--lora-rank": (4, 8, 64), "--attn-implementation": ("eager", "sdpa"), "--numbers": ("same", "any"), "--host-memory": ("64GB", "256GB"),
            "--framework": ("trl", "deepspeed", "torchtune", "trainer"), "--largest": ("batch", "seq"), "--gradient-checkpointing": (),
            "--expandable-segments": (), "--without": ("offload", "stochastic,offload"), "--fragmentation": (0, 2, "5%"), "--context": ("300MB", "0")}
INFERENCE = {"--cache": ("static", "tuple", "dynamic"), "--prompt": (1, 100, 1000), "--weights": ("fp16", "bf16", "q4_k_m"), "--largest": ("batch", "seq")}
SERVERS = {"vllm": {"--weights": ("awq", "gptq", "fp8", "bf16"), "--cache-type": ("fp8", "auto"), "--tp": (1, 2, 4), "--gpu-memory-utilization": (0.5, 0.95),
                    "--max-num-seqs": (16, 256), "--max-num-batched-tokens": (2048, 8192), "--enforce-eager": ()},
           "llama.cpp": {"--weights": ("q8_0", "q4_k_m", "iq4_xs"), "--cache-type": ("q8_0", "f16"), "--ngl": (0, 12, 99), "--ubatch": (128, 512)}}


def draw(number):
    """The arguments of question `number`; the same ones every time."""
    dice = random.Random(number)

    def some(options, most):
        words = []
        for name in dice.sample(sorted(options), dice.randint(0, min(most, len(options)))):
            words += [name, *([str(dice.choice(options[name]))] if options[name] else [])]
        return words

    model = dice.choice(MODELS)
    words = ["--model", model, "--batch", str(dice.choice((1, 1, 2, 3, 8, 32)))]
    if model not in ("vit-l-16", "sdxl", "flux.1-dev") and dice.random() < 0.7:
        words += ["--seq", str(dice.choice((1, 128, 512) if model in SHORT else (1, 128, 512, 2048, 8192)))]
    where = dice.random()
    if where < 0.55:
        words += ["--gpu", dice.choice(CARDS)]
    elif where < 0.8:
        words += ["--memory", dice.choice(SIZES)]
    elif where < 0.92:
        words += ["--gpus", f"{dice.choice((1, 2, 4, 8))}x{dice.choice(CARDS[4:7])}", *some({"--sharding": ("ddp", "fsdp", "zero1", "zero2", "zero3")}, 1)]
    kind = dice.random()
    if model in ("resnet50", "unet:4-64", "maskrcnn_resnet50_fpn"):
        words += some({"--input": (64, 224, "320x480"), "--largest": ("batch",)}, 2)
    elif model in ("sdxl", "flux.1-dev"):
        words += some(PIPELINES, 3)
    elif kind < 0.6:
        words += some(TRAINING, 3)
    elif kind < 0.75:
        words += ["--task", "infer", *some(INFERENCE, 2)]
    elif kind < 0.9:
        engine = dice.choice(sorted(SERVERS))
        words += ["--engine", engine, *some(SERVERS[engine], 3)]
    elif kind < 0.95:
        words += ["--engine", "oomlab", *some({"--precision": ("bf16", "fp32"), "--task": ("infer", "train"), "--numbers": ("same", "any")}, 2)]
    else:
        words += ["--all"]
    return words + (["--lang", "zh"] if dice.random() < 0.2 else []) + (["--must-fit"] if dice.random() < 0.1 else [])


def asked(program, number, *more):
    """(exit code, lines of standard output, of standard error): without what a long search says of itself, which depends on the machine."""
    done = subprocess.run([str(program), *draw(number), *more], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode, done.stdout.splitlines(True), [line for line in done.stderr.splitlines(True) if not line.startswith(b"fit: still comparing")]


def compare(one, other, count):
    """Asks two programs the first `count` questions, for people and as JSON. Prints how many were answered and refused; ends where they differ."""
    codes = collections.Counter()
    for number in range(count):
        for more in ([], ["--json"]):
            first, second = (asked(program, number, *more) for program in (one, other))
            if first != second:
                lines = [pair for mine, its in zip(first[1:], second[1:]) for pair in itertools.zip_longest(mine, its) if pair[0] != pair[1]]
                sys.exit(f"question {number}, {' '.join(draw(number) + more)}: exit codes {first[0]} and {second[0]}; lines that differ: {lines[:3]}")
            codes[first[0]] += 1
    assert sum(codes.values()) == 2 * count and set(codes) <= {0, 1, 64} and codes[0] and codes[64] < count, codes
    print(f"{count} questions, each for people and as JSON, equal to the byte: {codes[0]} answers fit, {codes[1]} do not, {codes[64]} are refusals")
