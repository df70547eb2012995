#!/usr/bin/env python3
"""`with oomlab.watch()` explains an out-of-memory error, and is no trouble: watch_test.py ROOT BUILD

PyTorch is played by a module that says what it was told to do; where PyTorch is installed, it is asked, too. What explains is started in the
first case only, and played in the others.
"""
import io
import pathlib
import shutil
import subprocess
import sys
import tempfile
import types as kinds

from installed import install

ROOT, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
MESSAGE = "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 540.00 MiB of which 60.00 MiB is free."


class FakeTorch(kinds.ModuleType):
    """As much of PyTorch as watch() asks for. `did` is what it was told."""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self, *, gpu=True, recording=False, can_record=True, can_dump=True):
        super().__init__("torch")
        self.did = []

        def record(enabled="all", **options):
            self.did.append(("record", enabled, *sorted(options.items())))
            if not can_record:
                raise TypeError("unexpected keyword argument 'max_entries'")

        def dump(path):
            self.did.append(("dump",))
            if not can_dump:
                raise OSError(28, "No space left on device")
            shutil.copy(ROOT / "tests/explain/snapshots/pieces.pickle", path)

        memory = kinds.SimpleNamespace(_record_memory_history=record, _dump_snapshot=dump)
        self.cuda = kinds.SimpleNamespace(is_available=lambda: gpu, memory=memory, OutOfMemoryError=self.OutOfMemoryError)
        self._C = kinds.SimpleNamespace(_cuda_isHistoryEnabled=lambda: recording)


ON, OFF, DUMP = ("record", "all", ("max_entries", 7), ("stacks", "python")), ("record", None), ("dump",)


def played(name, arguments, text=b""):
    """programs.run() where only the way to it matters."""
    known = name == "snapshot" or any(words in text for words in (b"CUDA out of memory", b"DataLoader worker", b"\nMemoryError"))
    return subprocess.CompletedProcess([], 0 if known else 1, "What filled it: pieces\n" if name == "snapshot" else "Cause: it is full\n", "explain: not known\n")


def ended(torch, error, *, watches=1, out=None, **options):
    """What watch() prints where a loop ends so, and that the error is still the one of the loop."""
    sys.modules["torch"] = torch
    watching.SAID.clear()
    out, sys.stderr, kept = out or io.StringIO(), io.StringIO(), sys.stderr
    try:
        try:
            with watching.contextlib.ExitStack() as stack:
                for _ in range(watches):
                    stack.enter_context(oomlab.watch(events=7, file=out, **options))
                if error:
                    raise error
        except BaseException as seen:
            assert seen is error, seen
        else:
            assert error is None
        notes = sys.stderr.getvalue()
    finally:
        sys.stderr = kept
        del sys.modules["torch"]
    return ("" if out.closed else out.getvalue()), notes


def it_runs_out():
    torch = FakeTorch()
    said, notes = ended(torch, torch.OutOfMemoryError(MESSAGE))
    assert torch.did == [ON, DUMP, OFF] and not notes, (torch.did, notes)
    assert "Cause: " in said and "What filled it: pieces" in said and said.index("Cause: ") < said.index("What filled it"), said


def one_inside_another():
    torch = FakeTorch()
    said, _ = ended(torch, torch.OutOfMemoryError(MESSAGE), watches=3)
    assert torch.did == [ON, DUMP, OFF] and said.count("Cause: ") == 1, said


def it_does_not():
    for error in (None, ValueError("CUDA out of memory"), RuntimeError("shape mismatch"), KeyboardInterrupt()):
        torch = FakeTorch()
        assert ended(torch, error) == ("", "") and torch.did == [ON, OFF], (error, torch.did)


def the_record_is_kept():
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "oom.pickle"
        torch = FakeTorch()
        said, _ = ended(torch, torch.OutOfMemoryError(MESSAGE), snapshot=file)
        assert file.exists() and str(file) in said, said


def a_record_of_the_program_is_left_alone():
    torch = FakeTorch(recording=True)
    said, _ = ended(torch, torch.OutOfMemoryError(MESSAGE))
    assert torch.did == [DUMP] and "What filled it" in said, torch.did


def the_path_is_one_word_and_no_command():
    with tempfile.TemporaryDirectory() as folder:
        for name in ("oom of monday.pickle", "it's \x1b]0;x\x07.pickle"):
            file = pathlib.Path(folder) / name
            said, _ = ended(FakeTorch(), FakeTorch.OutOfMemoryError(MESSAGE), snapshot=file)
            (line,) = [line for line in said.splitlines() if "oomlab snapshot" in line]
            word = line.partition("oomlab snapshot ")[2].removesuffix(" --all")
            assert line.isprintable() and subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, check=True).stdout == bytes(file), line


def what_it_was_raised_from():
    """Also Python's own error, and what ended a worker of a DataLoader; and what was raised from itself."""
    wrapped, itself = ValueError("step 5 failed"), ValueError("nothing")
    wrapped.__cause__ = FakeTorch.OutOfMemoryError(MESSAGE)
    itself.__cause__ = itself
    for error in (wrapped, MemoryError(), RuntimeError("DataLoader worker (pid 4711) is killed by signal: Killed. "),
                  RuntimeError("DataLoader worker (pid(s) 4711) exited unexpectedly")):
        said, _ = ended(FakeTorch(), error, watches=2)
        assert said.count("Cause: ") == 1, (error, said)
    for error in (itself, RuntimeError("DataLoader worker (pid 4711) is killed by signal: Segmentation fault. "), RuntimeError("the server exited unexpectedly")):
        assert ended(FakeTorch(), error)[0] == "", error


def in_chinese():
    said, _ = ended(FakeTorch(), FakeTorch.OutOfMemoryError(MESSAGE), lang="zh")
    assert said.startswith("oomlab.watch 解释") and said.count("--lang zh") == 2 and "More" not in said, said
    assert "没有 GPU" in ended(FakeTorch(gpu=False), None, lang="zh")[1]
    assert {*watching.SAYS["en"]} == {*watching.SAYS["zh"]}


def what_is_no_number_of_events():
    for events in (0, -1, 1.5, True, None, "7"):
        try:
            oomlab.watch(events=events)
        except oomlab.UsageError as error:
            assert "events" in str(error)
        else:
            raise AssertionError(f"{events!r} was taken")


def without_a_gpu_or_pytorch():
    """One line says so, and the message alone is explained: of PyTorch's older classes, and of an error that has only the words."""
    old = FakeTorch(gpu=False)
    old.OutOfMemoryError = "no class"
    for torch, error in ((FakeTorch(gpu=False), FakeTorch.OutOfMemoryError(MESSAGE)), (old, FakeTorch.OutOfMemoryError(MESSAGE)), (None, RuntimeError(MESSAGE)),
                         (FakeTorch(can_record=False), FakeTorch.OutOfMemoryError(MESSAGE))):
        said, notes = ended(torch, error, watches=2)
        assert said.count("Cause: ") == 1 and "What filled it" not in said and notes.count("\n") == 1 and "message alone" in notes, (said, notes)
        assert watching.RECORD.watches == 0
    assert ended(FakeTorch(can_record=False), None)[0] == ""


def what_fails_hides_nothing():
    torch = FakeTorch(can_dump=False)
    said, _ = ended(torch, torch.OutOfMemoryError(MESSAGE))
    assert "Cause: " in said and "No space left" in said and torch.did[-1] == OFF, said
    said, _ = ended(FakeTorch(can_dump=False), FakeTorch.OutOfMemoryError(MESSAGE), snapshot="/nowhere at all/x.pickle")
    assert "could not be written" in said and "oomlab snapshot" not in said and "oomlab explain --all 'THE MESSAGE'" in said, said
    said, _ = ended(FakeTorch(gpu=False), FakeTorch.OutOfMemoryError("words that nobody knows"))
    assert "oomlab.watch: not known" in said, said
    closed = io.StringIO()
    closed.close()
    ended(FakeTorch(), FakeTorch.OutOfMemoryError(MESSAGE), out=closed)


def around_a_function():
    sys.modules["torch"] = torch = FakeTorch()

    @oomlab.watch(events=7)
    def train(steps):
        return steps + 1
    assert train(1) + train(2) == 5 and torch.did == [ON, OFF] * 2
    del sys.modules["torch"]


def pytorch_itself():
    """On a CPU: its loop ends with PyTorch's own class."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed: played only")
        return
    out = io.StringIO()
    model = torch.nn.Linear(8, 8)
    try:
        with oomlab.watch(file=out):
            for step in range(3):
                model(torch.ones(2, 8)).sum().backward()
                if step == 2:
                    raise torch.OutOfMemoryError(MESSAGE)
    except torch.OutOfMemoryError as error:
        assert str(error) == MESSAGE and "Cause: " in out.getvalue(), out.getvalue()
    else:
        raise AssertionError("the error went nowhere")


with tempfile.TemporaryDirectory() as place:
    install(BUILD, place)
    import oomlab  # noqa: E402
    from oomlab import watching  # noqa: E402
    it_runs_out()
    watching.programs.run = played
    for case in (one_inside_another, it_does_not, the_record_is_kept, the_path_is_one_word_and_no_command, a_record_of_the_program_is_left_alone, what_it_was_raised_from,
                 in_chinese, what_is_no_number_of_events, without_a_gpu_or_pytorch, what_fails_hides_nothing, around_a_function, pytorch_itself):
        case()
        print(case.__name__)
