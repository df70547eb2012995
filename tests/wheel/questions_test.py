#!/usr/bin/env python3
"""A wheel that is there (bench/wheel) answers as the host build does, to the byte: questions_test.py ROOT FIT

Skipped where there is none, or one that is older than what it was made of.
"""
import pathlib
import sys
import tempfile
import zipfile

from old import newer_source
from questions import compare

ROOT, FIT = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
wheels = sorted((ROOT / "build/wheel/dist").glob("oomlab-*.whl"))
if not wheels:
    print("no wheel in build/wheel/dist: bench/wheel makes one")
    sys.exit(77)
newer = newer_source(ROOT, wheels[0])
if newer:
    print(f"{newer} is newer than the wheel: bench/wheel makes another")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheels[0]) as archive:
    program = pathlib.Path(archive.extract("oomlab/bin/fit", folder))
    program.chmod(0o755)
    compare(FIT, program, 50)
