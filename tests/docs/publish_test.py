"""bench/publish --check and --fill: a block that is not what bench/results/ has is found, and filled."""

import pathlib
import shutil
import subprocess
import sys
import tempfile

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
    shutil.copy(ROOT / "bench/publish", root / "bench/publish")
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

    # What bench/explain prints: a table as it is, all else below its command.
    (root / "bench/explain").write_text("import sys\nprint('| table |' if '--table' in sys.argv else f'explained: {sys.argv[1]}')\n")
    readme.write_text('<!-- run bench/explain --table -->\n<!-- end -->\n\n<!-- run bench/explain "a b" -->\nold\n<!-- end -->\n')
    assert publish("--check").returncode == 1 and publish("--fill").returncode == 0
    assert readme.read_text() == ('<!-- run bench/explain --table -->\n| table |\n<!-- end -->\n\n<!-- run bench/explain "a b" -->\n'
                                  '```text\n$ bench/explain "a b"\nexplained: a b\n```\n<!-- end -->\n')
    done = publish("--check")
    assert done.returncode == 0 and "2 blocks, 0 stale" in done.stdout, done
print("ok")
