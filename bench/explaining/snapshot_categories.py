"""What a block is: parameters, gradients, optimizer state, activations and so on, by the frames that made it, by when it came, and
by how long it stayed. Names are the ledger's, and four more: cache, temporaries (of an optimizer's step), older (than the recording,
which does not know more of it), unknown (recorded without stacks).
"""
import re
from bisect import bisect_left, bisect_right
from collections import Counter

NAMES = ("parameters", "gradients", "optimizer", "activations", "cache", "temporaries", "workspace", "data", "older", "unknown")

# Tags of OOM Lab's own programs. The first rule that matches decides; the phase is the outermost one.
OURS = [
    ("workspace", re.compile(r"workspace|^columns$|^row loss|^loss$|^losses of|scratch|staging|^weights on their way|partial")),
    ("cache", re.compile(r"KV cache|^cache\b")),
    ("optimizer", re.compile(r" (m|v|velocity)$|moments?$|^master |row sums|column sums")),
    ("data", re.compile(r"^(images|labels|batch labels|tokens|targets|lengths|positions|which cache|where caches)")),
]
OURS_ACTIVATIONS = re.compile(r"^(input|output|logits|residual|norm, or|QKV|hidden|most likely)")


def of_ours(stack):
    tag, phases = stack.frames[0].name, [frame.name for frame in stack.frames[1:]]
    for name, pattern in OURS:
        if pattern.search(tag):
            return name
    at_setup = not phases or phases[-1] == "setup"
    if re.search(r"gradients?$", tag) and not tag.startswith("input"):
        return "gradients" if at_setup else "activations"
    if not at_setup or OURS_ACTIVATIONS.search(tag) or tag.startswith("input"):
        return "activations"
    return "parameters"


# What PyTorch gives cuBLAS once for each thread that multiplies, and never frees: on a Hopper or later, and before.
WORKSPACES = {32 << 20, (8 << 20) + (128 << 10)}

SIMPLE = {"optimizer_state": "optimizer", "recomputed": "activations", "accumulate": "gradients", "communication": "workspace",
          "workspace": "workspace", "cache": "cache", "parameters": "parameters", "data": "data", "module": "activations"}


class Categories:
    """of[i]: the category of the recording's block i, a place in NAMES."""

    def __init__(self, recording):
        self.recording = recording
        stacks = recording.stacks.all
        self.first = [self.by_frames(stack) for stack in stacks]
        self.sure = [NAMES.index(name) if name in NAMES else None for name in self.first]
        self.of = [None] * len(recording.start)
        self.find_turns()
        self.parameters = self.sizes_of("parameters") + self.sizes_of("older")
        self.workspaces = self.find_workspaces()
        self.decide()

    @staticmethod
    def by_frames(stack):
        """The category, or "backward", "optimizer" or "own" where a block's life has to decide, "" where nothing is known."""
        if not stack.frames:
            return ""
        if stack.ours:
            return of_ours(stack)
        if stack.sign in SIMPLE:
            return SIMPLE[stack.sign]
        if stack.sign == "optimizer":
            return "step"
        if stack.sign == "backward":
            return "backward"
        if stack.sign == "moved":
            return "data"
        makes = stack.site is not None and stack.site.is_readers and stack.site.name in ("__init__", "__post_init__", "setup", "build")
        # A library's model, such as transformers': its modules are made there, and no forward pass runs.
        makes = makes or "module" not in stack.signs and any(f.is_libraries and not f.is_readers and f.name == "__init__" for f in stack.frames)
        return "parameters" if makes else "activations"

    def find_workspaces(self):
        """Blocks that are cuBLAS's: of its size, never freed, the first such one of a stream in a forward and in a backward pass, and none that
        is as large as a parameter's gradient. In a forward pass the product's output was made by the same lines just before, which is seen where
        the recording has it."""
        recording, first = self.recording, self.first
        found, before = {}, None
        for i, (start, end, size, stack) in enumerate(zip(recording.start, recording.end, recording.size, recording.stack)):
            if size in WORKSPACES and end >= recording.events:
                forward = first[stack] == "activations" and (start < 0 or before == stack)
                backward = first[stack] in ("backward", "") and start >= 0 and recording.frames_seen and size not in self.parameters
                if forward or backward:
                    found.setdefault((recording.stream[i], backward), i)
            before = stack
        return set(found.values())

    def find_turns(self):
        """Events at which a forward pass or the optimizer allocates: what came in a backward pass and is still there is a
        gradient. And the last allocation of the backward pass before each."""
        recording, first = self.recording, self.first
        frames = recording.frames_seen
        self.turns, self.forwards, self.backwards = [], [], []
        what = []  # of each stack: 0 nothing, 1 a backward pass, 2 the optimizer, 3 a forward pass
        for kind, stack in zip(first, recording.stacks.all):
            if kind == "backward" or kind == "gradients" or (kind == "" and frames):
                what.append(1)
            elif kind == "step":
                what.append(2)
            else:
                what.append(3 if kind == "data" or kind == "activations" and "recomputed" not in stack.signs else 0)
        for start, stack in zip(recording.start, recording.stack):
            if start < 0 or not what[stack]:
                continue
            if what[stack] == 1:
                self.backwards.append(start)
                continue
            self.turns.append(start)
            if what[stack] == 3:
                self.forwards.append(start)

    def sizes_of(self, which):
        recording, first = self.recording, self.first
        return Counter(size for size, stack, start in zip(recording.size, recording.stack, recording.start)
                       if (first[stack] == which if which == "parameters" else start < 0))

    def outlives_backward(self, i):
        """Whether a block that came in a backward pass is there when the pass is over."""
        recording = self.recording
        start, end = recording.start[i], recording.end[i]
        place = bisect_right(self.turns, start)
        turn = self.turns[place] if place < len(self.turns) else recording.events
        if end > turn:
            return True
        before = bisect_left(self.backwards, turn) - 1
        return end > self.backwards[before] and (not self.parameters or recording.size[i] in self.parameters)

    def decide(self):
        recording, of = self.recording, self.of
        names = {name: place for place, name in enumerate(NAMES)}
        gradients = Counter()
        for i in range(len(of)):
            kind = self.first[recording.stack[i]]
            if i in self.workspaces:
                of[i] = names["workspace"]
            elif recording.start[i] < 0 and kind in ("", "step", "backward"):
                of[i] = names["older"]
            elif kind == "backward" or (kind == "" and recording.frames_seen):
                at_end = recording.end[i] >= recording.events and recording.size[i] not in self.parameters
                stays = self.outlives_backward(i) and not (at_end and self.parameters)
                of[i] = names["gradients" if stays else "activations"]
            elif kind == "step":
                place = bisect_right(self.forwards, recording.start[i])
                later = self.forwards[place] if place < len(self.forwards) else recording.events
                of[i] = names["optimizer" if recording.end[i] > later else "temporaries"]
            elif kind == "":
                of[i] = names["unknown"]
            else:
                of[i] = self.sure[recording.stack[i]]
            if of[i] == names["gradients"]:
                gradients[recording.size[i]] += 1
        self.name_older(gradients, names)

    def name_older(self, gradients, names):
        """Of what was there before the recording: a block as large as a gradient is a parameter, two more of it are state."""
        recording, of = self.recording, self.of
        older = Counter(recording.size[i] for i in range(len(of)) if of[i] == names["older"])
        if not gradients:
            return
        has_state = names["optimizer"] in set(of)
        seen = Counter()
        for i in range(len(of)):
            size = recording.size[i]
            if of[i] != names["older"] or size not in gradients:
                continue
            seen[size] += 1
            threefold = older[size] >= 3 and not has_state
            of[i] = names["optimizer" if threefold and seen[size] > older[size] / 3 else "parameters"]

    def at(self, blocks):
        """Bytes by category of the blocks, largest first."""
        sums = Counter()
        for i in blocks:
            sums[self.of[i]] += self.recording.size[i]
        return [(NAMES[which], size) for which, size in sums.most_common() if size]
