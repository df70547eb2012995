"""Do installed frameworks still say what bench/explain looks for?

  tests/explain/check_wordings.py            of the Python that runs this
  tests/explain/check_wordings.py FOLDER ... of what is installed or unpacked there (each a site-packages)

Looks up the fragments of wordings.txt in the libraries; nothing is imported or run. Exit code: 0; 1 when a fragment is gone,
or a fragment stands in none of the cases that the tests know; 2 when no library of the list is installed.
"""
import mmap
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from cases import CASES  # noqa: E402


def wordings():
    """(library, fragment) of each line."""
    lines = [line for line in (HERE / "wordings.txt").read_text().splitlines() if line and line[0] != "#"]
    return [(line.split(None, 1)[0], line.split("|", 1)[1].removesuffix("|")) for line in lines]


def told_by_no_case():
    """Fragments that no case has; a place for a value (%s, {}) stands for anything."""
    told = " ".join(" ".join(text.split()) for _, text, *_ in CASES)
    missing = []
    for _, fragment in wordings():
        parts = [re.escape(" ".join(part.split())) for part in re.split(r"%\w+|\{\}", fragment)]
        if not re.search(".{0,80}?".join(parts).strip(), told):
            missing.append(fragment)
    return missing


def main():
    missing = [f"in no case: {fragment!r}" for fragment in told_by_no_case()]
    places = [pathlib.Path(p) for p in sys.argv[1:] or sys.path if p]
    checked, absent = 0, set()
    for library, fragment in wordings():
        file = next((place / library for place in places if (place / library).is_file()), None)
        if file is None:
            absent.add(library)
            continue
        with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as text:
            checked += 1
            if text.find(fragment.encode()) < 0:
                missing.append(f"gone from {library}: {fragment!r}")
    print("\n".join([*missing, f"{checked} fragments looked up", *(f"not installed: {library}" for library in sorted(absent))]))
    return 1 if missing else 0 if checked else 2


if __name__ == "__main__":
    sys.exit(main())
