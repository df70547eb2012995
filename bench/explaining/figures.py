"""Sizes as error messages print them, what follows from them, and the cause that they support. For bench/explain."""

import dataclasses
import fractions
import math
import re
import typing

KIB, MIB, GIB = 2**10, 2**20, 2**30
# Every framework that is read here counts in powers of two, also those that write GB.
UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 2**40, "p": 2**50}
UNIT_NAMES = {1: "bytes", KIB: "KiB", MIB: "MiB", GIB: "GiB", 2**40: "TiB", 2**50: "PiB"}

DIAGNOSES = ("too_big_for_the_card", "live_tensors_fill_it", "fragmentation", "other_process", "limit_set_by_user",
             "host_memory", "kv_cache_or_pool_reservation", "not_enough_information")

# What a process has on a card beside its tensors: the CUDA context, and the workspaces of cuBLAS, cuDNN and NCCL.
CONTEXT = GIB // 2
# Others that hold less than this share of the card are not what fills it.
OTHERS_SHARE = fractions.Fraction(1, 10)
# Where others hold more than this process does, pieces that are a smaller share of the card than this are not the cause.
LITTLE_CACHED = fractions.Fraction(1, 20)
# Pieces that are together a smaller share of the card than this do not make it full, whoever holds the rest. An allocator that
# takes segments of 2 and 20 MiB has some of each left over in every program; with as little as that in one piece, the card would
# be full again with the next activation. 1/200 is 40 MiB of 8 GiB and 400 MiB of 80.
PIECES_SHARE = fractions.Fraction(1, 200)
# Where the allocator's cache is not printed, so much has to be live before live tensors are said to fill the card.
LIVE_SHARE = fractions.Fraction(3, 4)
# A remainder of a full card that a driver, which hands out pages of 2 MiB, need not be able to give away.
REMAINDER = 32 * MIB
# vLLM counts what is in use at its start. Below this share it is this process's own context, and a desktop's.
IN_USE_AT_START = fractions.Fraction(1, 8)
# Where this process and all others are listed, so much of the card may be missing: what the driver keeps for itself. A
# process has more, if only for its context.
UNLISTED = 256 * MIB
# Where a driver does not tell what a process uses, and where there is no limit, PyTorch prints 17179869184.00 GiB.
UNKNOWN = 2**63
# Nor is one request: it was computed wrongly.
IMPOSSIBLE = 2**50
# No memory is as large as this: digits that say so were put there by something else.
TOO_LARGE = 2**80


@dataclasses.dataclass(frozen=True)
class Size:
    """Bytes, known to within `half` to both sides, because what was printed was rounded."""

    bytes: fractions.Fraction
    half: fractions.Fraction = fractions.Fraction(0)
    unit: int = 1  # the unit it was printed in; of a difference, the coarsest of its terms

    @property
    def low(self):
        return self.bytes - self.half

    @property
    def high(self):
        return self.bytes + self.half

    def __add__(self, other):
        return self._of_terms(self.bytes + other.bytes, other)

    def __sub__(self, other):
        """The difference; None where it is below zero by more than rounding explains."""
        difference = self.bytes - other.bytes
        if difference + self.half + other.half < 0:
            return None
        return self._of_terms(max(difference, fractions.Fraction(0)), other)

    def _of_terms(self, result, other):
        unit = max(self.unit, other.unit)
        while unit > 1 and result >= 1024 * unit and 1024 * unit in UNIT_NAMES:
            unit *= 1024
        return Size(result, self.half + other.half, unit)

    def whole(self):
        """As a number of bytes."""
        return math.floor(self.bytes + fractions.Fraction(1, 2))

    def is_rough(self):
        """Whether rounding may have changed it by more than a hundredth."""
        return self.half * 100 > self.bytes

    def text(self):
        """With two decimals, in a unit in which they are justified."""
        larger = (u for u in sorted(UNIT_NAMES, reverse=True) if self.bytes >= u > self.unit and self.half * 200 <= u)
        unit = next(larger, self.unit)
        return f"{self.whole()} bytes" if unit == 1 else f"{float(self.bytes / unit):.2f} {UNIT_NAMES[unit]}"


def exact(count):
    return Size(fractions.Fraction(count))


# Digits, with what languages put between groups of three and before decimals.
NUMBER = r"\d{1,20}(?:[.,'\u00a0\u202f]\d{1,20}){0,7}"


def read_number(text, whole):
    """The value and the number of decimals; `whole` where the unit is bytes, so that there can be no decimals. None
    where the separators make no number."""
    digits = re.sub(r"['\u00a0\u202f](?=\d{3}(?!\d))", "", text)
    if re.search(r"[^\d.,]", digits):
        return None
    marks = re.findall(r"[.,]", digits)
    decimal = ""
    if marks and not whole:
        last = digits[max(digits.rfind("."), digits.rfind(",")) + 1:]
        if len(set(marks)) == 2:
            decimal = marks[-1]
        elif len(marks) == 1 and (marks[0] == "." or len(last) != 3):
            decimal = marks[0]
    head, _, tail = digits.rpartition(decimal) if decimal else (digits, "", "")
    groups = re.split(r"[.,]", head)
    if len(groups) > 1 and not (1 <= len(groups[0]) <= 3 and all(len(g) == 3 for g in groups[1:])):
        return None
    return fractions.Fraction("".join(groups) + (f".{tail}" if tail else "")), len(tail)


def read_size(number, unit):
    """A Size of a printed number and its unit ("GiB", "MB", "G", "bytes", "kB"); None where they make none."""
    unit = re.fullmatch(r"(bytes?|[kmgtp]?)(?:i?b)?", unit.lower())
    if not unit:
        return None
    factor = UNITS[unit[1][:1].replace("b", "")]
    read = read_number(number, whole=factor == 1)
    if read is None:
        return None
    value, decimals = read
    if value * factor >= TOO_LARGE:
        return None
    half = fractions.Fraction(factor, 2 * 10**decimals) if factor > 1 else fractions.Fraction(0)
    return Size(value * factor, half, factor)


def read_pytorch_size(number, unit):
    """The same of a size in PyTorch's form: two decimals, the unit in which it is at least 1 and at most 1024, or whole
    bytes. Anything else was damaged on its way, and could be wrong: None."""
    size = read_size(number, unit)
    if size is None or len(unit) == 1:
        return None
    if size.unit == 1:
        return size if size.bytes <= 1024 else None
    value = size.bytes / size.unit
    if size.half * 200 != size.unit or value < 1 or (value > 1024 and size.unit < GIB):
        return None
    return size


@dataclasses.dataclass
class Message:
    """What was read of an error: `figures` by name ("asked", "capacity", "free", "allocated", "reserved", "cached",
    "this_process", "limit", and others that only one wording has), and what else is known."""

    rule: str
    framework: str
    text: str
    figures: dict = dataclasses.field(default_factory=dict)
    processes: list = dataclasses.field(default_factory=list)  # (id, Size) of each that was listed beside this one
    processes_complete: bool = False
    device: typing.Optional[int] = None
    facts: set = dataclasses.field(default_factory=set)  # what the texts depend on, such as "private_pools"
    verdict: typing.Optional[str] = None  # where the words decide, and not figures
    values: dict = dataclasses.field(default_factory=dict)  # what else the texts name: numbers of tokens, variables


@dataclasses.dataclass
class Line:
    """A line of the arithmetic: the figure, and the terms it was computed from ((sign, figure, Size), ...)."""

    name: str
    size: Size
    terms: tuple = ()


class Account:
    """The arithmetic of a message: `sizes` by name, those that follow from others included, and `lines` to show."""

    SHOWN = ("asked", "capacity", "limit", "free", "allocated", "private_pools", "reserved", "cached", "this_process")

    def __init__(self, message):
        self.message, self.sizes, self.terms = message, dict(message.figures), {}
        self.contradicts = False
        self._drop_what_contradicts()
        self._derive("cached", ("reserved", "allocated"))
        if "reserved" not in self.sizes and self._has("allocated", "cached"):
            self._put("reserved", self.sizes["allocated"] + self.sizes["cached"], (("", "allocated"), ("+", "cached")))
            if self._has("capacity") and self.sizes["reserved"].low > self.sizes["capacity"].high and not self.spilled() \
                    and "cached_wording" in message.facts:
                self._drop("reserved", "cached")
        self._others()
        if "this_process" in self.sizes:
            self._derive("own_outside", ("this_process", "reserved"))
        elif not self.spilled():
            self._derive("outside", ("capacity", "free", "reserved"))
            if self._has("capacity", "free", "reserved") and "outside" not in self.sizes:
                self.contradicts = True

        self._listed()

    def _has(self, *names):
        return all(name in self.sizes for name in names)

    def _put(self, name, size, terms):
        self.sizes[name] = size
        self.terms[name] = tuple((sign, of, self.sizes[of]) for sign, of in terms)

    def _derive(self, name, names):
        """sizes[name] = first - second - ..., where all are known and it is not below zero."""
        if name in self.sizes or not self._has(*names):
            return
        rest = self.sizes[names[0]]
        for other in names[1:]:
            rest = rest - self.sizes[other] if rest is not None else None
        if rest is not None:
            self._put(name, rest, [("", names[0]), *(("-", other) for other in names[1:])])

    def _drop(self, *names):
        self.contradicts = True
        for name in names:
            self.sizes.pop(name, None)

    def _drop_what_contradicts(self):
        """Of two figures that cannot both be right, neither is used."""
        s = self.sizes
        for name in ("this_process", "limit"):
            if name in s and s[name].bytes >= UNKNOWN:
                del s[name]
        if self._has("this_process") and s["this_process"].bytes == 0:  # the driver does not see it, as from within a container
            del s["this_process"]
        if self._has("capacity") and s["capacity"].bytes == 0:  # printed where a driver does not tell
            self._drop("capacity")
        if self._has("free", "capacity") and s["free"].low > s["capacity"].high:
            self._drop("free", "capacity")
        if self._has("reserved", "allocated") and s["allocated"].low > s["reserved"].high:
            self._drop("reserved", "allocated")
        if self._has("this_process", "capacity") and s["this_process"].low > s["capacity"].high and not self.spilled():
            self._drop("this_process")
        if self._has("this_process", "allocated", "cached") \
                and s["this_process"].high < (s["allocated"] + s["cached"]).low:
            self._drop("this_process")

    def impossible(self):
        """Whether so much was asked for as no machine has."""
        return "asked" in self.sizes and self.sizes["asked"].bytes >= IMPOSSIBLE

    def spilled(self):
        """Whether more is allocated than the card has: drivers on Windows then use the host's memory."""
        s = self.sizes
        return self._has("allocated", "capacity") and s["allocated"].low > s["capacity"].high

    def _others(self):
        """What other processes hold: the sum of those that are listed, where with this one and what is free they make
        up the card, so that none is missing."""
        m, s = self.message, self.sizes
        if not m.processes or not m.processes_complete or not self._has("this_process", "capacity", "free"):
            return
        total = sum((size for _, size in m.processes), exact(0))
        rest = s["capacity"] - s["free"]
        for size in (s["this_process"], total):
            rest = rest - size if rest is not None else None
        if rest is None or rest.low > UNLISTED:
            return
        self.sizes["others"] = total
        self.terms["others"] = tuple(("+" if i else "", f"process {pid}", size) for i, (pid, size) in enumerate(m.processes))

    def _listed(self):
        """Where one process is listed without a word which it is: it is this one if there is no room for both."""
        m, s = self.message, self.sizes
        if not m.facts & {"listed_only", "listed_is_this"} or len(m.processes) != 1 or not m.processes_complete or not self._has("capacity", "free", "reserved"):
            return
        size, used = m.processes[0][1], s["capacity"] - s["free"]
        if used and (size + s["reserved"]).low > used.high:
            m.facts.discard("listed_only")
            m.facts.add("listed_is_this")
            own = size - s["reserved"]
            if own is not None:  # its own figure is nearer than what the card has in use
                s.pop("outside", None)
                s["own_outside"] = own
                self.terms["own_outside"] = (("", f"process {m.processes[0][0]}", size), ("-", "reserved", s["reserved"]))

    def held_by_others(self):
        """A lower bound of what others hold, however it is known; None where nothing tells."""
        s = self.sizes
        if "listed_is_this" in self.message.facts:
            rest = s["capacity"] - s["free"] - self.message.processes[0][1]
            return rest.bytes if rest else fractions.Fraction(0)
        if "others" in s:
            return s["others"].bytes
        if self._has("this_process", "capacity", "free"):
            rest = s["capacity"] - s["free"]
            rest = rest - s["this_process"] if rest is not None else None
            return rest.bytes if rest is not None else None
        return max(s["outside"].bytes - CONTEXT, fractions.Fraction(0)) if "outside" in s else None

    def pieces_count(self):
        """Whether what is cached is so much that its being in pieces can be the cause."""
        s = self.sizes
        return not self._has("cached", "capacity") or s["cached"].bytes >= s["capacity"].bytes * PIECES_SHARE

    def lines(self):
        """What to show, in order: printed figures, then what follows."""
        for name in (*self.SHOWN, "own_outside", "outside", "others"):
            if name in self.sizes:
                yield Line(name, self.sizes[name], self.terms.get(name, ()))

    def json(self):
        """The figures in bytes, None where one is not known, by the keys of --json."""
        names = {"asked": "asked", "capacity": "capacity", "free": "free", "allocated": "allocated", "reserved": "reserved",
                 "reserved_unallocated": "cached", "this_process": "this_process",
                 "outside_framework": "own_outside" if "own_outside" in self.sizes else "outside", "other_processes": "others"}
        known = {f"{key}_bytes": self.sizes.get(name) for key, name in names.items()}
        return {**{key: size.whole() if size else None for key, size in known.items()}, "device": self.message.device}


def diagnose(account):
    """One of DIAGNOSES."""
    if account.impossible() and account.message.verdict != "host_memory":
        return "too_big_for_the_card"
    if account.message.verdict:
        return account.message.verdict
    s = account.sizes
    asked, capacity, free = s.get("asked"), s.get("capacity"), s.get("free")
    cached, allocated, limit = s.get("cached"), s.get("allocated"), s.get("limit")
    if "at_start" in account.message.facts:
        known = asked and capacity and free
        return "other_process" if known and (capacity.bytes - free.bytes > capacity.bytes * IN_USE_AT_START) \
            else "kv_cache_or_pool_reservation"
    if asked is None:
        return "not_enough_information"
    if capacity and asked.bytes >= capacity.bytes:
        return "too_big_for_the_card"
    if limit and not (capacity and limit.high >= capacity.low):  # one that allows the whole card decides nothing
        held = s.get("reserved") or allocated
        if asked.bytes > limit.bytes or (held and held.bytes + asked.bytes > limit.bytes and not (free and free.bytes < asked.bytes)):
            return "limit_set_by_user"
    if free is None and capacity and allocated and (allocated + asked).low > capacity.high:
        return "live_tensors_fill_it"
    if free is None or (free.low >= asked.high and free.bytes > REMAINDER):
        return "not_enough_information"  # enough was free, and yet it failed
    own = s.get("own_outside")
    if capacity and own and own.bytes <= 2 * GIB and (asked + own).low > capacity.high:
        return "too_big_for_the_card"  # not even with nothing else in this process
    others = account.held_by_others()
    others_fill_it = (others is not None and capacity is not None and allocated is not None
                      and others >= capacity.bytes * OTHERS_SHARE and allocated.bytes + asked.bytes <= capacity.bytes)
    if cached and cached.bytes + free.bytes >= asked.bytes and cached.bytes > 0 and account.pieces_count():
        little = others_fill_it and cached.bytes < capacity.bytes * LITTLE_CACHED and allocated.bytes + cached.bytes < others
        return "other_process" if little else "fragmentation"
    if capacity is None or allocated is None or (account.contradicts and not account.spilled()):
        return "not_enough_information"
    if cached is None:
        return "live_tensors_fill_it" if allocated.bytes >= capacity.bytes * LIVE_SHARE else "not_enough_information"
    if own and not others_fill_it and allocated.bytes + asked.bytes <= capacity.bytes and own.bytes > allocated.bytes:
        return "not_enough_information"  # this process fills it, but not PyTorch's tensors
    return "other_process" if others_fill_it else "live_tensors_fill_it"
