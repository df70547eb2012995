"""A program whose memory is known: it asks PyTorch's allocator, as replayed by its rules, and writes the snapshot that PyTorch would.

  program = Program(budget)
  block = program.allocate(size, "train.py:12 in step", "model.py:40 in forward")   # stack, outermost first
  program.free(block)
  program.write(file)
"""
import pickle

from load import ROOT  # makes bench/ importable
from explaining.snapshot import findings
from explaining.snapshot_html import picture
from explaining.snapshot_replay import Allocator

BASE = 0x7F0000000000


class OutOfMemory(Exception):
    pass


class Recorded(Allocator):
    """Says what it takes from the driver and gives back."""

    def __init__(self, budget, note, **rules):
        super().__init__(budget, **rules)
        self.note = note

    def grow(self, pool, size):
        block = super().grow(pool, size)
        if block is not None and not self.expandable:
            self.note("segment_alloc", block.place, block.size)
        return block

    def release_cached(self):
        before = {base: segment.first.size for pool in self.pools.values() for base, segment in pool.segments.items()}
        super().release_cached()
        left = {base for pool in self.pools.values() for base in pool.segments}
        for base in sorted(set(before) - left):
            self.note("segment_free", base, before[base])


class Program:
    def __init__(self, budget=1 << 60, context=True):
        self.trace, self.context, self.streams = [], context, {}
        self.allocator = Recorded(budget, self.note_segment)
        self.frames, self.made = {}, {}
        self.next, self.time, self.stream = 0, 0, 0
        self.private = {}

    def note(self, action, **values):
        self.time += 10
        self.trace.append({"action": action, "stream": self.stream, "time_us": self.time, **values})

    def note_segment(self, action, place, size):
        self.streams[place] = self.stream
        self.note(action, addr=BASE + place, size=size, frames=[])

    def stack(self, lines):
        """Frames, innermost first, from "file.py:12 in name", or the name of a function of C++."""
        result = []
        for line in reversed(lines if self.context else ()):
            if line not in self.frames:
                place, _, name = line.partition(" in ")
                file, _, number = place.rpartition(":")
                self.frames[line] = {"name": name, "filename": file, "line": int(number)} if name else {"name": line, "filename": "??", "line": 0}
            result.append(self.frames[line])
        return result

    def allocate(self, size, *lines, stream=0):
        self.stream = stream
        frames = self.stack(lines)
        if not self.allocator.allocate(self.next, size, stream):
            self.note("oom", size=size, device_free=self.allocator.budget - self.allocator.reserved, frames=frames)
            raise OutOfMemory
        block = self.allocator.live[self.next]
        self.made[self.next] = (block.place, size, frames, stream, len(self.trace))
        self.note("alloc", addr=BASE + block.place, size=block.size, frames=frames)
        self.next += 1
        return self.next - 1

    def free(self, *numbers):
        for number in numbers:
            block = self.allocator.live[number]
            self.stream = self.made[number][3]
            for action in ("free_requested", "free_completed"):
                self.note(action, addr=BASE + block.place, size=block.size, frames=[])
            self.allocator.give_back(number)

    def snapshot(self, since=0):
        """As a dictionary; recorded from event number `since` on."""
        segments = []
        made = {place: (size, frames if event >= since else []) for place, size, frames, _, event in self.made.values()}
        for (stream, small), pool in self.allocator.pools.items():
            for base, segment in sorted(pool.segments.items()):
                blocks, block = [], segment.first
                while block:
                    used = block.state == "used"
                    size, frames = made.get(block.place, (0, [])) if used else (0, [])
                    blocks.append({"address": BASE + block.place, "size": block.size, "requested_size": size, "frames": frames,
                                   "state": "active_allocated" if used else "inactive"})
                    block = block.next
                live = sum(b["size"] for b in blocks if b["state"] == "active_allocated")
                segments.append({"device": 0, "address": BASE + base, "total_size": sum(b["size"] for b in blocks), "stream": stream,
                                 "allocated_size": live, "active_size": live, "segment_type": "small" if small else "large",
                                 "segment_pool_id": self.private.get(base, (0, 0)), "is_expandable": False, "frames": [], "blocks": blocks})
        return {"segments": segments, "device_traces": [self.trace[since:]], "allocator_settings": {"expandable_segments": False}}

    def write(self, file, since=0, protocol=4):
        file.write_bytes(pickle.dumps(self.snapshot(since), protocol=protocol))


MIB = 1 << 20
TORCH = "/usr/lib/python3.11/site-packages/torch/"
STEP = "/home/me/train.py:20 in main"
CALL = TORCH + "nn/modules/module.py:1750 in _call_impl"
FORWARD = (CALL, "/home/me/model.py:31 in forward")
ENGINE = ("torch::autograd::Engine::evaluate_function",)


def training(program, steps, layers=4, parameter=8 * MIB, activation=6 * MIB, leak=0, engine=True):
    """An ordinary training: parameters, a forward pass that keeps activations, a backward pass, AdamW. The sizes by category at the
    peak. `leak`: bytes that a line keeps in each step. Its stacks are those of a GPU, where the backward pass has a thread of its own."""
    weights = [program.allocate(parameter, "/home/me/train.py:8 in main", TORCH + "nn/modules/module.py:1170 in _apply") for _ in range(layers)]
    state, gradients = [], []
    for step in range(steps):
        data = program.allocate(MIB, "/home/me/train.py:19 in main", "THPVariable_to(_object*)")
        kept = [program.allocate(activation, STEP, *FORWARD, CALL, TORCH + "nn/modules/linear.py:125 in forward") for _ in range(layers)]
        loss = program.allocate(512, "/home/me/train.py:21 in main", TORCH + "nn/functional.py:3400 in cross_entropy")
        if leak:
            program.allocate(leak, "/home/me/train.py:23 in main", "THPVariable_detach(_object*)")
        for number in reversed(kept):
            temporary = program.allocate(activation, *ENGINE if engine else ())
            gradients.append(program.allocate(parameter, *(("torch::autograd::AccumulateGrad::apply",) if engine else ())))
            program.free(number)
            program.free(temporary)
        adam = ("/home/me/train.py:25 in main", TORCH + "optim/optimizer.py:490 in wrapper")
        if not state:
            state = [program.allocate(parameter, *adam, TORCH + "optim/adamw.py:150 in _init_group") for _ in range(2 * layers)]
        lists = [program.allocate(parameter, *adam, TORCH + "optim/adamw.py:600 in _multi_tensor_adamw") for _ in range(layers)]
        program.free(*lists)
        program.free(*gradients, loss, data)
        gradients = []
    return {"parameters": layers * parameter, "gradients": layers * parameter, "optimizer": 2 * layers * parameter,
            "temporaries": layers * parameter, "data": MIB, "activations": 512}, weights


def pieces(budget, block):
    """A program that is refused 100 MiB although more is cached: a line keeps 3 MiB in each segment of 60."""
    program = Program(budget)
    program.free(*[program.allocate(60 * MIB, STEP, *FORWARD) for _ in range(8)])
    large = []
    for _ in range(8):
        large.append(program.allocate(block, STEP, *FORWARD))
        program.allocate(60 * MIB - block, STEP, "/home/me/keep.py:5 in remember")
    program.free(*large)
    try:
        program.allocate(100 * MIB, "/home/me/train.py:30 in main", "/home/me/big.py:7 in make")
    except OutOfMemory:
        return program
    raise AssertionError("it fits")


def pictures():
    """Those of docs/my_program.md, and of the same page in Chinese: {file: SVG}."""
    result = {}
    for name in ("kept_graphs", "kept_outputs", "pieces", "plain"):
        found = findings(str(ROOT / f"tests/explain/snapshots/{name}.pickle"))
        for language, ending in (("en", ".svg"), ("zh", ".zh-CN.svg")):
            result[ROOT / f"docs/my_program/{name}{ending}"] = picture(found[0], language, points=240).replace("><", ">\n<") + "\n"
    return result


if __name__ == "__main__":  # python3 tests/explain/program.py: writes what docs/my_program.md shows
    pieces(540 * MIB, 57 * MIB).write(ROOT / "tests/explain/snapshots/pieces.pickle")
    for file, drawn in pictures().items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(drawn, encoding="utf-8")
