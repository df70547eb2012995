#!/usr/bin/env python3
"""PyTorch's own caching allocator on the traces that bench_allocators replays. Needs a GPU.

  pip install torch
  bench/peers/pytorch_allocator.py [TRACE.csv ...]     default: bench/traces/*.csv (RMM's CSV format)

Each trace runs twice, in a process of its own: with the default settings, and with expandable segments. Columns: live peak, and
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


def child(path):
    import torch
    torch.cuda.init()
    stream = torch.cuda.current_stream()

    def allocate(size):
        return torch.cuda.caching_allocator_alloc(size, stream=stream) if size else None

    def free(block):
        if block is not None:
            torch.cuda.caching_allocator_delete(block)

    replay(events_of(path), allocate, free)
    print(json.dumps(torch.cuda.max_memory_reserved()))


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--child":
        return child(sys.argv[2])
    import torch
    if not torch.cuda.is_available():
        print("pytorch_allocator.py: no CUDA device: this allocator manages a GPU's memory only", file=sys.stderr)
        sys.exit(2)
    free, _ = torch.cuda.mem_get_info()
    print(f"PyTorch {torch.__version__} on {torch.cuda.get_device_name()}, reserved peak / live peak")
    print(f"{'trace':<28} {'live peak MiB':>14} {'default':>9} {'expandable':>11}")
    for path in sys.argv[1:] or sorted((ROOT / "bench/traces").glob("*.csv")):
        peak = live_peak(events_of(path))
        if peak * 1.5 > free:
            print(f"{pathlib.Path(path).name:<28} {peak / 2**20:>14.1f}   skipped: {free / 2**20:,.0f} MiB are free")
            continue
        ratios = []
        for setting in ("", "expandable_segments:True"):
            done = subprocess.run([sys.executable, __file__, "--child", path], capture_output=True, text=True,
                                  env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting})
            if done.returncode != 0:
                sys.exit(f"pytorch_allocator.py: {path}: {done.stderr.strip().splitlines()[-1]}")
            ratios.append(json.loads(done.stdout) / peak)
        print(f"{pathlib.Path(path).name:<28} {peak / 2**20:>14.1f} {ratios[0]:>9.4f} {ratios[1]:>11.4f}", flush=True)


if __name__ == "__main__":
    main()
