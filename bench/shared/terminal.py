"""What the commands of bench/ write: other people's text as text, and every end as one line. Needs nothing but Python 3.8."""
import os
import signal
import sys
import unicodedata

# What a terminal obeys instead of showing it: control characters, what turns the direction of text or has no width, halves of
# characters, and line ends that only some programs see.
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def as_text(text, keep="\n\t"):
    """The text, with what a terminal would obey written out, as \\x1b or \\u202e. For everything that came from elsewhere: a
    file, an argument, a name in a result. `keep` is left as it is; keep="" where one line is wanted."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c.encode("unicode_escape").decode() if c not in keep and unicodedata.category(c) in OBEYED else c
                   for c in text)


def command(own):
    """What people type for a command of bench/: `own`, or what started it instead says, as "oomlab explain"."""
    return os.environ.get("OOMLAB_COMMAND") or own


def give_up(stream):
    """Forgets what could not be written. It is still in the buffer, and would fail once more at the end: exit code 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def complain(program, text):
    """One line on standard error, if there is one."""
    try:
        if sys.stderr:  # None where it was closed; print() would then write to standard output
            print(f"{program}: {as_text(text, keep='')}", file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)  # nowhere is left to say it


def fail(program, code, text):
    """Ends with the exit code, and one line on standard error."""
    complain(program, text)
    sys.exit(code)


def run(program, main):
    """Calls main(). What it printed on standard output has been written when this returns; otherwise one line says what could
    not be, with exit code 2. Where standard error cannot be written to, the exit code alone tells."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `bench/explain LOG | head` is no error
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.reconfigure(errors="backslashreplace")
    if sys.stdout is None:
        fail(program, 2, "standard output is closed: there is nowhere to write to")
    try:
        try:
            main()
        finally:
            sys.stdout.flush()
    except OSError as error:
        give_up(sys.stdout)
        fail(program, 2, f"{error.filename or 'standard output'}: {error.strerror or error}")
    finally:
        try:
            if sys.stderr:
                sys.stderr.flush()
        except OSError:  # argparse's line, for one
            give_up(sys.stderr)
