#!/usr/bin/env python3
"""A memory snapshot of 200 MB, as a long training run writes it, and what bench/explain takes for it.

  bench/benchmarks/large_snapshot.py [--megabytes N]    processor seconds, and memory at the highest
    --judge                                          as rows for bench/benchmarks/run
    --write FILE                                     only writes it
"""
import argparse
import json
import os
import pathlib
import pickle
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TORCH = "/opt/env/lib/python3.11/site-packages/torch/"
BYTES_OF_AN_EVENT = 65  # in the pickle, about
MIB = 1 << 20
SECONDS, BYTES = 20, 2_000_000_000  # at most


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


def stacks():
    """(those of 60 layers, of 30 nodes of the backward pass, of the optimizer's state, of its temporaries), innermost first."""
    root = [frame("/home/me/train.py", 220, "<module>"), frame("/home/me/train.py", 180, "main")]
    call = [frame(TORCH + "nn/modules/module.py", line, name) for line, name in ((1751, "_wrapped_call_impl"), (1762, "_call_impl"))]
    cpp = [frame("??", 0, name) for name in ("at::_ops::linear::call", "at::detail::empty_generic", "c10::cuda::CUDACachingAllocator::malloc")]
    step, update = frame("/home/me/train.py", 150, "main"), frame("/home/me/train.py", 152, "main")
    optimizer = [*root, update, frame(TORCH + "optim/adamw.py", 243, "step")]
    layers = [[*root, step, *call, frame("/home/me/model.py", 90, "forward"), *call, frame("/home/me/model.py", 30 + k, "forward"), *cpp][::-1]
              for k in range(60)]
    backward = [[frame("??", 0, f"torch::autograd::Node{k}Backward0::apply"), frame("??", 0, "torch::autograd::Engine::evaluate_function")] for k in range(30)]
    return layers, backward, [*optimizer, frame(TORCH + "optim/adamw.py", 150, "_init_group")][::-1], \
        [*optimizer, frame(TORCH + "optim/adamw.py", 700, "_multi_tensor_adamw")][::-1]


class Run:
    """Events as PyTorch records them: each has a list of its own, of frames that many share."""

    def __init__(self):
        self.trace, self.live, self.place, self.time, self.random = [], {}, 0x7F0000000000, 1_700_000_000_000_000, random.Random(1)

    def event(self, action, place, size, frames):
        self.time += self.random.randrange(3, 90)
        self.trace.append({"action": action, "addr": place, "size": size, "stream": 0, "time_us": self.time, "frames": frames})

    def allocate(self, size, frames):
        place, self.place = self.place, self.place + size + 512
        self.event("alloc", place, size, list(frames))
        self.live[place] = size
        return place

    def free(self, place):
        size = self.live.pop(place)
        self.event("free_requested", place, size, [])
        self.event("free_completed", place, size, [])

    def snapshot(self):
        segments = [{"device": 0, "address": place, "total_size": size, "allocated_size": size, "active_size": size, "stream": 0, "segment_type": "large",
                     "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
                     "blocks": [{"address": place, "size": size, "requested_size": size, "state": "active_allocated", "frames": []}]}
                    for place, size in self.live.items()]
        return {"segments": segments, "device_traces": [self.trace], "allocator_settings": {"expandable_segments": False}}


def write(file, length):
    """A training run of 60 layers with AdamW, until the file has about `length` bytes."""
    run, (layers, backward, state, temporary) = Run(), stacks()
    for layer in layers:
        run.allocate(MIB, layer)
    while len(run.trace) * BYTES_OF_AN_EVENT < length:
        first = len(run.live) == 60
        activations = [run.allocate(run.random.choice((2 * MIB, 3 * MIB, 8192, 65536)), layers[k % 60]) for k in range(600)]
        gradients = []
        for k in range(600):
            result = run.allocate(run.random.choice((MIB, 2 * MIB)), backward[k % 30])
            run.free(activations.pop())
            run.free(result)
            if k % 10 == 0:
                gradients.append(run.allocate(MIB, backward[k % 30]))
        for _ in range(120 if first else 0):
            run.allocate(MIB, state)
        for _ in range(60):
            run.free(run.allocate(MIB, temporary))
        for gradient in gradients:
            run.free(gradient)
    with open(file, "wb") as stream:
        pickle.dump(run.snapshot(), stream, protocol=4)
    return len(run.trace)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--write", metavar="FILE")
    options = parser.parse_args()
    if options.write:
        print(f"{write(options.write, options.megabytes * 1_000_000):,} events")
        return
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        # By another process, whose memory would be counted otherwise.
        subprocess.run([sys.executable, __file__, "--megabytes", str(options.megabytes), "--write", file.name], check=True, stdout=subprocess.DEVNULL)
        length = os.path.getsize(file.name)
        process = subprocess.Popen([ROOT / "bench/explain", file.name], stdout=subprocess.PIPE, text=True)
        answer = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    assert status == 0 and "rounds of the loop" in answer, answer
    seconds, most = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024
    if options.judge:
        what = f"a snapshot of {length / 1e6:.0f} MB"
        print(json.dumps({"benchmark": "explain", "what": what, "seen": seconds, "at": "most", "wanted": SECONDS, "unit": "s"}))
        print(json.dumps({"benchmark": "explain", "what": f"{what}, memory at the highest", "seen": most / 1e9, "at": "most", "wanted": BYTES / 1e9, "unit": "GB"}))
        return
    print(f"{length:,} bytes: {seconds:.2f} s of processor time, {most / 1e9:.2f} GB at the highest")


if __name__ == "__main__":
    sys.exit(main())
