"""What the notebooks share: building and finding the programs, running them, reading their JSON, and drawing it.

Nothing here computes what a chapter computes: the figures come from the programs. Outputs are stored in git, so what differs from run to
run says so: a number that is followed by "/s" or by ", a time" is a time, and after "about" come digits that rounding decides."""

import base64
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
from IPython.display import display
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from shared.results_files import COLOURS, format_bytes  # noqa: E402
MIB = 1 << 20
# The same picture everywhere: matplotlib's own font, sizes that do not depend on what is drawn.
plt.rcParams.update({"figure.constrained_layout.use": True, "font.family": "DejaVu Sans", "font.size": 9, "savefig.bbox": None})


def built():
    """The folder with the chapters' programs: a build for GPUs if one can run here, or the host's; None if nothing is built."""
    for preset in ("cuda", "host"):
        folder = ROOT / "build" / preset / "bin"
        system = folder / "oomlab_system"
        if system.exists() and subprocess.run([system], capture_output=True).returncode == 0:
            return folder
    return None


def programs():
    """The folder with the chapters' programs: OOMLAB_BIN, or what is built; builds the course where nothing is (minutes)."""
    if "OOMLAB_BIN" in os.environ:
        return pathlib.Path(os.environ["OOMLAB_BIN"])
    if not built():
        # With --list every chapter is built, and none is run. It says which packages it installs, if some are missing.
        print("Nothing is built here yet: bench/run builds the course. That takes some minutes, once.", flush=True)
        build = subprocess.Popen([ROOT / "bench/run", "--list"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in filter(str.strip, build.stderr):
            print("  " + line.rstrip(), flush=True)
        if build.wait() or not built():
            raise RuntimeError(f"the build failed (exit code {build.returncode}): what is above says why")
    return built()


def preflight():
    """Builds the course where it is not built, and says what the notebook runs on."""
    system = json.loads(subprocess.run([programs() / "oomlab_system"], check=True, capture_output=True, text=True).stdout)
    if system["backend"] == "host":
        print(f"No GPU is used: host runtime on {system['cpu']}, {system['hardware_threads']} threads.")
        print("Bytes are those of a GPU; times are this processor's.")
    else:
        print(f"{system['device']}: {system['device_free_bytes'] / MIB:,.0f} MiB free of {system['device_total_bytes'] / MIB:,.0f}, "
              f"driver {system['driver']}, {system['runtime']}")
    if os.environ.get("OOMLAB_OPTIONS"):
        print(f"Every run has these options, too: {os.environ['OOMLAB_OPTIONS']}")
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
    """The rows that the program prints, in short; samples/s where they were measured."""
    timed = any("throughput" in v for v in result["variants"])
    wide = max(len(v["name"]) for v in result["variants"])
    print(f"{'variant':<{wide}} {'budget':>7} {'peak':>12} {'predicted':>12} {'error':>6}" + (f" {'samples':>12}" if timed else ""))
    for v in result["variants"]:
        peak, rate = v.get("peak_allocated_bytes"), v.get("throughput")
        print(f"{v['name']:<{wide}} {v['outcome']:>7} {format_bytes(peak) if peak else '-':>12} {format_bytes(v['predicted_bytes']):>12} "
              f"{peak - v['predicted_bytes'] if peak else '':>6}" + (f" {rate['median']:>10.1f}/s" if rate else f" {'-':>12}" if timed else ""))


def described(figure):
    """What is drawn, in words: every bar and every point, read back from the figure. An axis says in its label whether it has times (/s), or
    what rounding decides (about)."""
    words, names_before = [], []
    for axes in figure.axes:
        labels = axes.get_xlabel(), axes.get_ylabel()
        words.append("; ".join(filter(None, (axes.get_title(), *(f"{way}: {label}" for way, label in zip(("across", "up"), labels) if label)))))
        about, per_second = ("about " if any("about" in label for label in labels) else ""), ("/s" if any("/s" in label for label in labels) else "")

        def said(value):
            return f"{about}{value:.4g}{per_second}"
        words += ["image of {1} x {0} pixels".format(*image.get_array().shape) for image in axes.images]
        for bars in axes.containers:
            if not hasattr(bars, "orientation"):
                continue  # the spread of bars that are described themselves
            lying = bars.orientation == "horizontal"
            ticks = axes.get_yticklabels() if lying else axes.get_xticklabels()
            names = [t.get_text() for t in ticks]
            if len(names) != len(bars) or not all(names):
                names = names_before if len(names_before) == len(bars) else [str(n) for n in range(len(bars))]  # two axes that share a scale
            names_before = names
            sizes = [p.get_width() if lying else p.get_height() for p in bars]
            if not any(sizes):
                continue
            name = "" if bars.get_label().startswith("_") else f"{bars.get_label()}: "
            words.append(name + ", ".join(f"{n} {said(size)}" for n, size in zip(names, sizes)))
        for line in axes.lines:
            name = "line" if line.get_label().startswith("_") else line.get_label()
            xs, ys = ([float(v) for v in data] for data in (line.get_xdata(), line.get_ydata()))
            if len(xs) == 2 and xs[0] == xs[1]:
                words.append(f"{name}: at {said(xs[0])}")
            elif line.get_label() != "_nolegend_":  # not the ends of a spread
                words.append(f"{name}: " + ", ".join(f"{said(y)} at {x:.4g}" for x, y in zip(xs, ys)))
    return "\n".join(words)


def show(figure=None):
    """Shows a figure as a small PNG with a text alternative, and closes it."""
    figure = figure or plt.gcf()
    words, file, small = described(figure), io.BytesIO(), io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    plt.close(figure)
    Image.open(file).convert("RGB").quantize(96).save(small, "PNG", optimize=True)
    display({"image/png": base64.b64encode(small.getvalue()).decode(), "text/plain": words}, metadata={"image/png": {"alt": words}}, raw=True)


def bars(result, title=None):
    """Peak bytes of every variant by category, and the budget."""
    rows = [v for v in result["variants"] if v.get("peak_allocated_bytes")]
    unit, name = (MIB, "MiB") if max(v["peak_allocated_bytes"] for v in rows) < 1 << 30 else (1 << 30, "GiB")
    figure, axes = plt.subplots(figsize=(8, 0.35 * len(rows) + 1.2))
    left = [0] * len(rows)
    for category, colour in COLOURS.items():
        widths = [v["by_category_bytes"][category] / unit for v in rows]
        drawn = axes.barh(range(len(rows)), widths, left=left, color=colour, label=category)
        for bar, v in zip(drawn, rows):
            bar.set_alpha(0.5 if v["outcome"] == "oom" else 1)
        left = [a + b for a, b in zip(left, widths)]
    for i, v in enumerate(rows):
        axes.text(left[i], i, " OOM" if v["outcome"] == "oom" else "", va="center", color="#b00020", fontweight="bold")
    if rows[0]["budget_bytes"]:
        axes.axvline(rows[0]["budget_bytes"] / unit, color="black", linestyle="--", label="budget")
    axes.set_yticks(range(len(rows)), [v["name"] for v in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(left + [rows[0]["budget_bytes"] / unit if rows[0]["budget_bytes"] else 0]))
    axes.set_xlabel(f"peak allocated, {name}")
    axes.set_title(title or f"{result['chapter']}: {result['title']}")
    legend = axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    for handle in legend.get_patches():
        handle.set_alpha(1)  # also where the first bar is a pale one
    show(figure)


def pictures(file, names):
    """A figure with the images that a program wrote to a file (PGM or PPM): it has a row of them for each name. Two rows stand side by side."""
    sheet = Image.open(file)
    height = sheet.height // len(names)
    figure, grid = plt.subplots(-(-len(names) // 2), 2, figsize=(8, 1.25 * -(-len(names) // 2)), squeeze=False)
    for axes in grid.flat[len(names):]:
        axes.remove()
    for i, (axes, name) in enumerate(zip(grid.flat, names)):
        axes.imshow(sheet.crop((0, i * height, sheet.width, (i + 1) * height)), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axes.set(xticks=[], yticks=[], title=name)
    return figure


def claims(result):
    """What people say, the verdict, and the figure that it was judged by."""
    for c in result["claims"]:
        judged = c["measured"] if c["size"] is None else c["at_size"]
        where = f" for {c['size']}" if c["size"] else ""
        figure = "" if judged is None else f"{judged:.4g}, a time" if c["about"] == "time" else f"{'about ' if c['about'] == 'numbers' else ''}{judged:.4g}"
        print(f"{c['verdict_text']:>16}: {c['claim']}" + (f" ({figure}{where})" if figure else ""))
