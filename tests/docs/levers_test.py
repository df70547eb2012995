#!/usr/bin/env python3
"""A lever is one file (common/plan/lever/NAME.h). Whoever adds one touches that file, the list, the member of Levers, the
step that it changes, and the code that carries it out: so no lever is named in more than five product files outside the
chapter that teaches it.

  levers_test.py ROOT
"""

import pathlib
import re
import sys

MOST = 5  # product files (C++ and CUDA, without tests) that name a lever
OPTION = re.compile(r'inline constexpr Option<[^>]+> (k\w+)\{\s*"([a-z-]+)"')
TEACHES = re.compile(r'\.chapter = "(\w+)"')


def levers(root):
    """Of each lever: its file, the chapter that teaches it, and a pattern of its names: option, constant, its own function."""
    for path in sorted((root / "common/plan/lever").glob("*.h")):
        text = path.read_text()
        taught = TEACHES.search(text)
        if not taught:
            continue
        names = [rf"\b{path.stem}\.h\b", rf"\blever::{path.stem}\b"]
        for constant, option in OPTION.findall(text):
            names += [rf"\b{constant}\b", rf"(?<![\w-])--{option}(?![\w-])"]
        yield path, taught[1], re.compile("|".join(names))


def product_files(root):
    for room in ("common", "chapters", "bench"):
        for path in sorted((root / room).rglob("*")):
            inside = path.relative_to(root).parts
            if path.suffix in (".h", ".cpp", ".cu", ".inc") and "tests" not in inside and "puzzle" not in inside:
                yield path


def main(root):
    files = {path: path.read_text() for path in product_files(root)}
    wrong = 0
    found = 0
    for own, chapter, names in levers(root):
        found += 1
        naming = [path for path, text in files.items() if chapter not in path.parts and names.search(text)]
        shown = ", ".join(str(path.relative_to(root)) for path in naming)
        print(f"{own.stem:<22} {len(naming)}: {shown}")
        if own not in naming:
            print(f"{own}: no name of its own lever was found in it; adapt {__file__}")
            wrong += 1
        if len(naming) > MOST:
            print(f"{own.stem} is named in {len(naming)} files, and should be in {MOST} at most")
            wrong += 1
    if found < 13:
        print(f"{found} levers were found, and there are more; adapt {__file__}")
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
