"""oomlab.watch(): explains an out-of-memory error of PyTorch where it comes."""
from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
import threading
from types import ModuleType, TracebackType
from typing import Any, Optional, TextIO, Type, Union

from oomlab import asking, programs

# What a RuntimeError of PyTorch says where it has no class of its own: before 1.13, of the host's memory, of CUDA's libraries.
WORDS = ("out of memory", "not enough memory", "can't allocate memory", "_status_alloc_failed")
EXPLAINED = "_oomlab_explained"  # an attribute of an exception that a watch inside another one has explained


class Record:
    """The record of PyTorch's allocator, which is one for the whole process: on while any watch() is, and only where it was off."""

    def __init__(self) -> None:
        self.lock, self.watches, self.ours = threading.Lock(), 0, False

    def start(self, torch: ModuleType, events: int) -> None:
        with self.lock:
            asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
            if self.watches == 0 and not (asked and asked()):
                # Frames of Python only. Those of C++ are named when the record is written: minutes in which the error waits.
                torch.cuda.memory._record_memory_history(max_entries=events, stacks="python")
                self.ours = True
            self.watches += 1

    def stop(self, torch: ModuleType) -> None:
        with self.lock:
            self.watches -= 1
            if self.watches == 0 and self.ours:
                self.ours = False
                torch.cuda.memory._record_memory_history(enabled=None)


RECORD = Record()
SAID: set[str] = set()


def note(text: str) -> None:
    """A line on standard error, once in a process."""
    if text not in SAID:
        SAID.add(text)
        write(sys.stderr, f"oomlab.watch: {text}")


def write(file: Optional[TextIO], text: str) -> None:
    """Nothing that is said here may hide the error that is on its way."""
    with contextlib.suppress(OSError, ValueError):
        if file:
            print(text, file=file, flush=True)


def is_out_of_memory(error: Optional[BaseException], torch: Optional[ModuleType]) -> bool:
    """Whether it is PyTorch's error of the name, or a RuntimeError that says the same in words."""
    places = (torch, getattr(torch, "cuda", None))
    classes = tuple(c for c in (getattr(place, "OutOfMemoryError", None) for place in places) if isinstance(c, type))
    return isinstance(error, classes) or (isinstance(error, RuntimeError) and any(words in str(error).lower() for words in WORDS))


class watch(contextlib.ContextDecorator):
    """Around a loop of PyTorch, or as a decorator of its function:

        with oomlab.watch():
            for batch in loader:
                train(batch)

    Records what PyTorch's allocator does on the GPU. When memory runs out, it prints on standard error what `oomlab explain` says of the
    message and `oomlab snapshot` of the record, and the error goes on its way. Put it around the making of the model, too: what was
    there before has no line that made it.

    events    so many requests and releases are kept, in host memory, the last ones (200,000)
    snapshot  a file to keep the record in, for `oomlab snapshot FILE --all` or --html; without one it is not kept
    lang      "en", or "zh" for Chinese
    file      where to print; standard error

    Where PyTorch is missing or has no GPU nothing is recorded, which one line says, and the message alone is explained. A record
    that the program has already started is left as it is. Nothing is raised but what the loop raised itself."""

    def __init__(self, *, events: int = 200_000, snapshot: Optional[Union[str, "os.PathLike[str]"]] = None, lang: str = "en",
                 file: Optional[TextIO] = None) -> None:
        if events < 1 or lang not in ("en", "zh"):
            raise programs.UsageError("events is a number from 1 on, and lang 'en' or 'zh'")
        self.events, self.snapshot, self.lang, self.file = events, snapshot, lang, file
        self.torch: Optional[ModuleType] = None
        self.recorded: list[bool] = []  # of each time that this one was entered, and not left yet

    def __enter__(self) -> watch:
        self.recorded.append(self._record())
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        recorded = self.recorded.pop()
        try:
            if is_out_of_memory(error, self.torch) and not getattr(error, EXPLAINED, False):
                with contextlib.suppress(Exception):
                    setattr(error, EXPLAINED, True)
                self._explain(error, recorded)
        except Exception as failure:  # whatever it is, the loop's own error is the one to be seen
            write(self.file or sys.stderr, f"oomlab.watch: could not explain this: {failure}")
        finally:
            if recorded:
                with contextlib.suppress(Exception):
                    RECORD.stop(self.torch)  # type: ignore[arg-type]

    def _record(self) -> bool:
        """Whether the allocator is being recorded from now on."""
        try:
            torch = importlib.import_module("torch")
        except Exception:  # missing, or broken
            note("PyTorch cannot be imported: nothing is recorded, and of an error the message alone is explained")
            return False
        self.torch = torch
        try:
            if not torch.cuda.is_available():
                note("this PyTorch has no GPU: nothing is recorded, and of an error the message alone is explained")
                return False
            RECORD.start(torch, self.events)
        except Exception as failure:  # PyTorch before 2.1
            note(f"this PyTorch cannot record ({failure}): of an error the message alone is explained")
            return False
        return True

    def _explain(self, error: Any, recorded: bool) -> None:
        parts = []
        try:
            parts.append(asking.explain(error, lang=self.lang))
        except programs.Error as why:
            parts.append(f"oomlab.watch: {why}")
        if recorded:
            try:
                parts.append(self._filled())
            except Exception as failure:  # the message's answer is still one
                parts.append(f"oomlab.watch: the record could not be read: {failure}")
        more = "More of the message: paste the error to `oomlab explain --all`."
        if recorded and self.snapshot:
            more += f"\nMore of the record: `oomlab snapshot {os.fspath(self.snapshot)} --all`."
        elif recorded:
            more += '\nMore of the record: watch(snapshot="oom.pickle") keeps it, for `oomlab snapshot oom.pickle --all`.'
        write(self.file or sys.stderr, "\n\n".join(["oomlab.watch: out of memory", *parts, more]))

    def _filled(self) -> str:
        """What filled the memory, by the record."""
        with tempfile.TemporaryDirectory(prefix="oomlab-") as folder:
            path = os.fspath(self.snapshot) if self.snapshot else os.path.join(folder, "snapshot.pickle")
            self.torch.cuda.memory._dump_snapshot(path)  # type: ignore[union-attr]
            done = programs.run("snapshot", [path, f"--lang={self.lang}"])
        return done.stdout.rstrip("\n") if done.returncode == 0 else f"oomlab.watch: {programs.last_line(done)}"
