"""What PyTorch takes of a GPU's memory: the measuring that pytorch_training.py, huggingface_training.py and huggingface_generation.py share.

--device cuda measures there, and needs nothing but the script's own packages: no build of this repository. What is predicted is added
later, on any machine, by --text. Each setting begins with nothing live: what was there is released, the allocator's cache is emptied and cuBLAS's
workspaces are released. All bytes are PyTorch's own counts, and nothing is subtracted from them:

  allocated   torch.cuda.max_memory_allocated() from the first step on: live tensors, model and optimizer included, and cuBLAS's workspaces.
              Each request is rounded up to 512 bytes, or more where a block is not split.
  requested   the same peak of what was asked for, before it is rounded
  workspaces  what torch._C._cuda_clearCublasWorkspaces() gave back after the steps: part of `allocated` since the first product
  reserved    torch.cuda.max_memory_reserved() from the first step on. The cache is emptied once the model is made.
  used        of the device, by torch.cuda.mem_get_info(), after the steps: what is reserved, the context with the kernels that the process has
              loaded so far, and other processes, if there are any
  model       allocated once the model and the batch are made, before the first step
  peaks       the peak allocated of each step alone
  retries     how often the allocator emptied its cache to make room
  seconds     of each step; the first has also what is done once. For orientation: the tables have no times, because other processes may run beside
  kernels     of attention, as one more forward pass dispatched them

A setting that runs out of memory is a row with PyTorch's message. A row with "failed" has a traceback. What is done is stored after each
setting, and --resume goes on after the last one that is stored. --device cpu runs the same code, and counts nothing.
"""
import gc
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import statistics
import sys
import time
import traceback
import typing

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from shared.results_files import save  # noqa: E402

FOLDER = ROOT / "bench/results/peers"
STEPS = 4  # the first with what is done once; fewer where they take more than ENOUGH seconds
ENOUGH = 1.2
FATAL = ("CUDA error", "device-side assert", "NVIDIA driver")  # after which a process can use its device no more
BEGUN = time.perf_counter()


def add_options(parser, device=None):
    parser.add_argument("--device", choices=("cuda", "cpu"), default=device, help="measure on this device as gpu.py says; without: PyTorch's CPU allocator by its profiler")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N", help="--device: begin no setting after N seconds of measuring")
    parser.add_argument("--resume", action="store_true", help="--device: go on after what --out has")
    parser.add_argument("--small", action="store_true", help="--device: the settings' models at a thousandth of their size, to try the script")
    parser.add_argument("--snapshots", type=pathlib.Path, metavar="FOLDER", help="--device cuda: write PyTorch's memory snapshots of some settings, and measure nothing")


# ------------------------------------------------------------------------------------------------------- counting


class Counter:
    """PyTorch's own counts on a device; zeros on a CPU, which has none."""

    def __init__(self, name):
        import torch
        self.torch, self.device, self.counts = torch, torch.device(name), name == "cuda"
        if self.counts:
            torch.cuda.init()

    def synchronize(self):
        if self.counts:
            self.torch.cuda.synchronize()

    def live(self):
        return self.torch.cuda.memory_allocated() if self.counts else 0

    def clean(self):
        """Releases what nobody holds, and counts peaks from here."""
        gc.collect()
        if self.counts:
            self.synchronize()
            self.clear_workspaces()
            self.torch.cuda.empty_cache()
            self.reset()

    def reset(self):
        if self.counts:
            self.torch.cuda.reset_peak_memory_stats()

    def clear_workspaces(self):
        """Bytes that cuBLAS's workspaces had."""
        if not self.counts:
            return 0
        before = self.live()
        self.torch._C._cuda_clearCublasWorkspaces()
        return before - self.live()

    def peaks(self):
        stats = self.torch.cuda.memory_stats() if self.counts else {}
        return {name: stats.get(f"{name}_bytes.all.peak", 0) for name in ("allocated", "requested", "reserved")}

    def retries(self):
        """How often the allocator has emptied its cache to make room."""
        return self.torch.cuda.memory_stats().get("num_alloc_retries", 0) if self.counts else 0

    def used(self):
        if not self.counts:
            return 0
        free, total = self.torch.cuda.mem_get_info()
        return total - free


def attention_kernels(forward):
    """The names of attention's operators in one forward pass."""
    from torch.utils._python_dispatch import TorchDispatchMode
    names = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            name = str(function)
            if "attention" in name:
                names.add(name)
            return function(*args, **(kwargs or {}))

    with Watch():
        forward()
    return sorted(names)


def measured(counter, make, step, forward):
    """The row of one setting. make() gives what a step needs; step(state) is one step; forward(state) has its attention. An exception is a
    field of the row: "oom" has PyTorch's message, "failed" a traceback."""
    counter.clean()
    row = {"live_before": counter.live(), "used_before": counter.used()}
    retries = counter.retries()
    state = None
    problem = None
    try:
        started = time.perf_counter()
        with counter.device:
            state = make()
        counter.synchronize()
        row["seconds_of_making"] = round(time.perf_counter() - started, 3)
        counter.clean()
        row |= {"model": counter.live(), "seconds": [], "peaks": []}
        highest = {}
        started = time.perf_counter()
        for done in range(STEPS):
            counter.reset()
            begun = time.perf_counter()
            step(state)
            counter.synchronize()
            row["seconds"].append(round(time.perf_counter() - begun, 6))
            peaks = counter.peaks()
            row["peaks"].append(peaks["allocated"])
            highest = {name: max(bytes_, highest.get(name, 0)) for name, bytes_ in peaks.items()}
            if done >= 1 and time.perf_counter() - started > ENOUGH:
                break
        row |= highest | {"used": counter.used(), "reserved_now": counter.torch.cuda.memory_reserved() if counter.counts else 0}
        row["workspaces"] = counter.clear_workspaces()
        try:
            row["kernels"] = attention_kernels(lambda: forward(state))
        except Exception as unseen:  # noqa: BLE001
            row["kernels"] = [f"not seen: {type(unseen).__name__}: {unseen}"[:300]]
            traceback.clear_frames(unseen.__traceback__)
    except Exception as caught:  # noqa: BLE001
        problem = caught
    row["retries"] = counter.retries() - retries
    if problem is not None:
        memory = isinstance(problem, counter.torch.OutOfMemoryError) or any(word in str(problem) for word in ("out of memory", "ALLOC_FAILED"))
        if memory:
            row |= {"oom": str(problem), "at": place_of(problem)} | counter.peaks()
        else:
            row["failed"] = "".join(traceback.format_exception(problem))[-4000:]
        traceback.clear_frames(problem.__traceback__)
    problem = None
    if isinstance(state, dict):
        state.clear()
    del state
    return row


def place_of(problem):
    """The lines that were running, innermost last, as a reader would see them."""
    return [f"{pathlib.Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(problem.__traceback__)][-8:]


# ----------------------------------------------------------------------------------------------------- a script's run


def about(counter):
    """What the figures depend on."""
    torch = counter.torch
    found = {name: version_of(name) for name in ("torch", "transformers", "peft")}
    found |= {"python": platform.python_version(), "settings_of_allocator": {
        name: os.environ[name] for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG", "CUDA_MODULE_LOADING") if name in os.environ}}
    if not counter.counts:
        return found | {"device": "cpu", "slug": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    slug = re.sub("[^a-z0-9]+", "-", properties.name.lower()).strip("-")
    return found | {"device": properties.name, "slug": slug, "capability": f"{properties.major}.{properties.minor}",
                    "device_bytes": torch.cuda.mem_get_info()[1], "cuda": torch.version.cuda, "matmul_precision": torch.get_float32_matmul_precision()}


def version_of(package):
    try:
        return importlib.metadata.version(package).split("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def small(setting):
    """A setting that a CPU does in seconds, with the same words."""
    names = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "width": 64, "mlp": 128, "vocabulary": 300}
    found = {key: min(value, names[key]) if key in names else value for key, value in setting.items()}
    if re.fullmatch(r"(gpt|bert|llama).*", str(setting.get("model", ""))):
        found["model"] = {"l": "llama:2-4-2-64-128", "g": "gpt:2-4-64", "b": "bert:2-4-64"}[setting["model"][0]]
    for key, most in (("seq", 32), ("prompt", 32), ("batch", 2), ("new_tokens", 3)):
        if key in found:
            found[key] = min(found[key], most)
    return found


class Script(typing.NamedTuple):
    """What a script of this folder measures on a GPU."""
    name: str
    real: list        # settings of real sizes in words, the most valuable first
    small: list       # small ones
    snapshots: list   # those of which PyTorch's snapshots are recorded
    shown: typing.Callable  # a setting's words as a table shows them
    setting_of: typing.Callable
    words_of: typing.Callable
    work_of: typing.Callable  # (setting, device): make, step and forward for measured()

    def settings(self):
        return [self.setting_of(words) for words in self.real + self.small]


def run(script, given, arguments):
    """What --device does: measures the settings that are given, or else all of the script."""
    counter = Counter(arguments.device)
    settings = given or script.settings()
    until = time.perf_counter() + arguments.seconds
    if arguments.snapshots:
        from gpu_snapshots import snapshots
        return snapshots(script, counter, given or [script.setting_of(words) for words in script.snapshots], arguments.snapshots, until, arguments.small)
    measure(script, counter, settings, settings, arguments, until)


def measure(script, counter, settings, everything, arguments, until):
    """Measures `settings`, of `everything` that there is, and stores each in --out, by default results/peers/<script>_<device>.json. Exit code 3
    where the device gave up: run it again with --resume, which skips the setting that was running then."""
    facts = about(counter)
    out = arguments.out or FOLDER / f"{script.name}_{facts['slug']}.json"
    results = {"command": f"bench/peers/{script.name}.py --device {arguments.device}" + (" --small" if arguments.small else "")} | facts | {"rows": []}
    if arguments.resume and out.exists():
        results = json.loads(out.read_text())
    if running := results.pop("running", None):
        results["rows"].append({"setting": running, "failed": "it did not end"})
    done = {row["setting"] for row in results["rows"]}
    words = [script.words_of(setting) for setting in everything]
    for setting in settings:
        name = script.words_of(setting)
        if name in done or time.perf_counter() > until:
            continue
        started = time.perf_counter()
        store(out, results | {"running": name})
        row = {"setting": name}
        try:
            row |= measured(counter, *script.work_of(small(setting) if arguments.small else setting, counter.device))
        except Exception:  # noqa: BLE001
            row["failed"] = traceback.format_exc()[-4000:]
        row["seconds_in_all"] = round(time.perf_counter() - started, 3)
        results["rows"].append(row)
        done.add(name)
        results["left"] = [one for one in words if one not in done]
        store(out, results)
        print(f"{time.perf_counter() - BEGUN:6.1f} s  {said(row)}", file=sys.stderr, flush=True)
        if any(word in row.get("failed", "") for word in FATAL):
            print(f"{script.name}.py: the device gave up; again with --resume", file=sys.stderr)
            sys.exit(3)
    results["left"] = [one for one in words if one not in done]
    store(out, results)
    print(f"{out}: {len(results['rows'])} settings, {len(results['left'])} left, {sum('oom' in r for r in results['rows'])} out of memory, "
          f"{sum('failed' in r for r in results['rows'])} failed", flush=True)


def store(out, results):
    out.parent.mkdir(parents=True, exist_ok=True)
    save(out, (json.dumps(results, indent=1) + "\n").encode())


def said(row):
    """One line of a row."""
    if "failed" in row:
        return f"{row['setting']}: FAILED: {row['failed'].strip().splitlines()[-1][:200]}"
    if "oom" in row:
        return f"{row['setting']}: out of memory"
    return (f"{row['setting']}: allocated {row['allocated'] / 2**20:.1f} MiB, workspaces {row['workspaces'] / 2**20:.1f}, reserved "
            f"{row['reserved'] / 2**20:.1f}, used {row['used'] / 2**20:.1f}, {step_seconds(row):.3f} s")


def step_seconds(row):
    """The median of the steps after the first."""
    return statistics.median(row["seconds"][1:] or row["seconds"])


# --------------------------------------------------------------------------------------------------------- predictions


def is_of_gpu(results):
    return results.get("device", "cpu") != "cpu"


def files_of(script):
    """Stored results of this script on GPUs."""
    found = sorted(FOLDER.glob(f"{script.name}_*.json"))
    return [file for file in found if is_of_gpu(json.loads(file.read_text()))]


def error(row):
    """Of the prediction of `allocated`, without cuBLAS's workspaces, which the predictions do not have. Where the allocator's rules are not
    replayed, it is that of the live bytes, each request rounded to 512."""
    predicted = row["predicted"]
    return predicted.get("allocated", predicted["peak"]) / (row["allocated"] - row["workspaces"]) - 1


def errors(rows):
    """Of all rows that have both: the errors of the live bytes, of `allocated` and of `reserved`, by name. Live bytes are held to what was requested."""
    found = {"live bytes, as requested": [], "allocated": [], "reserved": []}
    for row in rows:
        predicted = row.get("predicted")
        if not predicted or "allocated" not in row or "oom" in row or "failed" in row:
            continue
        workspaces = row["workspaces"]
        found["live bytes, as requested"].append(predicted["peak"] / (row["requested"] - workspaces) - 1)
        found["allocated"].append(error(row))
        if "reserved" in predicted:
            found["reserved"].append(predicted["reserved"] / (row["reserved"] - workspaces) - 1)
    return {name: each for name, each in found.items() if each}


def table(results, shown_as):
    """`shown_as`: what makes a name of a setting's words."""
    rows = results["rows"]
    names = [shown_as(row["setting"]) for row in rows]
    wide = max(map(len, names))
    versions = ", ".join(f"{name} {results[name]}" for name in ("torch", "transformers", "peft") if results[name] != "not installed")
    lines = [f"$ {results['command']}", f"{results['device']}, {results['device_bytes'] / 2**20:,.0f} MiB; {versions}, CUDA {results['cuda']}. MiB.",
             "allocated, reserved: max_memory_allocated() and max_memory_reserved() from the first step on, with cuBLAS's workspaces. What is predicted",
             "has no workspaces: its error is against the measured figure less workspaces. used: of the device, after the steps, other processes included.", "",
             f"{'setting':<{wide}} {'allocated':>10} {'workspaces':>10} {'predicted here':>18} {'reserved':>9} {'by replay':>18} {'used':>9}"]
    for row, name in zip(rows, names):
        name = f"{name:<{wide}}"
        predicted = row.get("predicted", {})
        shown = f"{predicted.get('allocated', predicted['peak']) / 2**20:.1f}" if predicted else "-"
        replayed = f"{predicted['reserved'] / 2**20:.1f}" if "reserved" in predicted else "-"
        if "failed" in row:
            lines.append(f"{name} failed: {row['failed'].strip().splitlines()[-1][:100]}")
        elif "oom" in row:
            lines.append(f"{name} {'out of memory':>21} {shown:>18} {'':>9} {replayed:>18}")
        else:
            if predicted:
                shown += f" ({error(row):+z.2%})"
            if "reserved" in predicted:
                replayed += f" ({predicted['reserved'] / (row['reserved'] - row['workspaces']) - 1:+z.2%})"
            figures = [f"{row[key] / 2**20:.1f}" for key in ("allocated", "workspaces", "reserved", "used")]
            lines.append(f"{name} {figures[0]:>10} {figures[1]:>10} {shown:>18} {figures[2]:>9} {replayed:>18} {figures[3]:>9}")
    if results.get("left"):
        lines.append(f"{len(results['left'])} settings are left: the time was over")
    lines.append("")
    for name, each in errors(rows).items():
        sizes = [abs(one) for one in each]
        lines.append(f"{len(each)} settings, error of {name}: median {statistics.median(sizes):.2%}, worst {max(sizes):.2%}")
    return "\n".join(lines).rstrip() + "\n"


def predict_again(script, ours):
    """Adds today's predictions to the stored results of GPUs, and writes each .json and .txt."""
    for file in files_of(script):
        results = json.loads(file.read_text())
        for row, now in zip(results["rows"], ours([script.setting_of(row["setting"]) for row in results["rows"]])):
            row["predicted"] = now
        store(file, results)
        save(file.with_suffix(".txt"), table(results, script.shown).encode())
