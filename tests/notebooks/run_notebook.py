"""Runs notebooks from top to bottom, looks at their figures, and compares what they store with what they make.

  run_notebook.py PROGRAMS [NOTEBOOK ...]           compares (default: all of notebooks/)
  run_notebook.py --store PROGRAMS [NOTEBOOK ...]   stores

They run one after the other in one kernel, which forgets every name between two of them: a kernel takes longer to start than most of them run.

Equal must be: every word and every byte that is printed, every figure's text alternative, and its pixels but for how letters are drawn. Not
compared: times (a number before "/s" or ", a time"), the digits after "about" (within a factor of ten), the machine's name; and of a cell with
the tag "times" every number and each verdict on speed.
"""

import base64
import io
import os
import pathlib
import re
import sys

os.environ["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
import matplotlib.image  # noqa: E402
import nbformat  # noqa: E402
from nbclient import NotebookClient  # noqa: E402

MOST_BYTES = 300_000
ROOT = pathlib.Path(__file__).resolve().parents[2]


def pixels_of(output):
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(output["data"]["image/png"])))[..., :3]


def words_of(output, times):
    """What a cell printed or drew, in words, and the figures that rounding decides, apart."""
    text = output["text"] if output["output_type"] == "stream" else output["data"].get("text/plain", "")
    text = re.sub(r"-?[\d.,]+(?:e[+-]?\d+)?(/s|, a time)", r"#\1", text)
    text = re.sub(r"host runtime on .*?, \d+ threads", "host runtime", text)
    text = re.sub(r"(host runtime device \S+) \(.*\)$", r"\1", text, flags=re.M)
    if times:
        text = re.sub(r"\b(?:FASTER|SLOWER|SAME|AMBIGUOUS)\b", "SPEED", re.sub(r"[\d.,]*\d", "#", text))
    rough = [float(n) for n in re.findall(r"\babout (-?[\d.]+(?:e[+-]?\d+)?)", text)]
    text = re.sub(r"\babout -?[\d.]+(?:e[+-]?\d+)?", "about #", text)
    return re.sub(r"  +", " ", text).strip(), rough


def differences(stored, made):
    """What differs between two lists of outputs of one cell, a line each."""
    def kinds(outputs):
        return [(o["output_type"], o.get("name"), sorted(o.get("data", {}))) for o in outputs]
    times = "times" in made["metadata"].get("tags", [])
    if kinds(stored["outputs"]) != kinds(made["outputs"]):
        return [f"other kinds of output: stored {kinds(stored['outputs'])}, made {kinds(made['outputs'])}"]
    wrong = []
    for old, new in zip(stored["outputs"], made["outputs"]):
        (before, rough_before), (now, rough_now) = words_of(old, times), words_of(new, times)
        if before != now:
            lines = zip(before.split("\n") + [""] * 99, now.split("\n"))
            wrong.append("stored: {!r}\n  made: {!r}".format(*next(((a, b) for a, b in lines if a != b), (before[-200:], now[-200:]))))
        wrong += [f"about {a} is stored, about {b} made" for a, b in zip(rough_before, rough_now)
                  if (a == 0) != (b == 0) or a * b < 0 or a and not 0.1 <= b / a <= 10]
        if "image/png" in new.get("data", {}):
            a, b = pixels_of(old), pixels_of(new)
            if a.shape != b.shape or "/s" not in now and not times and abs(a - b).mean() > 0.02:
                wrong.append(f"the stored picture is another: {now[:80]}")
            if old["metadata"].get("image/png", {}).get("alt") != old["data"]["text/plain"] or len(now) < 40:
                wrong.append(f"a picture without a text alternative: {now[:80]!r}")
    return wrong


def execute(paths, programs):
    """Of each notebook: as it stands in git, and as it is when it has been run."""
    os.environ["OOMLAB_BIN"] = str(programs)
    stored, made = ([nbformat.read(path, as_version=4) for path in paths] for _ in range(2))
    whole = nbformat.v4.new_notebook()
    for notebook in made:
        nbformat.validate(notebook)
        for cell in code_of(notebook):
            cell.outputs, cell.execution_count = [], None
        whole.cells += [*notebook.cells, nbformat.v4.new_code_cell("%reset -f")]
    # A kernel of this very Python.
    NotebookClient(whole, timeout=1700, kernel_name="python3", record_timing=False, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    for notebook in made:
        notebook.metadata.language_info = {"name": "python"}
        for number, cell in enumerate(code_of(notebook), 1):
            cell.outputs, cell.execution_count = joined(cell.outputs), number
    return list(zip(paths, stored, made))


def joined(outputs):
    """What a cell printed in several pieces, which depend on the moment, as one."""
    whole = []
    for output in outputs:
        if output.output_type == "stream" and whole and whole[-1].output_type == "stream" and whole[-1].name == output.name:
            whole[-1].text += output.text
        else:
            whole.append(output)
    return whole


def code_of(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def look(path, made):
    """Figures are all there, and something is drawn on each; nothing went wrong."""
    code = code_of(made)
    asked = sum(c.source.count("lab.show(") + c.source.count("lab.bars(") for c in code)
    seen = 0
    for cell in code:
        for output in cell.outputs:
            assert output.output_type != "error"
            assert output.get("name") != "stderr", output.text
            if "image/png" not in output.get("data", {}):
                continue
            seen += 1
            pixels = pixels_of(output)
            height, width = pixels.shape[:2]
            assert height > 100 and width > 200, (height, width)
            # Something is drawn: of the part inside the frame, neither all nothing nor all one colour.
            inside = pixels[height // 8: -height // 8, width // 8: -width // 8].reshape(-1, 3)
            drawn = (abs(inside - inside[0]).max(axis=1) > 0.2).mean()
            assert drawn > 0.005, f"figure {seen} is empty"
    assert seen == asked > 0, f"{seen} figures, {asked} asked for"
    said = "".join(o.get("text", "") for c in code for o in c.outputs if o.output_type == "stream")
    assert "lab.preflight()" in code[0].source, "the first cell builds the course where it is not built"
    assert "No GPU is used" in said or "MiB free of" in said, "the first cell says what the notebook runs on"
    text = nbformat.writes(made)
    assert not re.search(r"/(?:tmp|home|root|work)/", said) and str(ROOT) not in text, "a path of this machine is in it"
    assert len(text.encode()) < MOST_BYTES, f"{path.name} has {len(text.encode()):,} bytes; at most {MOST_BYTES:,}"
    return f"{path.name}: {len(code)} cells, {seen} figures, {len(text.encode()):,} bytes"


def main():
    stores = sys.argv[1] == "--store"
    programs, *names = sys.argv[2:] if stores else sys.argv[1:]
    failed = False
    for path, stored, made in execute([pathlib.Path(name).resolve() for name in names] or sorted((ROOT / "notebooks").glob("*.ipynb")), programs):
        print(look(path, made))
        if stores:
            nbformat.write(made, path)
            continue
        wrong = [f"{path.name}, cell {i + 1}: {what}" for i, (old, new) in enumerate(zip(code_of(stored), code_of(made))) for what in differences(old, new)]
        if wrong:
            print(*wrong, "what is stored is not what was made now; if the change is meant: tests/notebooks/store", sep="\n")
        failed = failed or bool(wrong)
    sys.exit(failed)


if __name__ == "__main__":
    main()
