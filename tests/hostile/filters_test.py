#!/usr/bin/env python3
"""Regular expressions that a backtracking matcher crashes or hangs on: filters_test.py ROOT PROGRAMS."""
import pathlib
import sys
import tempfile

import tries

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
LONG = ["(" * 30_000, "(" * 30_000 + ")" * 30_000, "a" * 100_000, "a|" * 40_000]
BAD = ["(" * 400, "(((a{100}){100}){100})", "a{100000}", "(?=x)", "\\1", "["]
SLOW = ["((((.*)*)*)*)*zz", "(.|.)*(.|.)*(.|.)*(.|.)*zz", "(a|a|b)*" * 50 + "zz", ".*" * 200 + "zz", "(x+x+)+zz"]


def main():
    with tempfile.TemporaryDirectory() as folder:
        for chapter in ("00_anatomy", "16_capstone"):
            for pattern in LONG + BAD + SLOW:
                for words in (["--filter", pattern], [f"--benchmark_filter={pattern}"]):
                    outcome = tries.refused(tries.attempt([PROGRAMS / chapter, "--quick", *words], folder=folder),
                                            words[0].split("=")[0])
                    assert len(outcome.err) < 2100, f"{len(outcome.err)} characters of refusal"
                    assert outcome.resident <= tries.MEMORY, f"{outcome.resident} bytes: {pattern[:40]}"
        for bench in ("bench_attention", "bench_convolution", "bench_features", "bench_kernels"):
            for pattern in LONG + BAD + SLOW:
                words = [PROGRAMS / bench, "--benchmark_list_tests=true", f"--benchmark_filter={pattern}"]
                if bench != "bench_attention" and pattern in LONG[1:] + BAD[1:] + SLOW[1:]:
                    continue
                tries.refused(tries.attempt(words, folder=folder, environment={"OMP_NUM_THREADS": "1"}), "--benchmark_filter")
        listed = tries.check(tries.attempt([PROGRAMS / "bench_attention", "--benchmark_list_tests=true",
                                            "--benchmark_filter=-tiled|fused"],
                                           folder=folder, environment={"OMP_NUM_THREADS": "1"}), (0,))
        assert "textbook/512" in listed.out and "tiled" not in listed.out, listed.out
        assert not tries.files(folder), tries.files(folder).keys()


main()
