"""PyTorch's memory snapshots of a few settings on a GPU: --snapshots FOLDER of the scripts that gpu.py is for. Of the first setting of each also
one that ends out of memory, because the process may have less than it needs."""
import contextlib
import functools
import json
import pathlib
import pickle
import re
import sys
import time
import traceback

import gpu
from shared.results_files import save  # gpu.py says where it is

LARGEST = 3_000_000  # bytes of a file
TOO_LITTLE = 0.7  # of what a setting reserved


def snapshots(script, counter, settings, folder, until, small):
    """PyTorch's memory snapshot of making each setting's model and of two steps: FOLDER/<script>_N.pickle; FOLDER/index.json says what each is."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "index.json"
    index = json.loads(listed.read_text()) if listed.exists() else []

    def add(setting, file, limit=None):
        """An entry of the index; the bytes that it reserved at most."""
        started = time.perf_counter()
        entry = {"setting": script.words_of(setting), "limit": limit}
        try:
            entry |= recorded(counter, folder / file, *script.work_of(gpu.small(setting) if small else setting, counter.device)[:2], limit)
        except Exception:  # noqa: BLE001
            entry["failed"] = traceback.format_exc()[-4000:]
        entry["seconds"] = round(time.perf_counter() - started, 3)
        index.append(entry)
        save(listed, (json.dumps(index, indent=1) + "\n").encode())
        print(f"{time.perf_counter() - gpu.BEGUN:6.1f} s  snapshot {entry}"[:400], file=sys.stderr, flush=True)
        return entry.get("reserved", 0)

    for number, setting in enumerate(settings):
        if script.words_of(setting) in [entry["setting"] for entry in index] or time.perf_counter() > until:
            continue
        reserved = add(setting, f"{script.name}_{number}.pickle")
        if number == 0 and reserved:
            add(setting, f"{script.name}_{number}_oom.pickle", int(TOO_LITTLE * reserved))


def recorded(counter, file, make, step, limit=None):
    """Writes the snapshot of one setting, and gives what an index says of it. `limit`: bytes that the process may have. Where a file is too large
    for a repository, the oldest events are left out, and the entry says so."""
    entry = {"file": file.name, "events": "all"}
    most = sys.maxsize
    for _ in range(2):
        counter.clean()
        try:
            with limited(counter, limit), history(file, most):
                two_steps(counter, make, step)
        except counter.torch.OutOfMemoryError as problem:
            entry["oom"] = str(problem)
            traceback.clear_frames(problem.__traceback__)
        entry |= counter.peaks() | {"bytes": file.stat().st_size, "actions": events_in(file)}
        if entry["bytes"] <= LARGEST:
            break
        most = int(entry["actions"] * 0.6 * LARGEST / entry["bytes"])
        entry["events"] = f"the last {most}"
    counter.clean()
    return entry


def two_steps(counter, make, step):
    with counter.device:
        state = make()
    for _ in range(2):
        step(state)
    counter.synchronize()


@contextlib.contextmanager
def limited(counter, limit):
    """At most `limit` bytes for this process."""
    if limit is None or not counter.counts:
        yield
        return
    counter.torch.cuda.set_per_process_memory_fraction(limit / counter.torch.cuda.mem_get_info()[1])
    try:
        yield
    finally:
        counter.torch.cuda.set_per_process_memory_fraction(1.0)


@contextlib.contextmanager
def history(file, most=sys.maxsize):
    """Records allocations of what runs inside, and writes them to `file` in any case: also where it runs out of memory. Frames of Python
    only: to name those of C++ takes minutes."""
    import torch
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=most, clear_history=True)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
        make_neutral(file)


@functools.cache
def neutral(file):
    """A path as it would be on any machine."""
    path = pathlib.Path(file)
    if path.resolve().parent == pathlib.Path(__file__).resolve().parent:
        return "/home/me/train.py" if path.name == "snapshots.py" else f"/home/me/{path.name}"
    return re.sub(r"^.*/(?=(site|dist)-packages/|python3\.\d+/)", "/usr/lib/", file)


def make_neutral(file):
    """The same snapshot with paths as they would be on any machine. Frames that are equal become one object: the file is smaller."""
    value = pickle.loads(file.read_bytes())
    frames, stacks, seen = {}, {}, set()

    def of_stack(stack):
        found = []
        for frame in stack:
            frame = {key: neutral(part) if key == "filename" else part for key, part in frame.items()}
            found.append(frames.setdefault(repr(frame), frame))
        return stacks.setdefault(tuple(map(id, found)), found)

    def walk(part):
        if not isinstance(part, (dict, list, tuple)) or id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, dict):
            for key, inner in part.items():
                if key == "frames" and isinstance(inner, list):
                    part[key] = of_stack(inner)
                else:
                    walk(inner)
        else:
            for inner in part:
                walk(inner)

    walk(value)
    file.write_bytes(pickle.dumps(value, protocol=4))


def events_in(file):
    return sum(len(trace) for trace in pickle.loads(file.read_bytes())["device_traces"])
