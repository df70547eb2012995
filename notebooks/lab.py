"""What the notebooks share: finding the programs, running them, reading their JSON, and drawing it.

Nothing here computes what a chapter computes: the figures come from the programs."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from results_files import COLOURS  # noqa: E402
MIB = 1 << 20


def programs():
    """The folder with the chapters' programs: OOMLAB_BIN, or a build for GPUs if one can run here, or the host's."""
    if "OOMLAB_BIN" in os.environ:
        return pathlib.Path(os.environ["OOMLAB_BIN"])
    for preset in ("cuda", "host"):
        folder = ROOT / "build" / preset / "bin"
        system = folder / "oomlab_system"
        if system.exists() and subprocess.run([system], capture_output=True).returncode == 0:
            return folder
    raise FileNotFoundError("no chapter is built yet: run bench/run --quick in " + str(ROOT))


def preflight():
    """Says what the notebook runs on."""
    system = json.loads(subprocess.run([programs() / "oomlab_system"], check=True, capture_output=True, text=True).stdout)
    if system["backend"] == "host":
        print(f"No GPU is used: host runtime on {system['cpu']}, {system['hardware_threads']} threads.")
        print("Bytes are those of a GPU; times are this processor's.")
    else:
        print(f"{system['device']}: {system['device_free_bytes'] / MIB:,.0f} MiB free of {system['device_total_bytes'] / MIB:,.0f}, "
              f"driver {system['driver']}, {system['runtime']}")
    return system


def run(chapter, *options):
    """Runs a chapter (its name may be shortened: "01") and returns its result, as in common/harness/result.schema.json.

    OOMLAB_OPTIONS in the environment has more options for every run, for example --quick on a slow machine."""
    found = sorted(p for p in programs().glob(f"{chapter}*") if p.name[2:3] == "_" and (ROOT / "chapters" / p.name).is_dir())
    if not found:
        raise FileNotFoundError(f"no program {chapter}* in {programs()}")
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "result.json"
        # Waiting threads soon sleep, as in bench/run: a notebook's machine has other things to do.
        done = subprocess.run([found[0], "--quiet", "--json", file, *map(str, options), *os.environ.get("OOMLAB_OPTIONS", "").split()], capture_output=True, text=True,
                              env={"GOMP_SPINCOUNT": "3000"} | os.environ)
        if not file.exists():
            raise RuntimeError(done.stderr.strip() or f"exit code {done.returncode}")
        return json.loads(file.read_text())


def variant(result, name):
    return next(v for v in result["variants"] if v["name"] == name)


def table(result):
    """The rows that the program prints, in short."""
    print(f"{'variant':<28} {'budget':>7} {'peak MiB':>10} {'predicted':>10} {'error':>6} {'samples/s':>10}")
    for v in result["variants"]:
        peak, rate = v.get("peak_allocated_bytes"), v.get("throughput")
        print(f"{v['name']:<28} {v['outcome']:>7} {peak / MIB if peak else float('nan'):>10.2f} {v['predicted_bytes'] / MIB:>10.2f} "
              f"{peak - v['predicted_bytes'] if peak else '':>6} {rate['median'] if rate else float('nan'):>10.1f}")


def bars(result, title=None):
    """Peak bytes of every variant by category, and the budget."""
    rows = [v for v in result["variants"] if v.get("peak_allocated_bytes")]
    figure, axes = plt.subplots(figsize=(8, 0.5 * len(rows) + 1.5))
    for i, v in enumerate(rows):
        left = 0
        for category, colour in COLOURS.items():
            width = v["by_category_bytes"][category] / MIB
            axes.barh(i, width, left=left, color=colour, alpha=0.5 if v["outcome"] == "oom" else 1, label=category if i == 0 else None)
            left += width
        axes.text(left, i, " OOM" if v["outcome"] == "oom" else "", va="center", color="#b00020", fontweight="bold")
    if rows and rows[0]["budget_bytes"]:
        axes.axvline(rows[0]["budget_bytes"] / MIB, color="black", linestyle="--", label="budget")
    axes.set_yticks(range(len(rows)), [v["name"] for v in rows])
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("peak allocated, MiB")
    axes.set_title(title or f"{result['chapter']}: {result['title']}")
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    figure.tight_layout()
    plt.show()


def claims(result):
    for c in result["claims"]:
        judged = c["measured"] if c["size"] is None else c["at_size"]
        where = f" for {c['size']}" if c["size"] else ""
        print(f"{c['verdict_text']:>16}: {c['claim']}{'' if judged is None else f' ({judged:.4g}{where})'}")
