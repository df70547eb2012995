"""oomlab.watch(): explains an out-of-memory error of PyTorch where it comes."""
from __future__ import annotations

import contextlib
import importlib
import numbers
import os
import re
import shlex
import sys
import tempfile
import threading
from types import ModuleType, TracebackType
from typing import Mapping, Optional, TextIO, Type, Union

from oomlab import asking, programs

# What a RuntimeError of PyTorch says where it has no class of its own: before 1.13, of the host's memory, of CUDA's libraries, of a worker
# of a DataLoader that was ended from outside.
WORDS = re.compile(r"out of memory|not enough memory|can't allocate memory|_status_alloc_failed|"
                   r"dataloader worker .{1,200}(?:is killed by signal: (?:killed|bus error)|exited unexpectedly)", re.I)
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


# What is printed, beside the answers of the programs.
SAYS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "head": "oomlab.watch explains the error:",
        "no_torch": "PyTorch cannot be imported: nothing is recorded, and of an error the message alone is explained",
        "no_gpu": "this PyTorch has no GPU: nothing is recorded, and of an error the message alone is explained",
        "no_record": "this PyTorch cannot record ({why}): of an error the message alone is explained",
        "not_written": "the record could not be written: {why}",
        "not_read": "the record could not be read: {why}",
        "failed": "could not explain this: {why}",
        "more_message": "More of the message: oomlab explain --all 'THE MESSAGE'",
        "more_record": "More of the record: oomlab snapshot {file} --all",
        "keep": 'More of the record: watch(snapshot="oom.pickle") keeps it, for oomlab snapshot oom.pickle --all',
    },
    "zh": {
        "head": "oomlab.watch 解释这个报错：",
        "no_torch": "无法导入 PyTorch：不做记录，出错时只解释报错本身",
        "no_gpu": "这个 PyTorch 没有 GPU：不做记录，出错时只解释报错本身",
        "no_record": "这个 PyTorch 不能记录（{why}）：出错时只解释报错本身",
        "not_written": "无法写入记录：{why}",
        "not_read": "无法读取记录：{why}",
        "failed": "无法解释这个报错：{why}",
        "more_message": "报错的更多内容：oomlab explain --lang zh --all '报错原文'",
        "more_record": "记录的更多内容：oomlab snapshot --lang zh {file} --all",
        "keep": '记录的更多内容：用 watch(snapshot="oom.pickle") 保留它，再用 oomlab snapshot --lang zh oom.pickle --all',
    },
}
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


def in_a_line(text: str) -> str:
    """The text, with what a terminal would obey written out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def quoted(path: str) -> str:
    """A path as a shell takes it; with what a terminal would obey, as bash does."""
    if path.isprintable():
        return shlex.quote(path)
    return "$'" + "".join(f"\\x{byte:02x}" if byte < 32 or byte > 126 or byte in b"\\'" else chr(byte) for byte in os.fsencode(path)) + "'"


def out_of_memory(error: Optional[BaseException], torch: Optional[ModuleType]) -> Optional[BaseException]:
    """The error, or what it was raised from, that is PyTorch's error of the name or Python's, or a RuntimeError that says the same in words.
    None where there is none."""
    places = (torch, getattr(torch, "cuda", None))
    classes = (MemoryError, *(c for c in (getattr(place, "OutOfMemoryError", None) for place in places) if isinstance(c, type)))
    seen: set[int] = set()  # a cause may be its own
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, classes) or (isinstance(error, RuntimeError) and WORDS.search(str(error))):
            return error
        error = error.__cause__
    return None


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
        if isinstance(events, bool) or not isinstance(events, numbers.Integral) or events < 1 or lang not in ("en", "zh"):
            raise programs.UsageError("events is a whole number from 1 on, and lang 'en' or 'zh'")
        self.events, self.lang, self.file = int(events), lang, file
        self.snapshot = None if snapshot is None else os.fsdecode(snapshot)
        self.says = SAYS[lang]
        self.torch: Optional[ModuleType] = None
        self.recorded: list[bool] = []  # of each time that this one was entered, and not left yet

    def __enter__(self) -> watch:
        self.recorded.append(self._record())
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        recorded = self.recorded.pop()
        try:
            found = out_of_memory(error, self.torch)
            if found is not None and not getattr(found, EXPLAINED, False):
                with contextlib.suppress(Exception):
                    setattr(found, EXPLAINED, True)
                self._explain(found, recorded)
        except Exception as failure:  # whatever it is, the loop's own error is the one to be seen
            write(self.file or sys.stderr, self._said("failed", failure))
        finally:
            if recorded:
                with contextlib.suppress(Exception):
                    RECORD.stop(self.torch)  # type: ignore[arg-type]

    def _record(self) -> bool:
        """Whether the allocator is being recorded from now on."""
        try:
            torch = importlib.import_module("torch")
        except Exception:  # missing, or broken
            note(self.says["no_torch"])
            return False
        self.torch = torch
        try:
            if not torch.cuda.is_available():
                note(self.says["no_gpu"])
                return False
            RECORD.start(torch, self.events)
        except Exception as failure:  # PyTorch before 2.1
            note(in_a_line(self.says["no_record"].format(why=failure)))
            return False
        return True

    def _said(self, what: str, why: object) -> str:
        return "oomlab.watch: " + in_a_line(self.says[what].format(why=why))

    def _explain(self, error: BaseException, recorded: bool) -> None:
        parts = [self.says["head"]]
        try:
            parts.append(asking.explain(error, lang=self.lang))
        except programs.Error as why:
            parts.append(in_a_line(f"oomlab.watch: {why}"))
        more = self.says["more_message"]
        if recorded:
            try:
                text, of_the_record = self._filled()
                parts.append(text)
                more += of_the_record
            except Exception as failure:  # the message's answer is still one
                parts.append(self._said("not_read", failure))
        write(self.file or sys.stderr, "\n\n".join([*parts, more]))

    def _filled(self) -> tuple[str, str]:
        """What filled the memory, by the record, and a line that says how to see more of it."""
        with tempfile.TemporaryDirectory(prefix="oomlab-") as folder:
            path = self.snapshot or os.path.join(folder, "snapshot.pickle")
            try:
                self.torch.cuda.memory._dump_snapshot(path)  # type: ignore[union-attr]
            except Exception as failure:  # a folder that is not there, a full disk
                return self._said("not_written", failure), ""
            done = programs.run("snapshot", [path, f"--lang={self.lang}"])
        if done.returncode:
            return f"oomlab.watch: {programs.last_line(done)}", ""
        more = self.says["more_record"].format(file=quoted(self.snapshot)) if self.snapshot else self.says["keep"]
        return done.stdout.rstrip("\n"), "\n" + more
