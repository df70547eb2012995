"""Judges a submission: the first thing that is wrong, or that it passed. A verdict is a dict with a "kind" (words.py says it)."""
import json
import pathlib
import re
import shutil
import tempfile

from . import build, limits, screen

FAULTS = 12  # calls that are made to fail, spread over all of them, where there are more
ORDERS = 4   # in which streams that put work off are drained
# Threads that wait sleep, and there are two of them, whatever the machine has.
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive", "OOMLAB_HOST_MEMORY": "2GiB", "OOMLAB_PUZZLE_CONFINED": "1"}


class Judge:
    """Judges with these modes. `seed`: of the hidden data. `screened`: tests of the limits leave that out."""

    def __init__(self, modes, seed, say=lambda mode: None, builds=None, limit=limits.Limits(), screened=True):
        self.compilers = [build.Compiler(build.MODES[name], say, builds) for name in modes]
        self.seed, self.limit, self.screened = seed, limit, screened

    def verdict(self, puzzle, file, text=None):
        """Of the file, or of this text instead."""
        scratch = pathlib.Path(tempfile.mkdtemp(prefix="oomlab-puzzle-"))
        try:
            return self._verdict(puzzle, file, file.read_text(encoding="utf-8") if text is None else text, scratch)
        except build.Wrong as wrong:
            return wrong.verdict
        except UnicodeDecodeError:
            return {"kind": "not_allowed", "what": "bytes that are no UTF-8", "line": 1}
        finally:
            shutil.rmtree(scratch)

    def _verdict(self, puzzle, file, text, scratch):
        if self.screened:
            screen.text(text)
        passed, first = None, self.compilers[:1]
        for compilers in (first, self.compilers[1:]):  # the first mode's answer comes in a second or two; the others, where it is yes
            made = build.programs(puzzle, file, text, compilers, scratch) if compilers else {}
            if self.screened and "fast" in made:
                screen.includes(scratch / "fast.d")
                screen.names(made["fast"][0])
            for compiler in compilers:
                found = self._in_mode(compiler, made[compiler.mode.name][1])
                if found["kind"] != "passed":
                    return found
                passed = passed or found
        return passed

    def _in_mode(self, compiler, program):
        fast = compiler.mode.name == "fast"
        found = self._run(compiler, program, "run" if fast else "small")
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
        mode = compiler.mode
        outcome = limits.run([program, self.seed, how], self.limit, {**ENVIRONMENT, **mode.environment, **(more or {})},
                             address_space=mode.name == "fast")
        verdict = self._read(outcome, program, mode)
        if how.startswith("fail:") and verdict["kind"] == "ended" and outcome.code > 0:
            verdict = {"kind": "noticed"}
        return {**verdict, "mode": mode.name, "printed": outcome.output[-2000:]}

    def _read(self, outcome, program, mode):
        if outcome.over:
            return {"kind": "over_" + outcome.over, **self.limit._asdict()}
        if "ThreadSanitizer" in outcome.output:
            return {"kind": "race", "lines": _lines(outcome.output), "what": _summary(outcome.output, "ThreadSanitizer")}
        if "AddressSanitizer" in outcome.output:
            return {"kind": "out_of_bounds", "lines": _lines(outcome.output), "what": _summary(outcome.output, "AddressSanitizer")}
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


def _lines(text):
    """Lines of puzzle.cu in a sanitizer's report, the innermost first, each once."""
    return list(dict.fromkeys(int(n) for n in re.findall(r"puzzle\.cu:(\d+)", text)))[:2]


def _summary(text, whose):
    found = re.search(whose + r": ([\w -]+?)(?: on | \(|$)", text, re.M)
    return found[1].strip() if found else ""
