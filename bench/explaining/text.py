"""How a message is found in a log, and its words read: what pytorch.py and others.py are written with.

A rule finds its message in a log by `trigger`, a regular expression over lower-case bytes in which a blank stands for any
gap (blanks, line breaks, colours, comment signs) and ~ for one that may be missing, and reads what stands around it. `needle`
has to be in the text for the trigger to be tried: that is what makes long logs quick. `rank` says how much a message tells:
1 has figures or names its cause, 2 is an error without them, 3 is only a sign that something ran out.
"""

import dataclasses
import functools
import re
import typing

from .figures import NUMBER, Message, read_size

GAP = rb"(?:[\s#>|*]|\\[nrt]|\x1b\[[0-9;]{0,20}[a-z]|&nbsp;|<br ?/?>){1,200}"
UNIT = r"(bytes|[KMGT]i?B|[KMGT])\b"
SIZE = rf"(?<![\d.,])({NUMBER})\s*{UNIT}"
SIZE_IN_CHINESE = rf"(?<![\d.,])({NUMBER})\s?([KMGT]i?B)(?![A-Za-z])"  # no end of a word is between a unit and Chinese
MESSAGE_LENGTH = 6000  # characters; the longest message, 256 processes listed, has fewer

# What loggers, launchers and comments put before a line: some of these.
LINE_PREFIX = re.compile(r"""(?:\s{0,80}(?:
    \[[^\]\n]{1,60}\]:?
  | \((?=[^)\n]{0,100}\))[^)\n]{0,80}\bpid=\d{1,10}[^)\n]{0,80}\)
  | \d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d\S{0,30} | \d\d:\d\d:\d\d\S{0,30} | \d\d-\d\d\ \d\d:\d\d:\d\d
  | [\#>|*│]{1,20} | // | -(?=\s) | \d{1,4}:(?=\s)
  | [\w.-]{1,80}\s{1,40}\|(?=\s)
  | \[\d{1,6},\d{1,6}\]<std(?:err|out)>: | std(?:err|out)\s?:
  | [EWIF]\d{4}\s\d\d:\d\d:\d\d\.\d{1,9}\s{1,9}\d{1,10}\s[\w.-]{1,80}:\d{1,6}\]
  | [A-Z][a-z]{2}\s{1,2}\d{1,2}\s\d\d:\d\d:\d\d\s\S{1,80}\s[^\s:\[]{1,80}(?:\[\d{1,10}\])?:
  | (?:ERROR|WARN|WARNING|INFO|DEBUG|CRITICAL)\b:?
  | [\w.-]{1,80}\.(?:py|cc|cpp|cu):\d{1,6}\]?
  )){0,12}\s{0,80}""", re.X)

# What terminals, JSON, Markdown and pages put into a text: a sign of it, the expression, and what is read in its place.
HTML_NAMES = {"nbsp": " ", "#160": " ", "quot": '"', "#34": '"', "#39": "'", "#x27": "'", "apos": "'", "gt": ">", "lt": "<", "amp": "&"}
UNDONE = (
    ("\x1b", re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]"), ""),
    ("\u200b", re.compile("\u200b"), ""),
    ("\ufeff", re.compile("\ufeff"), ""),
    ("\\", re.compile(r"(?<!\\)\\{1,8}(?:[nrt]|u001b\[[0-9;]{0,20}m)"), "\n"),
    ("\\", re.compile(r"(?<!\\)\\{1,8}([\"'])"), r"\1"),
    ("*", re.compile(r"\*\*(?=\d)|(?<=[KMGT]iB)\*\*"), ""),
    ("`", re.compile(r"`(?=\d)|(?<=[KMGT]iB)`"), ""),
    ("<", re.compile(r"<(?:br|/?(?:p|div|li|tr|td|pre))(?:\s[^<>]{0,200})?/?>", re.I), "\n"),
    ("<", re.compile(r"</?(?:b|i|em|strong|span|code|a|font|mark|u|tt)(?:\s[^<>]{0,200})?>", re.I), ""),
    ("&", re.compile(rf"&(?:amp;)?({'|'.join(HTML_NAMES)});", re.I), lambda name: HTML_NAMES[name[1].lower()]),
)

BLANKS = re.compile(r"\s{2,}")
BLANKS_OF_LINE = re.compile(r"[^\S\n]{2,}")

# What may repeat in a pattern has an end, so that on no text looking for it takes a time that grows faster than the text does.
# In a Text there is one blank between words; a number has at most 20 digits.
ENDS = {r"\s+": r"\s", r"\s*": r"\s?", r"\d+": r"\d{1,20}", r"\d*": r"\d{0,20}", r"\w+": r"\w{1,60}", r"\w*": r"\w{0,60}",
        r"\W*": r"\W{0,60}", r"\S+": r"\S{1,60}", r"\S*": r"\S{0,60}"}


def ended(pattern):
    for repeated, end in ENDS.items():
        pattern = pattern.replace(repeated, end)
    return pattern


@functools.lru_cache(maxsize=None)
def bounded(pattern):
    return re.compile(ended(pattern), re.I)


class Text:
    """A piece of a log without colours, escapes, and what stands before its lines. `loose` has a blank for line breaks; in
    `tight` what was broken within a word is whole again. `far` is the same with more of the log around it."""

    def __init__(self, raw, far=b""):
        self.raw, self._far = raw, far

    @functools.cached_property
    def _split(self):
        """(a line, where its prefix ends) of each line."""
        raw = self.raw
        for sign, expression, instead in UNDONE:  # most texts have none of them
            if sign in raw:
                raw = expression.sub(instead, raw)
        return [(line, LINE_PREFIX.match(line).end()) for line in raw.splitlines()]

    @functools.cached_property
    def lines(self):
        # All of them at once; no line has a line break in it.
        return BLANKS_OF_LINE.sub(" ", "\n".join(line[end:].rstrip() for line, end in self._split)).split("\n") if self._split else []

    @functools.cached_property
    def loose(self):
        return one_blank(" ".join(line for line in self.lines if line))

    @functools.cached_property
    def tight(self):
        return one_blank("".join(line if line[:end].isspace() else line[end:] for line, end in self._split))

    @property
    def ends_line(self):
        """Whether what follows begins a line of its own."""
        return self.raw.endswith(("\n", "\\n"))

    @property
    def ends_blank(self):
        return self.raw[-1:] in (" ", "\t")

    @functools.cached_property
    def far(self):
        return Text(self._far.decode("utf-8", errors="replace"))

    def has(self, pattern):
        return bounded(pattern).search(self.loose) is not None

    def find(self, pattern):
        """The groups of what the pattern finds; None where it finds nothing, or things that differ."""
        for text in dict.fromkeys((self.loose, self.tight)):
            found = {m.groups() for m in bounded(pattern).finditer(text)}
            if found:
                return found.pop() if len(found) == 1 else None
        return None

    def first(self, pattern):
        """The groups of the first that the pattern finds, or None."""
        found = bounded(pattern).search(self.loose)
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
        result = Text("", self._far)
        result.lines = self.lines
        result.loose, result.tight = (cut(text, pattern) for text in (self.loose, self.tight))
        return result

    def whole(self, pattern):
        """A Size of a number of bytes without a unit of its own."""
        groups = self.find(pattern)
        return read_size(groups[0], "bytes") if groups else None


def one_blank(text):
    """The text with one blank where there were several. A single one stays what it is: a number may have a narrow one in it."""
    return BLANKS.sub(" ", text)


def cut(text, pattern):
    starts = [match.start() for match in bounded(pattern).finditer(text)]
    # "out of memory. Tried" and "Tried to allocate" may both be in one pattern, and stand side by side.
    return text[:next((start for start in starts if start > starts[0] + 30), MESSAGE_LENGTH)][:MESSAGE_LENGTH]


@dataclasses.dataclass(frozen=True)
class Trigger:
    """A regular expression that is compiled when it is first tried: most of them never are, for want of the needle."""

    pattern: bytes

    @functools.cached_property
    def compiled(self):
        return re.compile(self.pattern)

    def finditer(self, text, begin=0):
        return self.compiled.finditer(text, begin)

    def search(self, text):
        return self.compiled.search(text)


@dataclasses.dataclass(frozen=True)
class Rule:
    """A wording; see above."""

    name: str
    needle: bytes
    trigger: Trigger
    rank: int
    read: typing.Callable  # (Text before the trigger, Text from it on) -> Message, or None where it is no such message
    back: int = 0  # characters before the trigger that belong to the message


RULES = []


def rule(name, needle, trigger, rank=1, back=0):
    """Makes a Rule of the function below it; several for one that reads several wordings."""
    pattern = Trigger(ended(trigger).replace("]+", "]{1,40}").encode().replace(b" ", GAP).replace(b"~", b"(?:" + GAP + b")?"))

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
