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
        return rows_of(self.chapter(chapter), name)

    def plan_table(self, plan, name):
        """The same of a plan."""
        return rows_of(self.plan(plan), name)

    def lesson_prints(self, chapter, *lines):
        """That a chapter's lesson has printed these very lines: a lesson writes no file, so its picture has the same constants, and says so."""
        printed = (self.folder / f"host/{chapter}.lesson.txt").read_text().splitlines()
        missing = [line for line in lines if line not in printed]
        if missing:
            raise ValueError(f"{chapter}'s lesson has not printed '{missing[0]}'")


def rows_of(data, name):
    (table,) = [t for t in data["tables"] if t["name"] == name]
    return [dict(zip((c["name"] for c in table["columns"]), row, strict=True)) for row in table["rows"]]


def key(name):
    """What a variant's findings begin with (common/harness/finding_key.h)."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def power_of_two(exponent):
    return "2" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def by_category(variant):
    return [(c, variant["by_category_bytes"][c]) for c in CATEGORIES]
