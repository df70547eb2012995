"""bench/compare: verdicts, exit codes, broken files."""

import copy
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path.append(str(ROOT / "tests/explain"))
import copied  # noqa: E402

COMMAND = copied.module("compare")
BASE = json.loads((ROOT / "bench/results/host/01_batch_reduction.json").read_text())
for variant in BASE["variants"]:  # a spread as a quiet machine has it
    rate = variant["throughput"]
    rate |= {"p10": rate["median"] * 0.99, "p90": rate["median"] * 1.01, "repetitions": 10}
    rate["reference"] = {"p10": 99, "median": 100, "p90": 101}
NAMES = [v["name"] for v in BASE["variants"]]
folder = pathlib.Path(tempfile.mkdtemp())
number = 0


def side(result, name="01_batch_reduction.json"):
    global number
    number += 1
    path = folder / str(number)
    path.mkdir()
    (path / name).write_text(result if isinstance(result, str) else json.dumps(result))
    return path


def changed(change):
    result = copy.deepcopy(BASE)
    change(result)
    return side(result)


def compare(*arguments):
    done = copied.run("bench/compare", COMMAND.main, list(map(str, arguments)))
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def rows(*arguments):
    done = compare(*arguments, "--json")
    return {r["variant"]: r for r in json.loads(done.stdout)["rows"]}, done


def scale(factor, machine=1.0):
    def change(result):
        for v in result["variants"]:
            for key in ("p10", "median", "p90"):
                v["throughput"][key] *= factor
                v["throughput"]["reference"][key] *= machine
    return change


base = side(BASE)
as_process = subprocess.run([ROOT / "bench/compare", base, base], capture_output=True, text=True)  # once, as it is typed
assert (as_process.returncode, as_process.stdout, as_process.stderr) == ((done := compare(base, base)).returncode, done.stdout, done.stderr)
same, done = rows(base, side(BASE))
assert done.returncode == 0 and [r["variant"] for r in same.values()] == NAMES
assert all((r["memory"], r["throughput"], r["outcome"]) in {("equal", "SAME", "ok"), ("equal", "SAME", "oom")} for r in same.values())

# Speed: a planted slowdown of 10 % is one; what the machine itself lost, or a wide spread, is not.
for factor, machine, verdict in [(0.9, 1, "SLOWER"), (1 / 0.9, 1, "FASTER"), (0.97, 1, "SAME"), (0.9, 0.9, "AMBIGUOUS"),
                                 (0.7, 0.8, "AMBIGUOUS"), (0.9, 1.02, "SLOWER")]:
    found, done = rows(base, changed(scale(factor, machine)))
    assert done.returncode == 0 and {r["throughput"] for r in found.values()} == {verdict}, (factor, machine, found)
    assert all(abs(r["ratio"] - factor) < 1e-6 for r in found.values())
    assert [(c["chapter"], c["variants"], c["throughput"]) for c in json.loads(done.stdout)["chapters"]] == [
        ("01_batch_reduction", len(NAMES), verdict)]


def wide(result):
    scale(0.9)(result)
    for v in result["variants"]:
        v["throughput"]["p90"] *= 1.1


def few(result):
    scale(0.5)(result)
    for v in result["variants"]:
        v["throughput"]["repetitions"] = 2


for change in (wide, few):
    found, done = rows(base, changed(change))
    assert {r["throughput"] for r in found.values()} == {"AMBIGUOUS"}


# Memory: one byte more is a regression, one less is none.
def a_byte(sign):
    def change(result):
        result["variants"][1]["peak_allocated_bytes"] += sign
        result["variants"][1]["by_category_bytes"]["activations"] += sign
    return change


found, done = rows(base, changed(a_byte(+1)))
assert done.returncode == 1 and found[NAMES[1]]["memory"].startswith("+1 bytes"), found
assert "activations +1" in found[NAMES[1]]["note"] and found[NAMES[2]]["memory"] == "equal"
found, done = rows(base, changed(a_byte(-1)))
assert done.returncode == 0 and found[NAMES[1]]["memory_difference_bytes"] == -1


# Outcomes and numbers.
def worse(result):
    result["variants"][2] |= {"outcome": "oom", "reason": "OOM: asked for 1 byte"}


found, done = rows(base, changed(worse))
assert done.returncode == 1 and found[NAMES[2]]["outcome"] == "ok -> oom" and "asked for" in found[NAMES[2]]["note"]
assert compare(changed(worse), base).returncode == 0
done = compare(base, changed(lambda r: r["variants"][3]["numerics"].update(agrees=False)))
assert done.returncode == 1 and "no longer agree" in done.stdout

# What is missing, on either side.
fewer = changed(lambda r: r["variants"].pop())
for a, b in ((base, fewer), (fewer, base)):
    found, done = rows(a, b)
    assert done.returncode == 0 and found[NAMES[-1]]["note"] == f"missing in {fewer}", found
other_chapter = side(dict(copy.deepcopy(BASE), chapter="02_other"), "02.json")
done = compare(base, other_chapter)
assert done.returncode == 0 and done.stdout.count("missing in") == 2

# Another workload is refused, and named, unless it is forced. Another number of steps is the same workload.
other = changed(lambda r: r["config"].update(batch=7, model="mlp-x"))
done = compare(base, other)
assert done.returncode == 2 and f'batch 512 and 7, model "{BASE["config"]["model"]}" and "mlp-x"' in done.stderr, done.stderr
assert compare(base, other, "--force").returncode == 0
assert compare(base, changed(lambda r: r["config"].update(steps=99))).returncode == 0


# A host and a GPU: bytes yes, times no.
def gpu(result):
    result["system"] |= {"backend": "cuda", "device": "GPU X", "slug": "gpu-x"}
    for row in result["variants"]:  # what only a run on a GPU has
        row |= {"flops": 1e9, "least_time": {"card": "x", "seconds": 1e-3, "computing_seconds": 1e-3, "moving_seconds": 0,
                                             "moved_bytes": 0, "share_of_bound": 0.5}}


found, done = rows(base, changed(gpu))
assert done.returncode == 0 and all("not comparable" in r["throughput"] and r["memory"] == "equal" for r in found.values())


# What differs by design between the two is said once, below the table; a variant that needs more devices is nothing worse there. A byte is.
def one_device(result):
    gpu(result)
    result["variants"][0]["peak_reserved_bytes"] += 2 << 20
    skipped = result["variants"][-1]
    for key in ("peak_allocated_bytes", "peak_reserved_bytes", "throughput"):
        skipped[key] = None
    skipped |= {"outcome": "skipped", "reason": "needs 8 devices, this machine has 1"}


def a_byte_on_a_gpu(result):
    gpu(result)
    a_byte(+1)(result)


done = compare(base, changed(one_device))
assert done.returncode == 0 and "not comparable" not in done.stdout and f"memory: {len(NAMES) - 1} of {len(NAMES) - 1} equal to the byte; nothing got worse" in done.stdout
assert f"reserved      differs in 1 of {len(NAMES) - 1}:" in done.stdout and "skipped       1 of 01_batch_reduction: needs 8 devices, this machine has 1" in done.stdout, done
done = compare(base, changed(lambda r: (gpu(r), r["config"].update(devices=2), r["variants"][0].update(name="x 2"))))
assert done.returncode == 0 and f"memory: {len(NAMES) - 1} of {len(NAMES) - 1} equal" in done.stdout and "and for 2 are not compared" in done.stdout, done
assert compare(base, changed(a_byte_on_a_gpu)).returncode == 1 and "differ by design" not in compare(base, side(BASE)).stdout
assert compare(changed(gpu), changed(one_device)).returncode == 1, "between two GPUs it is something worse"

# Several sides; the forms.
three = compare(base, side(BASE), changed(a_byte(+1)))
assert three.returncode == 1 and three.stdout.count(NAMES[0]) == 2
table = list(csv.DictReader(io.StringIO(compare(base, side(BASE), "--csv").stdout)))
assert [r["variant"] for r in table] == NAMES and table[0]["memory"] == "equal"
assert "| chapter | variant |" in compare(base, side(BASE), "--md").stdout

# Broken files: the file and the field are named, and the rest is compared all the same.
text = json.dumps(BASE)
for broken, words in [
    (text[:1000], "not JSON, or cut off"), ("", "not JSON"), ("[1, 2]", "schema_version is missing: not a result"),
    ('{"a": 1}', "schema_version is missing"), ("\xff\x00", "not JSON"), ("[" * 100000, "not JSON"),
    (json.dumps(BASE | {"schema_version": 0}), "schema_version is 0, older than"),
    (json.dumps(BASE | {"schema_version": 9}), "schema_version is 9, newer"), (json.dumps(BASE | {"variants": {}}), "variants is not a list"),
    (json.dumps(BASE | {"variants": [{"name": 3}]}), "variants[0].name is 3, not a text"),
    (text.replace('"peak_allocated_bytes": ', '"peak_allocated_bytes": -', 1), "variants[0].peak_allocated_bytes is -"),
    (text.replace('"outcome": "oom"', '"outcome": "fine"', 1), 'variants[0].outcome is "fine"; known: ok'),
    (text.replace('"median": ', '"median": null, "x": ', 1), "variants[0].throughput.median"),
    (text.replace('"median": ', '"median": NaN, "x": ', 1), "variants[0].throughput.median"),
    (text.replace('"budget_bytes": ', f'"budget_bytes": {10**400}, "x": ', 1), "config.budget_bytes is larger than any such number can be"),
    (text.replace('"p10": ', '"p10": 1e-320, "x": ', 1), "variants[0].throughput.p10 is smaller than any such number can be"),
    (text.replace('"p90": ', '"p90": 0, "x": ', 1), "variants[0].throughput has a median outside"),
]:
    for sides in ((base, side(broken, "broken.json")), (side(broken, "broken.json"), base)):
        done = compare(*sides)
        assert done.returncode == 2 and "broken.json: " + words in done.stderr, (words, done)
        assert "Traceback" not in done.stderr
mixed = side(BASE)
(mixed / "broken.json").write_text("{")
done = compare(base, mixed)
assert done.returncode == 2 and done.stdout.count("equal") >= len(NAMES) and "broken.json" in done.stderr

# What tests/run bench saw lies beside results, and is none.
beside = side(BASE)
(beside / "benchmarks.json").write_text('{"schema": 1, "rows": []}')
done = compare(base, beside)
assert done.returncode == 0 and not done.stderr, done

# Bad usage.
for arguments, words in [([base], "two results"), ([], "required: RESULTS; see --help"), ([base, base, "--xml"], "--xml")]:
    done = compare(*arguments)
    assert done.returncode == 64 and words in done.stderr and done.stderr.count("\n") == 1, done
done = compare(base, folder / "nowhere")
assert done.returncode == 2 and "nowhere" in done.stderr
print("ok")
