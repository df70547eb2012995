"""The request that was refused: what was free then, in what pieces, and what other rules would have done with the same requests."""
from explaining.snapshot_replay import MIB, replay, segment_bytes

MOST_REPLAYED = 200_000  # allocations and releases before the request; what was live then is allocated first
# Of max_split_size_mb: what is tried, smallest first. PyTorch takes nothing below 20.
SPLITS = (32, 128, 512)


class Refusal:
    """Of the last out-of-memory event. Bytes: asked, device_free, reserved, live, cached (held and not live), elsewhere (cached for
    other streams, or in private pools, or for small requests), largest (piece that could have served it)."""

    def __init__(self, recording):
        self.recording = recording
        self.event, self.asked, self.device_free, self.stack, self.stream = recording.refusals[-1]
        self.count = len(recording.refusals)
        live = recording.live_at(self.event)
        self.live = sum(recording.size[i] for i in live)
        segments = recording.segments_at(self.event)
        self.known = bool(segments)
        self.reserved = sum(segment.size for segment in segments)
        self.pieces, self.elsewhere = [], 0
        self.find_pieces(segments, sorted((recording.address[i], recording.size[i]) for i in live))
        self.cached = sum(self.pieces) + self.elsewhere
        self.largest = max(self.pieces, default=0)

    def find_pieces(self, segments, blocks):
        """What lies between the blocks; segments that touch and belong together are one."""
        joined = []
        for s in segments:
            last = joined[-1] if joined else None
            if last and s.address == last[1] and (s.stream, s.pool) == last[2] and s.expandable:
                last[1] = s.address + s.size
                continue
            joined.append([s.address, s.address + s.size, (s.stream, s.pool), s.small])
        place = 0
        for first, past, (stream, pool), small in joined:
            mine = (stream, tuple(pool)) == (self.stream, (0, 0)) and small == (self.asked <= MIB)
            while place < len(blocks) and blocks[place][0] + blocks[place][1] <= first:
                place += 1
            at = first
            while place < len(blocks) and blocks[place][0] < past:
                self.note(blocks[place][0] - at, mine)
                at = max(at, blocks[place][0] + blocks[place][1])
                place += 1
            self.note(past - at, mine)

    def note(self, size, mine):
        if size > 0 and mine:
            self.pieces.append(size)
        elif size > 0:
            self.elsewhere += size

    def cause(self):
        """One of: fragmentation, elsewhere (other streams and pools cache enough), limit, alone (more than it can ever have), full."""
        if self.asked > self.reserved + self.device_free and self.known:
            return "alone"
        if self.known and self.device_free >= segment_bytes(self.asked) + 2 * MIB:  # 2: the driver's own granule
            return "limit"
        if sum(self.pieces) + self.device_free >= self.asked and self.pieces:
            return "fragmentation"
        if self.cached + self.device_free >= self.asked and self.elsewhere:
            return "elsewhere"
        return "full"

    def budget(self):
        """What the process could have had."""
        return self.reserved + min(self.device_free, self.asked)

    def requests(self):
        """(events for replay(), whether all were there from the beginning of the recording)."""
        recording = self.recording
        moves = [(recording.start[i], 1, i) for i in range(len(recording.start)) if 0 <= recording.start[i] < self.event]
        moves += [(recording.end[i], 0, i) for i in range(len(recording.start)) if recording.end[i] < self.event]
        moves.sort()
        first = moves[-MOST_REPLAYED][0] if len(moves) > MOST_REPLAYED else -1
        before = [i for i in range(len(recording.start)) if recording.start[i] < first <= recording.end[i] or recording.start[i] < 0]
        before.sort(key=lambda i: recording.address[i])
        size, stream = recording.size, recording.stream
        events = [(i, size[i], stream[i]) for i in before if size[i]]
        known = {i for i, _, _ in events}
        for when, allocates, i in moves:
            if when < first or not size[i]:
                continue
            if allocates and i not in known:
                known.add(i)
                events.append((i, size[i], stream[i]))
            elif not allocates and i in known:
                events.append((i, 0, 0))
        events.append((-1, self.asked, self.stream))
        return events, first < 0 and not before

    def rules(self):
        """[(name, served, bytes held at most)] by replay under the same budget; the first is PyTorch's default."""
        events, self.whole = self.requests()
        budget = self.budget()
        tried = [("default", {}), ("expandable", {"expandable": True})]
        tried += [(f"split_{mb}", {"max_split": mb * MIB}) for mb in SPLITS]
        result = []
        for name, how in tried:
            failed, most = replay(events, budget, **how)
            result.append((name, failed is None, most))
            if name.startswith("split") and failed is None:
                break
        return result
