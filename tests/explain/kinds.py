#!/usr/bin/env python3
"""Long texts of all kinds, as logs, terminals and people who mean harm produce them: bench/explain must read them in a time that
grows no faster than the text.

  tests/explain/kinds.py [--bytes N]     processor seconds for each kind (1,000,000 bytes)
    --judge                              only the slowest, as a row for bench/benchmarks/run
"""
import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile

from cases import ARTICLE, CASES

EXPLAIN = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/explain"
WARNING = ("2024-05-06 07:08:09.123456: W tensorflow/core/common_runtime/bfc_allocator.cc:290] Allocator (GPU_0_bfc) ran out of "
           "memory trying to allocate 1.25GiB with freed_by_count=0. The caller indicates that this is not a failure, but this may mean "
           "that there could be performance gains if more memory were available.\n")
NOTHING = [WARNING, "you tried to allocate 1 ", "resource exhausted: x\n", "is allocated by PyTorch ", "allocation on device 1 ",
           "Too many open files MemoryError\n", "DataLoader worker (pid 1) is killed by signal: Aborted\n", "already allocated; ",
           "reserved by PyTorch ", "total capacity of 1 "]
PIECES = {
    "nothing but digits": "1", "numbers with marks": "1'", "numbers with narrow blanks": "1\u202f", "brackets": "(",
    "process numbers": "(pid=1 pid=1 ", "backslashes": "\\", "blanks": " ", "no-break blanks": "\u00a0", "line ends": "\n",
    "colours": "\x1b[1", "comment signs": "# ", "prefixes": "[a] ", "words with dots": "a.b-", "Chinese": "\u663e\u5b58",
    "bytes that are no UTF-8": "\udcff", "NUL": "\0", "warnings": WARNING, "processes killed": "killed process 1 (",
    "workers": "dataloader worker (pid ", "one word over": "out ", "a name without an end": "gallocr_reserve", "cupy": "cupy",
    "tags": "<b>", "tags without an end": "<b ", "names of characters": "&nbsp;", "frames": '  File "a.py", line 1, in f\n    y = g(x)\n', "ranks": "[rank1]: out of memory ",
    "retries": "retrying ", "graphs without a capture": "cudagraph ", "programs": "vllm lightning ", "sent": "sending ", "killed": "killed\n", "oomkilled": "oomkilled ", "a size and no more": "you tried to allocate 1 ",
    "exhausted": "resource exhausted: x\n", "OutOfMemoryError": "OutOfMemoryError ", "reserved by nobody": "is allocated by PyTorch ",
    "a short message": "CUDA out of memory. Tried to allocate 20.00 MiB\n", "a whole message": ARTICLE + "\n",
    "a mixture": "(pid=1 1'1 \\ [a] out of memory Tried to allocate 1,1 process 1 ( killed ",
    "all that says nothing": "".join(NOTHING), "all that says nothing, in turn": "".join(piece * 40 for piece in NOTHING),
    "all messages": "\n".join(text for _, text, *_ in CASES),
    "the beginnings of all messages": "\n".join(text[:70] for _, text, *_ in CASES),
    "the ends of all messages": "\n".join(text[-70:] for _, text, *_ in CASES),
}


def kinds(length):
    """(name, about that many bytes) of each kind, alone and after a message."""
    for name, piece in PIECES.items():
        encoded = piece.encode("utf-8", errors="surrogateescape")
        text = encoded * (length // len(encoded) + 1)
        yield name, text[:length]
        yield f"{name}, after a message", (ARTICLE.encode() + b"\n" + text)[:length]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1000000)
    parser.add_argument("--judge", action="store_true")
    arguments, slowest = parser.parse_args(), (0.0, "")
    for name, text in kinds(arguments.bytes):
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([EXPLAIN, file.name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        slowest = max(slowest, (seconds, name))
        if not arguments.judge:
            print(f"{seconds:.2f} s  {name}", flush=True)
    if arguments.judge:
        what = f"{arguments.bytes:,} bytes of the slowest kind: {slowest[1]}"
        print(json.dumps({"benchmark": "explain", "what": what, "seen": slowest[0], "at": "most", "wanted": 2, "unit": "s"}))


if __name__ == "__main__":
    sys.exit(main())
