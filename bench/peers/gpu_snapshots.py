"""PyTorch's memory snapshots of a few settings on a GPU: --snapshots FOLDER of the scripts that gpu.py is for."""
import contextlib
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


def snapshots(script, counter, settings, folder, until, small):
    """PyTorch's memory snapshot of making each setting's model and of two steps: FOLDER/<script>_N.pickle; FOLDER/index.json says what each is."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = folder / "index.json"
    index = json.loads(listed.read_text()) if listed.exists() else []
    for setting in settings:
        entry = {"setting": script.words_of(setting)}
        if entry["setting"] in [other["setting"] for other in index] or time.perf_counter() > until:
            continue
        started = time.perf_counter()
        try:
            entry |= recorded(counter, folder / f"{script.name}_{len(index)}.pickle", *script.work_of(gpu.small(setting) if small else setting, counter.device)[:2])
        except Exception:  # noqa: BLE001
            entry["failed"] = traceback.format_exc()[-4000:]
        entry["seconds"] = round(time.perf_counter() - started, 3)
        index.append(entry)
        save(listed, (json.dumps(index, indent=1) + "\n").encode())
        print(f"{time.perf_counter() - gpu.BEGUN:6.1f} s  snapshot {entry}"[:300], file=sys.stderr, flush=True)


def recorded(counter, file, make, step):
    """Writes the snapshot of one setting. Where it is too large for a repository, the oldest events are left out, and said so."""
    entry = {"file": file.name, "events": "all"}
    most = sys.maxsize
    for _ in range(2):
        counter.clean()
        with history(file, most):
            with counter.device:
                state = make()
            for _ in range(2):
                step(state)
            counter.synchronize()
        state.clear()
        del state
        entry |= {"bytes": file.stat().st_size, "actions": events_in(file)}
        if entry["bytes"] <= LARGEST:
            return entry
        most = int(entry["actions"] * 0.6 * LARGEST / entry["bytes"])
        entry["events"] = f"the last {most}"
    return entry


@contextlib.contextmanager
def history(file, most=sys.maxsize):
    """Records allocations of what runs inside, and writes them to `file` in any case: also where it runs out of memory. Frames of Python
    only: those of C++ take minutes to name."""
    import torch
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=most)
    try:
        yield
    finally:
        torch.cuda.memory._dump_snapshot(str(file))
        torch.cuda.memory._record_memory_history(enabled=None)
        make_neutral(file)


def neutral(file):
    """A path as it would be on any machine."""
    folder = str(pathlib.Path(__file__).resolve().parent)
    if file.startswith(folder):
        name = pathlib.Path(file).name
        return "/home/me/train.py" if name == "snapshots.py" else f"/home/me/{name}"
    return re.sub(r"^.*/(?=(site|dist)-packages/|python3\.\d+/)", "/usr/lib/", file)


def make_neutral(file):
    """The same snapshot with paths as they would be on any machine."""
    value = pickle.loads(file.read_bytes())
    seen = set()

    def walk(part):
        if not isinstance(part, (dict, list, tuple)) or id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, dict) and isinstance(part.get("filename"), str):
            part["filename"] = sys.intern(neutral(part["filename"]))
        for inner in part.values() if isinstance(part, dict) else part:
            walk(inner)

    walk(value)
    file.write_bytes(pickle.dumps(value, protocol=4))


def events_in(file):
    return sum(len(trace) for trace in pickle.loads(file.read_bytes())["device_traces"])
