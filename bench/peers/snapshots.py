#!/usr/bin/env python3
"""Writes memory snapshots of small PyTorch programs whose fault is known: snapshots.py FOLDER [--only NAME]

On a GPU they are PyTorch's own: _record_memory_history() and _dump_snapshot(). Without one, what PyTorch's profiler recorded of the
processor's memory is written in the same format, with the lines that were running, and each allocation carries what PyTorch itself
takes it for ("category"), which tests hold against what bench/explain says.
"""
import argparse
import pathlib
import pickle
import sys

import torch
from torch import nn
from torch.nn import functional

from gpu_snapshots import history, neutral

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, DEPTH, BATCH = 192, 3, 128


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.expand, self.contract, self.norm = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        return x + self.contract(functional.gelu(self.expand(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block() for _ in range(DEPTH)]), nn.Linear(WIDTH, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch():
    return torch.randn(BATCH, WIDTH, device=DEVICE), torch.randint(0, 10, (BATCH,), device=DEVICE)


def train(model, optimizer, steps, keep=lambda loss: None):
    for _ in range(steps):
        x, y = batch()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        keep(loss)
        optimizer.step()
        optimizer.zero_grad()


def plain(model):
    """Nothing is wrong with it. AdamW's foreach makes lists of temporaries."""
    train(model, torch.optim.AdamW(model.parameters(), foreach=True), 6)


def sgd(model):
    """Momentum, no temporaries."""
    train(model, torch.optim.SGD(model.parameters(), momentum=0.9, foreach=False), 6)


def kept_outputs(model):
    """A leak: an evaluation keeps its outputs on the device."""
    outputs = []
    with torch.no_grad():
        for _ in range(10):
            x, _ = batch()
            outputs.append(model(x).repeat(1, 100))
    return outputs


def kept_graphs(model):
    """A leak: the sum of losses holds every graph."""
    total = 0
    for _ in range(8):
        x, y = batch()
        total = total + functional.cross_entropy(model(x), y)
    return total


PROGRAMS = (plain, sgd, kept_outputs, kept_graphs)


# ------------------------------------------------------------------------------------- the processor's memory, by the profiler


def frames_of(event, known):
    """The lines that were running, innermost first. What is the same is one object, as in PyTorch's own snapshots."""
    frames = []
    parent = event.parent
    while parent is not None:
        fields = parent.extra_fields
        if parent.tag in (torch._C._profiler._EventType.PyCall, torch._C._profiler._EventType.PyCCall):
            caller = fields.caller
            key = (neutral(caller.file_name), caller.line_number, caller.function_name)
            frames.append(known.setdefault(key, {"filename": key[0], "line": key[1], "name": key[2]}))
        elif parent.tag == torch._C._profiler._EventType.TorchOp:
            frames.append(known.setdefault(parent.name, {"filename": "??", "line": 0, "name": parent.name}))
        parent = parent.parent
    return known.setdefault(tuple(map(id, frames)), frames)


def of_profiler(profile):
    """A snapshot of a profile."""
    from torch.profiler._memory_profiler import TensorKey
    memory = profile._memory_profile()
    trace, live, known = [], {}, {}
    for event in memory._op_tree.sorted_nodes:
        if event.tag != torch._C._profiler._EventType.Allocation:
            continue
        fields = event.extra_fields
        address, size, frames = fields.ptr, fields.alloc_size, frames_of(event, known)
        entry = {"addr": address, "size": abs(size), "stream": 0, "frames": frames, "time_us": event.start_time_ns // 1000}
        if size > 0:
            key = TensorKey.from_allocation(fields)
            category = memory._categories.get(key, 0) if key else None
            live[address] = abs(size)
            trace.append({**entry, "action": "alloc", "category": category.name.lower() if category else "unknown"})
        elif live.pop(address, None):
            trace += [{**entry, "action": action} for action in ("free_requested", "free_completed")]
    return {"segments": [], "device_traces": [trace], "allocator_settings": {}}


def written_by(program, file):
    torch.manual_seed(1)
    if DEVICE == "cuda":
        torch.cuda.empty_cache()  # what the program before left
        with history(file):
            model = Model().to(DEVICE)
            kept = program(model)
        return kept
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, profile_memory=True,
                                record_shapes=True) as profile:
        model = Model()
        kept = program(model)
    file.write_bytes(pickle.dumps(of_profiler(profile), protocol=4))
    return kept


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--only", choices=[program.__name__ for program in PROGRAMS])
    options = parser.parse_args()
    if not options.folder.is_dir():
        sys.exit(f"snapshots.py: {options.folder}: there is no such folder")
    for program in PROGRAMS:
        if options.only in (None, program.__name__):
            written_by(program, options.folder / f"{program.__name__}.pickle")


if __name__ == "__main__":
    main()
