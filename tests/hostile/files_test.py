#!/usr/bin/env python3
"""Files that a run reads and writes: files_test.py ROOT PROGRAMS. Bad ones are refused before anything runs, and lose nothing."""
import os
import pathlib
import subprocess
import sys

import tries

PROGRAMS = pathlib.Path(sys.argv[2]).resolve()
TEXT, IMAGES, DECODER, QUANTISED, CAPSTONE = (PROGRAMS / name for name in (
    "02_gradient_accumulation", "00_anatomy", "11_inference", "12_quantisation", "16_capstone"))
OUTPUTS = ("--json", "--trace", "--snapshot")


def attempt(words, folder):
    return tries.attempt(words, folder=folder, environment={"OMP_NUM_THREADS": "1"})


def refused(words, folder, *mentions):
    """Refused with 64, in one line, and every file is as it was."""
    before = tries.files(folder)
    tries.refused(attempt(words, folder), *mentions)
    assert tries.files(folder) == before, f"{words}: {tries.files(folder).keys() ^ before.keys()}"


def two_outputs_that_are_one(folder):
    """One would overwrite the other: by whatever spelling, or through links."""
    (folder / "sub").mkdir()
    (folder / "there").symlink_to("sub")
    (folder / "dangling").symlink_to("a.json")
    (folder / "old").write_text("precious")
    os.link(folder / "old", folder / "hard")
    same = [("a.json", "./a.json"), ("a.json", "a.json"), ("a.json", "sub/../a.json"), ("a.json", str(folder / "a.json")),
            ("sub/x", "there/x"), ("a.json", "dangling"), ("old", "hard")]
    for a, b in same:
        for first, second in (("--json", "--trace"), ("--json", "--snapshot"), ("--trace", "--snapshot")):
            refused([IMAGES, "--quick", "--plan", first, a, second, b], folder, second)
        refused([IMAGES, "--quick", "--steps", "1", "--json", a, f"--benchmark_out={b}"], folder, "overwrite", "--benchmark_out")
    refused([QUANTISED, "--quick", "--save", "q.", "--json", "./q.int4.safetensors"], folder, "--save", "overwrite")
    apart = attempt([IMAGES, "--quick", "--plan", "--quiet", "--json", "a", "--trace", "sub/a", "--snapshot", "/dev/null"],
                    folder)
    assert apart.code == 0 and {"a", "sub/a"} <= tries.files(folder).keys(), apart.text


def an_output_that_is_an_input(folder):
    (folder / "text").write_text("words " * 1000)
    (folder / "config.json").write_text(tries.CONFIG)
    for option in OUTPUTS:
        refused([TEXT, "--quick", "--plan", "--text", "text", option, "./text"], folder, "--text", "overwrite")
        refused([TEXT, "--quick", "--plan", "--seq", "8", "--config", "config.json", option, "config.json"], folder, "--config")


def a_file_that_may_not_be_written(folder):
    for option in OUTPUTS + ("--benchmark_out",):
        path = folder / "kept"
        path.write_text("precious")
        path.chmod(0o444)
        words = [f"{option}={path}"] if option == "--benchmark_out" else [option, path]
        refused([IMAGES, "--quick", "--steps", "1"] + words, folder, "write-protected")
        path.unlink()


def what_cannot_be_written_is_known_before(folder):
    """Each of these runs would take minutes or longer: that it has not begun shows in standard output, which is empty."""
    long = ["--quick", "--steps", "100000000"]
    for option in OUTPUTS:
        refused([IMAGES, *long, option, "missing/x"], folder, "missing")
        refused([IMAGES, *long, option, "/proc/x"], folder, "/proc/x")
        refused([IMAGES, *long, option, "."], folder, "folder")
    refused([QUANTISED, *long, "--save", "missing/q."], folder, "--save", "missing")
    refused([QUANTISED, *long, "--save", "/proc/q."], folder, "--save")
    for target in ("missing", "/proc", "/dev/null"):
        refused([PROGRAMS / "make_checkpoint", target], folder, target)
    refused([PROGRAMS / "bench_kernels", "--json", "missing/x"], folder, "missing")
    refused([PROGRAMS / "bench_allocators", "--record", "/proc"], folder, "/proc")
    refused([PROGRAMS / "bench_allocators", "--json", "missing/x"], folder, "missing")


def readers_take_files_only(folder):
    """A pipe is never waited for, and a device has no end."""
    subprocess.run(["mkfifo", folder / "pipe"], check=True)
    (folder / "to_pipe").symlink_to("pipe")
    (folder / "data").mkdir()
    subprocess.run(["mkfifo", folder / "data/images-idx3-ubyte", folder / "data/labels-idx1-ubyte"], check=True)
    readers = [(p, "--config") for p in (TEXT, DECODER, QUANTISED, CAPSTONE, PROGRAMS / "13_optimizer_memory")]
    readers += [(TEXT, "--text"), (DECODER, "--weights"), (QUANTISED, "--weights"), (QUANTISED, "--quantised")]
    for program, option in readers:
        for path, kind in (("pipe", "pipe"), ("to_pipe", "pipe"), ("/dev/zero", "device"), (".", "folder")):
            refused([program, "--plan", option, path], folder, path, kind)
    refused([IMAGES, "--plan", "--data", "data"], folder, "pipe")
    for path, kind in (("pipe", "pipe"), ("/dev/zero", "device"), (".", "folder")):
        refused([PROGRAMS / "fit", "--config", path, "--memory", "8GB"], folder, path, kind)
        refused([PROGRAMS / "bench_allocators", "--trace", path], folder, path, kind)


def one_code_for_one_kind(folder):
    """A bad file is bad usage, whichever option names it; so is a model that a variant cannot take."""
    for name, contents in (("empty", b""), ("short", b"abc"), ("noise", bytes(range(256)) * 40), ("header", b"\xff" * 64)):
        (folder / name).write_bytes(contents)
        for program, option in ((DECODER, "--weights"), (QUANTISED, "--weights"), (QUANTISED, "--quantised"), (DECODER,
                                                                                                               "--config")):
            refused([program, "--plan", option, name], folder, name)
    for option in ("--weights", "--config", "--text"):
        refused([DECODER, "--plan", option, "missing"], folder, "missing")
    refused([CAPSTONE, "--plan", "--model", "gpt:300-1-64"], folder, "256")


def two_runs_that_write_one_file(folder):
    """Each writes under a name of its own, so what is there at the end is the whole of one of them."""
    words = [IMAGES, "--quick", "--plan", "--quiet", "--json", "a.json"]
    alone = attempt(words, folder)
    assert alone.code == 0, alone.text
    whole = tries.files(folder)["a.json"]
    runs = [subprocess.Popen([str(word) for word in words], cwd=folder) for _ in range(12)]
    assert [run.wait(tries.HANG) for run in runs] == [0] * len(runs)
    assert tries.files(folder) == {"a.json": whole}, "nothing is left, and nothing is half"


def main():
    tries.run_cases(two_outputs_that_are_one, an_output_that_is_an_input, a_file_that_may_not_be_written,
                    what_cannot_be_written_is_known_before, readers_take_files_only, one_code_for_one_kind,
                    two_runs_that_write_one_file)


main()
