"""bench/explain on memory snapshots whose truth is known: snapshot_test.py ROOT; of the chapters: snapshot_test.py ROOT PROGRAMS

Of our own programs the ledger knows; of PyTorch's, PyTorch; of planted faults, who planted them.
"""
import html.parser
import json
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import tempfile

ROOT, *PROGRAMS = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from program import FORWARD, MIB, STEP, TORCH, OutOfMemory, Program, pictures, pieces, training  # noqa: E402
from explaining import snapshot_words  # noqa: E402
from explaining.snapshot_replay import replay  # noqa: E402

WORK = pathlib.Path(tempfile.mkdtemp(prefix="oomlab_snapshot_"))
EXPLAIN = ROOT / "bench/explain"
ALONE = {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}


def explained(*arguments, code=0):
    done = subprocess.run([sys.executable, EXPLAIN, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert done.returncode == code, (arguments, done.returncode, done.stdout[-2000:], done.stderr)
    if code:
        assert done.stdout == "" and done.stderr.count("\n") == 1, (arguments, done)
        return done.stderr
    assert done.stderr == "", (arguments, done.stderr)
    for line in done.stdout.splitlines() if "--json" not in arguments else ():
        wide = sum(2 if ord(c) > 0x2E80 else 1 for c in line)
        assert wide <= 100, (arguments, wide, line)
    return done.stdout


def figures(file):
    return json.loads(explained(file, "--json"))["devices"][0]


def written(program, name="s.pickle", **how):
    program.write(WORK / name, **how)
    return WORK / name


def first_lines(text):
    return " ".join(" ".join(text.split("\n\n")[1].split()).split())


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


def of_pytorch():
    """Snapshots that bench/peers/snapshots.py wrote: every block against what PyTorch takes it for."""
    from explaining.snapshot_categories import NAMES, Categories
    from explaining.snapshot_events import recordings
    files = {name: HERE / f"snapshots/{name}.pickle" for name in ("plain", "sgd", "kept_outputs", "kept_graphs")}
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
    """The rules in Python and in C++ are the same rules: the figures of bench/results/host/allocators.txt."""
    text = (ROOT / "bench/results/host/allocators.txt").read_text()
    tables = [re.findall(r"^(\w+)\.csv +\d+ +[\d.]+ [KMG]iB +([\d.]+) +([\d.]+)", part, re.M)
              for part in (text.split("smallest budget")[0], text.split("smallest budget")[1].split("geometric")[0])]
    assert [len(table) for table in tables] == [4, 4]
    for (name, *reserved), (_, *budgets) in zip(*tables):
        numbers, events, live, peak = {}, [], 0, 0
        for row in (ROOT / f"bench/traces/{name}.csv").read_text().splitlines()[1:]:
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
            assert failed is None and f"{most / peak:.4f}" == reserved[expandable], (name, expandable, most / peak)
            enough = round(float(budgets[expandable]) * peak / (2 * MIB)) * 2 * MIB
            assert replay(events, enough, expandable=expandable)[0] is None, (name, expandable)
            assert replay(events, enough - 2 * MIB, expandable=expandable)[0] is not None, (name, expandable)
    # max_split_size_mb: a large block is not cut, nor given to a small request.
    events = [(0, 64 * MIB, 0), (0, 0, 0), (1, 12 * MIB, 0), (2, 64 * MIB, 0)]
    assert replay(events, 1 << 60)[1] == 128 * MIB and replay(events, 1 << 60, max_split=32 * MIB)[1] == 76 * MIB


# ---------------------------------------------------------------------------------------------------------------- the command


def of_comparison():
    one, two = Program(), Program()
    training(one, 4)
    training(two, 4)
    two.allocate(50 * MIB, "/home/me/train.py:40 in main", "/home/me/extra.py:3 in cache")
    training(two, 2, parameter=8 * MIB)
    a, b = written(one, "a.pickle"), written(two, "b.pickle")
    found = json.loads(explained("--compare", a, b, "--json"))
    row = next(line for line in found["lines"] if line["place"] == "extra.py:3 in cache")
    assert (row["more_bytes"], row["first_bytes"], row["second_bytes"]) == (50 * MIB, 0, 50 * MIB), row
    assert found["more_bytes"] == sum(line["more_bytes"] for line in found["lines"]) == sum(found["more_by_category_bytes"].values()), found
    assert "extra.py:3 in cache" in explained("--compare", a, b) and "No line has more" in explained("--compare", a, a)
    explained("--compare", b, a, "--lang", "zh")


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open, self.outside = {}, [], []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.outside += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action", "data")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()


def of_pages():
    program = Program(budget=800 * MIB)
    try:
        training(program, 40, leak=20 * MIB)
    except OutOfMemory:
        pass
    program.frames[STEP]["name"] = "main<script>alert(1)</script>"
    for language in ("en", "zh"):
        explained(written(program), "--html", WORK / "p.html", "--lang", language)
        text = (WORK / "p.html").read_text(encoding="utf-8")
        page = Page()
        page.feed(text)
        assert not page.open and not page.outside and "http" not in text.replace("http://www.w3.org/2000/svg", "") and "script" not in page.tags, page.open
        assert page.tags["svg"] == 1 and page.tags["table"] == 2 and page.tags["polygon"] >= 5, page.tags
        assert "url(" not in text and "@import" not in text and "train.py:23" in text
    for file, drawn in pictures().items():
        assert file.read_text(encoding="utf-8") == drawn, f"{file.name} is older than what draws it: python3 tests/explain/program.py"
    assert "cannot be written" in explained(WORK / "s.pickle", "--html", WORK / "none/p.html", code=2)


def of_languages():
    for key, texts in snapshot_words.TEXT.items():
        english, chinese = (sorted(re.findall(r"\{\w+\}", text)) for text in texts)
        assert english == chinese, key
    for size, text in ((0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (1 << 30, "1.00 GiB"), ((1 << 30) - 1, "1.00 GiB"), (-2048, "-2.00 KiB")):
        assert snapshot_words.shown(size) == text, (size, text)
    program = Program()
    training(program, 6)
    english, chinese = (explained(written(program), "--all", "--lang", language) for language in ("en", "zh"))
    assert len(re.findall(r"\d+\.\d\d [KMG]iB", english)) == len(re.findall(r"\d+\.\d\d [KMG]iB", chinese))
    assert len(explained(written(program), "--lang", "zh").splitlines()) <= 25


class Call:
    def __init__(self, function, *arguments):
        self.what = (function, arguments)

    def __reduce__(self):
        return self.what


def of_hostile_files():
    """One line and exit code 2, whatever is in it; and nothing is run."""
    mark = WORK / "ran"
    exponential = b"\x80\x04K\x01\x85" + b"2\x86" * 80 + b"0}" + b"K\x01\x85" + b"2\x86" * 80 + b"K\x01s."
    plain = pickle.dumps({"segments": [], "device_traces": [[]]})
    shared = b"\x80\x04]\x94" + b"".join(b"](" + b"h\x00" * 5000 + b"e" for _ in range(1)) + b"."
    files = {
        "call": pickle.dumps(Call(os.system, f"touch {mark}")),
        "call_inside": pickle.dumps({"segments": [Call(os.system, f"touch {mark}")], "device_traces": []}, protocol=2),
        "old_call": f"cos\nsystem\n(S'touch {mark}'\ntR.".encode(),
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "extension": b"\x80\x02\x82\x01.",
        "class": pickle.dumps(pathlib.Path("x")), "array": pickle.dumps(bytearray(b"x")) if sys.version_info >= (3, 8) else b"\x80",
        "memo": b"\x80\x04}r\xff\xff\xff\x7f.", "huge_text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
        "huge_bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        "exponential": exponential, "shared": shared, "empty": b"", "cut": plain[:-3], "short": b"\x80", "text": b"no pickle at all",
        "nothing": pickle.dumps({"segments": [], "device_traces": []}), "other": pickle.dumps({"a": 1}), "number": pickle.dumps(7),
        "deep": b"\x80\x02" + b"]" * 200000 + b"a" * 199999 + b".",
        "wrong_event": pickle.dumps({"device_traces": [[7]]}), "wrong_size": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": "x"}]]}),
        "wrong_frames": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 8, "frames": 3}]]}),
        "negative": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": -8, "frames": []}]]}),
        "infinite": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 300, "frames": []}]]}),
        "devices": pickle.dumps({"device_traces": [[]] * 5000}), "lists": pickle.dumps({"segments": 3, "device_traces": []}),
    }
    row = [{"action": "alloc", "addr": 1, "size": 8, "frames": []}]
    for _ in range(12):
        row = row * 40 if len(row) < 100000 else row
    files["laughs"] = pickle.dumps({"device_traces": [row] * 50})
    for name, data in files.items():
        file = WORK / f"{name}.pickle"
        file.write_bytes(data)
        error = explained(file, code=2)
        assert str(file) in error and len(error) < 400, (name, error)
        assert ("would run code" in error) == (name in ("call", "call_inside", "old_call", "class", "array")), (name, error)
    assert not mark.exists(), "it ran"
    assert "cut off" in explained(WORK / "cut.pickle", code=2) and "repeat" in explained(WORK / "laughs.pickle", code=2)
    # Names are shown as text, whatever is in them.
    program = Program()
    program.allocate(MIB, "/home/me/\x1b[31mtrain.py:1 in \u202emain\x07")
    text = explained(written(program))
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[31mtrain.py" in text, text
    # Usage.
    for arguments in (("--compare", WORK / "s.pickle"), ("--html", WORK / "x.html"), (WORK / "s.pickle", "--nothing"),
                      (WORK / "s.pickle", "--compare", WORK / "s.pickle", WORK / "s.pickle")):
        explained(*arguments, code=64)
    assert "no such file" in explained("--compare", WORK / "s.pickle", WORK / "missing.pickle", code=2).lower()
    assert "--compare" in explained(WORK / "s.pickle", "--help")


def of_formats():
    """Every protocol; the list that memory_snapshot() gives; segments without a history; more devices than one."""
    program = Program()
    truth, _ = training(program, 6)
    for protocol in (2, 3, 4, 5):
        assert figures(written(program, protocol=protocol))["peak_bytes"] == sum(truth.values()), protocol
    value = program.snapshot()
    (WORK / "list.pickle").write_bytes(pickle.dumps(value["segments"]))
    assert "no history was recorded" in explained(WORK / "list.pickle")
    other = Program()
    other.allocate(500 * MIB, STEP, *FORWARD)
    more = other.snapshot()["segments"]
    for segment in more:
        segment["device"] = 1
    both = {"segments": value["segments"] + more, "device_traces": [value["device_traces"][0], other.trace]}
    (WORK / "two.pickle").write_bytes(pickle.dumps(both))
    found = json.loads(explained(WORK / "two.pickle", "--json"))["devices"]
    assert [(f["device"], f["peak_bytes"]) for f in found] == [(1, 500 * MIB), (0, sum(truth.values()))], found
    assert "Also: device 0, peak " in explained(WORK / "two.pickle") and explained(WORK / "two.pickle", "--all").count("What filled it") == 2


TESTS = (of_pytorch, of_training, of_leaks, of_refusals, of_replays, of_comparison, of_pages, of_languages, of_hostile_files, of_formats)
for test in (of_chapters,) if PROGRAMS else TESTS:
    test()
    print(test.__name__)
for file in WORK.iterdir():
    file.unlink()
WORK.rmdir()
