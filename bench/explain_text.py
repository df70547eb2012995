"""How a message is found in a log, and its words read: what explain_pytorch.py and explain_others.py are written with.

A rule finds its message in a log by `trigger`, a regular expression over lower-case bytes in which a blank stands for any
gap (blanks, line breaks, colours, comment signs) and ~ for one that may be missing, and reads what stands around it. `needle`
has to be in the text for the trigger to be tried: that is what makes long logs quick. `rank` says how much a message tells:
1 has figures or names its cause, 2 is an error without them, 3 is only a sign that something ran out.
"""

import dataclasses
import re
import typing

from explain_figures import NUMBER, Message, read_size

GAP = rb"(?:[\s#>|*]|\\[nrt]|\x1b\[[0-9;]*[a-z])+"
UNIT = r"(bytes|[KMGT]i?B|[KMGT])\b"
SIZE = rf"(?<![\d.,])({NUMBER})\s*{UNIT}"
MESSAGE_LENGTH = 6000  # characters; the longest message, 256 processes listed, has fewer

# What loggers, launchers and comments put before a line.
LINE_PREFIX = re.compile(r"""^(?:\s*(?:
    \[[^\]\n]{1,60}\]:? | \([^)\n]*\bpid=\d+[^)\n]*\) | \d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d\S* | \d\d:\d\d:\d\d\S* |
    [\#>|*│]+ | // | [\w.-]+\s+\|(?=\s) | \[\d+,\d+\]<std(?:err|out)>: | std(?:err|out)\s?: | \d{1,4}:(?=\s) | \d\d-\d\d\ \d\d:\d\d:\d\d |
    [EWIF]\d{4}\s\d\d:\d\d:\d\d\.\d+\s+\d+\s[\w.-]+:\d+\] | [A-Z][a-z]{2}\s+\d{1,2}\s\d\d:\d\d:\d\d\s\S+\s[^\s:\[]+(?:\[\d+\])?: | -(?=\s) | (?:ERROR|WARN|WARNING|INFO|DEBUG|CRITICAL)\b:? | [\w.-]+\.(?:py|cc|cpp|cu):\d+\]?))*\s*""", re.X)


class Text:
    """A piece of a log without colours, escapes, and what stands before its lines. `loose` has blanks for line breaks;
    in `tight` what was broken within a word is whole again."""

    def __init__(self, raw):
        raw = re.sub(r"\x1b\[[0-9;]*[A-Za-z]|[\u200b\ufeff]", "", raw)
        raw = re.sub(r"\\+([nrt]|u001b\[[0-9;]*m)", "\n", raw)
        raw = re.sub(r"\\+([\"'])", r"\1", raw)
        raw = re.sub(r"(?:\*\*|`)(?=\d)|(?<=[KMGT]iB)(?:\*\*|`)", "", raw)
        whole = raw.splitlines()
        self.lines = [LINE_PREFIX.sub("", line).rstrip() for line in whole]
        self.loose = " ".join(line for line in self.lines if line)
        self.tight = "".join(LINE_PREFIX.sub(lambda prefix: prefix[0] if prefix[0].isspace() else "", line) for line in whole)

    def has(self, pattern):
        return re.search(pattern, self.loose, re.I) is not None

    def find(self, pattern):
        """The groups of what the pattern finds; None where it finds nothing, or things that differ."""
        for text in dict.fromkeys((self.loose, self.tight)):
            found = {m.groups() for m in re.finditer(pattern, text, re.I)}
            if found:
                return found.pop() if len(found) == 1 else None
        return None

    def first(self, pattern):
        """The groups of the first that the pattern finds, or None."""
        found = re.search(pattern, self.loose, re.I)
        return found.groups() if found else None

    def size(self, *patterns, read=read_size):
        """The Size by the first pattern that finds one; a pattern has SIZE in it once."""
        for pattern in patterns:
            groups = self.find(pattern)
            if groups:
                return read(*groups[:2])
        return None

    def until_another(self, pattern):
        """The Text up to where the pattern is found for the second time: another message begins there."""
        result = Text("")
        result.lines = self.lines
        result.loose, result.tight = (cut(text, pattern) for text in (self.loose, self.tight))
        return result

    def whole(self, pattern):
        """A Size of a number of bytes without a unit of its own."""
        groups = self.find(pattern)
        return read_size(groups[0], "bytes") if groups else None


def cut(text, pattern):
    starts = [match.start() for match in re.finditer(pattern, text, re.I)]
    # "out of memory. Tried" and "Tried to allocate" may both be in one pattern, and stand side by side.
    return text[:next((start for start in starts if start > starts[0] + 30), MESSAGE_LENGTH)][:MESSAGE_LENGTH]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A wording; see above."""

    name: str
    needle: bytes
    trigger: re.Pattern
    rank: int
    read: typing.Callable  # (Text before the trigger, Text from it on) -> Message, or None where it is no such message
    back: int = 0  # characters before the trigger that belong to the message


RULES = []


def rule(name, needle, trigger, rank=1, back=0):
    """Makes a Rule of the function below it; several for one that reads several wordings."""
    pattern = re.compile(trigger.encode().replace(b" ", GAP).replace(b"~", b"(?:" + GAP + b")?"))

    def add(read):
        RULES.append(Rule(name, needle.encode(), pattern, rank, read, back))
        return read
    return add


def message(name, framework, text, verdict=None, device=None, facts=(), **figures):
    """A Message of the figures that are not None; `text` is cut to what can be shown."""
    return Message(name, framework, text[:400], {k: v for k, v in figures.items() if v is not None}, device=device,
                   facts=set(facts), verdict=verdict)


def number(groups):
    return int(groups[0]) if groups else None
