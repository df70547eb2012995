"""What the notebooks share, with a program that is a shell script: the figures that it draws are those of the result."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import matplotlib

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

# Each variant's bar is its categories side by side, as long as its peak; the budget is a line.
lab.plt.show = lambda: None
lab.bars(result)
axes = plt.gcf().axes[0]
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
print("ok")
