"""What a recording comes to: what filled it, what grows, what was refused, and what would help."""
from collections import Counter

from explaining.snapshot_categories import NAMES, Categories
from explaining.snapshot_growth import Growth
from explaining.snapshot_oom import Refusal

# What takes from a category: (name of the advice, share of the category that it saves at most, chapters).
LEVERS = {
    "activations": [("checkpoint", 1.0, ("04",)), ("half_batch", 0.5, ("01", "02")), ("attention", None, ("08",))],
    "optimizer": [("moments", 0.746, ("13",)), ("shard", None, ("07",))],
    "temporaries": [("foreach", 1.0, ("13",))],
    "gradients": [("release_gradients", 1.0, ("13",)), ("shard", None, ("07",))],
    "parameters": [("half_parameters", 0.5, ("03", "12")), ("shard", None, ("07",))],
    "cache": [("cache_bits", 0.5, ("11",)), ("cache_length", None, ("11",))],
    "workspace": [("less_workspace", None, ("00",))],
    "data": [("late_data", 1.0, ("05",))],
    "older": [("record_earlier", None, ("00",))],
    "unknown": [("record_stacks", None, ("00",))],
}


class Finding:
    """Of one device. `moment`: the event after which things are counted: the refusal, else the peak."""

    def __init__(self, recording, settings):
        self.recording, self.settings = recording, settings
        self.categories = Categories(recording)
        self.curve = recording.curve()
        self.peak = max(self.curve)
        self.peak_event = self.curve.index(self.peak) - 1
        self.refusal = Refusal(recording) if recording.refusals else None
        # Where more was live afterwards than this request would have made, it was not what ended the program.
        self.recovered = None
        if self.refusal and max(self.curve[self.refusal.event + 1:]) >= self.refusal.live + self.refusal.asked:
            self.refusal, self.recovered = None, self.refusal
        self.moment = self.refusal.event if self.refusal else self.peak_event
        self.blocks = recording.live_at(self.moment)
        self.live = sum(recording.size[i] for i in self.blocks)
        self.by_category = self.categories.at(self.blocks)
        self.of_loss = self.loss_bytes()
        self.recomputes = any("checkpointed" in stack.signs for stack in recording.stacks.all)
        self.lines = self.by_line(self.blocks)
        self.growth = Growth(recording, self.curve, self.peak, self.may_grow)
        self.growing = self.by_growth()
        self.reserved = recording.reserved() if recording.segments else []
        self.pools = self.other_pools()
        self.rules = self.refusal.rules() if self.refusal and self.refusal.known else []
        self.cause = self.decide()
        self.appears = self.first_step()

    def may_grow(self, stack):
        """Parameters, their gradients and state come once, and a KV cache grows with the text."""
        return self.categories.first[stack] not in ("parameters", "gradients", "optimizer", "cache", "workspace")

    def loss_bytes(self):
        """Of the live activations those of the loss: made in its functions, or as large as one of these by the backward pass. With checkpoints
        around the layers they stay."""
        recording, stacks = self.recording, self.recording.stacks.all
        is_loss = ["loss" in stack.signs for stack in stacks]
        sizes = {size for size, stack in zip(recording.size, recording.stack) if is_loss[stack]}
        backward = [kind in ("", "backward") for kind in self.categories.first]
        activations = NAMES.index("activations")
        return sum(recording.size[i] for i in self.blocks if self.categories.of[i] == activations
                   and (is_loss[recording.stack[i]] or backward[recording.stack[i]] and recording.size[i] in sizes))

    def by_line(self, blocks):
        """[(place, bytes, blocks, category that most of it is, is the reader's)], largest first."""
        recording, stacks = self.recording, self.recording.stacks.all
        sums, counts, kinds = Counter(), Counter(), {}
        for i in blocks:
            stack = stacks[recording.stack[i]]
            place = stack.place() or self.no_stack(i)
            sums[place] += recording.size[i]
            counts[place] += 1
            own = stack.ours or stack.site is not None and stack.site.is_readers
            kinds.setdefault(place, (Counter(), own))[0][self.categories.of[i]] += recording.size[i]
        return [(place, size, counts[place], NAMES[kinds[place][0].most_common(1)[0][0]], kinds[place][1])
                for place, size in sums.most_common() if size]

    def line_of(self, category):
        """(place, bytes) of the line that made most of the category."""
        which = NAMES.index(category)
        lines = self.by_line([i for i in self.blocks if self.categories.of[i] == which])
        return lines[0][:2]

    def no_stack(self, i):
        """Why a block has none: before the recording, another thread's, or recorded without."""
        if self.recording.start[i] < 0:
            return "?older"
        return "?thread" if self.recording.frames_seen else "?none"

    def by_growth(self):
        """What grows, by line: [(place, bytes a round, bytes that are live at the moment)]."""
        places, live = Counter(), Counter()
        stacks = {}
        for per_round, _, stack in self.growth.lines:
            stacks[stack] = self.recording.stacks.all[stack].place() or ("?thread" if self.recording.frames_seen else "?none")
            places[stacks[stack]] += per_round
        for i in self.blocks:
            if self.recording.stack[i] in stacks:
                live[stacks[self.recording.stack[i]]] += self.recording.size[i]
        return [(place, size, live[place]) for place, size in places.most_common() if live[place]]

    def other_pools(self):
        """Bytes held in private pools (CUDA graphs), and for streams other than that of the refused request, or of most that is live."""
        private = Counter()
        streams = Counter()
        for segment in self.recording.segments:
            if tuple(segment.pool) != (0, 0):
                private[tuple(segment.pool)] += segment.size
            else:
                streams[segment.stream] += segment.size
        live = Counter()
        for i in self.blocks:
            live[self.recording.stream[i]] += self.recording.size[i]
        main = self.refusal.stream if self.refusal else live.most_common(1)[0][0] if live else 0
        return {"private": sum(private.values()), "private_count": len(private),
                "streams": sum(size for stream, size in streams.items() if stream != main), "streams_count": max(0, len(streams) - 1)}

    def decide(self):
        """One of: empty, leak, fragmentation, elsewhere, limit, alone, full (with the category that fills it)."""
        grown = sum(live for _, _, live in self.growing)
        of_program = self.live - dict(self.by_category).get("workspace", 0)
        cause = self.refusal.cause() if self.refusal else "full"
        # Pieces are what a request failed of, if it would have fitted without them and the leak is not most of what is held.
        if self.growing and grown * 10 >= of_program and (cause != "fragmentation" or 2 * grown >= self.refusal.reserved):
            return "leak"
        return "empty" if cause == "full" and not self.live else cause

    def first_step(self):
        """(bytes of optimizer state that came during the recording, their line), None where none did."""
        recording, optimizer = self.recording, NAMES.index("optimizer")
        sums = Counter()
        for i in self.blocks:
            stack = recording.stacks.all[recording.stack[i]]
            if self.categories.of[i] == optimizer and recording.start[i] >= 0 and not stack.ours:
                sums[stack.place()] += recording.size[i]
        return (sum(sums.values()), sums.most_common(1)[0][0]) if sums else None

    def levers(self):
        """[(name, category, bytes that it saves here or None, chapters)]: those of the largest category first."""
        return [(name, category, None if share is None else int(share * size), chapters)
                for category, size in self.by_category if 100 * size >= self.live for name, share, chapters in self.levers_of(category, size)]

    def levers_of(self, category, size):
        """(name, share of the category that it saves at most, chapters). Checkpoints that are there are not advised again, and save nothing of a loss."""
        rows = LEVERS[category]
        if category != "activations":
            return rows
        of_loss = self.of_loss / size
        rows = [(name, 1 - of_loss if name == "checkpoint" else share, chapters) for name, share, chapters in rows
                if name != "checkpoint" or not self.recomputes and of_loss < 0.9]
        return [("less_loss", of_loss, ("08",)), *rows] if of_loss >= 0.5 else rows

    def json(self):
        refusal, growth = self.refusal or self.recovered, self.growth
        result = {
            "device": self.recording.device, "events": self.recording.events, "cause": self.cause,
            "peak_bytes": self.peak, "peak_event": self.peak_event, "moment": self.moment, "live_bytes": self.live,
            "reserved_peak_bytes": max((size for _, size in self.reserved), default=None),
            "by_category_bytes": dict(self.by_category),
            "lines": [{"place": place, "bytes": size, "blocks": count, "category": category, "own": own}
                      for place, size, count, category, own in self.lines[:50]],
            "rounds": len(growth.rounds.starts) if growth.rounds else None,
            "round_of": growth.rounds.place if growth.rounds else None,
            "growth_judged": growth.judged, "growth_bytes_per_round": round(growth.per_round),
            "growing": [{"place": place, "bytes_per_round": round(size), "live_bytes": live} for place, size, live in self.growing[:20]],
            "pools": self.pools, "out_of_memory": None}
        if refusal:
            result["out_of_memory"] = {
                "event": refusal.event, "recovered": self.recovered is not None, "count": refusal.count,
                "asked_bytes": refusal.asked, "device_free_bytes": refusal.device_free,
                "reserved_bytes": refusal.reserved if refusal.known else None, "cached_bytes": refusal.cached if refusal.known else None,
                "cached_elsewhere_bytes": refusal.elsewhere if refusal.known else None,
                "largest_piece_bytes": refusal.largest if refusal.known else None,
                "pieces": len(refusal.pieces), "by_replay": {name: {"served": served, "reserved_bytes": most} for name, served, most in self.rules}}
        return result


def compare(before, after):
    """What is live at B's moment and was not at A's: ([(place, bytes more, bytes in A, bytes in B)], [(category, bytes more)])."""
    first, second = ({place: size for place, size, *_ in f.lines} for f in (before, after))
    lines = sorted(((place, second.get(place, 0) - first.get(place, 0), first.get(place, 0), second.get(place, 0))
                    for place in set(first) | set(second)), key=lambda row: (-row[1], row[0]))
    one, two = dict(before.by_category), dict(after.by_category)
    kinds = sorted(((name, two.get(name, 0) - one.get(name, 0)) for name in set(one) | set(two)), key=lambda row: -row[1])
    return lines, kinds
