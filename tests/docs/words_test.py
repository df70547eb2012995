"""Statements that are wrong, and kinds of them: words_test.py ROOT

  - No statement of retired.toml is in any document, source or program's output.
  - A claim that says "cannot", "never" or "impossible" does not hold in the published results: no lever, ours or anybody's, could do otherwise, and
    no measurement of ours shows that. What our levers cannot do is said of these levers.
  - docs/reading.md says what a budget limits, and so it is in the published results: what is allocated, and in chapter 06 what its own allocators
    reserve.
"""
import json
import pathlib
import re
import sys
import tomllib

KINDS = (".md", ".h", ".cpp", ".cu", ".py", ".txt", ".sh", ".ipynb", ".toml", "")
LEFT_OUT = ("retired.toml", "course_text.txt", "CHANGELOG.md", "defects.toml")  # the list; a frozen text; what has changed; what is planted
ABSOLUTE = re.compile(r"\b(?:cannot|can't|never|impossible)\b")
OWN_ALLOCATORS = ("best fit", "ours", "one length", "in pieces", "too large")


def plain(text):
    text = re.sub(r"^\s*(?://[/!]?|#)\s?", "", text, flags=re.M)
    text = re.sub(r'"\s*\n\s*"', "", text)  # a string in several pieces
    return " ".join(re.sub(r"[*`]|(?<!\w)_|_(?!\w)|\\n|\\\"", "", text).split())


def texts(root):
    for file in sorted(root.rglob("*")):
        parts = file.relative_to(root).parts
        if parts[0] in ("build", ".git") or file.name in LEFT_OUT or file.suffix not in KINDS or not file.is_file():
            continue
        try:
            yield str(file.relative_to(root)), plain(file.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            pass


def retired_in(name, text, statements):
    for statement in statements:
        if name not in statement.get("except", ()) and (found := re.search(statement["find"], text)):
            yield f"{name}: '{found[0]}' is wrong. {statement['is']}"


def absolute_claims(result):
    """Claims of a result file that say what cannot be, and are said to hold."""
    return [claim["claim"] for claim in result["claims"] if ABSOLUTE.search(claim["claim"]) and claim["verdict"] not in ("does not hold", "not judged")]


def over_budget(chapter, variant):
    """What is above the budget of a variant that ran under it: 'allocated', 'reserved', or nothing."""
    budget = variant.get("budget_bytes")
    if variant["outcome"] != "ok" or not budget or variant.get("peak_allocated_bytes") is None:
        return []
    return [figure for figure in ("allocated", "reserved") if variant[f"peak_{figure}_bytes"] > budget]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    statements = tomllib.loads((root / "tests/docs/retired.toml").read_text(encoding="utf-8"))["statement"]
    wrong = []
    for statement in statements:
        assert list(retired_in("x.md", plain(statement["was"]), [statement])), f"'{statement['find']}' does not find what was there"
        assert not list(retired_in("x.md", plain(statement["is"]), [statement])), f"'{statement['find']}' finds what is right"
        wrong += [f"retired.toml: there is no {name}" for name in statement.get("except", ()) if not (root / name).exists()]
    read = 0
    for name, text in texts(root):
        read += 1
        wrong += retired_in(name, text, statements)

    planted = {"claims": [{"claim": "X cannot be trained", "verdict": "holds"}, {"claim": "X cannot be trained", "verdict": "does not hold"}]}
    assert len(absolute_claims(planted)) == 1
    reserved_above = 0
    for file in sorted((root / "bench/results/host").glob("[0-9][0-9]_*.json")):
        result = json.loads(file.read_text())
        wrong += [f"{file.name}: '{claim}' is said to hold: name whose levers cannot" for claim in absolute_claims(result)]
        for variant in result["variants"]:
            above = over_budget(result["chapter"], variant)
            reserved_above += above == ["reserved"]
            own = result["chapter"].startswith("06_") and variant["name"].startswith(OWN_ALLOCATORS)
            if "allocated" in above or (above and own):
                wrong.append(f"{file.name}: {variant['name']} ran with {above[0]} bytes above its budget; docs/reading.md says otherwise")
    reading = plain((root / "docs/reading.md").read_text(encoding="utf-8"))
    if "The budget limits what is allocated. What is reserved may be above it" not in reading or not reserved_above:
        wrong.append("docs/reading.md does not say that a budget limits what is allocated, not what is reserved")
    print(*wrong, f"{len(statements)} statements looked for in {read} files; {reserved_above} published rows reserve more than their budget", sep="\n")
    sys.exit(1 if wrong or read < 300 else 0)


if __name__ == "__main__":
    main()
