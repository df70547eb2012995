"""bench/tensorboard: TensorBoard's own reader reads back what it wrote. tensorboard_test.py ROOT

Needs PyPI, the first time: tensorboardX, which writes, goes into build/tensorboard, and TensorBoard's reader, of another
package, into build/tensorboard_reader. Without them exit code 77: skipped.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
READER = ROOT / "build/tensorboard_reader"
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "workspace", "data")


def install():
    """The two packages; what could not be had."""
    writer = subprocess.run(["bash", "-c", ". bench/setup.sh; have_tensorboard_writer"], cwd=ROOT, capture_output=True, text=True)
    if writer.returncode:
        return writer.stderr
    if not (READER / "tensorboard").is_dir():
        reader = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--root-user-action=ignore", "--no-deps", "--target",
                                 str(READER), "tensorboard==2.21.0", "absl-py==2.5.1"], capture_output=True, text=True)
        if reader.returncode:
            return reader.stderr
    return ""


def write(*arguments):
    done = subprocess.run([sys.executable, ROOT / "bench/tensorboard", *map(str, arguments)], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stderr


def result(steps, rates, leak):
    """A result file's part that matters here: two variants, one of them with a series."""
    each = [2**30 + leak * i for i in range(steps)]
    series = {"allocated_bytes": each, "peak_allocated_bytes": [b + 3 * 2**20 for b in each], "reserved_bytes": [2**31] * steps,
              "device_used_bytes": [2**32] * steps, "by_category_bytes": {c: [n * 2**20] * steps for n, c in enumerate(CATEGORIES)},
              "samples_per_second": rates}
    return {"chapter": "98_toy", "variants": [{"name": "8 x 4, mean / of means", "series": series}, {"name": "skipped"}]}


def read(folder):
    from tensorboard.backend.event_processing import event_accumulator
    events = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


if reason := install():
    print(f"SKIPPED: PyPI is not reachable: {reason.strip().splitlines()[-1] if reason.strip() else 'pip failed'}")
    sys.exit(77)
sys.path += [str(READER), str(ROOT / "build/tensorboard")]
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    source, to = scratch / "98_toy.json", scratch / "scalars"
    for steps, rates, leak in ((20, [10.5, 11.25, 1e-3], 2**20), (3, [], 0)):  # the second run replaces the first
        source.write_text(json.dumps(result(steps, rates, leak)))
        assert write(scratch if rates else source, to) == (0, "")
        (run,) = (to / "98_toy").iterdir()
        assert run.name == "8 x 4, mean _ of means" and len(list(run.iterdir())) == 1, list(to.rglob("*"))
        scalars = read(run)
        assert scalars["memory_MiB/allocated"] == [(i, 1024 + leak / 2**20 * (i - 1)) for i in range(1, steps + 1)], scalars
        assert scalars["memory_MiB/peak_allocated"][-1] == (steps, 1027 + leak / 2**20 * (steps - 1))
        assert scalars["memory_MiB/reserved"] == [(i, 2048) for i in range(1, steps + 1)]
        assert scalars["memory_MiB/device_used"][0] == (1, 4096)
        for n, category in enumerate(CATEGORIES):
            assert scalars[f"by_category_MiB/{category}"] == [(i, n) for i in range(1, steps + 1)]
        read_rates = scalars.get("speed/samples_per_second", [])
        next(run.iterdir()).rename(run / "events.out.tfevents.1.elsewhere")  # names have the second in them
        assert len(read_rates) == len(rates) and all(abs(b / a - 1) < 1e-6 for a, (_, b) in zip(rates, read_rates))
    # What cannot be used is named, in one line.
    assert write(to)[0] == 64 and write("--nosuch", to)[0] == 64
    source.write_text(json.dumps({"chapter": "98_toy", "variants": [{"name": "a"}]}))
    code, text = write(source, to)
    assert code == 1 and "--series" in text and text.count("\n") == 1, text
    for broken in ("{", json.dumps({"chapter": "98_toy", "variants": [{"name": "a", "series": {"allocated_bytes": [-1]}}]})):
        source.write_text(broken)
        code, text = write(source, to)
        assert code == 2 and "98_toy.json" in text and text.count("\n") == 1, text
print("TensorBoard reads back what was written")
