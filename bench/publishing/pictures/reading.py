"""What the pictures know: figures from files in bench/results/, and from nowhere else."""
import pathlib
import re

from publishing.markdown import record
from shared.results_files import CATEGORIES

MIB = 2**20


class Results:
    def __init__(self, root):
        self.root, self.folder = pathlib.Path(root), pathlib.Path(root) / "bench/results"

    def chapter(self, name):
        return record(self.folder / f"host/{name}.json")

    def plan(self, name):
        return record(self.folder / f"plan/{name}.json")

    def variants(self, name):
        return {v["name"]: v for v in self.chapter(name)["variants"]}

    def table(self, chapter, name):
        """The rows of a table that a chapter found, each as {column: cell}."""
        (table,) = [t for t in self.chapter(chapter)["tables"] if t["name"] == name]
        return [dict(zip((c["name"] for c in table["columns"]), row, strict=True)) for row in table["rows"]]

    def text(self, name):
        return (self.folder / name).read_text()

    def rows(self, name, first, pattern):
        """The groups of `pattern` in the lines that follow the first with `first` in it, up to one without."""
        lines = self.text(name).split(first, 1)[1].split("\n")[1:]
        found = [re.match(pattern, line) for line in lines]
        begin = next(i for i, match in enumerate(found) if match)
        end = next((i for i in range(begin, len(found)) if not found[i]), len(found))
        return [match.groups() for match in found[begin:end]]


def key(name):
    """What a variant's findings begin with (common/harness/finding_key.h)."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def power_of_two(exponent):
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def by_category(variant):
    return [(c, variant["by_category_bytes"][c]) for c in CATEGORIES]
