"""Judges a folder of submissions: DIR/WHO/04-segments.cu, as the reader's folder puzzles/ has them, or DIR/04-segments.cu for one alone."""
import json
import os
import tempfile

from shared.terminal import as_text

from .words import explain, say


def submissions(folder, puzzles):
    """(who, puzzle, file), in order."""
    for who in [folder, *sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))]:
        for puzzle in puzzles:
            file = who / f"{puzzle.id}.cu"
            if file.is_file() and not file.is_symlink():
                yield ("." if who == folder else who.name), puzzle, file


def judge_all(folder, puzzles, judge, language, progress):
    """The rows of the table: {who, puzzle, passed, kind, why, peaks}."""
    rows = []
    for who, puzzle, file in submissions(folder, puzzles):
        progress(f"{as_text(who, keep='')} {puzzle.id}")
        verdict = judge.verdict(puzzle, file)
        rows.append({"who": who, "puzzle": puzzle.id, "passed": verdict["kind"] == "passed", "kind": verdict["kind"],
                     "why": explain(verdict, language, judge.seed),
                     "cases": verdict.get("cases", []) if verdict["kind"] == "passed" else []})
    return rows


def table(rows, language):
    if not rows:
        return say("class_none", language)
    lines = []
    width = max(len(as_text(row["who"], keep="")) for row in rows)
    for row in rows:
        first = say("class_passed", language) if row["passed"] else row["why"].splitlines()[0]
        lines.append(f"{as_text(row['who'], keep=''):<{width}}  {row['puzzle']:<18}  {as_text(first, keep='')}")
    who = dict.fromkeys(row["who"] for row in rows)
    lines.append("")
    for name in who:
        mine = [row for row in rows if row["who"] == name]
        lines.append(f"{as_text(name, keep=''):<{width}}  {sum(row['passed'] for row in mine)} / {len(mine)}")
    return "\n".join(lines)


def write_json(file, rows, seed, modes):
    data = {"schema_version": 1, "seed": seed, "modes": modes, "submissions": rows}
    with tempfile.NamedTemporaryFile("w", dir=file.resolve().parent, prefix=".class-", delete=False, encoding="utf-8") as new:
        json.dump(data, new, indent=1, ensure_ascii=False)
        new.write("\n")
    os.chmod(new.name, 0o644)
    os.replace(new.name, file)
