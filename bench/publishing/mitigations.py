"""What each chapter's mitigation makes of the figure that the chapter is about: rows of map.txt, and bars of the front page's picture."""
import typing

from shared.results_files import MITIGATIONS, Result, pair


class Row(typing.NamedTuple):
    """Names of a chapter and of its two variants; the figure and its unit ("MiB", or "" of a count); the two figures and what is saved, as written."""
    chapter: str
    before: str
    after: str
    figure: str
    unit: str
    was: str
    now: str
    saved: str


def pair_in(folder, chapter):
    """The two variants, and by which figure they are compared; None where the folder has no result of the chapter."""
    return pair(Result(folder / f"{chapter}.json")) if (folder / f"{chapter}.json").exists() else None


def rows(folder):
    """A row for each chapter that has a result in a folder of bench/results/."""
    found = []
    for chapter in MITIGATIONS:
        both = pair_in(folder, chapter)
        if not both:
            continue
        before, after, by = both
        was, now = before.figure(by), after.figure(by)
        if by == "refused":
            figures = ("requests refused", "", str(was), str(now), "-")
        else:
            figures = (f"peak {by}", "MiB", f"{was / 2**20:.1f}", f"{now / 2**20:.1f}", f"{1 - now / was:.0%}")
        found.append(Row(chapter, before.name, after.name, *figures))
    return found
