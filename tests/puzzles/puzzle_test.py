#!/usr/bin/env python3
"""One puzzle: puzzle_test.py ROOT BUILD MODE PUZZLE some|all

In fast mode: as it is given it fails, and not because of the judge or the compiler; the solution passes, and so do other right answers; the wrong ones fail
for the reason that their first line says (some: beside the solution one of all these, that of the rarest reason, so that all reasons are tried). In the other
modes: the right answers pass, and an answer whose mistake only that mode shows fails.
"""
import collections
import sys
import zlib

from judging import ROOT, catalog, judge, puzzle

mode, name, how_many = sys.argv[3:]
puzzle, judge = puzzle(name), judge(mode)
# Of which kinds the verdict on a puzzle as it is given may be: what the reader is to find.
GIVEN = {"over_budget", "differs", "rule", "largest", "unwritten"}
OFTEN = 4  # answers with one reason, or more
SHOWN_BY = {"race": "check", "race_of_blocks": "check", "shared_overrun": "asan", "out_of_bounds": "asan", "freed": "asan", "not_to_be_read": "asan"}
failures = []


def see(what, text, expected):
    verdict = judge.verdict(puzzle, puzzle.folder / "puzzle.cu", text)
    print(f"{puzzle.id} {what}: {verdict['kind']}")
    if verdict["kind"] not in expected:
        failures.append(f"{puzzle.id} {what}: {verdict}, expected: {expected}")


answers = {answer.name: answer for answer in puzzle.answers()}
wrong = [answer for answer in answers.values() if answer.fails and SHOWN_BY.get(answer.fails, "fast") == mode]
others = [("as given", puzzle.given(), GIVEN)] if mode == "fast" else []
others += [(answer.name, puzzle.filled_in(answer.part), {answer.fails}) for answer in wrong]
others += [(answer.name, puzzle.filled_in(answer.part), {"passed"}) for answer in answers.values() if not answer.fails and answer.name != "solution"]
if how_many == "some" and mode == "fast":
    count = collections.Counter(answer.fails for other in catalog.all_puzzles(ROOT) for answer in other.answers() if answer.fails)
    often = [min(max(count[kind] or OFTEN for kind in kinds), OFTEN) for _, _, kinds in others]
    rarest = [other for other, n in zip(others, often) if n == min(often)]
    others = [rarest[zlib.crc32(puzzle.id.encode()) % len(rarest)]]
see("solution", puzzle.filled_in(answers["solution"].part), {"passed"})
for what, text, expected in others:
    see(what, text, expected)
sys.exit("\n".join(failures) or 0)
