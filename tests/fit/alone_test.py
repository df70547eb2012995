#!/usr/bin/env python3
"""bench/fit needs the room that plans, and no device: alone_test.py PROGRAM. No symbol of CUDA, cuBLAS or NCCL is in it, nor of
the host runtime that stands in for them."""
import re
import shutil
import subprocess
import sys

DEVICE = re.compile(r"\b(cuda[A-Z]\w*|cublas\w*|nccl[A-Z]\w*|cuMem\w*)\b")


def main(program):
    nm = shutil.which("nm")
    if not nm:
        print("nm is not there")
        return 77
    symbols = subprocess.run([nm, "-C", program], capture_output=True, text=True, check=True).stdout.splitlines()
    if len(symbols) < 100:
        print(f"{len(symbols)} symbols: {program} was stripped, and this test sees nothing")
        return 1
    wrong = [line for line in symbols if DEVICE.search(line)]
    print(*wrong[:20], sep="\n")
    print(f"{len(symbols)} symbols, {len(wrong)} of a device")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
