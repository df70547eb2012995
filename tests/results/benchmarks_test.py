"""bench/benchmarks/run, which tests/run bench calls, over programs that are shell scripts: rows, verdicts, exit codes, and what it
stores."""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
TOML = """
[[judges]]
command = "judge --both"
[[judges]]
command = "judge --gpu"
preset = "cuda"
[[within]]
benchmark = "fast"
command = "quick 'two words'"
seconds = 1000
"""


def row(what, seen, at, wanted):
    return json.dumps({"benchmark": "b", "what": what, "seen": seen, "at": at, "wanted": wanted, "unit": "x"})


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    programs = root / "build/host/bin"
    programs.mkdir(parents=True)
    (root / "bench/benchmarks").mkdir(parents=True)
    shutil.copy(ROOT / "bench/benchmarks/run", root / "bench/benchmarks")
    shutil.copytree(ROOT / "bench/shared", root / "bench/shared", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "bench/benchmarks/benchmarks.toml").write_text(TOML)

    def program(name, text, folder=programs):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)

    def says(*rows):
        return "echo a table\ncat <<'EOF'\n" + "\n".join(rows) + "\nEOF\n"

    def run(*words):
        done = subprocess.run([sys.executable, root / "bench/benchmarks/run", *words], capture_output=True, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    good = row("a ratio", 3.5, "most", 4), row("another", 0.81, "least", 0.8), row("at the limit", 4, "most", 4)
    program("judge", says(*good))
    program("quick", '[ "$1" = "two words" ]')
    code, said = run("--json", str(root / "rows.json"))
    assert code == 0 and "4 judged, 0 fall short" in said and said.count(" ok ") == 4 and "a table" in said, said
    stored = json.loads((root / "rows.json").read_text())
    assert [r["what"] for r in stored["rows"]] == ["a ratio", "another", "at the limit", "'two words'"], stored
    assert stored["did_not_run"] == [], stored

    # What falls short, and in which direction; what a program has said before it failed counts all the same.
    for bad in (row("slow", 4.01, "most", 4), row("slow", 0.79, "least", 0.8)):
        program("judge", says(good[0], bad))
        code, said = run()
        assert code == 1 and "3 judged, 1 fall short" in said and said.count("FALLS SHORT") == 1, said
    for text, complaint in ((says(good[0]) + "echo why >&2\nexit 3\n", "exit code 3: why"),
                            ("echo a table\n", "it printed no row"),
                            (says(good[0].replace('"most"', '"best"')), "it printed no row"), ("kill -9 $$\n", "exit code -9")):
        program("judge", text)
        code, said = run("-R", "judge")
        assert code == 1 and complaint in said and "1 did not run" in said, said
    (programs / "judge").unlink()
    code, said = run("-R", "judge")
    assert code == 1 and "1 did not run" in said, said
    program("quick", "exit 64")
    assert run("-R", "quick")[0] == 1

    # Chapters are found: their benchmarks, plans and lessons. What cannot run on a GPU is skipped there.
    chapter = root / "chapters/01_one"
    for file, text in (("bench/speed.cpp", ""), ("lesson.cu", ""), ("CMakeLists.txt", "oomlab_chapter(NCCL DEVICES 8)"),
                       ("tests/bytes.txt", "--quick\nplan: --model 'a b'\n")):
        (chapter / file).parent.mkdir(parents=True, exist_ok=True)
        (chapter / file).write_text(text)
    program("judge", says(*good))
    program("quick", "")
    program("01_one_bench", says(row("of a chapter", 1, "most", 2)))
    program("01_one", '[ "$*" = "--plan --model \'a b\'" ]')
    program("01_one_lesson", '[ "$OOMLAB_HOST_DEVICES" = 8 ] || exit 64')
    code, said = run()
    assert code == 0 and "7 judged, 0 fall short" in said and "the lesson" in said and "of a chapter" in said, said
    assert run("--targets") == (0, "01_one_bench\njudge\n01_one\n01_one_lesson\nquick\n")
    listed, on_gpu = run("--list")[1], run("cuda", "--list")[1]
    assert "judge --gpu" not in listed and "01_one_lesson" in listed, listed
    assert "judge --gpu" in on_gpu and "01_one_lesson" not in on_gpu, on_gpu
    program("01_one_bench", "echo no GPU >&2\nexit 2\n", root / "build/cuda/bin")
    program("judge", says(*good), root / "build/cuda/bin")
    code, said = run("cuda")
    assert code == 0 and "no GPU" in said and "6 judged" in said, said
    shutil.copy(root / "build/cuda/bin/01_one_bench", programs)
    assert run("-R", "01_one_bench")[0] == 1, "on the host everything can run"

    for words in (["--nosuch"], ["-R", "("], ["-R", "nothing"], ["host-asan"]):
        code, said = run(*words)
        assert code == 64 and said.count("\n") == 1, said
print("ok")
