"""Every piece of popular advice in articles.txt is answered in its chapter: articles_test.py ROOT."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
rows = [line.split(None, 2) for line in (root / "tests/docs/articles.txt").read_text().splitlines() if line and line[0] != "#"]
missing = []
for number, chapter, said in rows:
    folder = next(root.glob(f"chapters/{chapter}_*"))
    text = "".join((folder / name).read_text() for name in ("README.md", "claims.h") if (folder / name).exists())
    if not re.search(rf"(<!--|//) article (\d+, )*{number}\b", text):
        missing.append(f"{folder.name} does not answer {number}: {said}")
print("\n".join(missing) or f"{len(rows)} answers")
sys.exit(1 if missing or not rows else 0)
