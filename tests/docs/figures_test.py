"""Figures that a person typed into prose: figures_test.py ROOT

Every figure with a unit of memory, a per cent sign or the word "times" in a README or in docs/, outside code and generated blocks, is one of
  - what figures.toml says of it, where it has an entry: an expression over results, which must give the figure, or where a given comes from;
  - the right-hand side of arithmetic that stands in the prose, and is right ("24 x 1,024 - 14 x 1,024 - 450 = 9,790 MiB");
  - a figure with the same kind of unit in a generated block of the document, or in the published results of its chapter, rounded to as many
    digits as the prose has. A figure of one digit, or of two, is in any large file by accident: one digit never counts, and two only where
    the file's line and the sentence have a word in common.
Exact bytes of a million and more are figures, too. Each chapter's README has a worked example: arithmetic whose result is, to the last byte, the
peak of a variant in the chapter's published results.

Arithmetic that is wrong fails, with a unit or without one, and with letters where both sides have the same ones ("W^2 + W + 10 W = W^2 + 11 W"). So
does an entry of figures.toml that no prose uses. Chinese pages have the figures of their English ones (translations_test.py).
"""
import functools
import json
import math
import pathlib
import re
import sys
import tomllib

from readmes_test import prose

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
from publishing import pages  # noqa: E402

BYTES = {"bytes": 1} | {f"{p}iB": 2 ** (10 * n) for n, p in enumerate("KMGT", 1)} | {f"{p}B": 10 ** (3 * n) for n, p in enumerate("KMGT", 1)}
UNITS = BYTES | {"%": 0.01, "times": 1, "×": 1}
UNIT = "(?:" + "|".join(u for u in UNITS if u != "bytes") + r")(?![\w*])"
NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e\d+)?(?<!,)"
FIGURES = re.compile(rf"(?<![\w.,^])({NUMBER}(?:(?:, | to | and | or |, or |, and ){NUMBER})*)[ -]?({UNIT})")
EXACT = re.compile(r"(?<![\w.,^])(\d{1,3}(?:,\d{3}){2,}) bytes\b")
OPERATOR = r"[-+*/x×^²√()]"
EQUATION = re.compile(rf"(?<![\w.,])((?:(?:{NUMBER}|{UNIT}|bytes\b|M\b|{OPERATOR})\s*)+)="
                      rf"\s*({NUMBER})(?:[ ]({UNIT}|bytes))?(?!\s*{OPERATOR}\s*[\d(])")
TERM = rf"(?:{NUMBER}|(?<![A-Za-z])[A-Za-z](?![A-Za-z])|{OPERATOR})"
IDENTITY = re.compile(rf"(?<![\w.,])((?:{TERM}\s*)+)=\s*((?:{TERM}\s*)+)")
GENERATED = re.compile(r"^<!-- (?:picture|run|page) [^\n]*-->\n.*?^<!-- end -->$|^<!-- from [^\n]*-->\n```[^\n]*\n.*?^```$", re.M | re.S)
KIND = {u: "bytes" if u in BYTES else "%" if u == "%" else "times" for u in UNITS}
COMMON_WORDS = set("with that this than then from have each they them when where what which there their these those bytes only more less takes budget"
                   " memory peak allocated host device model chapter batch times at most least".split())


def number(text):
    return float(text.replace(",", ""))


def rounds_to(value, text, unit):
    """Whether the text is what value, in bytes or as a ratio, is when rounded to as many digits as the text has."""
    digits = len(text.split(".")[1]) if "." in text else 0
    return abs(value / UNITS[unit] - number(text)) <= 0.5 * 10 ** -digits * (1 + 1e-6)


def words(text):
    return {word[:6] for word in re.findall(r"[a-z]{4,}", text.lower())} - {word[:6] for word in COMMON_WORDS}


def plain(text):
    """What a person wrote, in one line; figures in code stay for context, and are marked so that nothing finds them."""
    text = prose(re.sub(r"<sup>(\w+)</sup>", r"^\1", text)).replace("**", "")
    text = re.sub(r"`[^`\n]*`", lambda code: re.sub(r"\d", "#", code[0]), text)
    return " ".join(re.sub(r"\n\s*\n", " ¶ ", text).split())


def cells(text):
    """(kind of unit, value, words of the line) for each number of a file that has a unit, beside it or at the head of its table."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.split("\n")
        heads = {u for u in re.findall(rf"(?<![\d\w])(?<!\d )({UNIT})", lines[0]) if KIND[u] != "times"}
        head_words = words(lines[0])
        for line in lines:
            said = words(line)
            for m in re.finditer(rf"(?<![\w.])({NUMBER})( ?(?:{UNIT}|bytes\b))?", line):
                if m[2]:
                    found.append((KIND[m[2].strip()], number(m[1]) * UNITS[m[2].strip()], said | head_words))
                else:
                    found += [(KIND[u], number(m[1]) * UNITS[u], said | head_words) for u in heads]
            found += [("times", number(m), said) for m in re.findall(rf"(?:\bx |× )({NUMBER})", line)]
            if claim := re.match(rf" {{6}}\S.*: ({NUMBER})(?: for |, expected)", line):  # what a claim measured: a ratio
                found += [(kind, number(claim[1]), said | head_words) for kind in ("times", "%")]
    return found


def json_cells(text):
    return [("bytes", bytes_, words(variant["name"] + " " + name)) for variant in json.loads(text).get("variants", [])
            for name, bytes_ in [("peak", variant.get("peak_allocated_bytes", 0)), *variant.get("by_category_bytes", {}).items()]]


def in_cells(found, text, unit, sentence):
    digits = text.replace(",", "").replace(".", "").lstrip("0")
    if len(digits if "." in text else digits.rstrip("0")) <= 1:
        return False
    short = len(digits) <= 2
    said = words(sentence) if short else None
    return any(kind == KIND[unit] and rounds_to(value, text, unit) and (not short or said & line) for kind, value, line in found)


def evaluate(expression):
    """Arithmetic as it is written in prose, and whether it has a unit of memory."""
    python = re.sub(r"(?<=\d),(?=\d\d\d)", "", expression)
    for sign, meant in {"x": "*", "×": "*", "^": "**", "²": "**2", "√": "sqrt"}.items():
        python = python.replace(sign, meant)
    python = re.sub(rf"({NUMBER})\s*({UNIT}|bytes|M\b)", lambda m: f"({m[1]}*{1e6 if m[2] == 'M' else UNITS[m[2]]})", python)
    python = re.sub(rf"\)\s*({UNIT}|bytes)", lambda m: f")*{UNITS[m[1]]}", python)
    return eval(python, {"__builtins__": {}, "sqrt": math.sqrt}), bool(re.search(rf"{UNIT}|bytes", expression))


def equations(text):
    """(where the result begins, what stands there, whether it is right) for arithmetic in prose of which every operand is a number."""
    for m in EQUATION.finditer(text):
        left = m[1].strip().removeprefix("- ")
        algebra = re.match(r"[-+*/x×^²)]", left) or re.search(r"(?:\b[A-Za-z]|[-+*/×)])$", text[:m.start()].rstrip())
        if algebra or not re.search(rf"{OPERATOR}|{UNIT}|bytes|M\b", left):
            continue
        try:
            value, in_bytes = evaluate(left)
        except (SyntaxError, TypeError, NameError, ZeroDivisionError):
            continue
        unit = m[3] or "times"
        right = rounds_to(value, m[2], unit) and (number(m[2]) > 0 or value == 0)
        right = right or (KIND[unit] == "bytes" and not in_bytes and rounds_to(value * UNITS[unit], m[2], unit))
        right = right or ("e" in m[2] and math.isclose(value, number(m[2]), rel_tol=0.005))
        yield m.start(2), m[0].strip(), right


def identities(text):
    """(what stands there, whether it is right) for arithmetic with the same letters on both sides, at some values of theirs."""
    def value(side, letters):
        side = re.sub(r"(?<=\d),(?=\d\d\d)", "", side).replace("×", "*").replace("²", "^2").replace("^", "**").replace("√", "sqrt")
        side = re.sub(r"\bx\b", "*", side)
        side = re.sub(r"(?<=[\w)])\s+(?=[A-Za-z(])|(?<=\))\s+(?=\d)|(?<=\d)(?=[A-Za-wyz](?![a-z]))", "*", side)
        return eval(side, {"__builtins__": {}, "sqrt": math.sqrt} | letters)

    for m in IDENTITY.finditer(text):
        left, right = (set(re.findall(r"[A-Za-wyz]", side)) for side in m.groups())
        if not left or left != right:  # a definition, or an equation to be solved
            continue
        try:
            holds = all(math.isclose(*(value(side.strip(), {c: 2.5 + k * (i + 1) for i, c in enumerate(sorted(left))}) for side in m.groups()), rel_tol=1e-9)
                        for k in (1, 3, 7))
        except (SyntaxError, TypeError, NameError, ZeroDivisionError):
            continue
        yield m[0].strip(), holds


# What expressions of figures.toml can call.
NAMED = ("cell", "lesson", "peak", "reserved", "flops", "rate", "config", "finding", "claim", "table", "card")


class Results:
    """What expressions of figures.toml can name."""

    def __init__(self, folder):
        self.folder = folder

    @functools.cache
    def text(self, file):
        return (self.folder / file).read_text()

    def cell(self, file, pattern):
        """The figure in the pattern's group, in a log of somebody else's program: our own write result files."""
        if not file.startswith("peers/"):
            raise ValueError(f"{file}: of our own programs a result file has the figure")
        found = re.search(pattern, self.text(f"{file}.txt"), re.M)
        if not found:
            raise ValueError(f"{file}.txt has no /{pattern}/")
        value, _, unit = re.sub(r"(?<=\d)(?=[KMGT%])", " ", found[1].strip()).partition(" ")
        return number(value) * UNITS[unit.strip() or "times"]

    def lesson(self, of, line, figure):
        """The figure, where the chapter's lesson has printed this very line on the host: a lesson writes no result file."""
        (file,) = self.folder.glob(f"host/{of}_*.lesson.txt")
        if line not in file.read_text().splitlines():
            raise ValueError(f"{file.name} has no line '{line}'")
        return figure

    @functools.cache
    def record(self, of):
        """What a chapter ("09") found on the host, or what is in "plan/09_resnet50" or "host/allocators", as the result file has it."""
        (file,) = self.folder.glob(f"{of}.json" if "/" in of else f"host/{of}_*.json")
        return json.loads(file.read_text())

    def variant(self, of, name):
        (row,) = [v for v in self.record(of)["variants"] if v["name"] == name]
        return row

    def peak(self, of, variant, category=None):
        """A variant's peak in bytes, or a category's bytes at that peak."""
        row = self.variant(of, variant)
        return row["by_category_bytes"][category] if category else row["peak_allocated_bytes"]

    def reserved(self, of, variant):
        return self.variant(of, variant)["peak_reserved_bytes"]

    def flops(self, of, variant):
        return self.variant(of, variant)["flops"]

    def rate(self, of, variant):
        """Samples in a second, on the host."""
        return self.variant(of, variant)["throughput"]["median"]

    def config(self, of, option):
        """An option of a run, or of a plan."""
        return self.record(of)["config"][option]

    def finding(self, of, name):
        return self.record(of)["findings"][name]

    def claim(self, of, words, at="at_size"):
        """A claim's figure at the size that it names, or of the run itself (at="measured"); `words` are in the claim, or in what is measured."""
        (found,) = [c for c in self.record(of)["claims"] if words in c["claim"] or words in c["what"]]
        return found[at]

    def table(self, of, table, row, column):
        """A cell of a table that a chapter found, in bytes or as a ratio; `row` is its first cell."""
        (found,) = [t for t in self.record(of)["tables"] if t["name"] == table]
        at = [c["name"] for c in found["columns"]].index(column)
        (cell,) = [r[at] for r in found["rows"] if r[0] == row]
        return cell / 100 if found["columns"][at]["unit"] == "percent" else cell

    @functools.cache
    def card(self, name, column):
        """A figure of common/plan/cards.inc, in bytes (of bandwidths: in a second)."""
        (row,) = [row for row in pages.cards(self.folder.parent.parent) if row["title"] == name]
        return row[column] * BYTES[{"smi": "MiB", "total": "GiB"}.get(column, "GB")]

    def value(self, expression, it):
        names = {u: s for u, s in BYTES.items() if u != "bytes"} | {"sqrt": math.sqrt, "ceil": math.ceil, "min": min, "abs": abs}
        return eval(expression, {"__builtins__": {}, "it": it} | names | {name: getattr(self, name) for name in NAMED})


def entry_errors(said, entry, text, results, taken):
    """What is wrong with one entry; `taken` gets the places of the figures that it explains."""
    places = [m.start() for m in re.finditer(re.escape(said), text)]
    if not places:
        return ["is stale: no prose says so"]
    wrong = []
    for place in places:
        inside = [f for f in figures(text) if place <= f[0] and f[0] + len(f[1]) <= place + len(said)]
        if not inside:
            return ["has no figure with a unit"]
        taken |= {f[0] for f in inside}
        if isinstance(entry, str) and re.match(r"(?:given|theirs): \S", entry):
            continue
        expressions = [entry] if isinstance(entry, str) else entry
        if len(expressions) != len(inside):
            wrong.append(f"has {len(expressions)} expressions for {len(inside)} figures")
            continue
        for (_, shown, unit), expression in zip(inside, expressions):
            if re.match(r"(?:given|theirs): \S", expression):
                continue
            try:
                value = results.value(expression, number(shown) * UNITS[unit])
            except (ValueError, SyntaxError, NameError, TypeError, KeyError, OSError) as error:
                wrong.append(f"cannot be evaluated: {error}")
                continue
            if isinstance(value, bool):
                if not value or not re.search(r"\bit\b", expression):
                    wrong.append(f"{shown} {unit}: '{expression}' does not hold")
            elif not rounds_to(value, shown, unit):
                wrong.append(f"{shown} {unit} should be {value / UNITS[unit]:.6g} {unit}")
    return wrong


@functools.cache
def figures(text):
    """(place, digits, unit) of each figure; in "6.15 and 22.15 GiB" both have the unit. Bytes are figures from a million on."""
    exact = [(m.start(1), m[1], "bytes") for m in EXACT.finditer(text)]
    return sorted(exact + [(m.start(1) + n.start(), n[0], m[2]) for m in FIGURES.finditer(text) for n in re.finditer(NUMBER, m[1])])


def sentence_at(text, place):
    start = max(text.rfind(mark, 0, place) for mark in ("¶ ", ". ", "| ", ": "))
    ends = [e for e in (text.find(mark, place) for mark in (" ¶", ". ", " |")) if e >= 0]
    return text[max(start, 0):min(ends, default=len(text))]


def check(text, source_cells, entries, results):
    """([what is wrong], {how each figure is accounted for: how many}, [figures that are in the results])."""
    wrong, taken, right = [], set(), set()
    for said, entry in entries.items():
        wrong += [f"entry '{said}' {what}" for what in entry_errors(said, entry, text, results, taken)]
    for place, shown, holds in equations(text):
        right.add(place)
        if not holds:
            wrong.append(f"is wrong: {shown}")
    wrong += [f"is wrong: {shown}" for shown, holds in identities(text) if not holds]
    counts, published = {"entry": 0, "arithmetic": len(right), "published": 0}, []
    for place, shown, unit in figures(text):
        if place in taken:
            counts["entry"] += 1
        elif place in right:
            pass
        elif in_cells(source_cells, shown, unit, sentence_at(text, place)):
            counts["published"] += 1
            published.append((place, shown, unit))
        else:
            wrong.append(f"{shown} {unit}: in no result of this chapter, and not in figures.toml: ...{text[max(0, place - 70):place + 40]}...")
    return wrong, counts, published


def peaks_of(results, chapter):
    """The published peaks of a chapter's variants, in bytes."""
    files = [file for folder in ("host", "plan") for file in results.folder.glob(f"{folder}/{chapter}_*.json")]
    return {variant.get("peak_allocated_bytes") for file in files for variant in json.loads(file.read_text()).get("variants", [])} - {None, 0}


def worked_examples(text, peaks):
    """How many sums of the prose end in one of the peaks."""
    ends = [re.match(NUMBER, text[place:]) for place, _, right in equations(text) if right]
    return sum(end is not None and number(end[0]) in peaks for end in ends)


def try_itself():
    file = "variant  peak\nlean     7.15 GiB\ntable  MiB  %\nlean    96  12\n"
    found = cells(file)
    assert in_cells(found, "7.15", "GiB", "") and in_cells(found, "7.68", "GB", "") and not in_cells(found, "7.15", "MiB", ""), found
    assert not in_cells(found, "7.16", "GiB", "") and not in_cells(found, "7", "GiB", "lean"), found
    assert in_cells(found, "7.2", "GiB", "lean") and not in_cells(found, "7.2", "GiB", "textbook") and not in_cells(found, "7.3", "GiB", "lean")

    def wrong(text, entries=None):
        return check(plain(text), found, entries or {}, Results(pathlib.Path("/nowhere")))[0]

    assert wrong("It has 7.15 GiB, or `--budget 9GiB`.\n```\n3 GiB\n```\n") == []
    assert len(wrong("It has 7.16 GiB.")) == 1 and len(wrong("6.15 and 7.15 GiB")) == 1 and len(wrong("4 % less, 3 times")) == 2
    assert wrong("24 x 1,024 - 14 x 1,024 - 450 = 9,790 MiB") == [] and wrong("(7.15 - 1) / 2 = 3.08 GiB; 2^18 x 8 bytes = 2 MiB") == []
    assert all(len(wrong(text)) == 1 for text in ("24 x 1,024 - 450 = 9,790 MiB", "1 + 2 = 4", "2 + 1 = 0 MiB")) and wrong("2 W x 3 = 7") == []
    assert [holds for _, holds in identities("512 W + W + W^2 + W + 10 W + 10 = W^2 + 524 W + 10; 12 (8 C - 9) / 8 = 12 C - 13.5")] == [True, True]
    assert len(wrong("P is 512 W + W + W^2 + W + 10 W + 10 = W^2 + 525 W + 10 in all")) == 1 and wrong("R = B S rows, C = 4 D") == []
    assert wrong("a card of 9 GB", {"card of 9 GB": "given: a card"}) == [] and wrong("twice 4 is 8 MiB", {"is 8 MiB": "2 * 4 * MiB"}) == []
    assert len(wrong("9,000,000 bytes")) == 1 and wrong("9,000 bytes; 2 x 4,500,000 = 9,000,000 bytes") == []
    assert worked_examples("2 x 4,500,000 = 9,000,000 bytes", {9000000}) == 1 and worked_examples("9,000,000 bytes", {9000000}) == 0
    assert worked_examples("2 x 4,500,001 = 9,000,000 bytes", {9000000}) == 0 and worked_examples("2 x 4,500,000 = 9,000,000 bytes", {1}) == 0
    assert len(wrong("is 9 MiB", {"is 9 MiB": "2 * 4 * MiB"})) == 1 and len(wrong("nothing", {"card of 9 GB": "given: a card"})) == 1
    assert wrong("over 9 MiB", {"over 9 MiB": "8 * MiB < it"}) == [] and len(wrong("over 7 MiB", {"over 7 MiB": "8 * MiB < it"})) == 1


def main():
    try_itself()
    root = pathlib.Path(sys.argv[1]).resolve()
    results = Results(root / "bench/results")
    table = tomllib.loads((root / "tests/docs/figures.toml").read_text(encoding="utf-8"))
    total, wrong, near, tried = {}, [], 0, 0
    documents = [*root.glob("README*.md"), *root.glob("chapters/README.md"), *root.glob("chapters/*/README.md"), *(page for page in root.glob("docs/**/*.md") if not page.name.endswith(".zh-CN.md"))]
    wrong += [f"figures.toml: there is no {name}" for name in table if root / name not in documents]
    for document in sorted(documents):
        text, name = document.read_text(encoding="utf-8"), str(document.relative_to(root))
        found = cells("\n\n".join(GENERATED.findall(text)))
        if chapter := re.match(r"chapters/(\d\d)_|docs/chapters/(\d\d)\.md|docs/(fit)", name):
            for file in sorted(results.folder.glob(f"*/{next(filter(None, chapter.groups()))}_*")):
                if file.parent.name in ("host", "plan") and file.suffix != ".csv":
                    found += (json_cells if file.suffix == ".json" else cells)(file.read_text())
        said = plain(text)
        if re.match(r"chapters/\d\d_", name) and not worked_examples(said, peaks_of(results, name[9:11])):
            wrong.append(f"{name}: no sum ends in the peak of a variant of this chapter, to the last byte")
        errors, counts, published = check(said, found, table.get(name, {}), results)
        wrong += [f"{name}: {what}" for what in errors]
        total = {kind: total.get(kind, 0) + n for kind, n in counts.items()}
        for place, shown, unit in published:  # how many would pass if their last digit were another
            digits = len(shown.split(".")[1]) if "." in shown else 0
            for other in (number(shown) + 10 ** -digits, number(shown) - 10 ** -digits):
                tried += 1
                near += in_cells(found, f"{other:.{digits}f}", unit, sentence_at(said, place))
    if near > 0.2 * tried:
        wrong.append(f"{near} of {tried} figures with another last digit would pass as published")
    print(*wrong, f"{total}; of figures with another last digit {near} of {tried} would pass as published", sep="\n")
    sys.exit(1 if wrong or not all(total.values()) else 0)


if __name__ == "__main__":
    main()
