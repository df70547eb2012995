#!/usr/bin/env python3
"""PyTorch doing the work of chapters 01 to 04, 08 and 09: the same models, shapes, optimizer and data, measured as ours are.

  pip install torch
  bench/peers/pytorch_peer.py                    result files in build/peers/pytorch-eager-<device>/, for bench/compare
  bench/peers/pytorch_peer.py --compile          the same with torch.compile
  bench/peers/pytorch_peer.py --table            ours and PyTorch in turns on this processor, as ratios of medians: each
                                                 variant, then what a chapter's mitigation needs for PyTorch's plain step;
                                                 and attention alone, as bench_attention does it

With a GPU everything runs there, otherwise on the CPU, with as many threads as ours (--threads). The workload is that of
the result files of a run of ours (--like, by default bench/results/host).

Fairness:
  - Work. Same layers, widths, batch, sequence, AdamW, FP32; text is the course's (common/data/text), images are random (their values
    change neither bytes nor times). PyTorch runs as its users run it: modules, scaled_dot_product_attention (which never
    forms the probabilities that the textbook keeps), tanh GELU, AdamW with fused=True, zero_grad(set_to_none=True). For chapter
    08 also the textbook's way, softmax(Q Kᵀ) V, and a loss by chunks of logits, each recomputed in the backward pass.
    Chapter 09's networks are torchvision's, written out: ReLU in place, the sum of a block in place, SGD with momentum; images
    in the layout that PyTorch has by default.
  - Mixed precision is autocast (with GradScaler for fp16), which keeps FP32 weights; ours keeps 16-bit weights beside an
    FP32 master copy. Neither is the other's design, both are what one gets.
  - Time. Ours includes making the batch and copying it to the device; PyTorch's does not.
  - Peak. On a GPU torch.cuda.max_memory_allocated(), cuBLAS's workspaces included. On the CPU the profiler's record of every allocation and release of
    PyTorch's allocator, live bytes at their highest, models and optimizer included, in a pass of its own. What oneDNN and
    MKL allocate for themselves is not seen. In --table our cuBLAS workspace has 1 KiB: nothing uses it on a processor.
  - The table's second block is not the same work of both: ours mitigated, PyTorch as it is first written. What it needs with the
    same mitigation stands in the rows above, where it has one. "Activations" are the peak less 16 bytes per parameter
    (12 in chapter 09).
  - Nothing of PyTorch is limited by a budget on the CPU: a row is "oom" when its peak is above the budget.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time

for pinned in ("OPENBLAS_CORETYPE", "MKL_ENABLE_INSTRUCTIONS"):  # each side's BLAS chooses for itself
    os.environ.pop(pinned, None)

import torch  # noqa: E402
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

root = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(root / "bench"))
import gpu  # noqa: E402
from shared.results_files import save  # noqa: E402

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WIDTHS = {"mlp": [512, 1024, 2048, 4096, 8192, 10], "mlp-weights": [512, 2048, 2048, 10],
          "mlp-activations": [8192, 8, 8192, 8, 8192, 8, 8192, 10]}
SHAPES = {"bytes-gpt": (4, 4, 128, 256, 256)}  # layers, heads, width, vocabulary, positions


class Block(nn.Module):
    def __init__(self, width, heads, textbook=False):
        super().__init__()
        self.heads, self.textbook = heads, textbook
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if self.textbook:
            scores = (q @ k.transpose(-2, -1)) / (c // self.heads) ** 0.5
            hidden = torch.ones(s, s, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, s, c))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, positions, again=False, textbook=False, chunks=0):
        super().__init__()
        self.again = again  # checkpointing: each layer's input only is kept
        self.chunks = chunks  # of the loss; 0: all logits at once
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(Block(width, heads, textbook) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.norm(x) if self.chunks else F.linear(self.norm(x), self.token.weight)

    def summed_loss(self, x, y):
        """Of what forward() gives, and targets: the sum, all at once or by chunks of rows whose logits are not kept."""
        if not self.chunks:
            return F.cross_entropy(x.view(-1, x.shape[-1]), y.reshape(-1), reduction="sum")

        def of(rows, targets):
            return F.cross_entropy(F.linear(rows, self.token.weight), targets, reduction="sum")

        pieces = zip(x.view(-1, x.shape[-1]).chunk(self.chunks), y.reshape(-1).chunk(self.chunks))
        return sum(checkpoint(of, rows, targets, use_reentrant=False) for rows, targets in pieces)


def convolution(into, out, kernel, stride=1):
    """A convolution without bias and its batch norm."""
    return nn.Sequential(nn.Conv2d(into, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out))


class ResidualBlock(nn.Module):
    def __init__(self, into, width, out, stride, bottleneck):
        super().__init__()
        kernels = [(into, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)] if bottleneck else [(into, width, 3, stride), (width, out, 3, 1)]
        units = [convolution(*kernel) for kernel in kernels]
        self.branch = nn.Sequential(*(layer for unit in units for layer in (unit, nn.ReLU(inplace=True))))[:-1]
        self.shortcut = convolution(into, out, 1, stride) if into != out or stride != 1 else nn.Identity()

    def forward(self, x):
        y = self.branch(x)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def residual_network(name):
    """resnet18, resnet50, or resnet:STAGES-WIDTH, as plan/model/resnet.h has them."""
    free = re.fullmatch(r"resnet:(\d+)-(\d+)", name)
    stages, width = map(int, free.groups()) if free else (4, 64)
    blocks = [2] * stages if free or name == "resnet18" else [3, 4, 6, 3]
    bottleneck = name == "resnet50"
    layers = [convolution(3, width, 3) if free else convolution(3, width, 7, 2), nn.ReLU(inplace=True)]
    layers += [] if free else [nn.MaxPool2d(3, 2, 1)]
    into = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            out = (width << stage) * (4 if bottleneck else 1)
            layers.append(ResidualBlock(into, width << stage, out, 2 if stage and not block else 1, bottleneck))
            into = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, 10 if free else 1000))


def perceptron(widths):
    layers = []
    for i, (a, b) in enumerate(zip(widths, widths[1:])):
        layers += [nn.Linear(a, b)] + ([nn.ReLU()] if i + 2 < len(widths) else [])
    return nn.Sequential(*layers)


def make_model(name, **options):
    if name in WIDTHS:
        return perceptron(WIDTHS[name])
    if name in SHAPES:
        return Gpt(*SHAPES[name], **options)
    if found := re.fullmatch(r"gpt:(\d+)-(\d+)-(\d+)", name):
        return Gpt(*map(int, found.groups()), 258, 1024, **options)
    if name.startswith("resnet"):
        return residual_network(name)
    sys.exit(f"pytorch_peer.py: model {name} is not one that this script has")


def batch_of(config, samples):
    if config["model"] in WIDTHS:
        return torch.rand(samples, WIDTHS[config["model"]][0]), torch.randint(WIDTHS[config["model"]][-1], (samples,))
    if config["model"].startswith("resnet"):
        return torch.rand(samples, 3, config["side"], config["side"]), torch.randint(10, (samples,))
    text = (root / "common/data/text/course_text.txt").read_bytes()
    rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    seq = config["seq"]
    starts = [i * seq % (len(rows) - seq - 1) for i in range(samples)]
    return torch.stack([rows[s:s + seq] for s in starts]), torch.stack([rows[s + 1:s + seq + 1] for s in starts])


class Training:
    """One variant: step() is one optimizer step over `batch` samples, in micro-batches of `micro`."""

    def __init__(self, config, batch, micro, autocast=None, compiled=False, model=None, **options):
        config = dict(config, model=model or config["model"], side=options.pop("side", config.get("input")))
        self.model = make_model(config["model"], **options).to(device)
        self.forward = torch.compile(self.model) if compiled else self.model
        images = config["model"].startswith("resnet")
        self.optimizer = (torch.optim.SGD(self.model.parameters(), 0.005, momentum=0.9, fused=True) if images
                          else torch.optim.AdamW(self.model.parameters(), fused=True))
        self.autocast = autocast
        self.scaler = torch.amp.GradScaler(device.type) if autocast == torch.float16 else None
        self.x, self.y = (t.to(device) for t in batch_of(config, batch))
        self.micro = micro

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for x, y in zip(self.x.split(self.micro), self.y.split(self.micro)):
            with torch.autocast(device.type, self.autocast, enabled=self.autocast is not None):
                out = self.forward(x)
                summed_loss = getattr(self.model, "summed_loss", lambda out, y: F.cross_entropy(out, y, reduction="sum"))
                loss = summed_loss(out, y) / self.y.numel()
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            total = total + loss.detach()
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return total


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize()


def rates(make, batch, steps):
    """Samples per second of each of `steps` steps."""
    training = make()
    seconds = []
    for _ in range(steps + 2):  # two to warm up
        synchronize()
        start = time.perf_counter()
        training.step()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return [batch / s for s in seconds[2:]]


def peak(make):
    """Peak allocated and reserved bytes of making it and of two steps, and the losses."""
    losses = []

    def work():
        training = make()
        losses.extend(float(training.step()) for _ in range(2))

    if device.type == "cuda":
        gpu.Counter("cuda").clean()
        work()
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), losses
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    live = highest = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    return highest, highest, losses


def attention_table(arguments):
    """Attention alone, forward and backward: ours by tiles and in one kernel, and scaled_dot_product_attention, in turns."""
    heads, depth = 8, 64  # bench_attention's
    print(f"\n{f'attention of {heads} heads of {depth}, causal, sequences/s':<58} {'tiled':>8} {'fused':>8} {'PyTorch':>8} {'tiled / PyTorch':>16}")

    def ours(form, seq):
        out = subprocess.run([arguments.bin / "bench_attention", f"--benchmark_filter=^{form}/{seq}/", "--benchmark_format=json"],
                             check=True, capture_output=True, text=True,
                             env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)})
        return json.loads(out.stdout)["benchmarks"][0]["items_per_second"]

    def theirs(seq):
        q, k, v = (torch.randn(1, heads, seq, depth, requires_grad=True) for _ in range(3))
        gradient, seconds = torch.randn(1, heads, seq, depth), []
        for _ in range(12):
            q.grad = k.grad = v.grad = None
            start = time.perf_counter()
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(gradient)
            seconds.append(time.perf_counter() - start)
        return 1 / statistics.median(seconds[2:])

    for seq in (512, 1024, 2048):
        rounds = [(ours("tiled", seq), ours("fused", seq), theirs(seq)) for _ in range(arguments.rounds)]
        tiled, fused, pytorch = map(statistics.median, zip(*rounds))
        print(f"{f'S {seq}':<58} {tiled:>8.1f} {fused:>8.1f} {pytorch:>8.1f} {tiled / pytorch:>16.2f}", flush=True)


def variants_of(chapter, config):
    """(name of ours, batch, micro-batch, options of Training)."""
    batch, micro = config["batch"], config.get("micro_batch", 0)
    if chapter.startswith("01"):
        return [(f"{model}, batch {b}", b, b, {"model": model}) for model in config["model"].split(",")
                for b in (batch >> i for i in range(4))]
    if chapter.startswith("02"):
        return [(f"full batch {batch}", batch, batch, {}), (f"{batch // micro} x {micro}, global count", batch, micro, {}),
                (f"batch {micro} alone", micro, micro, {})]
    if chapter.startswith("03"):
        return [("fp32", batch, batch, {}), ("fp16", batch, batch, {"autocast": torch.float16}),
                ("bf16", batch, batch, {"autocast": torch.bfloat16})]
    if chapter.startswith("08"):
        return [("textbook", batch, batch, {"textbook": True}), ("tiled", batch, batch, {}),
                ("tiled + chunked loss", batch, batch, {"chunks": 2})]
    if chapter.startswith("09"):
        side = config["input"]
        return [("full size, tiled im2col", batch, batch, {}), (f"resized to {side // 2}", batch, batch, {"side": side // 2})]
    return [("none", batch, batch, {}), ("every layer", batch, batch, {"again": True})]


def processor():
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    return found.group(1) if found else platform.processor()


def system(kind, like):
    name = torch.cuda.get_device_name() if device.type == "cuda" else "host"
    properties = torch.cuda.get_device_properties(0) if device.type == "cuda" else None
    total = properties.total_memory if properties else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    slug = re.sub("[^a-z0-9]+", "-", f"pytorch-{kind}-{name}".lower()).strip("-")
    return {"backend": "cuda" if properties else "host", "device": f"PyTorch {torch.__version__}, {kind}, on {name}", "slug": slug,
            "compute_capability": f"{properties.major}.{properties.minor}" if properties else "0.0", "device_total_bytes": total,
            "device_free_bytes": total, "driver": like["driver"] if not properties else "see nvidia-smi",
            "runtime": f"PyTorch {torch.__version__}", "compiler": "torch.compile" if kind == "compile" else "none",
            "cpu": processor(), "hardware_threads": torch.get_num_threads(), "oomlab_version": like["oomlab_version"]}


def result_of(ours, kind, steps):
    config = dict(ours["config"], device=0, steps=steps)
    rows = []
    for name, batch, micro, options in variants_of(ours["chapter"], config):
        print(f"  {ours['chapter']}: {name}", file=sys.stderr)

        def make():
            return Training(config, batch, micro, compiled=kind == "compile", **options)

        allocated, reserved, losses = peak(make)
        rate = torch.tensor(rates(make, batch, steps), dtype=torch.float64)
        p10, p50, p90 = (float(rate.quantile(q)) for q in (0.1, 0.5, 0.9))
        budget = config["budget_bytes"]
        over = budget is not None and allocated > budget
        rows.append({
            "name": name, "role": "mitigation" if rows else "baseline", "batch": batch, "outcome": "oom" if over else "ok",
            "reason": "its peak is above the budget, which nothing enforced" if over else None, "budget_bytes": budget,
            "predicted_bytes": None, "predicted_by_category_bytes": None, "peak_allocated_bytes": allocated,
            "peak_reserved_bytes": reserved, "peak_device_used_bytes": reserved,
            "throughput": {"unit": "samples/s", "median": p50, "p10": p10, "p90": p90, "repetitions": len(rate), "within_budget": not over},
            "numerics": {"check": "differs by design", "compared": False, "agrees": True, "largest_relative_difference": None,
                         "figures": losses, "fingerprint": "0" * 16}, "largest_batch": None})
    return {"schema_version": ours["schema_version"], "chapter": ours["chapter"], "title": ours["title"],
            "system": system(kind, ours["system"]), "config": config, "variants": rows, "claims": [], "findings": {}, "tables": [],
            "failures": [], "passed": True}


def run_ours(program, variant, budget, threads, options=()):
    """Samples per second and peak allocated bytes of one variant of ours, alone, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "result.json"
        subprocess.run([program, "--steps", "6", "--filter", f"^{re.escape(variant)}$", "--quiet", "--workspace", "1KiB", "--budget", budget, "--json", path, *options],
                       check=True, env={**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)})
        row = json.loads(path.read_text())["variants"][0]
        return row["throughput"]["median"], row["peak_allocated_bytes"]


def mitigated(name, chapter, config, theirs):
    """What of ours does the step of PyTorch's row `name`, whose peak is `theirs`, in less memory: label, chapter, variant, budget,
    options."""
    if chapter.startswith("01"):
        return []  # its mitigation, a smaller batch, is another step
    if chapter.startswith("09"):
        return [("norms recomputed", chapter, "full size, tiled, norms recomputed", "none", [])] if name.startswith("full size") else []
    small = f"{int(0.7 * theirs) >> 10}KiB"
    shape = ["--model", config["model"], "--batch", str(config["batch"]), "--seq", str(config["seq"])]
    lean = [("lean", "08_attention_and_loss", "lean", "none", shape), ("lean, solved for 0.7 x", "08_attention_and_loss", "lean, solved", small, shape)]
    if chapter.startswith("02"):
        pieces = f"{config['batch'] // config['micro_batch']} x {config['micro_batch']}, global count"
        if name == pieces:
            return [("lean", chapter, pieces, "none", ["--attention", "tiled", "--loss", "chunked", "--lean"])]
        return [(pieces, chapter, pieces, "none", []), *lean] if name.startswith("full") else []
    if chapter.startswith("04") and name == "none":
        return [("solved for 0.7 x", chapter, "solved", small, []), *lean]
    return lean if chapter.startswith("08") and name == "tiled" else []


def table(arguments, likes):
    """In turns, so that a machine that slows down favours neither; figures are medians."""
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, medians of {arguments.rounds} rounds, samples/s and peak MiB")

    def head(what, more=""):
        print(f"\n{what:<58} {'ours':>8} {'PyTorch':>8} {'ratio':>6}   {'ours':>8} {'PyTorch':>8} {'ratio':>6}   {more}".rstrip())

    def line(label, ours, theirs):  # of each the rate and the peak
        mib = 1 << 20
        return (f"{label:<58} {ours[0]:>8.1f} {theirs[0]:>8.1f} {ours[0] / theirs[0]:>6.2f}   {ours[1] / mib:>8.1f} "
                f"{theirs[1] / mib:>8.1f} {ours[1] / theirs[1]:>6.2f}")

    workloads = []  # chapter, config, what it is called, our options for it
    for ours in likes:
        chapter, config = ours["chapter"], ours["config"]
        if chapter.startswith("03"):
            continue  # other contracts: see above
        workloads.append((chapter, config, chapter, []))
        if chapter.startswith("08"):  # and a long sequence
            workloads.append((chapter, dict(config, seq=1024), f"{chapter}, S 1024", ["--seq", "1024"]))
    less = []
    head("the same variant of both")
    for chapter, config, title, shape in workloads:
        for name, batch, micro, options in variants_of(chapter, config):
            def make():
                return Training(config, batch, micro, **options)

            allocated = peak(make)[0]
            others = mitigated(name, chapter, config, allocated)
            runs = [(chapter, name, "none", shape), *(other[1:] for other in others)]
            rounds = [[run_ours(arguments.bin / program, variant, budget, arguments.threads, more) for program, variant, budget, more in runs] +
                      [(statistics.median(rates(make, batch, 6)), allocated)] for _ in range(arguments.rounds)]
            *mine, theirs = [tuple(map(statistics.median, zip(*column))) for column in zip(*rounds)]
            print(line(f"{title}: {name}", mine[0], theirs), flush=True)
            state = (12 if chapter.startswith("09") else 16) * sum(p.numel() for p in make().model.parameters())  # SGD, AdamW
            for other, figures in zip(others, mine[1:]):
                activations = (figures[1] - state) / (allocated - state)
                label = f"{title.replace(chapter, chapter[:2])} {name}: ours {other[0]}"
                less.append(f"{line(label, figures, theirs)}   {activations:>6.2f}")
    head("the same step, ours mitigated / PyTorch plain", "activations")
    print(*less, sep="\n")
    attention_table(arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--like", type=pathlib.Path, default=root / "bench/results/host")
    parser.add_argument("--bin", type=pathlib.Path, default=root / "build/host/bin")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    likes = [json.loads(f.read_text()) for f in sorted(arguments.like.glob("0[1-489]_*.json"))]
    if not likes:
        sys.exit(f"pytorch_peer.py: no results of chapters 01 to 04, 08 and 09 in {arguments.like}")
    if arguments.table:
        return table(arguments, likes)
    kind = "compile" if arguments.compile else "eager"
    for ours in likes:
        result = result_of(ours, kind, arguments.steps)
        folder = arguments.out or root / "build/peers" / result["system"]["slug"]
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / f"{result['chapter']}.json", (json.dumps(result, indent=1) + "\n").encode())
        save(folder / "system.json", (json.dumps(result["system"], indent=1) + "\n").encode())
    print(f"results: {folder}")


main()
