"""One FP32 step of one model, planned by every chapter that plans it and by bench/fit.

The totals differ by what docs/reading.md names, and by no byte more.

  one_step_test.py ROOT PROGRAMS
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT, PROGRAMS = map(pathlib.Path, sys.argv[1:3])
STEP = ["--model", "gpt2", "--batch", "4", "--seq", "128"]
BASE = "02_gradient_accumulation"
# The others: the chapter's own words for that step, and what it counts beyond BASE.
RECORD = {"optimizer": 512}
CHAPTERS = {
    "03_mixed_precision": ([], RECORD),
    "04_checkpointing": (["--precision", "fp32"], RECORD),
    "07_multi_gpu": (["--precision", "fp32", "--micro-batch", "4", "--filter", "^one device$"], {}),
    "08_attention_and_loss": (["--precision", "fp32"], RECORD),
    "16_capstone": ([], {}),
}


def planned(chapter, words):
    """What the chapter's baseline holds at its peak, by category."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "plan.json"
        command = [PROGRAMS / chapter, "--plan", "--quiet", *STEP, *words, "--json", file]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, f"{chapter}: {run.stderr}"
        return json.loads(file.read_text())["variants"][0]["by_category_bytes"]


def fitted():
    """What bench/fit says of the plain step, which leaves room for cuBLAS's workspace beside it."""
    run = subprocess.run([PROGRAMS / "fit", *STEP, "--gpu", "a100-80", "--engine", "oomlab", "--json"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    held = answer["as_is"]["bytes"]
    return held | {"workspace": held["workspace"] + answer["room"]["workspace_bytes"]}


def main():
    page = re.sub(r"\s+", " ", (ROOT / "docs/reading.md").read_text(encoding="utf-8"))
    base = planned(BASE, [])
    wrong = []
    for chapter, (words, more) in CHAPTERS.items():
        found = planned(chapter, words)
        wanted = {category: size + more.get(category, 0) for category, size in base.items()}
        if found != wanted:
            wrong.append(f"{chapter} plans {found}, not {wanted}")
    if (found := fitted()) != base:
        wrong.append(f"bench/fit says {found}, not {base}")
    for total in {sum(more.values()) for _, more in CHAPTERS.values()} - {0}:
        if not re.search(rf"\b{total:,} more", page):
            wrong.append(f"docs/reading.md does not say '{total:,} more'")
    total = f"{len(CHAPTERS) + 1} chapters and bench/fit plan {sum(base.values()):,} bytes, and what docs/reading.md adds"
    print("\n".join(wrong) or total)
    sys.exit(bool(wrong))


main()
