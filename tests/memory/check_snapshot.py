#!/usr/bin/env python3
"""Checks a memory snapshot for PyTorch's memory_viz page: check_snapshot.py FILE [--peak N] [--live N] [--ooms N]
[--frame NAME ...]

Reads the pickle with an interpreter of its own that knows only the opcodes the page's reader is sure to know, then
checks the shape, that blocks tile their segments, and that replaying the trace ends in exactly those segments.
Prints the figures. Exit 0: fine. 1: refused, with one line that says why. 2: the file cannot be read.
"""
import argparse
import bisect
import io
import pickle
import struct
import sys


class Refused(Exception):
    pass


def require(condition, why):
    if not condition:
        raise Refused(why)


# ------------------------------------------------------------------------------------------------------------- pickle

BATCH = 1000


class Mark:
    pass


def unpickle(data):
    """The value in `data`; refuses every opcode but those of the list in this function."""
    at = 0
    stack = []

    def take(count):
        nonlocal at
        begin, at = at, at + count
        if at > len(data):  # no require() where a million bytes go through: its words would be made each time
            raise Refused(f"ends in the middle of an opcode, at byte {begin}")
        return data[begin:at]

    def pop_to_mark():
        for i in range(len(stack) - 1, -1, -1):
            if stack[i] is Mark:
                items = stack[i + 1:]
                del stack[i:]
                return items
        raise Refused(f"no mark before byte {at}")

    require(take(1) == b"\x80", "does not start with PROTO")
    require(2 <= take(1)[0] <= 4, "is of a protocol other than 2 to 4")
    while True:
        where = at
        opcode = take(1)
        if opcode == b".":  # STOP
            break
        if opcode == b"X":  # BINUNICODE
            try:
                stack.append(take(struct.unpack("<I", take(4))[0]).decode("utf-8"))
            except UnicodeDecodeError:
                raise Refused(f"text that is not UTF-8, at byte {where}") from None
        elif opcode == b"J":  # BININT
            stack.append(struct.unpack("<i", take(4))[0])
        elif opcode == b"\x8a":  # LONG1
            length = take(1)[0]
            require(1 <= length <= 8, f"an integer of {length} bytes, at byte {where}")
            stack.append(int.from_bytes(take(length), "little", signed=True))
        elif opcode == b"}":  # EMPTY_DICT
            stack.append({})
        elif opcode == b"]":  # EMPTY_LIST
            stack.append([])
        elif opcode == b"(":  # MARK
            stack.append(Mark)
        elif opcode == b"u":  # SETITEMS
            items = pop_to_mark()
            require(len(items) % 2 == 0 and stack and type(stack[-1]) is dict, f"bad SETITEMS at byte {where}")
            filled = stack[-1]
            for key, value in zip(items[::2], items[1::2]):
                if type(key) is not str:
                    raise Refused(f"a key that is not text, at byte {where}")
                if key in filled:
                    raise Refused(f"key {key!r} twice, at byte {where}")
                filled[key] = value
        elif opcode == b"e":  # APPENDS
            items = pop_to_mark()
            require(len(items) <= BATCH, f"a batch of {len(items)} items at byte {where}; at most {BATCH}")
            require(stack and type(stack[-1]) is list, f"bad APPENDS at byte {where}")
            stack[-1].extend(items)
        elif opcode == b"\x89":  # NEWFALSE
            stack.append(False)
        elif opcode == b"\x88":  # NEWTRUE
            stack.append(True)
        elif opcode == b"\x86":  # TUPLE2
            require(len(stack) >= 2 and Mark not in stack[-2:], f"bad TUPLE2 at byte {where}")
            stack[-2:] = [tuple(stack[-2:])]
        else:
            raise Refused(f"opcode {opcode!r} at byte {where} is not one that every reader knows")
    require(at == len(data), f"{len(data) - at} bytes after STOP")
    require(len(stack) == 1 and stack[0] is not Mark, "leaves something on the stack")
    return stack[0]


class NoGlobals(pickle.Unpickler):
    def find_class(self, module, name):
        raise Refused(f"names {module}.{name}")


# ------------------------------------------------------------------------------------------------------------- content

SEGMENT = {
    "device": int, "address": int, "total_size": int, "allocated_size": int, "active_size": int,
    "requested_size": int, "stream": int, "segment_type": str, "segment_pool_id": tuple, "is_expandable": bool,
    "frames": list, "blocks": list,
}
BLOCK = {"address": int, "size": int, "requested_size": int, "state": str, "frames": list}
FRAME = {"name": str, "filename": str, "line": int}
ENTRY = {"action": str, "addr": int, "size": int, "stream": int, "time_us": int, "frames": list}
OOM = {"action": str, "device_free": int, "size": int, "stream": int, "time_us": int, "frames": list}
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
           "segment_unmap", "snapshot", "oom")
ACTIVE = ("active_allocated", "active_pending_free")


def check_shape(value, keys, what):
    require(type(value) is dict, f"{what} is not a dictionary")
    if value.keys() != keys.keys():
        raise Refused(f"{what} has the keys {sorted(value)}, not {sorted(keys)}")
    for key, kind in keys.items():
        if type(value[key]) is not kind:
            raise Refused(f"{what}: {key} is {value[key]!r}, not of type {kind.__name__}")
        if kind is int and value[key] < 0:
            raise Refused(f"{what}: {key} is negative")
    for frame in value.get("frames", []):
        check_shape(frame, FRAME, f"a frame of {what}")


def check_segment(segment, devices, what):
    check_shape(segment, SEGMENT, what)
    require(segment["device"] < devices, f"{what} is on device {segment['device']}, which has no trace")
    require(segment["segment_type"] in ("large", "small"), f"{what} is of type {segment['segment_type']!r}")
    require(segment["total_size"] > 0 and segment["blocks"], f"{what} is empty")
    end = segment["address"]
    sums = {"allocated_size": 0, "active_size": 0, "requested_size": 0}
    for number, block in enumerate(segment["blocks"]):
        name = f"block {number} of {what}"
        check_shape(block, BLOCK, name)
        require(block["state"] in ACTIVE + ("inactive",), f"{name} is in state {block['state']!r}")
        require(block["address"] == end, f"{name} starts at {block['address']}, not at {end}: blocks do not tile")
        require(0 < block["size"] and block["requested_size"] <= block["size"], f"{name} asked for more than it has")
        end += block["size"]
        if block["state"] in ACTIVE:
            sums["active_size"] += block["size"]
            sums["requested_size"] += block["requested_size"]
        if block["state"] == "active_allocated":
            sums["allocated_size"] += block["size"]
    require(end == segment["address"] + segment["total_size"], f"the blocks of {what} do not fill it")
    for key, total in sums.items():
        require(segment[key] == total, f"{what}: {key} is {segment[key]}, its blocks add up to {total}")


class Ranges:
    """Address ranges that do not overlap."""

    def __init__(self):
        self.starts = []
        self.sizes = {}

    def add(self, start, size, what):
        i = bisect.bisect_left(self.starts, start)
        if i > 0:
            before = self.starts[i - 1]
            require(before + self.sizes[before] <= start, f"{what} overlaps what is live at {before}")
        if i < len(self.starts):
            require(start + size <= self.starts[i], f"{what} overlaps what is live at {self.starts[i]}")
        self.starts.insert(i, start)
        self.sizes[start] = size

    def remove(self, start, size, what):
        require(self.sizes.get(start) == size, f"{what}: nothing of this size is live there")
        del self.starts[bisect.bisect_left(self.starts, start)]
        del self.sizes[start]

    def holds(self, start, size):
        i = bisect.bisect_right(self.starts, start) - 1
        return i >= 0 and start + size <= self.starts[i] + self.sizes[self.starts[i]]

    def touched(self, start, size):
        i = bisect.bisect_left(self.starts, start)
        return i < len(self.starts) and self.starts[i] < start + size


def replay(trace, device):
    """Peak bytes, out-of-memory events, and what is live at the end: segments and blocks, address to size."""
    segments, blocks, pending = Ranges(), Ranges(), {}
    live = peak = ooms = 0
    last_us = 0
    for number, entry in enumerate(trace):
        what = f"event {number} of device {device}"
        require(type(entry) is dict and entry.get("action") in ACTIONS, f"{what} has no known action")
        action = entry["action"]
        check_shape(entry, OOM if action == "oom" else ENTRY, what)
        require(entry["time_us"] >= last_us, f"{what} is earlier than the one before")
        last_us = entry["time_us"]
        if action == "oom":
            ooms += 1
            continue
        address, size = entry["addr"], entry["size"]
        what = f"{what} ({action} of {size} at {address})"
        if action == "segment_alloc":
            segments.add(address, size, what)
        elif action == "alloc":
            require(segments.holds(address, size), f"{what} lies in no segment")
            blocks.add(address, size, what)
            live += size
            peak = max(peak, live)
        elif action == "free_requested":
            require(blocks.sizes.get(address) == size, f"{what}: no such block is live")
            require(address not in pending, f"{what}: requested before")
            pending[address] = size
        elif action == "free_completed":
            require(pending.pop(address, None) == size, f"{what}: was not requested")
            blocks.remove(address, size, what)
            live -= size
        elif action == "segment_free":
            require(not blocks.touched(address, size), f"{what}: a block is live in it")
            segments.remove(address, size, what)
        else:
            raise Refused(f"{what}: this program has no use for it")
    require(not pending, f"device {device} ends with frees that were requested and never completed")
    return peak, ooms, segments.sizes, blocks.sizes


def check(data):
    """The figures of a snapshot; raises Refused."""
    snapshot = unpickle(data)
    require(NoGlobals(io.BytesIO(data)).load() == snapshot, "reads differently with Python's own reader")
    require(type(snapshot) is dict, "is not a dictionary")
    for key, kind in (("segments", list), ("device_traces", list), ("allocator_settings", dict)):
        require(type(snapshot.get(key)) is kind, f"{key} is missing or not a {kind.__name__}")
    traces = snapshot["device_traces"]
    frames = set()
    found = [(Ranges(), Ranges()) for _ in traces]
    for number, segment in enumerate(snapshot["segments"]):
        what = f"segment {number}"
        check_segment(segment, len(traces), what)
        segments, blocks = found[segment["device"]]
        segments.add(segment["address"], segment["total_size"], what)
        for block in segment["blocks"]:
            if block["state"] in ACTIVE:
                blocks.add(block["address"], block["size"], what)
            frames.update(frame["name"] for frame in block["frames"])
    peak = events = ooms = 0
    for device, trace in enumerate(traces):
        require(type(trace) is list, f"the trace of device {device} is not a list")
        device_peak, device_ooms, segments, blocks = replay(trace, device)
        if trace:
            require(segments == found[device][0].sizes, f"replaying device {device} ends in other segments")
            require(blocks == found[device][1].sizes, f"replaying device {device} ends in other blocks")
        peak = max(peak, device_peak)
        ooms += device_ooms
        events += len(trace)
        frames.update(frame["name"] for entry in trace for frame in entry["frames"])
    live = sum(sum(blocks.sizes.values()) for _, blocks in found)
    return {"peak": peak, "live": live, "ooms": ooms, "events": events}, frames


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    for name in ("peak", "live", "ooms"):
        parser.add_argument(f"--{name}", type=int, help="the figure expected")
    parser.add_argument("--frame", action="append", default=[], help="a frame that must be there (tag or phase)")
    arguments = parser.parse_args()
    try:
        with open(arguments.file, "rb") as file:
            data = file.read()
    except OSError as error:
        print(f"{arguments.file}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        figures, frames = check(data)
        for name in ("peak", "live", "ooms"):
            expected = getattr(arguments, name)
            require(expected in (None, figures[name]), f"{name} is {figures[name]}, expected {expected}")
        for frame in arguments.frame:
            require(frame in frames, f"no frame is named {frame!r}")
    except Refused as why:
        print(f"{arguments.file}: {why}", file=sys.stderr)
        return 1
    print(" ".join(f"{name}={figure}" for name, figure in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
