"""bench/explain on damaged and hostile pickles: a line that refuses, or figures that agree with each other; nothing runs, nothing hangs.

  tests/explain/snapshot_fuzz.py [--rounds N] [--seed N]

A snapshot is written in a random protocol, and then damaged: bytes changed, lost or doubled, opcodes put in (those that name, call and
build among them), numbers and types replaced before it is written. What a pickle may name is a function that would be noticed.
"""
import argparse
import io
import pickle
import random
import resource
import sys

from load import ROOT  # noqa: F401: makes bench/ importable
from explaining import snapshot_pickle
from explaining.snapshot_events import recordings
from explaining.snapshot_findings import Finding
from explaining.snapshot_pickle import Refused
from explaining.snapshot_text import Text
from program import MIB, OutOfMemory, Program, training

RAN = []


def runs(*arguments):
    """What a hostile pickle would call."""
    RAN.append(arguments)


class Call:
    def __reduce__(self):
        return runs, ("x",)


def bases():
    """Snapshots as dictionaries, small."""
    small = Program(budget=64 * MIB)
    try:
        training(small, 3, layers=1, parameter=4 * MIB, activation=3 * MIB, leak=8 * MIB)
    except OutOfMemory:
        pass
    short = Program(budget=32 * MIB)
    try:
        short.free(short.allocate(8 * MIB, "/a.py:1 in f"))
        short.allocate(40 * MIB, "/a.py:2 in f")
    except OutOfMemory:
        pass
    return [small.snapshot(), short.snapshot(), short.snapshot()]


INSERTED = [b"c__main__\nruns\n", b"R", b"\x8c\x08__main__\x8c\x04runs\x93", b"i__main__\nruns\n", b"o", b"b", b"\x81", b"\x92", b"Q", b"Pa\n",
            b"\x82\x01", b"\x83\x01\x02", b"\x84\x01\x00\x00\x00", b"(", b"0", b"1", b"2", b"h\x00", b"h\x05", b"q\x07", b"\x94", b"e", b"a", b"u",
            b"s", b"\x8f", b"\x90", b"\x91", b"\x85", b"\x86", b"\x87", b"N", b"K\x00", b"J\xff\xff\xff\xff", b"G\x7f\xf0\x00\x00\x00\x00\x00\x00",
            b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00", b"L99999999999999999999L\n", b"I7\n", b"F1e999\n", b"S'x'\n", b"V\\ud800\n", b"]", b"}",
            b")", b".", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"\x97", b"\x98", b"j\xff\xff\xff\xff", b"r\xff\xff\x00\x00", b"B\x04\x00\x00\x00abcd"]
STRANGE = [None, True, -1, 0, 1 << 62, 1 << 200, 1.5, float("nan"), "", "x", "\ud800", [], {}, (), [[]], {"frames": []}, b"x", ("a", 1)]


def reached(rng, value, depth=0):
    """A container inside the value, some way down."""
    inner = [item for item in (value.values() if isinstance(value, dict) else value) if isinstance(item, (dict, list)) and item]
    return reached(rng, rng.choice(inner), depth + 1) if inner and (depth < 2 or rng.random() < 0.6) else value


def damaged(rng, plain):
    """A pickle; the value where it is sure to be what was written, else None."""
    how = rng.randrange(10)
    if how < 4:
        value = pickle.loads(plain)
        for _ in range(rng.randint(1, 3)):
            place = reached(rng, value)
            item = Call() if rng.random() < 0.03 else rng.choice(STRANGE)
            if isinstance(place, dict) and place:
                key = rng.choice(list(place))
                if rng.random() < 0.3:
                    del place[key]
                else:
                    place[key] = item
            elif place:
                place[rng.randrange(len(place))] = item
        try:
            return pickle.dumps(value, protocol=rng.randint(2, 4))
        except UnicodeEncodeError:
            return plain
    data = bytearray(plain)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        if how < 7:
            data[at:at + rng.randrange(2)] = rng.choice(INSERTED)
        elif how == 7:
            data[at:at + 1] = bytes([rng.randrange(256)])
        elif how == 8:
            del data[at:at + rng.choice((1, 1, 2, 50, len(data)))]
        else:
            data[at:at] = data[max(0, at - rng.randrange(60)):at]
    return bytes(data)


def judge(data, languages=("en", "zh")):
    """What is said: the refusal, or "" where there are figures. Raises what is not to be. Texts in the languages are made, too."""
    try:
        value = snapshot_pickle.load(io.BytesIO(data))
        found, settings = recordings(value, len(data))
    except Refused as why:
        text = str(why)
        assert text and "\n" not in text and len(text) < 300, text
        return text
    for recording in found[:2]:
        finding = Finding(recording, settings)
        assert sum(size for _, size in finding.by_category) == finding.live == sum(line[1] for line in finding.lines), data
        assert 0 <= finding.live <= finding.peak, data
        for language in languages:
            Text(finding, language, "f").text(True)
    return ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    plain = [pickle.dumps(value, protocol=protocol) for value in bases() for protocol in (2, 4)]
    for data in plain:
        assert judge(data) == "", data
    sys.modules["__main__"].runs = runs
    # A few bytes may ask for a gigabyte; the command has such a limit, too, and here it is a low one, so that it is soon met.
    resource.setrlimit(resource.RLIMIT_AS, (snapshot_pickle.address_space() + (48 << 20), resource.RLIM_INFINITY))
    refused = calls = 0
    for number in range(options.rounds):
        # Most of the rounds are about the reader, and a small file has as many ways to be wrong.
        data = damaged(rng, plain[rng.randrange(2) if rng.random() < 0.02 else rng.randrange(2, len(plain))])
        try:
            said = judge(data, (("en", "zh")[number // 8 % 2],) if number % 8 == 0 else ())
        except Exception as error:
            raise AssertionError(f"--seed {options.seed}, round {number}: {type(error).__name__}: {error}\n{data[:400]!r}") from error
        refused += said != ""
        calls += "would run code" in said
        assert not RAN, f"--seed {options.seed}, round {number}: it ran"
    assert refused > options.rounds / 3 and (calls > options.rounds / 100 or options.rounds < 1000), (refused, calls)
    print(f"{options.rounds} pickles: {refused} refused, {calls} of them because they would run code")


if __name__ == "__main__":
    main()
