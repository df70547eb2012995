"""Finds the message in a log of any length, in bounded memory. For bench/explain."""

import codecs
import collections
import dataclasses

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


@dataclasses.dataclass
class Found:
    """A message in a log, and what surrounds it."""

    message: object       # figures.Message
    before: Text
    after: Text
    count: int = 1        # how many of this kind the log has
    others: tuple = ()    # what other frameworks say in it, too


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
        if reasons is not None:
            look_alike(buffer, lower, reasons)
        for start, rule in events(lower, scanned, limit):
            if best and rule is best_rule:
                best.count += 1
                continue
            no_more = best and rule.rank >= best_rule.rank and (rule.rank > 1 or rule.name in others)
            if no_more or in_vain[rule.trigger] >= (TRIES if all_in_vain < ALL_TRIES else FEW_TRIES):
                continue
            found = read(buffer, start, rule)
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


def look_alike(buffer, lower, reasons):
    """Tells `reasons` what in the buffer only looks like a message."""
    for key, needle, pattern in LOOKALIKES:
        found = pattern.search(lower) if key not in reasons and needle in lower else None
        if found:
            near = buffer[max(0, found.start() - AROUND[0]):found.start() + AROUND[1]]
            reasons[key] = figures_of(key, near.decode("utf-8", errors="replace"))


def events(lower, begin, end):
    """(start, rule) of every trigger that begins in [begin, end), in order; at one place the rule that tells most."""
    result = []
    for order, rule in enumerate(RULES):
        if lower.find(rule.needle, begin) >= 0:
            result += [(match.start(), rule.rank, order) for match in rule.trigger.finditer(lower, begin) if match.start() < end]
    return [(start, RULES[order]) for start, _, order in sorted(result)]


def read(buffer, start, rule):
    """What the rule reads at `start`, or None."""
    begin = max(0, start - rule.back)

    def text(near_from, near_to, far):
        return Text(buffer[max(0, near_from):near_to].decode("utf-8", errors="replace"), far)

    before = text(begin - NEAR, begin, buffer[max(0, begin - BEFORE):begin])
    after = text(begin, start + NEAR, buffer[begin:start + AFTER])
    message = rule.read(before, after)
    if message and not message.figures and only_words(before, after, rule.rank):
        return None
    return Found(message, before, after) if message else None
