"""The command `oomlab`: starts the program that is asked for in its own place, so that its exit code, its signals and what it prints
are its own."""
from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn, Sequence

from oomlab.programs import COMMANDS, Error, command_line, environment, version

HELP = """CUDA out of memory: what the message says, what fills the card, and what will fit it.

{commands}
  oomlab COMMAND --help   its options
  oomlab --version

Folders that answers name, as chapters/04_checkpointing, and the programs bench/run and bench/puzzle are those of the course's repository.
In Python: oomlab.fit(), oomlab.explain(), and `with oomlab.watch():` around a loop of PyTorch; help(oomlab) says more.

Exit code: that of the command; 64 bad usage.
"""


def fail(code: int, text: str) -> NoReturn:
    """Ends with one line on standard error; where that cannot be written, the exit code alone tells."""
    shown = text.encode("unicode_escape").decode() if not text.isprintable() else text
    try:
        if sys.stderr:
            print(f"oomlab: {shown}", file=sys.stderr, flush=True)
    except (OSError, UnicodeError):
        pass
    os._exit(code)  # what could not be written would fail once more at the end


def say(text: str) -> None:
    if sys.stdout is None:
        fail(2, "standard output is closed: there is nowhere to write to")
    try:
        print(text, flush=True)
    except OSError as error:
        fail(2, f"standard output: {error.strerror or error}")


CARDS = """oomlab cards          the cards that oomlab fit knows, by the names that its --gpu takes, and the memory that CUDA reports of each
oomlab cards --json   the same as JSON, in bytes
"""


def start(name: str, arguments: Sequence[str]) -> NoReturn:
    try:
        words = command_line(name, arguments)
        sys.stdout and sys.stdout.flush()
        os.execve(words[0], words, environment(name))
    except Error as error:
        fail(2, str(error))
    except (OSError, UnicodeError) as error:
        fail(2, f"{name}: cannot be started: {getattr(error, 'strerror', None) or error}")


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `oomlab --help | head` is no error
    name, *rest = sys.argv[1:] or ["--help"]
    if name == "cards" and {"-h", "--help"} & set(rest):
        say(CARDS.rstrip("\n"))
        return
    if name == "cards" and rest not in ([], ["--json"]):
        fail(64, f"cards: '{' '.join(rest)}' is not allowed; there is --json; see oomlab cards --help")
    if name in COMMANDS:
        start(name, rest)
    if name in ("-h", "--help", "help"):
        say(HELP.format(commands="\n".join(f"  oomlab {known:<10} {command.says}" for known, command in COMMANDS.items())))
    elif name == "--version":
        say(f"oomlab {version()}")
    else:
        fail(64, f"there is no command '{name}'; there are: {', '.join(COMMANDS)}; see --help")
