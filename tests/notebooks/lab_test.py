"""What the notebooks share, with a program that is a shell script: the figures that it draws are those of the result."""

import base64
import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile

import matplotlib
import matplotlib.image
import numpy

matplotlib.use("Agg")
ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "notebooks"))
import lab  # noqa: E402
import matplotlib.pyplot as plt  # noqa: E402

result = json.loads((ROOT / "bench/results/host/01_batch_reduction.json").read_text())
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    os.environ["OOMLAB_BIN"] = name
    program = folder / "01_batch_reduction"
    program.write_text(f"""#!/bin/sh
echo "$@" >{folder}/said
case "$*" in *--bad*) echo "what is wrong" >&2; exit 64 ;; esac
while [ "$1" != --json ]; do shift; done
cp {ROOT}/bench/results/host/01_batch_reduction.json "$2"
""")
    program.chmod(0o755)
    assert lab.run("01", "--quick", "--batch", 7) == result
    assert (folder / "said").read_text().split()[-3:] == ["--quick", "--batch", "7"]
    try:
        lab.run("01", "--bad")
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "what is wrong" in str(error)
    try:
        lab.run("99")
        raise AssertionError("no error")
    except FileNotFoundError:
        pass

assert lab.variant(result, "mlp-weights, batch 256")["name"] == "mlp-weights, batch 256"

# Where nothing is built, the first cell builds the course, once; a build that fails says why.
with tempfile.TemporaryDirectory() as name:
    del os.environ["OOMLAB_BIN"]
    lab.ROOT = bare = pathlib.Path(name)
    (bare / "bench").mkdir()

    def builds(script):
        (bare / "bench/run").write_text(f"#!/bin/sh\necho $* >>{bare}/built\n{script}\n")
        (bare / "bench/run").chmod(0o755)

    def said(function):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            function()
        return out.getvalue()
    builds("echo no compiler >&2; exit 1")
    try:
        words = said(lab.preflight)
        raise AssertionError("no error")
    except RuntimeError as error:
        assert "the build failed (exit code 1)" in str(error)
    system = json.dumps({"backend": "host", "cpu": "a processor", "hardware_threads": 3})
    builds(f"echo building >&2; mkdir -p {bare}/build/host/bin; printf '#!/bin/sh\\necho %s\\n' \"'\"'{system}'\"'\" >{bare}/build/host/bin/oomlab_system; chmod +x {bare}/build/host/bin/oomlab_system")
    words = said(lab.preflight)
    assert "Nothing is built here yet" in words and "building" in words and "host runtime on a processor, 3 threads" in words, words
    assert "Nothing is built" not in said(lab.preflight) and lab.programs() == bare / "build/host/bin"
    assert (bare / "built").read_text().splitlines() == ["--list"] * 2, "it is built once"
lab.ROOT = ROOT

# Each variant's bar is its categories side by side, as long as its peak; the budget is a line.
shown = []
lab.show = shown.append
lab.bars(result)
axes = shown[0].axes[0]
for i, variant in enumerate(result["variants"]):
    parts = sorted((p.get_x(), p.get_width()) for p in axes.patches if abs(p.get_y() + p.get_height() / 2 - i) < 0.01)
    assert [round(width * lab.MIB) for _, width in parts if width] == [
        b for c in lab.COLOURS if (b := variant["by_category_bytes"][c])], variant["name"]
    end = 0
    for left, width in parts:
        assert abs(left - end) < 1e-6, "a category does not begin where the one before ends"
        end = left + width
    assert abs(end * lab.MIB - variant["peak_allocated_bytes"]) < 1
assert any(abs(line.get_xdata()[0] * lab.MIB - result["config"]["budget_bytes"]) < 1 for line in axes.lines)
# The text alternative has every bar and the budget.
words = lab.described(shown[0])
for variant in result["variants"]:
    for category, count in variant["by_category_bytes"].items():
        assert not count or f"{variant['name']} {count / lab.MIB:.4g}" in words.split(f"{category}: ")[1].split("\n")[0], (variant["name"], category)
assert f"budget: at {result['config']['budget_bytes'] / lab.MIB:.4g}" in words and "peak allocated, MiB" in words
figure, axes = plt.subplots()
axes.bar(["a", "b"], [3, 4], yerr=[[1, 1], [2, 2]], label="fast")
axes.set_ylabel("samples/s")
assert lab.described(figure) == "up: samples/s\nfast: a 3/s, b 4/s", lab.described(figure)

# Images of a program: a row of the file for each name, none mixed up, and the text alternative says which.
with tempfile.TemporaryDirectory() as name:
    sheet = pathlib.Path(name) / "sheet.pgm"
    sheet.write_bytes(b"P5\n6 6\n255\n" + bytes(range(36)))
    figure = lab.pictures(sheet, ["first", "second", "third"])
    rows = [axes.images[0].get_array().tolist() for axes in figure.axes]
    assert rows == [[list(range(k, k + 6)) for k in (i, i + 6)] for i in (0, 12, 24)], rows
    assert lab.described(figure) == "\n".join(f"{name}\nimage of 6 x 2 pixels" for name in ("first", "second", "third")), lab.described(figure)

# What is stored and what is made: what counts as a difference, and what does not.
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import run_notebook  # noqa: E402


def cell(text, picture=None, tags=()):
    outputs = [{"output_type": "stream", "name": "stdout", "text": text}]
    if picture is not None:
        file = io.BytesIO()
        matplotlib.image.imsave(file, picture, format="png")
        words = "across: MiB\nparameters: of one variant 3, of the other one 4"
        outputs.append({"output_type": "display_data", "metadata": {"image/png": {"alt": words}},
                        "data": {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": words}})
    return {"outputs": outputs, "metadata": {"tags": list(tags)}}


flat, other = numpy.zeros((20, 20, 3)), numpy.zeros((20, 20, 3))
other[5:15, 5:15] = 1
spots = flat.copy()
spots[0, 0] = 1
for old, new, same in (
        (cell("a 4 MiB 1,234.5/s"), cell("a 4 MiB 99.0/s"), True), (cell("a 4 MiB 3/s"), cell("a 5 MiB 3/s"), False),
        (cell("a 5 MiB"), cell("a 5 MiB\nb 6 MiB"), False), (cell("(0.5, a time)"), cell("(1.5e-05, a time)"), True), (cell("(0.5, a time)"), cell("(-0.5, a time)"), True),
        (cell("(0.5 for x)"), cell("(0.6 for x)"), False), (cell("about 1.4e-07"), cell("about 2.4e-07"), True),
        (cell("about 1.4e-07"), cell("about 2.4e-03"), False), (cell("about 0"), cell("about 1e-9"), False),
        (cell("host runtime on A, 2 threads."), cell("host runtime on B (C), 96 threads."), True),
        (cell("2 SAME", tags=["times"]), cell("3 FASTER", tags=["times"]), True), (cell("equal", tags=["times"]), cell("differs", tags=["times"]), False),
        (cell("a"), cell("a", flat), False), (cell("a", flat), cell("a", spots), True), (cell("a", flat), cell("a", other), False),
        (cell("a", flat), cell("a", flat[:10]), False)):
    assert (run_notebook.differences(old, new) == []) == same, (old["outputs"][0], new["outputs"][0])
silent = cell("a", flat)
silent["outputs"][1]["metadata"] = {}
assert run_notebook.differences(silent, cell("a", flat)), "a stored picture without a text alternative"
print("ok")
