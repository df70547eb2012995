"""Runs a notebook from top to bottom, and looks at its figures: run_notebook.py NOTEBOOK PROGRAMS."""

import base64
import io
import os
import pathlib
import sys

import matplotlib.image
import nbformat
from nbclient import NotebookClient

path, programs = pathlib.Path(sys.argv[1]), sys.argv[2]
os.environ["OOMLAB_BIN"] = programs
notebook = nbformat.read(path, as_version=4)
nbformat.validate(notebook)
code = [c for c in notebook.cells if c.cell_type == "code"]
assert all(not c.outputs and c.execution_count is None for c in code), "outputs are stripped in git: clear them and save"

# A kernel of this very Python.
NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}).execute()

asked = sum(c.source.count("plt.show()") + c.source.count("lab.bars(") for c in code)
seen = 0
for cell in code:
    for output in cell.outputs:
        assert output.output_type != "error"
        if output.output_type == "stream" and output.name == "stderr":
            assert "Traceback" not in output.text, output.text
        if "image/png" not in output.get("data", {}):
            continue
        seen += 1
        pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(output.data["image/png"])))[..., :3]
        height, width = pixels.shape[:2]
        assert height > 100 and width > 200, (height, width)
        # Something is drawn: of the part inside the frame, neither all nothing nor all one colour.
        inside = pixels[height // 8: -height // 8, width // 8: -width // 8].reshape(-1, 3)
        drawn = (abs(inside - inside[0]).max(axis=1) > 0.2).mean()
        assert drawn > 0.005, f"figure {seen} is empty"
assert seen == asked > 0, f"{seen} figures, {asked} asked for"
said = "".join(o.get("text", "") for c in code for o in c.outputs if o.output_type == "stream")
assert "No GPU is used" in said or "MiB free of" in said, "the first cell says what the notebook runs on"
print(f"{path.name}: {len(code)} cells, {seen} figures")
