"""Judges a submission: the first thing that is wrong, or that it passed. A verdict is a dict with a "kind" (words.py says it)."""
import json
import os
import pathlib
import re
import shutil
import tempfile

from . import build, gpu, limits, screen

FAULTS = 12  # calls that are made to fail, spread over all of them, where there are more
ORDERS = 4   # in which streams that put work off are drained
# What a sanitizer's words mean; everything else is out of bounds.
SANITIZED = {"data race": "race", "use-after-poison": "not_to_be_read", "heap-use-after-free": "freed", "data race on vptr": "race"}
SANITIZERS = {*SANITIZED.values(), "race_of_blocks", "shared_overrun", "out_of_bounds"}
# Where a report says who made one access, and where it goes on with something else.
ACCESSES = re.compile(r"^(?:  (?:Previous )?(?:atomic )?(?:write|read) of size .* by (?:thread (T\d+)|main thread).*|(?:READ|WRITE) of size .*)$", re.M | re.I)
BEHIND_AN_ACCESS = re.compile(r"^(?:  (?:Location is|Thread T\d+ )|0x\w+ is located |freed by |previously allocated by |SUMMARY: )", re.M)
STRUCT_HEAD = re.compile(r"\s*(?:struct|class|union)\b")  # a line that stands for what the compiler makes itself: a copy, a destructor
# Threads that wait sleep, and there are two of them, whatever the machine has.
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "OOMLAB_HOST_MEMORY": "2GiB", "OOMLAB_PUZZLE_CONFINED": "1"}


class Judge:
    """Judges with these modes. `seed`: of the hidden data. `say`: told what takes long, a sentence of words.py and its fields. `screened`: tests of the
    limits leave that out."""

    def __init__(self, modes, seed, say=lambda sentence, **fields: None, builds=None, limit=limits.Limits(), screened=True):
        self.modes, self.say, self.builds = modes, say, builds
        self.seed, self.limit, self.screened = seed, limit, screened
        self.compilers = {}
        self.passed_first = False  # the submission, in the first mode

    def compiler(self, name):
        """Made when it is needed: a mode's first one builds the runtime, which takes minutes."""
        if name not in self.compilers:
            self.compilers[name] = gpu.Compiler() if name == gpu.MODE.name else build.Compiler(build.MODES[name], self._building, self.builds)
        return self.compilers[name]

    def _building(self, mode):
        self.say("building_next" if self.passed_first else "building", mode=mode.name)

    def verdict(self, puzzle, file, text=None):
        """Of the file, or of this text instead."""
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="oomlab-puzzle-"))
        try:
            if text is None:
                with open(file, encoding="utf-8") as opened:
                    text = opened.read(screen.LARGEST_FILE + 1)  # no more is looked at
            return self._verdict(puzzle, file, text, scratch)
        except build.Wrong as wrong:
            return wrong.verdict
        except UnicodeDecodeError:
            return {"kind": "not_allowed", "what": "bytes that are no UTF-8", "line": 1}
        finally:
            shutil.rmtree(scratch)

    def _verdict(self, puzzle, file, text, scratch):
        if self.screened:
            screen.text(text)
        passed, first, self.passed_first = None, self.modes[:1], False
        for modes in (first, self.modes[1:]):  # the first mode's answer comes in a second or two; the others, where it is yes
            found = self._in_modes(modes, puzzle, file, text, scratch)
            if found and found["kind"] == "no_gpu":  # it is the last mode: all before it have passed
                return {**passed, "no_gpu": found["what"]}
            if found and found["kind"] != "passed":
                return self._deeper(found, puzzle, file, text, scratch) if modes == first else found
            passed, self.passed_first = passed or found, True
        return {**passed, "on_gpu": gpu.MODE.name in self.modes}

    def _in_modes(self, modes, puzzle, file, text, scratch):
        """The first of these modes that did not pass, or the first one's; None where there are none."""
        made = build.programs(puzzle, file, text, [self.compiler(name) for name in modes], scratch) if modes else {}
        if self.screened and "fast" in made:
            screen.includes(scratch / "fast.d")
            screen.names(made["fast"][0])
        passed = None
        for name in modes:
            found = self.in_mode(self.compiler(name), made[name][1])
            if found["kind"] != "passed":
                return found
            passed = passed or found
        return passed

    def _deeper(self, found, puzzle, file, text, scratch):
        """What a sanitizer says of the same, where that is nearer to the cause than a crash or a number."""
        closer = None
        if found["kind"] in ("differs", "unwritten", "rule") and re.search(r"__shared__|__sync|__shfl|atomic", text):
            closer = "check"
        if found["kind"] in ("crashed", "ended", "overrun") or (found["kind"] == "threw" and not found.get("call")) or "nan" in found.get("got", ""):
            closer = closer or "asan"
        if closer not in self.modes[1:]:
            return found
        other = self._in_modes([closer], puzzle, file, text, scratch)
        return other if other["kind"] in SANITIZERS else found

    def in_mode(self, compiler, program):
        fast = compiler.mode.name == "fast"
        found = self._run(compiler, program, "run" if fast or compiler.mode is gpu.MODE else "small")
        return self._more(compiler, program) or found if fast and found["kind"] == "passed" else found

    def _more(self, compiler, program):
        """With streams that put work off, and with calls that fail."""
        for order in range(ORDERS):
            found = self._run(compiler, program, "small", {"OOMLAB_HOST_STREAMS": f"deferred:{self.seed % 1000 + order + 1}"})
            if found["kind"] != "passed":
                return {**found, "deferred": True}
        calls = found["calls"]
        for k in sorted({1 + i * calls // FAULTS for i in range(FAULTS)}) if calls > FAULTS else range(1, calls + 1):
            found = self._run(compiler, program, f"fail:{k}")
            if found["kind"] not in ("noticed", "passed"):
                return found
        return None

    def _run(self, compiler, program, how, more=None):
        mode, limit, environment = compiler.mode, self.limit, {**ENVIRONMENT, **compiler.mode.environment, **(more or {})}
        if mode is gpu.MODE:
            limit = limit._replace(descriptors=gpu.OPEN_FILES)
            environment.pop("OOMLAB_PUZZLE_CONFINED")
            environment.update({name: os.environ[name] for name in gpu.PASSED_ON if name in os.environ})
        outcome = limits.run([program, self.seed, how], limit, environment, address_space=mode.name == "fast",
                             patience=lambda seconds: self.say("still_running", mode=mode.name, seconds=seconds, **self.limit._asdict()))
        verdict = self._read(outcome, program, mode)
        if how.startswith("fail:") and verdict["kind"] == "ended" and outcome.code > 0:
            verdict = {"kind": "noticed"}
        # AddressSanitizer warns of makecontext(), by which the threads of a block are made, and which it is told of (fibers.h).
        printed = re.sub(r"^==\d+==WARNING: ASan doesn't fully support makecontext.*\n?", "", outcome.output, flags=re.M)
        return {**verdict, "mode": mode.name, "printed": printed[-2000:]}

    def _read(self, outcome, program, mode):
        if outcome.over:
            return {"kind": "over_" + outcome.over, **self.limit._asdict()}
        for whose in ("ThreadSanitizer", "AddressSanitizer"):
            if whose in outcome.output:
                return sanitized(outcome.output, whose, pathlib.Path(program).with_name("puzzle.cu").read_text(encoding="utf-8").splitlines())
        events = outcome.event.splitlines()
        try:
            event = json.loads(events[0]) if len(events) == 1 else None
        except ValueError:
            event = None
        if not isinstance(event, dict) or (event.get("kind") == "passed") != (outcome.code == 0 and event.get("kind") != "noticed"):
            return {"kind": "ended", "code": outcome.code}
        if "pc" in event:
            event["line"] = build.line_of(program, event.pop("pc"))
        return event


def sanitized(report, whose, source):
    """A verdict of a sanitizer's report. `source`: the lines of puzzle.cu."""
    found = re.search(whose + r": ([\w -]+?)(?: on | \(|$)", report, re.M)
    what = found[1].strip() if found else ""
    kind, accesses = SANITIZED.get(what, "out_of_bounds"), list(ACCESSES.finditer(report))
    lines = [_line(report[access.end():], source) for access in accesses[:2]]
    if kind == "race":
        # Fibers are named after their block (blocks/whole_blocks.cpp).
        blocks = dict(re.findall(r"^  Thread (T\d+) '(block \w+)'", report, re.M))
        of = [blocks.get(access[1]) for access in accesses[:2]]
        if None not in of and len(set(of)) == 2:
            kind = "race_of_blocks"
    # The runtime's own array of all __shared__ memory; what the judge forbids lies in arrays of the device.
    if kind == "not_to_be_read" and re.search(r"allocated by (?:(?!\n\n).)*Crew", report, re.S):
        kind = "shared_overrun"
    return {"kind": kind, "lines": [line for line in lines if line], "what": what}


def _line(stack, source):
    """The innermost line of puzzle.cu in the stack that a report goes on with; None where there is none."""
    end = min((m.start() for m in (BEHIND_AN_ACCESS.search(stack), ACCESSES.search(stack)) if m), default=len(stack))
    numbers = [int(n) for n in re.findall(r"puzzle\.cu:(\d+)", stack[:end])]
    written = [n for n in numbers if n <= len(source) and not STRUCT_HEAD.match(source[n - 1])]
    return (written or numbers or [None])[0]
