#!/usr/bin/env python3
"""Do the arrows point one way? Reads the #includes of common/, chapters/ and bench/.

  rooms_test.py ROOT

  - A room of common/ includes only rooms below it; a chapter includes common/ and earlier chapters. bench/ includes common/, and of
    chapters only OF_CHAPTERS; fitting/ includes plan, and OF_FIT. Nothing else includes a chapter, and nothing of common/ or chapters/ includes bench/: a chapter's
    folders bench/ and tests/ are rooms like those at the top, and its puzzle/ belongs to bench/. What lies in common/ itself, in no room, is below all of them.
  - No file includes itself, over whatever detour.
  - No file has more than 450 lines, and the host runtime, which is no part of the lessons, not more than MOST_OF_HOST in all.
  - At the top of bench/ stand the commands that people type, what CMake and the shell must find there, and folders.
"""
import os
import pathlib
import re
import sys

MOST_LINES = 450
MOST_OF_HOST = 4600
FLOOR = {"plan": 0, "host": 0, "cuda": 1, "memory": 2, "data": 3, "nn": 3, "harness": 4, "train": 5, "launcher": 5}
# What folders of bench/ still include of chapters. It only shrinks: what several use belongs in common/.
OF_CHAPTERS = {
    "allocators": {"06_caching_allocator/best_fit.h", "06_caching_allocator/caching_allocator.h", "06_caching_allocator/planned.h",
                   "06_caching_allocator/steps.h"},
}
# Beside plan, what bench/fit reads a file and prints with: it knows no device.
OF_FIT = {"memory/files.h", "memory/text.h"}
BESIDE_COMMANDS = {"CMakeLists.txt", "setup.sh"}


def files_of(root):
    return sorted(p for folder in ("common", "chapters", "bench") for p in (root / folder).rglob("*") if p.suffix in (".h", ".cpp", ".cu"))


def room_of(root, file):
    """A folder of common/, or "chapters", "bench" or "tests"; "" for what lies in common/ itself."""
    first, second, *more = file.relative_to(root).parts
    if first == "common":
        return second if more else ""
    if first == "chapters" and more[0] in ("bench", "tests"):
        return more[0]
    if first == "chapters" and more[0] == "puzzle":
        return "bench"  # puzzles, and the judges of bench/puzzling that try them
    return first


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
    room, its_room = room_of(root, file), room_of(root, other)
    mine, its = file.relative_to(root).parts, other.relative_to(root).parts
    if its_room == "chapters":
        return its[1] <= mine[1] if mine[0] == "chapters" else room == "bench" and "/".join(its[1:]) in OF_CHAPTERS.get(mine[1], ())
    if mine[:2] == ("bench", "fitting") and its_room in FLOOR:
        return its_room == "plan" or "/".join(its[1:]) in OF_FIT
    if its_room == "tests":
        return room == "tests"
    if its_room == "bench":
        return room in ("bench", "tests")
    if not its_room:
        return True
    return room == its_room or (room and room not in FLOOR) or FLOOR[its_room] < FLOOR.get(room, 0)


def shrunk(root, graph):
    """What is in OF_CHAPTERS, and is not included any more."""
    for folder, headers in OF_CHAPTERS.items():
        taken = {g for f in graph if f.is_relative_to(root / "bench" / folder) for g in graph[f]}
        yield from (f"bench/{folder} does not include {h} any more: take it out of OF_CHAPTERS" for h in sorted(headers)
                    if root / "chapters" / h not in taken)


def is_command(file):
    """What people type has a name without a suffix, may be executed, and says what executes it."""
    return not file.suffix and os.access(file, os.X_OK) and file.read_bytes().startswith(b"#!")


def no_commands(root):
    """What stands at the top of bench/ and belongs in a folder."""
    for file in sorted((root / "bench").iterdir()):
        if not file.is_dir() and file.name not in BESIDE_COMMANDS and not is_command(file):
            yield f"bench/{file.name} is no command: it belongs in the folder of what uses it"


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
    wrong += [*shrunk(root, graph), *no_commands(root)]
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
