"""What a memory snapshot says, as blocks with their lives: a Recording a device.

The pickle is a tree of dictionaries, four levels deep; here it becomes a few arrays, and the tree goes. Everything in it may be
missing or of a wrong type: that is refused in one line that says where.
"""
from array import array
from itertools import accumulate

from explaining.snapshot_frames import Stacks
from explaining.snapshot_pickle import Refused

MOST = 1 << 56  # bytes; what is above is no size of memory
END = 1 << 63  # of addresses
MOST_STREAMS = 1 << 62
SMALL = 2 << 20  # bytes of a segment for small requests
LIVE = ("active_allocated", "active_pending_free", "active_awaiting_free")


class Segment:
    """A piece of memory that the allocator holds from the driver; of an expandable segment, some of its pages."""

    def __init__(self, address, size, stream=0, pool=(0, 0), expandable=False, small=None):
        self.address, self.size, self.stream, self.pool, self.expandable = address, size, stream, pool, expandable
        self.small = size <= SMALL if small is None else small  # whether it serves small requests, and those only


class Recording:
    """The blocks of one device and their lives, in events.

    A block lives from event start[i] up to, not including, end[i]; -1 is before the recording, `events` after its end. Those that came
    during the recording stand in the order of their start. `moves`:
    (event, bytes) of what the allocator took from the driver and gave back. `refusals`: (event, asked, free on the device, stack).
    """

    def __init__(self, device, stacks):
        self.device, self.stacks = device, stacks
        self.events = 0
        self.start, self.end = array("q"), array("q")
        self.address, self.size, self.stack, self.stream = array("Q"), array("q"), array("l"), array("q")
        self.moves = []  # (event, +1 or -1, address, size, stream, whether these are pages)
        self.refusals = []
        self.segments = []  # at the end
        self.frames_seen = False

    def add(self, start, address, size, stack, stream):
        self.start.append(start)
        self.end.append(-2)
        self.address.append(address)
        self.size.append(size)
        self.stack.append(stack)
        self.stream.append(stream)
        return len(self.start) - 1

    def curve(self):
        """Live bytes after each event; the first figure is before the first one."""
        change = [0] * (self.events + 2)
        for start, end, size in zip(self.start, self.end, self.size):
            change[start + 1] += size
            change[end + 1] -= size
        change.pop()
        return array("q", accumulate(change))

    def live_at(self, event):
        """The blocks that are live after the event."""
        return [i for i, (start, end) in enumerate(zip(self.start, self.end)) if start <= event < end]

    def segments_at(self, event):
        """The segments after the event, worked out backwards from those at the end; [] where none are known."""
        held = {segment.address: segment for segment in self.segments}
        for when, sign, address, size, stream, pages in reversed(self.moves):
            if when <= event:
                break
            if sign > 0:
                cut(held, address, size)
            else:
                held[address] = Segment(address, size, stream, expandable=pages)
        return sorted(held.values(), key=lambda segment: segment.address)

    def reserved(self):
        """Bytes held from the driver after each event in which they change: (event, bytes), the first before the recording."""
        total = sum(segment.size for segment in self.segments)
        curve = [(self.events, total)]
        for when, sign, _, size, _, _ in reversed(self.moves):
            total -= sign * size
            curve.append((when, total))
        # Going backwards, each entry has the figure before its event; shifted by one it is the figure after it.
        after = [(curve[i + 1][0], curve[i][1]) for i in range(len(curve) - 1)]
        return [(-1, total)] + after[::-1]


def cut(held, address, size):
    """Takes a range out of the segments, which was mapped later than the time that is asked for."""
    end = address + size
    for segment in [s for s in held.values() if s.address < end and address < s.address + s.size]:
        del held[segment.address]
        last = segment.address + segment.size
        for first, past in ((segment.address, min(address, last)), (max(end, segment.address), last)):
            if first < past:
                held[first] = Segment(first, past - first, segment.stream, segment.pool, segment.expandable, segment.small)


# -------------------------------------------------------------------------------------------------------------- reading


def recordings(value, size):
    """(the recordings of the devices that have any memory, the allocator's settings), from what the pickle of `size` bytes holds.
    Raises Refused."""
    if isinstance(value, list):  # torch.cuda.memory_snapshot()
        value = {"segments": value}
    if not isinstance(value, dict) or not ("segments" in value or "device_traces" in value):
        raise Refused("is a pickle, but not of a memory snapshot: it has neither segments nor device_traces")
    stacks = Stacks(size)
    segments, traces = listed(value, "segments"), listed(value, "device_traces")
    settings = value.get("allocator_settings")
    if len(traces) > 4096:
        raise Refused("has more than 4096 devices")
    found = {}
    room = size  # an event takes more than a byte, so a file that has more of them repeats itself
    for device, trace in enumerate(traces):
        room -= len(trace) if isinstance(trace, list) else 0
        if not isinstance(trace, list):
            raise Refused(f"the trace of device {device} is no list of events")
        if room < 0:
            raise Refused(f"the trace of device {device}: its events repeat themselves")
        if trace:
            found[device] = Recording(device, stacks)
    read_segments(segments, found, stacks, size)
    live = {device: {} for device in found}
    for device, recording in found.items():
        read_blocks(segments, device, live[device], stacks, size)
        read_trace(traces[device] if device < len(traces) else [], recording, live[device])
    return [found[device] for device in sorted(found)], settings if isinstance(settings, dict) else {}


def listed(value, key):
    result = value.get(key, [])
    if not isinstance(result, list):
        raise Refused(f"its {key} are no list")
    return result


def number(entry, key, where, default=None):
    value = entry.get(key, default)
    if value is None or isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST:
        raise Refused(f"{where}: {key} is no count of bytes and no address")
    return value


def address_of(entry, key, where):
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < END:
        raise Refused(f"{where}: {key} is no address")
    return value


def place_of(entry, where):
    """(address, bytes, stream)."""
    return address_of(entry, "addr", where), number(entry, "size", where), stream_of(entry)


def stream_of(entry):
    value = entry.get("stream", 0)
    return value if type(value) is int and 0 <= value < MOST_STREAMS else 0


def read_segments(segments, found, stacks, size):
    if len(segments) > size:
        raise Refused("its segments repeat themselves")
    for i, entry in enumerate(segments):
        where = f"segment {i}"
        if not isinstance(entry, dict):
            raise Refused(f"{where} is no dictionary")
        total = number(entry, "total_size", where)
        if total == 0 or entry.get("address") is None:
            continue
        device = number(entry, "device", where, 0)
        recording = found.setdefault(device, Recording(device, stacks))
        pool = entry.get("segment_pool_id", (0, 0))
        whole = isinstance(pool, (tuple, list)) and len(pool) == 2 and all(isinstance(part, int) for part in pool)
        kind = entry.get("segment_type")
        recording.segments.append(Segment(address_of(entry, "address", where), total, stream_of(entry), tuple(pool) if whole else (0, 0),
                                          entry.get("is_expandable") is True, kind == "small" if kind in ("small", "large") else None))


def read_blocks(segments, device, live, stacks, size):
    """The blocks that are live at the end: address to (size, stack, stream)."""
    count = 0
    for i, entry in enumerate(segments):
        if entry.get("device", 0) != device:
            continue
        blocks = entry.get("blocks", [])
        if not isinstance(blocks, list):
            raise Refused(f"segment {i}: its blocks are no list")
        count += len(blocks)
        if count > size:
            raise Refused(f"segment {i}: its blocks repeat themselves")
        address, stream = entry.get("address"), stream_of(entry)
        for j, block in enumerate(blocks):
            where = f"block {j} of segment {i}"
            if not isinstance(block, dict):
                raise Refused(f"{where} is no dictionary")
            length = number(block, "size", where)
            if "address" in block or isinstance(address, int):
                address = address_of(block, "address", where) if "address" in block else address
            if block.get("state") in LIVE:
                live[address] = (length, stacks.of(frames_of(block), where), stream)
            address = address + length if isinstance(address, int) else address


def frames_of(block):
    if "frames" not in block and isinstance(block.get("history"), list) and block["history"]:  # before PyTorch 2.1
        first = block["history"][0]
        return first.get("frames", []) if isinstance(first, dict) else []
    return block.get("frames", [])


def read_trace(trace, recording, at_end):
    """Lives of blocks. One that is freed and was not allocated was live before the recording, and so was one that is live at the
    end and was not allocated. There are millions of events, so that the loop calls nothing for one that is as it should be."""
    stacks, open_blocks, events = recording.stacks, {}, len(trace)
    recording.events = events
    stack_of_list, pop = stacks.by_list, open_blocks.pop
    start, end, count, older = recording.start, recording.end, len(recording.start), []
    add_start, add_end, add_address, add_size, add_stack, add_stream = (
        column.append for column in (start, end, recording.address, recording.size, recording.stack, recording.stream))
    for i, entry in enumerate(trace):
        if type(entry) is not dict:
            raise Refused(f"event {i} is no dictionary")
        get = entry.get
        action = get("action")
        if action == "alloc":
            address, size, frames, stream = get("addr"), get("size"), get("frames"), get("stream", 0)
            if not (type(address) is int and 0 <= address < END and type(size) is int and 0 <= size < MOST):
                place_of(entry, f"event {i}")  # which says what is wrong
            stack = stack_of_list.get(id(frames))
            if stack is None:
                stack = stacks.of(frames, f"event {i}")
            before = pop(address, None)
            if before is not None:  # its release was not recorded
                end[before] = i
            add_start(i)
            add_end(-2)
            add_address(address)
            add_size(size)
            add_stack(stack)
            add_stream(stream if type(stream) is int and 0 <= stream < MOST_STREAMS else 0)
            open_blocks[address] = count
            count += 1
        elif action == "free_completed" or action == "free":
            address, size = get("addr"), get("size", 0)
            if not (type(address) is int and 0 <= address < END and type(size) is int and 0 <= size < MOST):
                address_of(entry, "addr", f"event {i}")
                number(entry, "size", f"event {i}", 0)
            block = pop(address, None)
            if block is not None:
                end[block] = i
            elif size:
                older.append((i, address, size, stream_of(entry)))
        elif action == "free_requested":
            continue
        elif action in ("segment_alloc", "segment_map"):
            recording.moves.append((i, 1, *place_of(entry, f"event {i}"), action == "segment_map"))
        elif action in ("segment_free", "segment_unmap"):
            recording.moves.append((i, -1, *place_of(entry, f"event {i}"), action == "segment_unmap"))
        elif action == "oom":
            where = f"event {i}"
            stack = stacks.of(entry.get("frames"), where)
            recording.refusals.append((i, number(entry, "size", where), number(entry, "device_free", where, 0), stack, stream_of(entry)))
    for i, address, size, stream in older:
        end[recording.add(-1, address, size, stacks.none, stream)] = i
    for address, (size, stack, stream) in at_end.items():
        if address not in open_blocks and isinstance(address, int):
            recording.end[recording.add(-1, address, size, stack, stream)] = events
    for block in open_blocks.values():
        end[block] = events
    recording.frames_seen = any(recording.stack[i] != stacks.none for i in range(min(len(recording.stack), 1000)))
