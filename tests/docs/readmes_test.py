"""The shape and the length of READMEs: readmes_test.py ROOT

  - A chapter's README has the eight sections of SECTIONS, in this order, a picture in the second, and at most 1,500 words.
  - The front README, in each language, has at most 150 lines.
  - No sentence of stumbles.txt, which readers stumbled over, is in any document, source or program's output.

What counts as a word: whatever has a letter or a figure in it, in prose, lists and tables that a person wrote. Code, what stands between
marks because bench/publish made it, the line that leads to the page in the other language and the targets of links do not count.
"""
import pathlib
import re
import sys

LEFT_OUT = ("stumbles.txt", "course_text.txt", "lessons.txt")  # the list, and frozen texts that models are trained on
MOST_WORDS, MOST_LINES = 1500, 150
SECTIONS = ["The error you see", "The idea", "The lesson", "The bytes", "What it measured", "When not to use it", "The same in PyTorch", "Exercises"]


def prose(text):
    text = re.sub(r"^<!-- (?:picture|run|page) [^\n]*-->\n.*?^<!-- end -->$", "", text, flags=re.M | re.S)
    text = re.sub(r"^(```|~~~)[^\n]*\n.*?^\1\s*$", "", text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->|^\[(?:English|中文)\]\([^)]*\)$", "", text, flags=re.S | re.M)
    text = re.sub(r"</?(?:details|summary|su[bp]|br|a|img|picture|source)\b[^>]*>", " ", text)
    return re.sub(r"\]\([^)\s]*\)", "]", text)


def words(text):
    """How many words of prose: a sum that stands indented by four is code, too."""
    return sum(1 for word in re.sub(r"^ {4}.*$", "", prose(text), flags=re.M).split() if re.search(r"\w", word))


def wrong_with(text):
    """What is wrong with a chapter's README, a line each."""
    without_code = re.sub(r"^(```|~~~)[^\n]*\n.*?^\1\s*$", "", text, flags=re.M | re.S)
    sections = re.findall(r"^## (.+)$", without_code, re.M)
    wrong = [] if sections == SECTIONS else [f"has the sections {sections}, not {SECTIONS}"]
    if (count := words(text)) > MOST_WORDS:
        wrong.append(f"has {count} words, more than {MOST_WORDS}")
    idea = re.search(r"^## The idea$(.*?)^## ", text, re.M | re.S)
    if not idea or "<!-- picture " not in idea[1]:
        wrong.append("has no picture in 'The idea'")
    return wrong


def stumbles_in(root, sentences):
    """Where a sentence of the list is, however its lines are broken."""
    for file in sorted(root.rglob("*")):
        parts = file.relative_to(root).parts
        if parts[0] in ("build", ".git") or file.name in LEFT_OUT or file.suffix not in (".md", ".h", ".cpp", ".cu", ".py", ".txt", ".sh", ".ipynb", ".toml", "") or not file.is_file():
            continue
        try:
            text = " ".join(file.read_text(encoding="utf-8").replace("*", "").replace("//", " ").split())
        except UnicodeDecodeError:
            continue
        yield from (f"{file.relative_to(root)}: '{said}'" for said in sentences if said in text)


def try_itself():
    good = "# x\n" + "".join(f"## {s}\n" + ("<!-- picture 00 -->\nmade words\n<!-- end -->\n" if s == "The idea" else "") for s in SECTIONS)
    good += "\n```text\nnot counted\n```\n<!-- from a, /b/ -->\n~~~\nnor this\n~~~\n\n    1 + 2 = 3\n\n"
    counted = words(good)
    assert wrong_with(good) == [] and counted == 1 + sum(len(s.split()) for s in SECTIONS), counted
    full = good + "word [link](https://not.counted/at-all) | - |\n" + "word " * (MOST_WORDS - counted - 2)
    assert words(full) == MOST_WORDS and wrong_with(full) == [], words(full)
    assert wrong_with(full + "more")[0].startswith(f"has {MOST_WORDS + 1} words")
    assert len(wrong_with(good.replace("<!-- picture 00 -->", ""))) == 1 and len(wrong_with(good.replace("## The bytes\n", ""))) == 1


def main():
    try_itself()
    root = pathlib.Path(sys.argv[1]).resolve()
    wrong, counts = [], {}
    for readme in sorted(root.glob("chapters/*/README.md")):
        text = readme.read_text(encoding="utf-8")
        counts[readme.parent.name] = words(text)
        wrong += [f"{readme.relative_to(root)} {what}" for what in wrong_with(text)]
    for front in sorted(root.glob("README*.md")):
        if (lines := front.read_text(encoding="utf-8").count("\n")) > MOST_LINES:
            wrong.append(f"{front.name} has {lines} lines, more than {MOST_LINES}")
    sentences = [line for line in (root / "tests/docs/stumbles.txt").read_text().splitlines() if line and line[0] != "#"]
    planted = root / "tests/docs"
    assert "x" not in sentences and list(stumbles_in(planted, ["What counts as a word: whatever has"])), "the search finds nothing"
    wrong += [f"{where}: a sentence that readers stumbled over" for where in stumbles_in(root, sentences)]
    print(*wrong, *(f"{name}: {count} words" for name, count in counts.items()), sep="\n")
    sys.exit(1 if wrong or not counts or not sentences else 0)


if __name__ == "__main__":
    main()
