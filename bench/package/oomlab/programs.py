"""The programs of the package, and how they are started. Each is a process of its own: what it imports is not imported into the
caller's, and a message or a file of any kind can do no more than end it."""
from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys
from typing import Mapping, NamedTuple, Sequence

PACKAGE = pathlib.Path(__file__).resolve().parent
BENCH = PACKAGE / "tree" / "bench"


class Error(RuntimeError):
    """A program of this package could not answer. One line says why."""


class UsageError(Error, ValueError):
    """What was asked is not allowed, or not known. One line says what is."""


class NoMessage(Error, ValueError):
    """The text has no out-of-memory message that is known. One line says what it looks like instead, where that is clear."""


class Command(NamedTuple):
    """What `oomlab NAME` starts."""
    program: tuple[str, ...]  # the file, below PACKAGE, and what it gets in front of the caller's arguments
    says: str                 # a line for `oomlab --help`
    python: bool = False      # it is a script


COMMANDS: Mapping[str, Command] = {
    "fit": Command(("bin/fit",), "will it fit, and what to switch on until it does"),
    "explain": Command(("tree/bench/explain",), "an out-of-memory message: the cause, and what to do first", python=True),
    "snapshot": Command(("tree/bench/explain", "--snapshot"), "a memory snapshot of PyTorch: which lines fill the memory", python=True),
    "puzzle": Command(("tree/bench/puzzle",), "with --list: programs that run out of memory, to be mended", python=True),
    "cards": Command(("bin/fit", "--cards"), "the cards that fit knows, and their memory"),
}


def command_line(name: str, arguments: Sequence[str]) -> list[str]:
    """What starts `oomlab NAME` with these arguments. Raises Error where Python does not know its own program."""
    command = COMMANDS[name]
    file, *first = command.program
    words = [str(PACKAGE / file), *first, *arguments]
    if not command.python:
        return words
    if not sys.executable:
        raise Error("this Python does not say which program it is (sys.executable is empty), so no other can be started")
    return [sys.executable, *words]


def environment(name: str) -> dict[str, str]:
    """The caller's, with what the program is called, and that scripts find the modules beside them."""
    found = {**os.environ, "OOMLAB_COMMAND": f"oomlab {name}"}
    found.pop("PYTHONSAFEPATH", None)
    return found


def require_words(arguments: Sequence[str]) -> None:
    """Raises UsageError for an argument that no program can get."""
    for argument in arguments:
        if "\0" in argument:
            raise UsageError("an argument has a NUL character in it")
        try:
            os.fsencode(argument)
        except UnicodeEncodeError:
            raise UsageError("an argument has a character in it that is none, half of a surrogate pair") from None


def run(name: str, arguments: Sequence[str], text: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Runs `oomlab NAME` with `text` as its standard input, and returns it with what it printed. Raises UsageError for an argument
    that no program can get, Error where it cannot be started."""
    require_words(arguments)
    words = command_line(name, arguments)
    try:
        done = subprocess.run(words, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              env={**environment(name), "PYTHONIOENCODING": "utf-8:backslashreplace"}, check=False)
    except (OSError, UnicodeError) as error:
        if getattr(error, "errno", None) == errno.E2BIG:
            raise UsageError("an argument is too long for a program to get") from None
        raise Error(f"{words[0]}: cannot be started: {getattr(error, 'strerror', None) or error}") from None
    out, err = (stream.decode("utf-8", "backslashreplace") for stream in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(words, done.returncode, out, err)


def version() -> str:
    from importlib import metadata
    try:
        return metadata.version("oomlab")
    except metadata.PackageNotFoundError:
        return "unknown: it was not installed by pip"


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """What a program said at its end on standard error, without its name in front."""
    lines = done.stderr.strip().splitlines()
    if not lines:
        return f"it ended with exit code {done.returncode}, and said nothing"
    name, colon, rest = lines[-1].partition(": ")
    return rest if colon and name.split("/")[-1].split(" ")[-1] in COMMANDS else lines[-1]
