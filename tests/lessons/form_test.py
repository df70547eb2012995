#!/usr/bin/env python3
"""What every chapters/NN_name/lesson.cu looks like, and how long main.cu may be. Run with the repository's root."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
mark = "// THE MITIGATION"
MOST_LINES = 180  # one sitting; what would need more shows less, and is not packed


def complaints(text):
    lines = text.splitlines()
    comments = [line[line.index("//"):] for line in lines if "//" in line]
    headers = re.findall(r"^\s*#\s*include\s*(\S+)", text, re.M)
    ours = [h for h in headers if not re.fullmatch(r"<[a-z0-9_/.]+>", h) or h.startswith("<oomlab") or (root / "common" / h[1:-1]).exists()]
    shouted = [c for c in comments if re.match(r"//\W*[A-Z]{2,}(:|\s+[A-Z]{2,}\b)", c) and not c.startswith(mark)]
    conditions = re.findall(r"^\s*#\s*(?:if|elif|else)\w*", text, re.M)
    marked = [(before.split("//")[0].rstrip(), line) for before, line in zip(lines, lines[1:]) if mark in line]
    return [what for bad, what in [
        (not 100 <= len(lines) <= MOST_LINES, f"{len(lines)} lines, not 100 to {MOST_LINES}"),
        (max(map(len, lines)) > 120, "a line of more than 120 characters"),
        (not re.match(r"// nvcc .*-o lesson lesson\.cu\b", lines[0]), "the first line is not the nvcc command"),
        (ours, f"includes what is not of the toolkit or C++: {ours}"),
        ("__global__" not in text, "no __global__"),
        (not re.search(r"\w<<<.*>>>\s*\(", text), "no <<<>>>"),
        (not marked, f"no {mark}"),
        (any(line.lstrip().startswith("//") for _, line in marked), f"{mark} with no code on its line"),
        (any(before and before[-1] not in ";{}:" for before, _ in marked), f"{mark} on a part of a statement"),
        (shouted, f"another comment in capitals: {shouted}"),
        (conditions, f"preprocessor conditions: {conditions}"),
    ] if bad]


lessons = sorted(root.glob("chapters/*/lesson.cu"))
failures = [f"{lesson}: {what}" for lesson in lessons for what in complaints(lesson.read_text())]
for chapter in sorted(root.glob("chapters/[0-9][0-9]_*/")):
    if not (chapter / "lesson.cu").exists():
        failures.append(f"{chapter} has no lesson.cu")
    if (length := len((chapter / "main.cu").read_text().splitlines())) > 110:
        failures.append(f"{chapter}/main.cu: {length} lines, more than 110")
if not lessons:
    failures.append("no lessons")
else:  # what must be noticed
    good = lessons[0].read_text()
    for change, expected in [(lambda t: t + "\n" * MOST_LINES, "not 100 to"), (lambda t: t + "//" + "-" * 120, "120 characters"),
                             (lambda t: "\n" + t, "first line"), (lambda t: t.replace("<cstdio>", '"cstdio"'), "toolkit"),
                             (lambda t: t.replace("<cstdio>", "<cuda/check.h>"), "toolkit"),
                             (lambda t: t.replace("__global__", ""), "__global__"), (lambda t: t.replace("<<<", "<<"), "<<<"),
                             (lambda t: t.replace(mark, "//"), "no " + mark), (lambda t: t + mark, "no code"),
                             (lambda t: t + f"if (x)\n  y();  {mark}\n", "part of a statement"),
                             (lambda t: t + "// NOTE: so", "capitals"), (lambda t: t + "#ifdef __CUDACC__", "conditions")]:
        if not any(expected in what for what in complaints(change(good))):
            failures.append(f"not noticed: {expected}")
print("\n".join(failures) or f"{len(lessons)} lessons")
sys.exit(1 if failures else 0)
