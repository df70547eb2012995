"""bench/publish --check and --fill: a block that is not what bench/results/ has is found, and filled. What each chapter saves (map.txt, and the
front picture, which is drawn from it) is what the published results say, by the figure that the chapter is about."""

import importlib.machinery
import importlib.util
import io
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(sys.argv[1])
BLOCK = """before

<!-- from bench/results/x.txt, /^head/ to /^$/ -->
```text
head
peak 1
```

<!-- from bench/results/x.txt -->
```text
title
head
peak 1

tail
```
after
"""

with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    for folder in ("bench/results", "chapters/01_one"):
        (root / folder).mkdir(parents=True)
    shutil.copy(ROOT / "bench/publish", root / "bench")
    for folder in ("publishing", "puzzling", "shared"):
        shutil.copytree(ROOT / "bench" / folder, root / "bench" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "bench/results/x.txt").write_text("title\nhead\npeak 1\n\ntail\n")
    (root / "README.md").write_text("no blocks\n")
    (root / "chapters/README.md").write_text("no blocks\n")
    readme = root / "chapters/01_one/README.md"

    def publish(option):
        return subprocess.run([sys.executable, root / "bench/publish", option], capture_output=True, text=True)

    readme.write_text("no blocks\n")
    assert publish("--check").returncode == 1, "a check that sees no block checks nothing"
    readme.write_text(BLOCK)
    done = publish("--check")
    assert done.returncode == 0 and "2 blocks, 0 stale" in done.stdout, done
    for wrong in (BLOCK.replace("peak 1", "peak 2", 1), BLOCK.replace("tail\n", "", 1)):
        readme.write_text(wrong)
        done = publish("--check")
        assert done.returncode == 1 and "chapters/01_one/README.md" in done.stdout and readme.read_text() == wrong, done
        assert publish("--fill").returncode == 0 and readme.read_text() == BLOCK
    assert publish("--nosuch").returncode == 1

    # Lines of an excerpt that say what is said elsewhere are left out; where there are none, that is an error.
    short = BLOCK.replace("/^head/ to /^$/ -->", "/^title/ to /^tail/ without /^head/ -->").replace("head\npeak 1\n", "title\npeak 1\n\ntail\n", 1)
    readme.write_text(short)
    assert publish("--check").returncode == 0, short
    readme.write_text(short.replace("without /^head/", "without /^nothing/"))
    done = publish("--check")
    assert done.returncode == 1 and "no line with /^nothing/ to leave out" in done.stderr, done
    readme.write_text(BLOCK)

    # What tests/run bench saw is stored, also where it falls short; where it did not run, what was published stays.
    (root / "tests").mkdir()
    host = root / "bench/results/host"
    host.mkdir()

    def benchmarks(script):
        (root / "tests/run").write_text(f"#!/bin/sh\n{script}\n")
        (root / "tests/run").chmod(0o755)
        done = publish("--bench")
        return done.returncode, (host / "benchmarks.json").read_text(), (host / "benchmarks.txt").read_text()

    assert benchmarks('echo "{}" >"$3"; echo "[1/1] a"; echo; echo "a table"; exit 1') == (0, "{}\n", "$ tests/run bench\na table\n")
    assert benchmarks("echo the build failed; exit 1") == (1, "{}\n", "$ tests/run bench\na table\n")
    assert benchmarks('echo "[]" >"$3"; exit 2') == (1, "{}\n", "$ tests/run bench\na table\n")

    # What bench/explain prints: a table as it is, all else below its command.
    (root / "bench/explain").write_text("import sys\nprint('| table |' if '--table' in sys.argv else f'explained: {sys.argv[1]}')\n")
    readme.write_text('<!-- run bench/explain --table -->\n<!-- end -->\n\n<!-- run bench/explain "a b" -->\nold\n<!-- end -->\n')
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0
    assert readme.read_text() == ('<!-- run bench/explain --table -->\n| table |\n<!-- end -->\n\n<!-- run bench/explain "a b" -->\n'
                                  '```text\n$ bench/explain "a b"\nexplained: a b\n```\n<!-- end -->\n')
    done = publish("--check")
    assert done.returncode == 0 and "2 blocks, 0 stale" in done.stdout, done

    # A table of docs/ whose words are in docs/data/, and one that cannot be made.
    (root / "docs/data").mkdir(parents=True)
    (root / "docs/data/glossary.toml").write_text('[[entry]]\nterm = "peak"\nis = "the most"\nterm_zh = "峰值"\nis_zh = "最多"\nchapter = "01"\n')
    readme.write_text("no blocks\n")
    paged = root / "docs/words.md"
    paged.write_text("<!-- page glossary zh -->\n<!-- end -->\n")
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0 and publish("--check").returncode == 0
    assert "| 峰值（peak） | 最多 | [01](../chapters/01_one) |" in paged.read_text(), paged.read_text()
    paged.write_text(paged.read_text().replace("最多", "最少"))
    assert publish("--check").returncode == 1
    paged.write_text("<!-- page glossary de -->\n<!-- end -->\n")
    done = publish("--fill")
    assert done.returncode == 1 and "docs/words.md: cannot make page glossary de" in done.stderr, done
    paged.unlink()

    # A lesson in PyTorch, and what it printed, stand in the README of its chapter.
    twin, printed = readme.with_name("lesson.py"), root / "bench/results/pytorch-lessons/01_one.txt"
    twin.write_text("import torch\n")
    printed.parent.mkdir()
    printed.write_text("peak 1 MiB\nPASS\n")
    readme.write_text("<!-- page pytorch-lesson en -->\n<!-- end -->\n")
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0 and publish("--check").returncode == 0
    quoted = readme.read_text()
    assert "```python\nimport torch\n```" in quoted and "](../../bench/results/pytorch-lessons/01_one.txt)" in quoted, quoted
    assert "```text\npeak 1 MiB\nPASS\n```" in quoted, quoted
    for file, text in ((twin, "import torch  # other\n"), (printed, "peak 2 MiB\nPASS\n")):
        kept = file.read_text()
        file.write_text(text)
        assert publish("--check").returncode == 1
        file.write_text(kept)
    printed.unlink()
    done = publish("--check")
    assert done.returncode == 1 and "chapters/01_one/README.md: cannot make page pytorch-lesson en" in done.stderr, done

    # Verdicts are a chapter's claims, in the words of docs/data/verdicts.toml with the figures of its result file.
    def claim(name, verdict, at_size, measured, text=None):
        return {"claim": name, "what": f"what {name} is", "low": 0.5, "high": None, "size": "bert-large" if at_size else None, "at_size": at_size,
                "measured": measured, "verdict": verdict, "verdict_text": text or verdict}

    result = host / "01_one.json"
    claims = [claim("it halves", "does not hold", 0.28, 0.5), claim("it is fast", "not judged", None, 0.25), claim("it fits", "holds for some sizes", 2.0, None, "holds from batch 3 on")]
    result.write_text(json.dumps({"claims": claims, "variants": [], "findings": {}}))
    said = root / "docs/data/verdicts.toml"
    said.write_text('[01]\n"it halves" = "{rest:.0%} is left, {run:.1f} here"\n"it is fast" = "{run:.2f} times"\n"it fits" = "in {v:.0f} GB"\n')
    readme.write_text("<!-- page verdicts en -->\n<!-- end -->\n")
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0 and publish("--check").returncode == 0
    for row in ("| it halves | **No**: 72 % is left, 0.5 here |", "| it is fast | **Open**: 0.25 times (a CPU's time; a GPU decides) |",
                "| it fits | **In part**: in 2 GB; it holds from batch 3 on |", "what it halves is</sub> | 0.28<br><sub>bert-large</sub> | at least 0.5 | 0.5 |"):
        assert row in readme.read_text(), readme.read_text()
    # In Chinese, with words for what the result file says in English; what has none is an error.
    in_chinese, chinese = root / "docs/data/verdicts.zh.toml", readme.with_name("README.zh-CN.md")
    (root / "docs/data/claims.zh.toml").write_text('[01]\n"it halves" = ["减半", "占比"]\n"it is fast" = ["快", "倍数"]\n"it fits" = ["放得下", "字节"]\n')
    in_chinese.write_text('[01]\n"it halves" = "剩下 {rest:.0%}，这里 {run:.1f}"\n"it is fast" = "{run:.2f} 倍"\n"it fits" = "{v:.0f} GB"\n'
                          '[phrases]\n"bert-large" = "大 BERT"\n"holds from batch {} on" = "batch 从 {} 起成立"\n')
    chinese.write_text("<!-- page verdicts zh -->\n<!-- end -->\n")
    assert publish("--fill").returncode == 0
    for row in ("| 减半 | **不成立**：剩下 72 %，这里 0.5 |", "| 快 | **未判定**：0.25 倍（这是 CPU 上的时间；要在 GPU 上判定） |", "| 放得下 | **部分成立**：2 GB；batch 从 3 起成立 |",
                "占比</sub> | 0.28<br><sub>大 BERT</sub> | 至少 0.5 | 0.5 |"):
        assert row in chinese.read_text(), chinese.read_text()
    in_chinese.write_text(in_chinese.read_text().replace('"bert-large"', '"other"'))
    done = publish("--check")
    assert done.returncode == 1 and "[phrases] has no words for 'bert-large'" in done.stderr, done
    in_words = root / "docs/data/claims.zh.toml"
    in_words.write_text(in_words.read_text().replace("占比", "14.75 的占比"))
    done = publish("--check")
    assert done.returncode == 1 and "other figures in '14.75 的占比' than in 'what it halves is'" in done.stderr, done
    chinese.unlink()

    result.write_text(json.dumps({"claims": [claim("it halves", "holds", 0.28, 0.5), *claims[1:]], "variants": [], "findings": {}}))
    assert publish("--check").returncode == 1, "another verdict"
    result.write_text(json.dumps({"claims": claims[1:], "variants": [], "findings": {}}))
    done = publish("--check")
    assert done.returncode == 1 and "no words, or no claim, for ['it halves']" in done.stderr, done
    result.unlink()

    # What the run of chapter 13 leaves open a longer one judges, and nothing else.
    readme.write_text("no blocks\n")
    (root / "chapters/13_other").mkdir()
    other, longer = root / "chapters/13_other/README.md", root / "bench/results/plan/13_losses.json"
    longer.parent.mkdir(exist_ok=True)
    longer.write_text(json.dumps({"claims": [claim("it learns", "holds", None, 0.25), claim("it is small", "holds", None, 9.0)], "config": {"model": "tiny"}}))
    (host / "13_other.json").write_text(json.dumps({"claims": [claim("it learns", "not measured", None, None), claim("it is small", "does not hold", None, 2.0)],
                                                    "variants": [], "findings": {}}))
    said.write_text('[13]\n"it learns" = "by {v:.0%}"\n"it is small" = "{v:.0f} GB"\n')
    other.write_text("<!-- page verdicts en -->\n<!-- end -->\n")
    assert publish("--fill").returncode == 0
    for row in ("| it learns | **Yes**: by 25 % |", "what it learns is</sub> | 0.25<br><sub>tiny</sub> |", "| it is small | **No**: 2 GB |"):
        assert row in other.read_text(), other.read_text()
    other.unlink()
    (host / "13_other.json").unlink()

    # A picture, its text alternative and its table are what the files say; what no picture can be drawn from is an error.
    for folder, file in (("06_caching_allocator", "host/06_caching_allocator.lesson.txt"), ("12_quantisation", "host/12_quantisation.json")):
        for made in (root / "chapters" / folder, (root / "bench/results" / file).parent):
            made.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "bench/results" / file, root / "bench/results" / file)
    other, figures = root / "chapters/06_caching_allocator/README.md", root / "bench/results/host/06_caching_allocator.lesson.txt"
    readme.write_text("no blocks\n")
    other.write_text("<!-- picture 06 -->\n<!-- end -->\n")
    (root / "README.md").write_text("<!-- picture 12 -->\n<!-- end -->\n")
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0 and publish("--check").returncode == 0
    picture = other.with_name("picture.svg")
    drawn, said = picture.read_text(), other.read_text()
    assert "](picture.svg)" in said and "stays at 32 MiB" in said and "| 44 MiB |" in said, said
    assert "](chapters/12_quantisation/picture.svg)" in (root / "README.md").read_text()
    assert xml.etree.ElementTree.fromstring(drawn).findtext("{http://www.w3.org/2000/svg}desc") in said.replace("&gt;", ">")
    # A Chinese page shows the same in its own words, and each page has a line that leads to the other.
    shutil.copy(ROOT / "docs/data/pictures.zh.toml", root / "docs/data")
    other.write_text("# Six\n\n" + said)
    chinese = other.with_name("README.zh-CN.md")
    chinese.write_text("# 六\n\n<!-- picture 06 zh -->\n<!-- end -->\n")
    assert publish("--fill").returncode == 0 and picture.read_text() == drawn
    assert "这时保留仍为 32 MiB。](picture.zh-CN.svg)" in chinese.read_text() and "| 向设备要新的页 | 44 MiB |" in chinese.read_text(), chinese.read_text()
    shown = other.with_name("picture.zh-CN.svg").read_text()
    assert ">存活的张量</text>" in shown and ">已保留 32 MiB</text>" in shown and "live tensor" not in shown, shown
    assert other.read_text().startswith("# Six\n\n[中文](README.zh-CN.md)\n\n<!-- picture") and chinese.read_text().startswith("# 六\n\n[English](README.md)\n\n<!-- picture")
    done = publish("--stale")
    assert done.returncode == 1 and "'Six' is new" in done.stdout, done
    done = subprocess.run([sys.executable, root / "bench/publish", "--translated", chinese], capture_output=True, text=True)
    assert done.returncode == 0 and publish("--stale").returncode == 0, done
    chinese.unlink()
    other.write_text(said)
    picture.write_text(drawn.replace("44 MiB", "45 MiB"))
    other.write_text(said.replace("| 44 MiB |", "| 45 MiB |"))
    (root / "chapters/12_quantisation/picture.svg").unlink()
    done = publish("--check")
    assert done.returncode == 1 and done.stdout.count("picture.svg") == 2 and "06_caching_allocator/README.md" in done.stdout, done
    assert publish("--fill").returncode == 0 and (picture.read_text(), other.read_text()) == (drawn, said)
    figures.write_text(figures.read_text().replace("8 tensors of 4", "16 tensors of 4"))
    done = publish("--check")
    assert done.returncode == 1 and "cannot draw picture 06" in done.stderr, done

# The table of what each chapter saves is made of the results beside it, and so is the front picture.
sys.path.insert(0, str(ROOT / "bench"))
loader = importlib.machinery.SourceFileLoader("publish", str(ROOT / "bench/publish"))
made_by = importlib.util.module_from_spec(importlib.util.spec_from_loader("publish", loader))
loader.exec_module(made_by)
tables = sorted((ROOT / "bench/results").glob("*/map.txt"))
assert tables
for table in tables:
    assert table.read_text() == made_by.chapter_map(table.parent), f"{table} is not what the results in its folder say"
front = made_by.pictures.drawn(ROOT, "front")[1].desc
assert re.search(r", 06_caching_allocator [1-9]\d?% less reserved,", front) and re.search(r", 15_sharing requests refused: [1-9] → 0,", front), front

# What a picture says stays inside it; a timeline keeps the peak and the refused request, and leaves the rest of the run out.
from publishing.pictures import svg, timeline  # noqa: E402

for words in ("w" * 60, "short"):
    try:
        svg.Picture("title", 100).text(450, 50, words)
        sys.exit(f"'{words}' runs out of the picture, and nobody said so")
    except ValueError as error:
        assert words in str(error)
none = dict.fromkeys(timeline.CATEGORIES, 0)
events = [{"ph": "X", "name": "setup"}, *({"ph": "C", "name": "gpu0 by category", "args": {**none, "data": n}} for n in range(90)),
          {"ph": "i", "name": "out of memory: x", "args": {"requested": 7}}, {"ph": "C", "name": "gpu0 by category", "args": none},
          *(event for phase, live in (("forward", 5), ("optimizer", 4), ("forward", 9)) for event in
            ({"ph": "X", "name": phase}, {"ph": "C", "name": "gpu0 by category", "args": {**none, "data": live}}))]
with tempfile.TemporaryDirectory() as name:
    made = pathlib.Path(name) / "made.csv"
    with made.open("w") as file:
        timeline.write(io.StringIO(json.dumps({"traceEvents": events})), file, "a command")
    first, again = timeline.read(made, "under the budget"), timeline.read(made, "again, without the budget")
assert len(first) == timeline.MOST_ROWS + 1 and first[-1][2] == 7 and first[-2][1]["data"] == first[-1][1]["data"] == 89, first
assert [(phase, live["data"]) for phase, live, _ in again] == [("forward", 5), ("optimizer", 4)], again
print("ok")
