#!/usr/bin/env python3
"""Do the arrows point one way? Reads the #includes of common/ and chapters/.

  rooms_test.py ROOT

  - A room of common/ includes only rooms below it; a chapter includes common/ and earlier chapters; nothing includes a chapter.
    What is in bench/ only benchmarks and tests include. What lies in common/ itself, in no room, is below all of them.
  - No file includes itself, over whatever detour.
  - No file has more than 450 lines, and the host runtime, which is no part of the lessons, not more than MOST_OF_HOST in all.
"""
import pathlib
import re
import sys

MOST_LINES = 450
MOST_OF_HOST = 4440
FLOOR = {"host": 0, "cuda": 1, "memory": 2, "data": 3, "nn": 3, "harness": 4, "train": 5, "launcher": 5}


def files_of(root):
    return sorted(p for folder in ("common", "chapters") for p in (root / folder).rglob("*") if p.suffix in (".h", ".cpp", ".cu"))


def included(root, file):
    """The files of this repository that it includes. A quoted name is looked for as the compiler does."""
    chapter = [root / "chapters" / file.relative_to(root).parts[1]] if file.is_relative_to(root / "chapters") else []
    for name in re.findall(r'^\s*#\s*include "([^"]+)"', file.read_text(encoding="utf-8"), re.MULTILINE):
        for folder in (file.parent, *chapter, root / "common", root / "common/host/include", root / "common/host/src", root):
            found = (folder / name).resolve()
            if found.is_file():
                yield found
                break
        else:
            sys.exit(f"{file.relative_to(root)} includes '{name}', which is nowhere")


def may(root, file, other):
    """True when `file` may include `other`."""
    mine, its = file.relative_to(root).parts, other.relative_to(root).parts
    if its[0] == "chapters":
        return mine[0] == "chapters" and its[1] <= mine[1]
    if its[0] == "tests":
        return "tests" in mine
    if its[0] == "bench":
        return "bench" in mine or "tests" in mine
    if len(its) == 2:
        return True
    if len(mine) == 2:
        return False
    if mine[0] == "chapters" or mine[1] == its[1]:
        return True
    return FLOOR[its[1]] < FLOOR[mine[1]]


def circle(graph):
    """The files of a circle, or nothing."""
    state = {}

    def visit(file, path):
        state[file] = "open"
        for other in graph.get(file, ()):
            if state.get(other) == "open":
                return path[path.index(other):] + [other]
            if other not in state and (found := visit(other, path + [other])):
                return found
        state[file] = "done"
        return None

    for file in graph:
        if file not in state and (found := visit(file, [file])):
            return found
    return None


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    files = files_of(root)
    graph = {f: list(included(root, f)) for f in files}
    wrong = [f"{f.relative_to(root)} must not include {g.relative_to(root)}" for f in files for g in graph[f] if not may(root, f, g)]
    if found := circle(graph):
        wrong.append("a circle: " + " -> ".join(str(f.relative_to(root)) for f in found))
    lines = {f: len(f.read_text(encoding="utf-8").splitlines()) for f in files}
    wrong += [f"{f.relative_to(root)} has {n} lines, more than {MOST_LINES}" for f, n in lines.items() if n > MOST_LINES]
    if (of_host := sum(n for f, n in lines.items() if f.is_relative_to(root / "common/host"))) > MOST_OF_HOST:
        wrong.append(f"common/host has {of_host} lines, more than {MOST_OF_HOST}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(files)} files, {sum(map(len, graph.values()))} arrows")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
