#!/usr/bin/env python3
"""PyTorch's peak of a training step, measured, and what is predicted for it: by us, by accelerate, by fitcheck-llm.

  pip install torch numpy accelerate fitcheck-llm
  cmake --build --preset host --target fit_pytorch
  bench/peers/pytorch_training.py                     the settings below, to bench/results/peers/pytorch_training.json and .txt
  bench/peers/pytorch_training.py --random 24 --seed 1     others, drawn at random; printed only, unless --out FILE.json is given
  bench/peers/pytorch_training.py 'model=gpt2 batch=1 seq=64 precision=bf16'     settings of your own
  bench/peers/pytorch_training.py --text              writes each .txt again, from its .json; measures nothing
  bench/peers/pytorch_training.py --device cuda       larger models, then the settings below, on a GPU, as gpu.py says; predicts nothing

Measured: torch_models.py on the CPU, two steps, in a fresh model each; the profiler's record of every allocation and release of
PyTorch's CPU allocator, live bytes at their highest. A GPU's peak may differ by its kernels' scratch. With one thread (--threads),
because the CPU's kernels take scratch per thread.

  - scaled_dot_product_attention runs the CPU's flash kernel here, in FP32 and BF16: it keeps q, k, v, its output and logsumexp, as
    a GPU's flash and memory-efficient kernels do. The script stops where it runs another one.
  - Autocast on a CPU leaves layer norms in the type of their input; on a GPU they become FP32. The residual is FP32 in both, so it
    differs only in BERT's head, after GELU.
  - adamw_foreach is what a GPU gets without asking; a CPU gets a loop, so it is asked for here.
  - FP16 with a loss scale, and 8-bit AdamW, need a GPU: predicted, not checked here. With --device cuda FP16 is measured.

accelerate: calculate_maximum_sizes() and estimate_training_usage() of its `accelerate estimate-memory`, on the same modules; the
largest of its parts, as it prints. It takes no batch and no sequence. fitcheck-llm: estimate() on the shape, full fine-tuning, flash
attention, without the overhead that it adds for a GPU's context. Its formulas are for decoders with gated MLPs: "refused" is what its
reader says to the config.json, or to a number of parameters that is not that of such a model.
"""
import argparse
import importlib.metadata
import json
import pathlib
import random
import shlex
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import gpu  # noqa: E402
from shared.results_files import save  # noqa: E402

RESULTS = ROOT / "bench/results/peers/pytorch_training.json"
DRAWN = ROOT / "bench/results/peers/pytorch_training_random.json"
DEFAULTS = {"precision": "fp32", "checkpoint": 0, "optimizer": "adamw_foreach"}
SETTINGS = """
model=bytes-gpt batch=8 seq=256
model=bytes-gpt batch=16 seq=256 precision=bf16
model=bytes-gpt batch=32 seq=256 checkpoint=1
model=gpt:6-6-384 batch=4 seq=256
model=gpt:6-6-384 batch=4 seq=256 precision=bf16
model=gpt:6-6-384 batch=8 seq=256 checkpoint=1
model=gpt:6-6-384 batch=8 seq=256 precision=bf16 checkpoint=1
model=gpt:6-6-384 batch=1 seq=1024 optimizer=adamw_fused
model=gpt:4-8-256 batch=4 seq=256 vocabulary=16000
model=gpt2 batch=1 seq=128
model=gpt2 batch=2 seq=128 precision=bf16
model=gpt2 batch=4 seq=64 checkpoint=1 optimizer=adamw_fused
model=bert:4-4-256 batch=8 seq=128
model=bert:4-4-256 batch=8 seq=128 precision=bf16
model=bert:4-4-256 batch=16 seq=128 checkpoint=1
model=bert:4-4-256 batch=16 seq=128 precision=bf16 checkpoint=1
model=bert:8-8-512 batch=2 seq=512
model=bert:8-8-512 batch=2 seq=512 precision=bf16 optimizer=adamw_fused
model=bert-base batch=2 seq=96
model=bert-base batch=3 seq=128 precision=bf16 checkpoint=1 optimizer=adamw_fused
model=bytes-llama batch=8 seq=256
model=bytes-llama batch=16 seq=512 precision=bf16
model=llama:4-8-2-256-688 batch=4 seq=256
model=llama:4-8-2-256-688 batch=4 seq=256 precision=bf16
model=llama:4-8-2-256-688 batch=8 seq=256 checkpoint=1
model=llama:4-8-2-256-688 batch=8 seq=256 precision=bf16 checkpoint=1
model=llama:6-8-8-512-1376 batch=1 seq=1024
model=llama:6-8-8-512-1376 batch=2 seq=512 precision=bf16 checkpoint=1 optimizer=adamw_fused
model=llama:4-16-4-512-1792 batch=2 seq=256 vocabulary=32000 precision=bf16
model=llama:4-16-4-512-1792 batch=2 seq=256 vocabulary=32000 tied=0
""".split("\n")[1:-1]
UNCHECKED = ["model=gpt:6-6-384 batch=4 seq=256 precision=fp16", "model=bert-base batch=2 seq=128 optimizer=adamw_8bit",
             "model=llama:4-8-2-256-688 batch=4 seq=256 precision=fp16 checkpoint=1"]
# On a GPU, the most valuable first.
REAL = """
model=gpt2 batch=8 seq=1024
model=gpt2 batch=8 seq=1024 precision=bf16
model=gpt2 batch=8 seq=1024 precision=fp16
model=gpt2 batch=16 seq=1024 precision=bf16 checkpoint=1 optimizer=adamw_fused
model=bert-base batch=32 seq=512 precision=bf16
model=bert-large batch=16 seq=512
model=llama:16-32-8-2048-8192 batch=2 seq=1024 vocabulary=128256 precision=bf16
model=gpt:24-16-1024 vocabulary=50257 batch=8 seq=1024 precision=bf16
model=llama:16-32-8-2048-8192 batch=4 seq=2048 vocabulary=128256 precision=bf16 checkpoint=1 optimizer=adamw_fused
""".split("\n")[1:-1]
SNAPSHOTS = ["model=bert:4-4-256 batch=8 seq=128 precision=bf16"]


def setting_of(words):
    setting = dict(word.split("=") for word in words.split())
    setting |= {key: value for key, value in DEFAULTS.items() if key not in setting}
    return {key: int(value) if key in ("batch", "seq", "checkpoint", "vocabulary", "positions", "tied") else value
            for key, value in setting.items()}


def words_of(setting):
    return " ".join(f"{key}={value}" for key, value in setting.items() if DEFAULTS.get(key) != value)


def shape_of(setting):
    from torch_models import Shape  # needs PyTorch; tables do not
    shape = Shape(setting["model"])
    for key in ("vocabulary", "positions", "tied"):
        setattr(shape, key, setting.get(key, getattr(shape, key)))
    return shape


def random_settings(count, seed):
    """`count` settings of small models, each of their parts drawn alone."""
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        depth, heads, layers = draw.choice((16, 32, 64)), draw.randint(1, 10), draw.randint(1, 8)
        width = depth * heads
        style = draw.choice(("gpt", "bert", "llama"))
        kv = draw.choice([k for k in range(1, heads + 1) if heads % k == 0])
        mlp = draw.randint(width, 4 * width)
        model = f"llama:{layers}-{heads}-{kv}-{width}-{mlp}" if style == "llama" else f"{style}:{layers}-{heads}-{width}"
        setting = {"model": model, "batch": draw.randint(1, 16), "seq": draw.randint(16, 512), "precision": draw.choice(("fp32", "bf16")),
                   "checkpoint": draw.randint(0, 1), "optimizer": draw.choice(("adamw_foreach", "adamw_fused"))}
        if draw.random() < 0.4:
            setting["vocabulary"] = draw.randint(300, 33000)
        if style != "bert" and draw.random() < 0.2:
            setting["tied"] = 0
        tokens = setting["batch"] * setting["seq"]
        if width >= 64 and 256 <= tokens <= 4096 and tokens * setting.get("vocabulary", 258) < 4e7:  # what takes seconds
            made.append(setting)
    return made


# ------------------------------------------------------------------------------------------------------- PyTorch

def prepared(setting):
    """What a step needs."""
    import torch
    from torch_models import Transformer
    shape = shape_of(setting)
    model = Transformer(shape, bool(setting["checkpoint"]))
    options = {"foreach": True} if setting["optimizer"] == "adamw_foreach" else {"fused": True}
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), **options),
             "batch": [torch.randint(shape.vocabulary, (setting["batch"], setting["seq"])) for _ in range(2)]}
    if setting["precision"] == "fp16":
        state["scaler"] = torch.amp.GradScaler(state["batch"][0].device.type)
    return state


def loss_of(setting, state, device="cpu"):
    import torch
    types = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
    with torch.autocast(device, types[setting["precision"]], enabled=setting["precision"] != "fp32"):
        return state["model"](*state["batch"])


def step(setting, state, device="cpu"):
    optimizer, scaler = state["optimizer"], state.get("scaler")
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(setting, state, device)
    if scaler:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()


def work_of(setting, device):
    """For gpu.measured()."""
    return lambda: prepared(setting), lambda state: step(setting, state, device.type), lambda state: loss_of(setting, state, device.type)


SCRIPT = gpu.Script("pytorch_training", REAL, SETTINGS + [words for words in UNCHECKED if "fp16" in words], SNAPSHOTS,
                    lambda words: words.removeprefix("model="), setting_of, words_of, work_of)


def measured(setting):
    """Peak bytes of making the model and of two steps, in this process."""
    from torch.profiler import ProfilerActivity, profile

    def work():
        state = prepared(setting)
        for _ in range(2):
            step(setting, state)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    live = highest = 0
    events = record.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    if not any("_scaled_dot_product_flash_attention_for_cpu" in e.name() for e in events):
        sys.exit(f"pytorch_training.py: {words_of(setting)}: attention did not run the flash kernel")
    return highest


def measure_all(settings, threads):
    """In one process for all: nothing of a run is live in the next."""
    import torch
    torch.set_num_threads(threads)
    for setting in settings:
        yield measured(setting)


# ------------------------------------------------------------------------------------------------ predictions

def ours(settings, program):
    text = "".join(words_of(s) + "\n" for s in settings)
    run = subprocess.run([program], input=text, capture_output=True, text=True)
    if run.returncode:
        sys.exit(run.stderr.strip())
    return [json.loads(line) for line in run.stdout.splitlines()]


def on_meta(setting):
    """The model, without memory."""
    import torch
    from torch_models import Transformer
    with torch.device("meta"):
        return Transformer(shape_of(setting))


def parameters_of(setting):
    return sum(p.numel() for p in on_meta(setting).parameters())


def of_accelerate(setting):
    """Bytes; nothing where accelerate is not installed."""
    try:
        from accelerate.commands.estimate import estimate_training_usage
        from accelerate.utils import calculate_maximum_sizes
    except ImportError:
        return None
    names = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    return max(estimate_training_usage(calculate_maximum_sizes(on_meta(setting))[0], names[setting["precision"]]).values())


def config_json(shape):
    """What Hugging Face's models of this shape have in their config.json, for a reader of such files."""
    if shape.style == "gpt":
        return {"model_type": "gpt2", "n_embd": shape.width, "n_layer": shape.layers, "n_head": shape.heads, "n_positions": shape.positions,
                "vocab_size": shape.vocabulary, "tie_word_embeddings": bool(shape.tied)}
    common = {"hidden_size": shape.width, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
              "intermediate_size": shape.hidden, "vocab_size": shape.vocabulary, "max_position_embeddings": shape.positions,
              "tie_word_embeddings": bool(shape.tied)}
    if shape.style == "bert":
        return {"model_type": "bert", "architectures": ["BertForMaskedLM"], **common}
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_key_value_heads": shape.keys, "hidden_act": "silu", **common}


def of_fitcheck(setting):
    """Bytes, "refused", or nothing where fitcheck-llm is not installed."""
    try:
        from fitcheck import config_parser, estimator, gpu_db
    except ImportError:
        return None
    shape = shape_of(setting)
    raw = config_json(shape)
    try:
        config_parser._reject_unsupported(raw, setting["model"])
        fields = config_parser._parse_fields(raw)
        count = config_parser._reconcile_param_count(setting["model"], parameters_of(setting), config_parser._count_params(fields))
    except ValueError:
        return "refused"
    config = config_parser.ModelConfig(name=setting["model"], num_params=count, **vars(fields))
    training = estimator.TrainingConfig(
        batch_size=setting["batch"], seq_len=setting["seq"], precision=setting["precision"], lora_rank=None, flash_attn=True,
        grad_checkpoint=bool(setting["checkpoint"]), optimizer="adam8bit" if setting["optimizer"] == "adamw_8bit" else "adamw")
    report = estimator.estimate(config, training, next(iter(gpu_db.GPU_DB.values())))
    return round((report.total_mib - report.overhead_mib) * 2**20)


# ------------------------------------------------------------------------------------------------------- output

def error(row, predicted):
    return predicted / row["measured"] - 1 if row.get("measured") and isinstance(predicted, int) else None


def figures(rows, of):
    errors = [abs(e) for row in rows if (e := error(row, of(row))) is not None]
    return (len(errors), statistics.median(errors), max(errors)) if errors else (0, 0, 0)


WHO = {"predicted here": lambda row: row["predicted"]["peak"], "accelerate": lambda row: row["accelerate"],
       "fitcheck-llm": lambda row: row["fitcheck"]}


def table(results):
    def cell(row, value):
        if not isinstance(value, int):
            return value or "-"
        of = error(row, value)
        return f"{value / 2**20:.1f}" + ("" if of is None else f" ({of:+z.1%})")

    threads = f"{results['threads']} thread{'s' * (results['threads'] > 1)}"
    wide = max(len(row["setting"]) for row in results["rows"]) - len("model=")
    lines = [f"$ {results['command']}",
             f"PyTorch {results['torch']}, {threads}, accelerate {results['accelerate']}, fitcheck-llm {results['fitcheck']}. MiB.",
             "CPU allocator, profiler: a GPU's may differ by its kernels' scratch.", "",
             f"{'setting':<{wide}} {'measured':>11} {'predicted here':>16} {'accelerate':>16} {'fitcheck-llm':>16}"]
    for row in results["rows"]:
        shown = f"{row['measured'] / 2**20:.1f}" if row.get("measured") else "not checked"
        cells = " ".join(f"{cell(row, of(row)):>16}" for of in WHO.values())
        lines.append(f"{row['setting'].replace('model=', ''):<{wide}} {shown:>11} {cells}")
    lines.append("")
    for who, of in WHO.items():
        count, median, worst = figures(results["rows"], of)
        lines.append(f"{who:<15} {count:>3} settings, error: median {median:.2%}, worst {worst:.2%}")
    return "\n".join(lines) + "\n"


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--random", type=int, default=0, metavar="N")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--text", action="store_true")
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build/host/bin/fit_pytorch")
    gpu.add_options(parser)
    arguments = parser.parse_args()
    if arguments.text:
        gpu.predict_again(SCRIPT, lambda settings: ours(settings, arguments.program))
        for file in (RESULTS, DRAWN):
            file.with_suffix(".txt").write_text(table(json.loads(file.read_text())))
        return
    try:
        given = [setting_of(words) for words in arguments.settings] + random_settings(arguments.random, arguments.seed)
    except ValueError as problem:
        sys.exit(f"pytorch_training.py: {problem}")
    if arguments.device:
        return gpu.run(SCRIPT, given, arguments)
    published = not given
    checked = given or [setting_of(words) for words in SETTINGS]
    unchecked = [setting_of(words) for words in UNCHECKED] if published else []
    settings = checked + unchecked
    rows = [{"setting": words_of(s), "predicted": p, "accelerate": of_accelerate(s), "fitcheck": of_fitcheck(s)}
            for s, p in zip(settings, ours(settings, arguments.program))]
    for row, peak in zip(rows, measure_all(checked, arguments.threads)):
        row["measured"] = peak
        print(f"{row['setting']}: {error(row, row['predicted']['peak']):+.2%}", file=sys.stderr, flush=True)
    command = shlex.join(["bench/peers/pytorch_training.py", *sys.argv[1:]])
    results = {"command": command, "torch": version("torch"), "threads": arguments.threads, "accelerate": version("accelerate"),
               "fitcheck": version("fitcheck-llm"), "rows": rows}
    if out := arguments.out or (RESULTS if published else None):
        out.parent.mkdir(parents=True, exist_ok=True)
        save(out, (json.dumps(results, indent=1) + "\n").encode())
        save(out.with_suffix(".txt"), table(results).encode())
    print(table(results), end="")


if __name__ == "__main__":
    main()
