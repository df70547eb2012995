#!/usr/bin/env python3
"""Repacks the UCI digits (a CSV of 64 pixels and a label a row) as IDX files, the container of MNIST.

    python3 make_idx.py digits.csv.gz

digits.csv.gz is optdigits.tes of the UCI archive as scikit-learn ships it (sklearn/datasets/data/digits.csv.gz);
optdigits.tes itself has the same columns and works too. The output depends on the input and on the version of zlib only.
"""

import csv
import gzip
import pathlib
import struct
import sys


def write(path, content):
    # no name and no time in the gzip header
    with open(path, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(content)


def main():
    source = sys.argv[1]
    opener = gzip.open if source.endswith(".gz") else open
    with opener(source, "rt") as file:
        rows = [[int(float(value)) for value in row] for row in csv.reader(file) if row]
    if len(rows) != 1797 or any(len(row) != 65 for row in rows):
        sys.exit(f"{source}: expected 1797 rows of 65 values")
    folder = pathlib.Path(__file__).resolve().parent
    write(folder / "images-idx3-ubyte.gz",
          struct.pack(">IIII", 0x803, len(rows), 8, 8) + bytes(pixel for row in rows for pixel in row[:64]))
    write(folder / "labels-idx1-ubyte.gz", struct.pack(">II", 0x801, len(rows)) + bytes(row[64] for row in rows))


if __name__ == "__main__":
    main()
