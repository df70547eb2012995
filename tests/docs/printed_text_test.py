"""Figures come from result files, not out of what our own programs print: printed_text_test.py ROOT

What a chapter finds is a table in its JSON (common/harness/table.h). LEFT has the files that still read printed text with patterns, and in how
many places: there may be no other file, and no more places. Whoever moves some to tables writes the smaller number here, so it only falls.
Not looked at: bench/explaining reads the error messages of other programs, bench/peers runs them and keeps what they said, bench/puzzling reads readers' files and
what compilers and sanitizers say of them.
"""
import pathlib
import re
import sys

READS = {".py": re.compile(r"\bresults\.(?:text|rows)\(|\bre\.(?:search|match|fullmatch|findall|finditer|compile)\("),
         ".toml": re.compile(r"\bfind = |\bcell\((?!'peers/)")}
FOREIGN = ("bench/explain", "bench/explaining/", "bench/peers/", "bench/puzzling/", "bench/results/")
LEFT = {
    "bench/benchmarks/run": 3,  # chapters' settings, and an option: nothing printed
    "bench/publish": 10,  # the blocks in READMEs, and chapters' settings: nothing printed
    "bench/publishing/markdown.py": 1,  # words of result files, for which there are Chinese ones
    "bench/publishing/pages.py": 4,  # articles.toml; and the tables of cards and their sources, which no program prints
    "bench/publishing/pictures/capstone.py": 5,
    "bench/publishing/pictures/layouts.py": 10,
    "bench/publishing/pictures/reading.py": 1,
    "bench/publishing/translations.py": 10,  # pages of two languages: nothing printed
    "docs/data/articles.toml": 8,
    "tests/docs/figures.toml": 28,
}


def places(root):
    files = [file for folder in ("bench", "docs/data", "notebooks") for file in sorted((root / folder).rglob("*"))
             if file.suffix in READS or (file.is_file() and not file.suffix and file.read_bytes().startswith(b"#!/usr/bin/env python3"))]
    found = {}
    for file in [*files, root / "tests/docs/figures.toml"]:
        name = str(file.relative_to(root))
        if not name.startswith(FOREIGN):
            lines = (line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
            count = sum(len(READS[file.suffix or ".py"].findall(line)) for line in lines)
            found |= {name: count} if count else {}
    return found


now = places(pathlib.Path(sys.argv[1]).resolve())
wrong = [f"{name}: {now.get(name, 0)} places read printed text, and LEFT says {LEFT.get(name, 0)}" for name in sorted(now.keys() | LEFT.keys())
         if now.get(name, 0) != LEFT.get(name, 0)]
print(*wrong, f"{sum(now.values())} places in {len(now)} files still read printed text", sep="\n")
sys.exit(1 if wrong else 0)
