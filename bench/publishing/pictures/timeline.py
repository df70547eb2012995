"""A step's memory over time, from a chapter's --trace: a short CSV file that bench/publish makes and the pictures draw.

A row is what was allocated, in bytes by category, after an allocation or a release; rows stand in the program's order. Of a
long phase only some rows are kept: of neighbours the one with the most bytes, so that no peak is lost. There is no time in it,
and so every machine makes the same file. A row with `asked` is a request that was refused. What a program does after the
first step is left out.
"""
import csv
import json

from shared.results_files import CATEGORIES

MOST_ROWS = 20  # of one phase


def thinned(rows):
    groups = min(len(rows), MOST_ROWS)
    cut = [rows[i * len(rows) // groups:(i + 1) * len(rows) // groups] for i in range(groups)]
    return [max(group, key=lambda row: sum(row[c] for c in CATEGORIES)) for group in cut]


def write(trace, file, command):
    """Writes the steps of a trace (an open file) as CSV rows below the command that made it."""
    phases, run, done = [], "under the budget", False
    for event in json.load(trace)["traceEvents"]:
        if event["ph"] == "X":
            done = done or bool(phases) and phases[-1][1] == "optimizer" and phases[-1][0] == run
            phases.append((run, event["name"], []))
        elif event["ph"] == "C" and event["name"].endswith("by category") and not done:
            if not phases:
                phases.append((run, "setup", []))
            if phases[-1][0] != run:
                continue  # a refused step gives back what it had
            phases[-1][2].append({**event["args"], "asked": 0})
        elif event["ph"] == "i" and event["name"].startswith("out of memory"):
            phases[-1][2].append({**phases[-1][2][-1], "asked": event["args"]["requested"]})
            run = "again, without the budget"
    rows = csv.writer(file, lineterminator="\n")
    file.write(f"$ {command}\n")
    rows.writerow(("run", "phase", *CATEGORIES, "asked"))
    for name, phase, all_rows in phases:
        refused = [row for row in all_rows if row["asked"]]
        for row in thinned([row for row in all_rows if not row["asked"]]) + refused:
            rows.writerow((name, phase, *(row[c] for c in CATEGORIES), row["asked"]))


def read(file, run):
    """The rows of one run: (phase, bytes by category, bytes asked for)."""
    lines = file.read_text().splitlines()[1:]
    return [(row["phase"], {c: int(row[c]) for c in CATEGORIES}, int(row["asked"])) for row in csv.DictReader(lines) if row["run"] == run]
