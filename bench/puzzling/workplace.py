"""The reader's files: puzzles/ in the repository's root, which git ignores, or the folder that OOMLAB_PUZZLES names. What is solved, and how many hints are
open, stands in a file of that folder."""
import hashlib
import json
import os
import pathlib
import tempfile

from .catalog import ROOT


class Workplace:
    def __init__(self):
        self.folder = pathlib.Path(os.environ.get("OOMLAB_PUZZLES") or ROOT / "puzzles")
        self.record = self.folder / ".progress.json"

    def file(self, puzzle):
        return self.folder / f"{puzzle.id}.cu"

    def shown(self, file):
        try:
            return str(file.resolve().relative_to(pathlib.Path.cwd().resolve()))
        except ValueError:
            return str(file)

    def start(self, puzzle):
        """Copies the puzzle, unless the reader has it. True where it was new."""
        if self.file(puzzle).exists():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file(puzzle).write_text(puzzle.given(), encoding="utf-8")
        return True

    def _read(self):
        try:
            read = json.loads(self.record.read_text())
            return read if isinstance(read, dict) else {}
        except (OSError, ValueError):
            return {}

    def _change(self, puzzle, **fields):
        everything = self._read()
        mine = everything.get(puzzle.id)
        everything[puzzle.id] = {**(mine if isinstance(mine, dict) else {}), **fields}
        self.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix=".progress-", delete=False) as new:
            json.dump(everything, new, indent=1)
        os.replace(new.name, self.record)

    def _of(self, puzzle):
        mine = self._read().get(puzzle.id)
        return mine if isinstance(mine, dict) else {}

    def state(self, puzzle):
        """solved, changed (since it was), begun, or new."""
        if not self.file(puzzle).exists():
            return "new"
        solved = self._of(puzzle).get("solved")
        if not solved:
            return "begun" if self.file(puzzle).read_bytes() != puzzle.given().encode() else "new"
        return "solved" if solved == self._digest(puzzle) else "changed"

    def _digest(self, puzzle):
        return hashlib.sha256(self.file(puzzle).read_bytes()).hexdigest()

    def note_solved(self, puzzle):
        self._change(puzzle, solved=self._digest(puzzle))

    def next_hint(self, puzzle, most):
        """The number of the hint to be shown, from 1; None where all were."""
        shown = self._of(puzzle).get("hints", 0)
        shown = shown if isinstance(shown, int) else 0
        if shown >= most:
            return None
        self._change(puzzle, hints=shown + 1)
        return shown + 1
