#!/usr/bin/env python3
"""What every puzzle looks like, and that all that is said has words in both languages: form_test.py ROOT BUILD"""
import re
import string
import sys

from judging import ROOT, catalog
from puzzling import judging as judged, words

TWO = {"01", "04", "06", "07", "11"}  # chapters with two puzzles
STARTED_BY_ITSELF = r"^(?:int|void)\s+main\("
failures = []


def check(good, what):
    if not good:
        failures.append(what)


def complaints(puzzle):
    """What is wrong with a puzzle's files."""
    text, answers = puzzle.given(), {answer.name: answer for answer in puzzle.answers()}
    lines = text.splitlines()
    yield not 40 <= len(lines) <= 120, f"{len(lines)} lines, not 40 to 120"
    yield max(map(len, lines)) > 160, "a line of more than 160 characters"
    yield not lines[0].startswith("// nvcc -c puzzle.cu"), "the first line is not the nvcc command"
    yield len(re.findall(r"^// TODO: ", text, re.M)) != 1 or len(re.findall(r"^// end of TODO$", text, re.M)) != 1, "not one TODO with its end"
    yield re.findall(r"^#include (?!<(?:cuda_runtime\.h|cuda_fp16\.h|[a-z]+)>)", text, re.M), "includes what is not of the toolkit or C++"
    yield re.search(STARTED_BY_ITSELF, text, re.M), "has a main()"
    yield re.search(r"^\s*#\s*if", text, re.M), "preprocessor conditions"
    yield set(answers) < {"solution", "slip", "hog", "cheat"}, "lacks answers: solution, slip, hog, cheat"
    yield answers["solution"].fails is not None, "the solution says that it fails"
    for answer in answers.values():
        if answer.fails or answer.name in ("slip", "hog", "cheat"):
            yield answer.fails not in words.VERDICTS, f"{answer.name} fails with '{answer.fails}', which is no verdict"
    for file in (puzzle.folder / "answers").glob("*.cu"):
        begins = re.match(r"// (FAILS|PASSES): ", file.read_text(encoding="utf-8"))
        yield not begins and file.stem != "solution", f"{file.name} does not say in its first line whether it passes"
    tasks = [puzzle.task(language) for language in words.LANGUAGES]
    yield len({task.minutes for task in tasks}) != 1, "other minutes in the other language"
    for task in tasks:
        yield not 1 <= len(re.findall(r"[.。]", task.text)) <= 8, "the task is not some sentences"
        yield len(task.hints) != catalog.HINTS or not all(task.hints), "not three hints"
        yield not task.solution, "the solution is not explained"
    code = [set(re.findall(r"`[^`]+`", task.text + "".join(task.hints))) for task in tasks]
    yield code[0] != code[1], f"code in one language only: {code[0] ^ code[1]}"


puzzles = catalog.all_puzzles(ROOT)
for puzzle in puzzles:
    for wrong, what in complaints(puzzle):
        check(not wrong, f"{puzzle.id}: {what}")
chapters = [folder.name[:2] for folder in sorted(ROOT.glob("chapters/[0-9][0-9]_*/")) if (folder / "main.cu").exists()]
for chapter in chapters:
    count = sum(puzzle.number == chapter for puzzle in puzzles)
    check(count >= (2 if chapter in TWO else 1), f"chapter {chapter} has {count} puzzles")
check(len({puzzle.id for puzzle in puzzles}) == len(puzzles), "two puzzles have one name")

# Both languages have the same fields.
for table in (words.VERDICTS, words.SENTENCES):
    for name, (english, chinese) in table.items():
        fields = [{field for _, field, _, _ in string.Formatter().parse(text) if field} for text in (english, chinese)]
        check(fields[0] == fields[1] or name == "rule", f"{name}: {fields[0] ^ fields[1]} in one language only")
# Every verdict that a program or the judge can end with has words.
kinds = set()
for file in [*(ROOT / "bench/puzzling").glob("*.cpp"), *(ROOT / "bench/puzzling").glob("*.py")]:
    source = file.read_text(encoding="utf-8")
    kinds |= set(re.findall(r'\bend\(\s*"(\w+)"', source)) | set(re.findall(r'Wrong\(\s*"(\w+)"', source)) | set(re.findall(r'"kind": "(\w+)"', source))
for kind in sorted(kinds - set(words.VERDICTS) - {"noticed", "over_"}):
    check(False, f"no words for a verdict: {kind}")
for limit in ("time", "wall", "memory", "output", "file", "call"):
    check(f"over_{limit}" in words.VERDICTS, f"no words for a verdict: over_{limit}")
# What is said of a sanitizer's report: the kind, and the innermost line of each access that is not the head of a struct; not where a kernel was launched.
SOURCE = ["struct Sequence {"] * 9 + ["  x = y;"] * 91
RACE = """WARNING: ThreadSanitizer: data race (pid=1)
  Write of size 4 at 0x7b50 by thread T2:
    #0 add(float*) /tmp/a/puzzle.cu:31 (check+0x1)
    #1 launch() /tmp/a/puzzle.cu:49 (check+0x2)

  Previous read of size 4 at 0x7b50 by {other}:
    #0 add(float*) /tmp/a/puzzle.cu:{line} (check+0x3)

  Location is heap block of size 12 at 0x7b50 allocated by main thread:
    #0 made() /tmp/a/puzzle.cu:50 (check+0x4)

  Thread T2 'block 0x40' (tid=0, running) created by main thread at:
    #0 accumulate(int) /tmp/a/puzzle.cu:42 (check+0x5)

  Thread T1 'block {block}' (tid=0, running) created by main thread at:
    #0 accumulate(int) /tmp/a/puzzle.cu:43 (check+0x6)
SUMMARY: ThreadSanitizer: data race /tmp/a/puzzle.cu:31 in add(float*)
"""
OUTSIDE = """==1==ERROR: AddressSanitizer: {what} on address 0x7f at pc 0x1 bp 0x2 sp 0x3
READ of size 4 at 0x7f thread T0
    #0 Sequence::Sequence(Sequence const&) /tmp/a/puzzle.cu:{line}
    #1 append(int) /tmp/a/puzzle.cu:69

0x7f is located 8 bytes inside of 64-byte region [0x70,0xb0)
allocated by thread T0 here:
    #0 operator new(unsigned long) /r/bench/puzzling/host_memory.cpp:9
    #1 {owner} /r/common/host/src/fibers.h:8
    #2 accumulate(int) /tmp/a/puzzle.cu:40

SUMMARY: AddressSanitizer: {what} /tmp/a/puzzle.cu:{line} in Sequence
"""
CREW, ARRAY = "Borrowed<oomlab::host::WholeCrew>::Borrowed()", "oomlab::host::storage_allocate(unsigned long)"
for report, whose, kind, lines in (
        (RACE.format(other="thread T1", line=31, block="0x40"), "ThreadSanitizer", "race", [31, 31]),
        (RACE.format(other="thread T1", line=35, block="0x80"), "ThreadSanitizer", "race_of_blocks", [31, 35]),
        (RACE.format(other="main thread", line=35, block="0x80"), "ThreadSanitizer", "race", [31, 35]),
        (OUTSIDE.format(what="use-after-poison", line=33, owner=CREW), "AddressSanitizer", "shared_overrun", [33]),
        (OUTSIDE.format(what="use-after-poison", line=33, owner=ARRAY), "AddressSanitizer", "not_to_be_read", [33]),
        (OUTSIDE.format(what="heap-use-after-free", line=5, owner=ARRAY), "AddressSanitizer", "freed", [69]),
        (OUTSIDE.format(what="global-buffer-overflow", line=33, owner=ARRAY), "AddressSanitizer", "out_of_bounds", [33])):
    found = judged.sanitized(report, whose, SOURCE)
    check((found["kind"], found["lines"]) == (kind, lines), f"a report of {whose}: {found}, not {kind} in lines {lines}")
    for language in words.LANGUAGES:
        check(str(lines[0]) in words.explain(found, language, 1), f"{kind}: no line is said")
# A missing barrier is looked for behind a wrong number, and behind a rule that a judge words itself.
closer = judged.Judge(["fast", "check"], 1)
closer._in_modes = lambda modes, *_: {"kind": "race"}
for kind, wanted in (("differs", "race"), ("rule", "race"), ("leak", "leak")):
    check(closer._deeper({"kind": kind}, None, None, "__shared__ float a[1];", None)["kind"] == wanted, f"behind {kind} nobody looks as they should")
# While the second mode is built, the reader knows that the first is content, and only then.
closer.say = lambda sentence, **fields: said.append(words.say(sentence, "en", **fields))
for closer.passed_first, wanted in ((False, "building"), (True, "In fast mode it is right.")):
    said = []
    closer._building(judged.build.MODES["check"])
    check(said[0].startswith(wanted) and "check mode" in said[0], f"said while building: {said}")
# Of a chapter's two puzzles, a file is judged as the one whose functions it has.
for puzzle in puzzles:
    names = puzzle.functions()
    check(names and all(f"{name}(" in puzzle.given() for name in names), f"{puzzle.id}: its judge's functions are not found: {names}")
print("\n".join(failures) or f"{len(puzzles)} puzzles")
sys.exit(1 if failures or not puzzles else 0)
