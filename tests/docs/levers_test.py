#!/usr/bin/env python3
"""A lever is one file (common/plan/lever/NAME.h). Whoever adds one touches that file, the list, the member of Levers, the
step that it changes, and the code that carries it out: so no lever is named in more than five product files outside the
chapter that teaches it. (Levers that refuse each other name each other; their own files do not count.)

  levers_test.py ROOT
"""

import pathlib
import re
import sys

MOST = 5  # product files (C++ and CUDA, without tests) that name a lever
# Options that chapters of their own had before there were levers: so many files still name them. It only shrinks.
MORE = {"micro_batch": 8, "precision": 14}
# What the step and the code that carries a lever out call it, where that is not its option.
ALSO = {"in_backward": ["optimizer_in_backward"], "offload": ["offloaded"]}
OPTION = re.compile(r'inline constexpr Option<[^>]+> (k\w+)\{\s*"([a-z-]+)"')
TEACHES = re.compile(r'"(\d\d_\w+)"')


def levers(root):
    """Of each lever: its file, the chapter that teaches it, its names (option, constant, its own function), and a pattern of them."""
    for path in sorted((root / "common/plan/lever").glob("*.h")):
        text = without_comments(path.read_text())
        taught = TEACHES.search(text)
        if not taught:
            continue
        names = [f"lever/{path.stem}.h", f"lever::{path.stem}", *ALSO.get(path.stem, [])]
        for constant, option in OPTION.findall(text):
            names += [constant, f"--{option}"]
        yield path, taught[1], names, re.compile("|".join(rf"(?<![\w-]){name}(?![\w-])" if name.startswith("-") else rf"\b{re.escape(name)}\b" for name in names))


def product_files(root):
    for room in ("common", "chapters", "bench"):
        for path in sorted((root / room).rglob("*")):
            inside = path.relative_to(root).parts
            if path.suffix in (".h", ".cpp", ".cu", ".inc") and "tests" not in inside and "puzzle" not in inside:
                yield path


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def main(root):
    files = {path: without_comments(path.read_text()) for path in product_files(root)}
    wrong = 0
    found = 0
    for own, chapter, names, pattern in levers(root):
        found += 1
        constants = [constant for constant, _ in OPTION.findall(own.read_text())]
        # A chapter's own constant by that name is another thing.
        others = {path.parent for path, text in files.items() if path != own
                  and any(re.search(rf"constexpr [^=;]*\b{constant} =", text) for constant in constants)}
        naming = [path for path, text in files.items() if chapter not in path.parts and path.parent not in others
                  and (path == own or path.parent != own.parent) and any(name in text for name in names) and pattern.search(text)]
        shown = ", ".join(str(path.relative_to(root)) for path in naming)
        print(f"{own.stem:<22} {len(naming)}: {shown}")
        if f"lever/{own.name}" not in files[root / "common/plan/levers.cpp"]:
            print(f"{own} is not in the list of levers, common/plan/levers.cpp")
            wrong += 1
        most = MORE.get(own.stem, MOST)
        if len(naming) > most or len(naming) < MORE.get(own.stem, 0):
            print(f"{own.stem} is named in {len(naming)} files; {'at most' if own.stem not in MORE else 'MORE says'} {most}")
            wrong += 1
    if found < 13:
        print(f"{found} levers were found, and there are more; adapt {__file__}")
        wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
