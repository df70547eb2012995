#!/usr/bin/env python3
"""PyTorch's own caching allocator on the traces that bench_allocators replays. Needs a GPU.

  pip install torch
  bench/peers/pytorch_allocator.py [TRACE.csv ...]     default: bench/traces/*.csv (RMM's CSV format)

Each trace runs twice, from an empty cache: with the default settings, and in another process with expandable segments. Columns: live peak, and
reserved peak / live peak, to be read beside the table of bench_allocators, whose "PyTorch" and "expandable" columns are our
rendering of the same rules. Live counts requests rounded to 512 bytes, as there. Traces that do not fit the device are skipped, and
said so.
"""
import csv
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRANULE = 512


def events_of(path):
    """("allocate" or "free", address as text, bytes) in order. One line and exit code 64 when the file is broken."""
    with open(path, newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                action, address, size = row["Action"], row["Pointer"], int(row["Size"])
                if action not in ("allocate", "free") or size < 0:
                    raise ValueError
            except (KeyError, TypeError, ValueError):
                sys.exit(f"pytorch_allocator.py: {path}:{number}: not a line of an RMM log")
            yield action, address, size


def live_peak(events):
    live, peak, sizes = 0, 0, {}
    for action, address, size in events:
        if action == "allocate":
            sizes[address] = -(-size // GRANULE) * GRANULE
            live += sizes[address]
            peak = max(peak, live)
        else:
            live -= sizes.pop(address, 0)
    return peak


def replay(events, allocate, free):
    """Every allocation is freed at the end."""
    blocks = {}
    try:
        for action, address, size in events:
            if action == "allocate":
                blocks[address] = allocate(size)
            elif address in blocks:
                free(blocks.pop(address))
    finally:
        for block in blocks.values():
            free(block)


def child(paths):
    """Prints the reserved peak of each trace, or what went wrong, as a line of JSON."""
    import torch
    torch.cuda.init()
    stream = torch.cuda.current_stream()

    def allocate(size):
        return torch.cuda.caching_allocator_alloc(size, stream=stream) if size else None

    def free(block):
        if block is not None:
            torch.cuda.caching_allocator_delete(block)

    for path in paths:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        try:
            replay(events_of(path), allocate, free)
        except torch.OutOfMemoryError as problem:
            print(json.dumps(str(problem).splitlines()[0]))
        else:
            print(json.dumps(torch.cuda.max_memory_reserved()))


def reserved_peaks(paths, setting):
    """Of each trace, under a setting of the allocator."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")}
    if setting:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = setting
    done = subprocess.run([sys.executable, __file__, "--child", *paths], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"pytorch_allocator.py: {(done.stderr.strip().splitlines() or ['it was killed'])[-1]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2:])
    import torch
    if not torch.cuda.is_available():
        print("pytorch_allocator.py: no CUDA device: this allocator manages a GPU's memory only", file=sys.stderr)
        sys.exit(2)
    free, _ = torch.cuda.mem_get_info()
    print("$ bench/peers/pytorch_allocator.py" + "".join(f" {path}" for path in sys.argv[1:]))
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, reserved peak / live peak")
    print(f"{'trace':<28} {'live peak MiB':>14} {'default':>9} {'expandable':>11}")
    paths = sys.argv[1:] or [str(path) for path in sorted((ROOT / "bench/traces").glob("*.csv"))]
    peaks = {path: live_peak(events_of(path)) for path in paths}
    fitting = [path for path in paths if peaks[path] * 1.5 <= free]
    reserved = [dict(zip(fitting, reserved_peaks(fitting, setting))) for setting in ("", "expandable_segments:True")]
    for path in paths:
        line = f"{pathlib.Path(path).name:<28} {peaks[path] / 2**20:>14.1f}"
        if path not in fitting:
            print(f"{line}   skipped: {free / 2**20:,.0f} MiB are free")
            continue
        found = [each[path] for each in reserved]
        cells = [f"{one / peaks[path]:.4f}" if isinstance(one, int) else "oom" for one in found]
        print(f"{line} {cells[0]:>9} {cells[1]:>11}" + "".join(f"   {one}" for one in found if isinstance(one, str)))


if __name__ == "__main__":
    main()
