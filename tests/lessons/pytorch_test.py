#!/usr/bin/env python3
"""Each chapter's lesson.py: what it looks like, what is published of it, and where PyTorch is, what it does.

  pytorch_test.py ROOT form   at most 40 lines of one statement each, nothing of ours imported, peaks measured by the same lines in every file;
                              the stored output has two peaks, in words of lesson.cu's output; the README has them both quoted. Needs no PyTorch.
  pytorch_test.py ROOT run    runs them all with this Python. Each must pass, with the peaks' words that are published, and fail in its own
                              check where the marked lines are replaced by `pass`. Exits with 2 where there is no PyTorch.
"""
import ast
import os
import pathlib
import re
import subprocess
import sys
import tempfile

MOST_LINES, MOST_COLUMNS, MARK = 40, 120, "# THE MITIGATION"
NOISE = {"KINETO_LOG_LEVEL": "99", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}  # the profiler is quiet; as it is published


def measure_of(text):
    """The lines that measure, as they stand there."""
    found = re.search(r"^def measure\(work\):.*\n(?: .*\n)+", text, re.M)
    return found[0] if found else ""


def without_mitigation(text):
    return re.sub(rf"(?m)^( *)\S.*{MARK}.*$", r"\1pass", text)


def complaints(text, common):
    try:
        tree = ast.parse(text)
        compile(without_mitigation(text), "lesson.py", "exec")
    except SyntaxError as error:
        return [f"with its marked lines, or without: {error}"]
    lines = text.splitlines()
    statements = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    modules = {name.split(".")[0] for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
               for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "." * node.level])}
    return [what for bad, what in [
        (len(lines) > MOST_LINES, f"{len(lines)} lines, more than {MOST_LINES}"),
        (max(map(len, lines)) > MOST_COLUMNS, f"a line of more than {MOST_COLUMNS} characters"),
        (not re.match(r"# python3 lesson\.py: \w", text), "its first line does not say how to run it, and what it is"),
        (modules - sys.stdlib_module_names - {"torch"}, f"imports {modules}"),
        (len(statements) > len(set(statements)), "two statements on a line"),
        (not common or measure_of(text) != common, "measures otherwise than the others"),
        (not any(isinstance(node, ast.Assert) for node in ast.walk(tree)), "checks nothing"),
        (MARK not in text, f"no {MARK}"),
        (lines[-1] != 'print("PASS")', "does not end with PASS"),
    ] if bad]


def plain(text):
    return " ".join(re.sub(r"\d+(?:\.\d+)?", "#", text).split())


def peaks_of(output):
    """(what a peak is called, what it is)."""
    return [(plain(said).strip(" ,;:()"), figure) for line in output.splitlines()
            for said, figure in re.findall(r"(.*?)\bpeak\b.*?(\d[\d.]* [KM]iB)", line)]


def words_of(output):
    return [said for said, _ in peaks_of(output)]


def complaints_of_output(output, name, lesson_output):
    lines, peaks = output.splitlines(), peaks_of(output)
    strange = [said for said in words_of(output) if said not in plain(lesson_output)]
    return [what for bad, what in [
        (lines[:1] != [f"$ CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python3 chapters/{name}/lesson.py"], "does not begin with its command"),
        (not re.fullmatch(r"PyTorch \d[\w.]* on a CPU\b.*", lines[1] if len(lines) > 1 else ""), "does not say that it is a CPU's"),
        (len({figure for _, figure in peaks}) < 2, f"has not two peaks: {peaks}"),
        (strange, f"has peaks that lesson.cu does not speak of: {strange}"),
        (lines[-1:] != ["PASS"], "does not end with PASS"),
    ] if bad]


def form(root):
    failures, texts = [], {}
    chapters = sorted(folder for folder in root.glob("chapters/[0-9][0-9]_*") if folder.is_dir())
    for chapter in chapters:
        lesson, stored = chapter / "lesson.py", root / f"bench/results/pytorch-lessons/{chapter.name}.txt"
        if missing := [file for file in (lesson, stored) if not file.exists()]:
            failures.append(f"there is no {' and no '.join(str(file.relative_to(root)) for file in missing)}")
            continue
        texts[chapter.name] = text = lesson.read_text(encoding="utf-8")
        output = stored.read_text(encoding="utf-8")
        readme = (chapter / "README.md").read_text(encoding="utf-8")
        section = readme.partition("\n## The same in PyTorch\n")[2].partition("\n## Exercises\n")[0]
        failures += [f"chapters/{chapter.name}/lesson.py: {what}" for what in complaints(text, measure_of(next(iter(texts.values()))))]
        lesson_output = (root / f"bench/results/host/{chapter.name}.lesson.txt").read_text(encoding="utf-8")
        failures += [f"{stored.relative_to(root)} {what}" for what in complaints_of_output(output, chapter.name, lesson_output)]
        if "<!-- page pytorch-lesson en -->\n" not in section:  # docs.published_figures compares what stands there
            failures.append(f"chapters/{chapter.name}/README.md does not quote lesson.py and its output")
    if not texts:
        return ["no chapter has a lesson.py"]
    name, good = next(iter(texts.items()))
    for change, expected in [(lambda t: t.replace("import torch\n", "import torch\n" + 40 * "\n"), "more than 40"), (lambda t: t + "#" * 121, "120 characters"),
                             (lambda t: "\n" + t, "first line"), (lambda t: t.replace("import torch\n", "import torch\nimport shared.terminal\n"), "imports"),
                             (lambda t: t.replace("import torch\n", "import torch; import math\n"), "two statements"),
                             (lambda t: t.replace("        result = work()", "        result = work() "), "otherwise"),
                             (lambda t: t.replace("assert ", "print, "), "checks nothing"), (lambda t: t.replace(MARK, "#"), "no " + MARK),
                             (lambda t: t + "#", "end with PASS"), (lambda t: t.replace("def measure", f"def measure(  {MARK}"), "marked lines")]:
        if not any(expected in what for what in complaints(change(good), measure_of(good))):
            failures.append(f"not noticed: {expected}")
    said = f"$ CUDA_VISIBLE_DEVICES= OMP_NUM_THREADS=1 python3 chapters/{name}/lesson.py\nPyTorch 2.15.0 on a CPU, by its profiler's record\na 1  peak 2 MiB\nb, peak 1 KiB\nPASS\n"
    assert not complaints_of_output(said, name, "a 3 b"), complaints_of_output(said, name, "a 3 b")
    for wrong in (said.replace("OMP_NUM_THREADS=1 ", ""), said.replace("a CPU", "a card"), said.replace("1 KiB", "2 MiB"), said.replace("b,", "c,"), said[:-2]):
        if len(complaints_of_output(wrong, name, "a 3 b")) != 1:
            failures.append(f"not noticed in an output: {wrong}")
    print(f"{len(texts)} lessons in PyTorch")
    return failures


def run_all(root):
    if subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode:
        print(f"{sys.executable} has no PyTorch, so no lesson.py runs here: pip install torch")
        sys.exit(2)
    failures, ran = [], 0
    with tempfile.TemporaryDirectory() as folder:
        planted = pathlib.Path(folder) / "lesson.py"
        for lesson in sorted(root.glob("chapters/*/lesson.py")):
            name, ran = lesson.parent.name, ran + 1
            planted.write_text(without_mitigation(lesson.read_text(encoding="utf-8")), encoding="utf-8")
            good, bad = (subprocess.run([sys.executable, file], capture_output=True, text=True, env=os.environ | NOISE) for file in (lesson, planted))
            published = (root / f"bench/results/pytorch-lessons/{name}.txt").read_text(encoding="utf-8")
            if good.returncode or not good.stdout.endswith("\nPASS\n"):
                failures.append(f"{name} fails:\n{good.stdout}{good.stderr}")
            elif words_of(good.stdout) != words_of(published):
                failures.append(f"{name} has other peaks than what is published:\n{good.stdout}")
            if not bad.returncode or not re.match(r"(\[rank\d\]: )?AssertionError", bad.stderr.strip().splitlines()[-1]):
                failures.append(f"{name} does not fail in its check without its mitigation:\n{bad.stdout}{bad.stderr}")
            print(f"{name}: {peaks_of(good.stdout)}", flush=True)
    return failures if ran else ["no chapter has a lesson.py"]


def main():
    wrong = {"form": form, "run": run_all}[sys.argv[2]](pathlib.Path(sys.argv[1]).resolve())
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
