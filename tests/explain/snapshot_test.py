"""bench/explain on memory snapshots whose truth is known: snapshot_test.py ROOT; of the chapters: snapshot_test.py ROOT PROGRAMS;
of what PyTorch records here and now: snapshot_test.py ROOT --record (exit code 77 where there is no PyTorch)

Of our own programs the ledger knows; of PyTorch's, PyTorch; of planted faults, who planted them.
"""
import importlib.util
import json
import os
import pathlib
import pickle
import subprocess
import sys

from snapshot_run import HERE, ROOT, WORK, all_of, explained, figures, first_lines, written
from program import FORWARD, MIB, STEP, TORCH, OutOfMemory, Program, pieces, training
from explaining.snapshot_replay import replay

RECORD = sys.argv[2:] == ["--record"]
PROGRAMS = [pathlib.Path(argument).resolve() for argument in sys.argv[2:] if not RECORD]
ALONE = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


# ---------------------------------------------------------------------------------------------------------- our own programs


def of_chapters():
    """Categories of at least 95 % of the bytes, and every peak to the byte, in every chapter."""
    programs = PROGRAMS[0]
    chapters = [folder.name for folder in sorted((ROOT / "chapters").iterdir()) if (programs / folder.name).is_file()]
    assert len(chapters) >= 10, chapters
    for chapter in chapters:
        file, results = WORK / f"{chapter}.pickle", WORK / f"{chapter}.json"
        done = subprocess.run([programs / chapter, "--quick", "--plan", "--quiet", "--snapshot", file, "--json", results], capture_output=True,
                              env={**os.environ, **ALONE})
        if done.returncode or not file.exists() or not file.stat().st_size:
            assert b"plan" in done.stderr or b"snapshot" in done.stderr, (chapter, done)
            continue
        variant = json.loads(results.read_text())["variants"][0]
        found = figures(file)
        assert found["peak_bytes"] == variant["peak_allocated_bytes"], chapter
        assert found["live_bytes"] == found["peak_bytes"], chapter
        truth, mine = variant["by_category_bytes"], dict(found["by_category_bytes"])
        mine["activations"] = mine.get("activations", 0) + mine.pop("cache", 0)  # the ledger has no word for a cache
        wrong = sum(abs(truth.get(name, 0) - mine.get(name, 0)) for name in {*truth, *mine}) / 2
        assert wrong <= 0.05 * found["peak_bytes"], (chapter, truth, mine)
        assert len(explained(file).splitlines()) <= 25, chapter
    assert figures(WORK / "00_anatomy.pickle")["out_of_memory"]["recovered"]
    # A leak that is in the course on purpose: an evaluation that keeps its predictions.
    file = WORK / "leak.pickle"
    subprocess.run([programs / "11_inference", "--quick", "--plan", "--quiet", "--batches", "20", "--budget", "none", "--filter",
                    "predictions on device", "--snapshot", file], check=True, env={**os.environ, **ALONE})
    found = figures(file)
    assert found["cause"] == "leak" and [line["place"] for line in found["growing"]] == ["logits, forward"], found
    assert found["growth_bytes_per_round"] == 4 * 32 * 258 * 4, found["growth_bytes_per_round"]  # rows x vocabulary x FP32, and padding
    # And one that is not there.
    file = WORK / "none.pickle"
    subprocess.run([programs / "02_gradient_accumulation", "--quick", "--plan", "--quiet", "--memory-steps", "12", "--snapshot", file], check=True,
                   env={**os.environ, **ALONE})
    found = figures(file)
    assert found["growth_judged"] and not found["growing"] and found["rounds"] >= 12, found


# ---------------------------------------------------------------------------------------------------------------- of PyTorch

# What PyTorch's profiler calls a block, in our words. What it leaves open (temporary, unknown) may be anything but state.
THEIRS = {"parameter": {"parameters"}, "optimizer_state": {"optimizer"}, "gradient": {"gradients", "activations"}, "activation": {"activations", "data"},
          "input": {"data", "activations"}}


def of_recording():
    """What bench/peers/snapshots.py records of PyTorch on the processor that is here."""
    done = subprocess.run([sys.executable, ROOT / "bench/peers/snapshots.py", WORK], capture_output=True, text=True,
                          env={**os.environ, **ALONE, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    of_pytorch(WORK)


def of_pytorch(folder=HERE / "snapshots"):
    """Snapshots that bench/peers/snapshots.py wrote: every block against what PyTorch takes it for."""
    from explaining.snapshot_categories import NAMES, Categories
    from explaining.snapshot_events import recordings
    files = {name: folder / f"{name}.pickle" for name in ("plain", "sgd", "kept_outputs", "kept_graphs")}
    for file in files.values():
        data = file.read_bytes()
        value = pickle.loads(data)
        recording = recordings(value, len(data))[0][0]
        of = Categories(recording).of
        right = total = 0
        allocations = {i: entry["category"] for i, entry in enumerate(value["device_traces"][0]) if entry["action"] == "alloc"}
        for i, start in enumerate(recording.start):
            if allocations[start] in THEIRS:
                total += recording.size[i]
                right += recording.size[i] * (NAMES[of[i]] in THEIRS[allocations[start]])
        assert total and right >= 0.95 * total, (file.name, right, total)
    plain, sgd, outputs, graphs = map(figures, files.values())
    parameters = plain["by_category_bytes"]["parameters"]
    assert plain["by_category_bytes"]["optimizer"] >= 2 * parameters > 1.99 * plain["by_category_bytes"]["gradients"], plain
    assert plain["by_category_bytes"]["temporaries"] > 0.9 * parameters, plain  # AdamW's foreach: a list as large as the parameters
    assert "fused=True" in first_lines(explained(files["plain"]))  # it costs nothing, so it comes before what costs something
    for found in (plain, sgd):
        assert found["growth_judged"] and not found["growing"] and found["rounds"] == 6 and found["cause"] == "full", found
    assert outputs["cause"] == "leak" and "in kept_outputs" in outputs["growing"][0]["place"] and len(outputs["growing"]) == 1, outputs
    assert outputs["growth_bytes_per_round"] == 128 * 10 * 100 * 4, outputs
    assert graphs["cause"] == "leak" and len(graphs["growing"]) >= 3, graphs
    assert "whole graphs are kept" in first_lines(explained(files["kept_graphs"]))
    assert "no_grad" in first_lines(explained(files["kept_graphs"]))


# ------------------------------------------------------------------------------------------------------------ planted faults


def of_training():
    """As a GPU records it, with and without stacks in the backward pass's thread, whole and from the middle."""
    for engine in (True, False):
        program = Program()
        truth, _ = training(program, 6, engine=engine)
        found = figures(written(program))
        assert found["by_category_bytes"] == truth and found["peak_bytes"] == sum(truth.values()), (engine, truth, found)
        assert found["growth_judged"] and not found["growing"] and found["rounds"] == 6, found
        assert found["round_of"].startswith("train.py:19"), found
    # From the fourth step on: what is older is told by its sizes.
    starts = [i for i, entry in enumerate(program.trace) if entry["action"] == "alloc" and entry["size"] == MIB]
    found = figures(written(program, since=starts[3]))
    mine = found["by_category_bytes"]
    assert (mine["parameters"], mine["optimizer"], mine["gradients"]) == (truth["parameters"], truth["optimizer"], truth["gradients"]), mine
    # A server's own lines where no line is the reader's; a KV cache by who makes it. Folders mean nothing.
    program = Program()
    packages = TORCH[:-len("torch/")]
    program.allocate(6 * MIB, packages + "vllm/worker/gpu_worker.py:200 in initialize_from_config", packages + "vllm/runner.py:9 in _allocate_kv_cache_tensors")
    program.allocate(4 * MIB, "/workspace/kv_cache/train.py:7 in main", *FORWARD, packages + "vllm/layers/linear.py:3 in apply", TORCH + "nn/functional.py:9 in linear")
    program.allocate(2 * MIB, packages + "vllm/layers/linear.py:3 in apply", TORCH + "nn/functional.py:9 in linear")
    found = figures(written(program))
    assert [(line["place"], line["category"]) for line in found["lines"]] == [
        ("vllm/runner.py:9 in _allocate_kv_cache_tensors", "cache"), ("model.py:31 in forward", "activations"),
        ("layers/linear.py:3 in apply", "activations")], found["lines"]
    # Without any stack nothing is claimed.
    program = Program(context=False)
    training(program, 6)
    found = figures(written(program))
    assert set(found["by_category_bytes"]) == {"unknown"} and not found["growth_judged"], found
    assert "recorded without stacks" in explained(WORK / "s.pickle")
    # A closure that the optimizer calls, as Lightning's: the passes inside are not the optimizer's.
    program = Program()
    outer = ("/home/me/train.py:3 in main", TORCH + "optim/adam.py:200 in step", TORCH + "optim/optimizer.py:490 in wrapper")
    kept = program.allocate(30 * MIB, *outer, *FORWARD)
    program.allocate(20 * MIB, *outer, TORCH + "optim/adam.py:600 in _init_group")
    program.free(program.allocate(10 * MIB, *outer, TORCH + "autograd/graph.py:800 in _engine_run_backward"), kept)
    found = figures(written(program))
    assert found["by_category_bytes"] == {"activations": 30 * MIB, "optimizer": 20 * MIB, "gradients": 10 * MIB}, found


def of_leaks():
    program = Program(budget=800 * MIB)
    try:
        training(program, 40, leak=20 * MIB)
        raise AssertionError("it fits")
    except OutOfMemory:
        pass
    found = figures(written(program))
    assert found["cause"] == "leak" and found["growth_bytes_per_round"] == 20 * MIB, found
    assert found["growing"][0]["place"] == "train.py:23 in main" and found["out_of_memory"]["count"] == 1, found
    text = first_lines(explained(WORK / "s.pickle"))
    assert text.startswith("What filled it: it grows by 20.00 MiB a round, most of it made at train.py:23 in main"), text
    assert "gc.get_referrers" in text
    # Nor is what a loop loads, layer by layer.
    program = Program(budget=300 * MIB)
    try:
        while True:
            program.free(program.allocate(30 * MIB, "/home/me/train.py:8 in main", "/home/me/load.py:11 in load_weights"))
            program.allocate(30 * MIB, "/home/me/train.py:8 in main", "/home/me/load.py:12 in load_weights")
    except OutOfMemory:
        found = figures(written(program))
    assert found["cause"] == "full" and not found["growing"] and found["rounds"] > 5 and set(found["by_category_bytes"]) == {"parameters"}, found
    # Batches that get longer and go are none either.
    program = Program()
    for k in range(12):
        program.free(program.allocate(MIB, "/home/me/train.py:8 in main"), program.allocate(10 * (k + 1) * MIB, "/home/me/train.py:9 in main"))
    found = figures(written(program))
    assert found["growth_judged"] and not found["growing"] and found["cause"] == "full", found
    # A leak among thousands of rounds.
    program = Program()
    for _ in range(3000):
        program.free(program.allocate(MIB, "/home/me/train.py:8 in main"), program.allocate(2 * MIB, "/home/me/train.py:9 in main"))
        program.allocate(512, "/home/me/train.py:10 in main")
    found = figures(written(program))
    assert found["growing"][0]["place"] == "train.py:10 in main" and found["growth_bytes_per_round"] == 512, found
    # Layers of one forward pass are no steps: each keeps its input, and that is no leak.
    program = Program()
    for _ in range(24):
        kept = program.allocate(4 * MIB, STEP, *FORWARD)
        program.free(program.allocate(64 * MIB, STEP, FORWARD[0], "/home/me/model.py:32 in forward"))
        assert kept >= 0
    found = figures(written(program))
    assert not found["growing"] and not found["growth_judged"], found


def of_refusals():
    # Pieces: segments of 60 MiB, each cut by a small block that stays.
    program = pieces(540 * MIB, 57 * MIB)
    found = figures(written(program))
    oom = found["out_of_memory"]
    assert found["cause"] == "fragmentation", found
    assert oom["asked_bytes"] == 100 * MIB and oom["largest_piece_bytes"] == 57 * MIB, oom
    assert oom["cached_bytes"] == oom["reserved_bytes"] - found["live_bytes"] and found["live_bytes"] == 24 * MIB, oom
    assert (HERE / "snapshots/pieces.pickle").read_bytes() == (WORK / "s.pickle").read_bytes()  # docs/my_program.md shows it
    assert not oom["by_replay"]["default"]["served"] and oom["by_replay"]["expandable"]["served"], oom
    assert oom["by_replay"]["expandable"]["reserved_bytes"] <= 540 * MIB, oom
    text = explained(WORK / "s.pickle")
    assert first_lines(text).startswith("What filled it: pieces. 100.00 MiB were asked for") and "expandable_segments:True" in text, text
    assert "Refused: 100.00 MiB at big.py:7 in make." in " ".join(text.split()), text
    assert len(text.splitlines()) <= 25, text

    # Pages of an expandable segment, of which some went and came again: one piece where they touch.
    base, page, trace = 1 << 40, 20 * MIB, []
    for action, address, size in (("segment_map", base, 3 * page), ("alloc", base, page), ("alloc", base + 2 * page, page), ("segment_map", base + 3 * page, page),
                                  ("segment_unmap", base + 3 * page, page), ("segment_unmap", base + page, page), ("oom", 0, 4 * page)):
        trace.append({"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(trace), "frames": [], "device_free": page})
    segments = [{"device": 0, "address": base + k * page, "total_size": page, "stream": 0, "segment_type": "large", "is_expandable": True,
                 "blocks": [{"address": base + k * page, "size": page, "state": "active_allocated", "frames": []}]} for k in (0, 2)]
    for cut, reserved, pieces_ in ((7, 2 * page, []), (6, 3 * page, [page]), (5, 4 * page, [page, page])):
        shorter = trace[:cut - 1] + trace[-1:] + trace[cut - 1:-1]  # refused earlier; the rest follows
        (WORK / "s.pickle").write_bytes(pickle.dumps({"segments": segments, "device_traces": [shorter]}))
        oom = figures(WORK / "s.pickle")["out_of_memory"]
        assert (oom["reserved_bytes"], oom["pieces"], oom["largest_piece_bytes"]) == (reserved, len(pieces_), max(pieces_, default=0)), (cut, oom)

    # One request that is more than everything.
    program = Program(budget=100 * MIB)
    program.allocate(20 * MIB, STEP, *FORWARD)
    try:
        program.allocate(400 * MIB, STEP, "/home/me/big.py:7 in make")
    except OutOfMemory:
        pass
    assert figures(written(program))["cause"] == "alone"
    assert "big.py:7 in make" in first_lines(explained(WORK / "s.pickle"))

    # A limit: much is free on the device.
    value = program.snapshot()
    value["device_traces"][0][-1]["device_free"] = 8 << 30
    (WORK / "s.pickle").write_bytes(pickle.dumps(value))
    assert figures(WORK / "s.pickle")["cause"] == "limit"

    # 8 MiB come in a segment of 20, which 18 MiB are not enough for: no limit.
    program = Program(budget=78 * MIB)
    program.allocate(60 * MIB, STEP, *FORWARD)
    try:
        program.allocate(8 * MIB, STEP, *FORWARD)
    except OutOfMemory:
        pass
    assert figures(written(program))["cause"] == "full"

    # A block whose release was not recorded ends where its address comes again.
    trace = [{"action": "alloc", "addr": 1 << 40, "size": size, "stream": 0, "frames": []} for size in (5 * MIB, 2 * MIB, 3 * MIB)]
    (WORK / "s.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    found = figures(WORK / "s.pickle")
    assert (found["peak_bytes"], found["live_bytes"], found["peak_event"]) == (5 * MIB, 5 * MIB, 0), found

    # A cache that belongs to another stream, or to a graph.
    for private in (False, True):
        program = Program(budget=400 * MIB)
        program.allocate(40 * MIB, STEP, *FORWARD)
        other = [program.allocate(30 * MIB, STEP, *FORWARD, stream=0 if private else 7) for _ in range(10)]
        program.free(*other)
        for pool in program.allocator.pools.values():
            program.private.update({base: (0, 1) for base, s in pool.segments.items() if private and s.first.state == "free"})
        program.note("oom", size=200 * MIB, device_free=60 * MIB, frames=program.stack([STEP]))
        program.trace[-1]["stream"] = 0
        found = figures(written(program))
        assert found["cause"] == "elsewhere" and found["out_of_memory"]["cached_elsewhere_bytes"] == 300 * MIB, found
        assert found["pools"]["private" if private else "streams"] == 300 * MIB, found
        assert ("Private pools" if private else "other streams") in explained(WORK / "s.pickle", "--all")

    # It went on with more: the refusal is not what the peak is about.
    program = Program()
    program.allocate(20 * MIB, STEP, *FORWARD)
    program.note("oom", size=8 * MIB, device_free=0, frames=[])
    program.allocate(80 * MIB, STEP, *FORWARD)
    found = figures(written(program))
    assert found["out_of_memory"]["recovered"] and found["live_bytes"] == 100 * MIB and found["cause"] == "full", found
    assert "Refused once, 8.00 MiB" in explained(WORK / "s.pickle", "--all")


def of_replays():
    """The rules in Python and in C++ are the same rules: the figures of bench/results/host/allocators.json."""
    tables = {table["name"]: table for table in json.loads((ROOT / "bench/results/host/allocators.json").read_text())["tables"]}
    at = [[column["name"] for column in tables["reserved"]["columns"]].index(name) for name in ("PyTorch", "expandable")]
    reserved_of, budgets_of = ({row[0]: [row[i] for i in at] for row in tables[name]["rows"]} for name in ("reserved", "budget"))
    assert len(reserved_of) == len(budgets_of) == 4
    for name, reserved in reserved_of.items():
        budgets = budgets_of[name]
        numbers, events, live, peak = {}, [], 0, 0
        for row in (ROOT / f"bench/traces/{name}").read_text().splitlines()[1:]:
            _, _, action, pointer, size, stream = row.split(",")
            if action == "allocate":
                numbers[pointer] = len(events)
                events.append((len(events), int(size), int(stream, 16)))
            else:
                events.append((numbers.pop(pointer), 0, 0))
            live += (1 if action == "allocate" else -1) * -(-int(size) // 512) * 512
            peak = max(peak, live)
        for expandable in (False, True):
            failed, most = replay(events, 1 << 60, expandable=expandable)
            assert failed is None and abs(most / peak - reserved[expandable]) < 1e-8, (name, expandable, most / peak)
            enough = round(budgets[expandable] * peak / (2 * MIB)) * 2 * MIB
            assert replay(events, enough, expandable=expandable)[0] is None, (name, expandable)
            assert replay(events, enough - 2 * MIB, expandable=expandable)[0] is not None, (name, expandable)
    # max_split_size_mb: a large block is not cut, nor given to a small request.
    events = [(0, 64 * MIB, 0), (0, 0, 0), (1, 12 * MIB, 0), (2, 64 * MIB, 0)]
    assert replay(events, 1 << 60)[1] == 128 * MIB and replay(events, 1 << 60, max_split=32 * MIB)[1] == 76 * MIB


if RECORD and importlib.util.find_spec("torch") is None:
    print("no PyTorch here")
    sys.exit(77)
all_of((of_recording,) if RECORD else (of_chapters,) if PROGRAMS else (of_pytorch, of_training, of_leaks, of_refusals, of_replays))
