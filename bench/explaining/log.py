"""Finds the message in a log of any length, in bounded memory. For bench/explain."""

import codecs
import collections
import dataclasses
import functools

from .context import Context
from .refusals import AROUND, LOOKALIKES, figures_of, only_words
from .rules import RULES
from .text import Text

PIECE = 1 << 20   # bytes read at a time
BEFORE = 1 << 16  # bytes kept before a message: the traceback, TensorFlow's list of chunks
AFTER = 1 << 16   # and after its beginning
NEAR = 1 << 13    # of both, what every rule looks at; the rest only where a rule asks for it (Text.far)
# Reads that come to nothing, as of a warning that stands there a million times: of one rule, and of all of them together.
# A rule that has failed only a few times is tried all the same, so that no other one's warnings hide its message.
TRIES, ALL_TRIES, FEW_TRIES = 200, 300, 8
# Words that stand in many needles: where one is missing, none of those needs to be looked for.
PARTS = (b"alloc", b"buffer", b"cache", b"cud", b"device", b"error", b"exceed", b"fail", b"gpu", b"host", b"insufficient", b"kill", b"limit", b"memory",
         b"oom", b"out", b"signal", b"space")
NEEDLES = frozenset(rule.needle for rule in RULES) | frozenset(needle for _, needle, _ in LOOKALIKES)


@dataclasses.dataclass
class Found:
    """A message in a log, and what surrounds it."""

    message: object       # figures.Message
    before: Text
    after: Text
    count: int = 1        # how many of this kind the log has
    others: tuple = ()    # what other frameworks say in it, too

    @functools.cached_property
    def context(self):
        """What stands around it, which is the same in every language."""
        return Context(self)


def pieces(stream):
    """The stream in pieces of UTF-8, also where it is UTF-16, as PowerShell's redirection writes it."""
    first = stream.read(PIECE)
    if not first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        while first:
            yield first
            first = stream.read(PIECE)
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    while first:
        yield decoder.decode(first).encode("utf-8", errors="replace")
        first = stream.read(PIECE)


def find(stream, reasons=None):
    """The first message of the best rank that is in a binary stream, as Found; None where there is none. What looks like one and is
    none is told to `reasons`, a dictionary: of a key of refusals.LOOKALIKES, what figures_of() finds."""
    best, best_rule, others, in_vain, all_in_vain = None, None, {}, collections.Counter(), 0
    buffer, scanned, at_end = b"", 0, False
    source = pieces(stream)
    while not at_end:
        piece = next(source, None)
        at_end = piece is None
        buffer += piece or b""
        limit = len(buffer) if at_end else max(scanned, len(buffer) - AFTER)
        lower = buffer.lower()
        present = needles_in(lower)
        texts = {}
        if reasons is not None:
            look_alike(buffer, lower, present, reasons)
        for start, rule in events(lower, present, scanned, limit):
            if best and rule is best_rule:
                best.count += 1
                continue
            no_more = best and rule.rank >= best_rule.rank and (rule.rank > 1 or rule.name in others)
            if no_more or in_vain[rule.trigger] >= (TRIES if all_in_vain < ALL_TRIES else FEW_TRIES):
                continue
            found = read(buffer, start, rule, texts)
            if found:
                if best is None or rule.rank < best_rule.rank:
                    best, best_rule = found, rule
                if rule.rank < 3:  # "OutOfMemoryError" stands before nearly every message
                    others[rule.name] = found.message.framework
            else:
                in_vain[rule.trigger] += 1
                all_in_vain += 1
        keep = max(0, limit - BEFORE)
        buffer, scanned = buffer[keep:], limit - keep
    if best:
        best.others = tuple(sorted({name for name in others.values() if name.split(",")[0] != best.message.framework.split(",")[0]}))
    return best


def needles_in(lower):
    """Those of NEEDLES that are in the text."""
    missing = frozenset(part for part in PARTS if part not in lower)
    return {needle for needle in needles_without(missing) if needle in lower}


@functools.lru_cache(maxsize=256)
def needles_without(parts):
    """Those of NEEDLES that have none of the parts in them."""
    return [needle for needle in NEEDLES if not any(part in needle for part in parts)]


def look_alike(buffer, lower, present, reasons):
    """Tells `reasons` what in the buffer only looks like a message."""
    for key, needle, pattern in LOOKALIKES:
        found = pattern.search(lower) if key not in reasons and needle in present else None
        if found:
            near = buffer[max(0, found.start() - AROUND[0]):found.start() + AROUND[1]]
            reasons[key] = figures_of(key, near.decode("utf-8", errors="replace"))


def events(lower, present, begin, end):
    """(start, rule) of every trigger that begins in [begin, end), in order; at one place the rule that tells most. `present` are the
    needles in the text."""
    result = []
    for order, rule in enumerate(RULES):
        if rule.needle in present:
            result += [(match.start(), rule.rank, order) for match in rule.trigger.finditer(lower, begin) if match.start() < end]
    return [(start, RULES[order]) for start, _, order in sorted(result)]


def read(buffer, start, rule, texts):
    """What the rule reads at `start`, or None. `texts` keeps what stands around the last place: several rules may begin there."""
    begin = max(0, start - rule.back)
    if (begin, start) not in texts:
        texts.clear()
        texts[begin, start] = around(buffer, begin, start)
    before, after = texts[begin, start]
    message = rule.read(before, after)
    if message and not message.figures and only_words(before, after, rule.rank):
        return None
    return Found(message, before, after) if message else None


def around(buffer, begin, start):
    """The Text before `begin`, and the one from there on."""
    def text(near_from, near_to, far):
        return Text(buffer[max(0, near_from):near_to].decode("utf-8", errors="replace"), far)

    return text(begin - NEAR, begin, buffer[max(0, begin - BEFORE):begin]), text(begin, start + NEAR, buffer[begin:start + AFTER])
