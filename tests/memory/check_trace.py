#!/usr/bin/env python3
"""Checks a Chrome / Perfetto trace: check_trace.py FILE [--peak N] [--ooms N] [--phase NAME ...]

Known event types only, numbers where numbers must be, time that never goes back within a track, slices that nest,
categories that add up to what is allocated. Prints the figures.
Exit 0: fine. 1: refused, with one line that says why. 2: the file cannot be read.
"""
import argparse
import json
import re
import sys


class Refused(Exception):
    pass


def require(condition, why):
    if not condition:
        raise Refused(why)


def is_count(value):
    return type(value) in (int, float) and value >= 0


def no_duplicates(pairs):
    result = {}
    for key, value in pairs:
        require(key not in result, f"key {key!r} twice in one object")
        result[key] = value
    return result


def no_constant(name):
    raise Refused(f"{name} is not JSON")


def check_nesting(slices):
    """Slices of one thread: each lies inside the one that is open when it begins."""
    open_ends = []
    for start, end, name in sorted(slices, key=lambda s: (s[0], -s[1])):
        # A slice that starts where another ends comes after it.
        while open_ends and open_ends[-1] <= start and open_ends[-1] < end:
            open_ends.pop()
        require(not open_ends or end <= open_ends[-1], f"slice {name!r} at {start} reaches out of the one around it")
        open_ends.append(end)


def check(text):
    """The figures and the names of the phases; raises Refused."""
    try:
        trace = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=no_constant)
    except ValueError as error:
        raise Refused(f"is not JSON: {error}") from None
    require(type(trace) is dict and type(trace.get("traceEvents")) is list, "has no list traceEvents")
    last_ts, slices, phases = {}, {}, []
    allocated, categories = {}, {}
    ooms = 0
    for number, event in enumerate(trace["traceEvents"]):
        what = f"event {number}"
        require(type(event) is dict, f"{what} is not an object")
        kind, name = event.get("ph"), event.get("name")
        require(kind in ("C", "X", "i", "M"), f"{what} is of the unknown type {kind!r}")
        require(type(name) is str and name, f"{what} has no name")
        require(type(event.get("pid")) is int, f"{what} has no pid")
        require(is_count(event.get("ts")), f"{what}: ts is {event.get('ts')!r}")
        ts, pid, arguments = event["ts"], event["pid"], event.get("args", {})
        require(type(arguments) is dict, f"{what}: args is not an object")
        track = (kind, pid, name if kind == "C" else event.get("tid"))
        require(ts >= last_ts.get(track, 0), f"{what}: time goes back in track {track}")
        last_ts[track] = ts
        if kind == "C":
            require(arguments, f"{what} counts nothing")
            for key, value in arguments.items():
                require(is_count(value), f"{what}: counter {key} is {value!r}")
            match = re.fullmatch(r"(gpu\d+) (memory|by category)", name)
            if match and match[2] == "memory":
                require("allocated" in arguments, f"{what} does not say what is allocated")
                allocated.setdefault((pid, match[1]), []).append(arguments["allocated"])
            elif match:
                categories.setdefault((pid, match[1]), []).append(sum(arguments.values()))
        elif kind == "X":
            require(is_count(event.get("dur")), f"{what}: dur is {event.get('dur')!r}")
            require(type(event.get("tid")) is int, f"{what} has no tid")
            slices.setdefault((pid, event["tid"]), []).append((ts, ts + event["dur"], name))
            phases.append(name)
        elif kind == "i":
            require(event.get("s") in ("g", "p", "t"), f"{what}: scope is {event.get('s')!r}")
            ooms += name.startswith("out of memory")
        else:
            require(name in ("process_name", "thread_name"), f"{what}: unknown metadata {name!r}")
            require(type(arguments.get("name")) is str, f"{what} names nothing")
    for thread in slices.values():
        check_nesting(thread)
    require(allocated == categories, "the categories do not add up to what is allocated")
    peak = max((max(counts) for counts in allocated.values()), default=0)
    return {"peak": peak, "ooms": ooms, "phases": len(phases), "events": len(trace["traceEvents"])}, phases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    for name in ("peak", "ooms"):
        parser.add_argument(f"--{name}", type=int, help="the figure expected")
    parser.add_argument("--phase", action="append", default=[], help="a phase that must be there")
    arguments = parser.parse_args()
    try:
        with open(arguments.file, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        print(f"{arguments.file}: {error.strerror}", file=sys.stderr)
        return 2
    except UnicodeDecodeError:
        print(f"{arguments.file}: is not UTF-8", file=sys.stderr)
        return 1
    try:
        figures, phases = check(text)
        for name in ("peak", "ooms"):
            expected = getattr(arguments, name)
            require(expected in (None, figures[name]), f"{name} is {figures[name]}, expected {expected}")
        for phase in arguments.phase:
            require(phase in phases, f"no phase is named {phase!r}")
    except Refused as why:
        print(f"{arguments.file}: {why}", file=sys.stderr)
        return 1
    print(" ".join(f"{name}={figure}" for name, figure in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
