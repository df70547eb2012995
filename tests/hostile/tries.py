"""What the tests of this folder have in common: one try, and what every try must obey.

No test here judges a time: HANG is a limit that only what hangs reaches. (How long things take is for tests/run bench.)
"""
import argparse
import os
import pathlib
import re
import resource
import signal
import subprocess
import tempfile
import typing

# The smallest config.json that chapters on text and fit take.
CONFIG = ('{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8, '
          '"vocab_size": 300, "max_position_embeddings": 64}')
HANG = 180  # seconds
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started with Ctrl-C ignored; what these tests start is not
MEMORY = 200 << 20  # bytes that a refusal, or a plan, may have resident

# What a terminal obeys instead of showing it: controls but for tab and line feed, DEL, C1, and what turns the direction of text.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Outcome(typing.NamedTuple):
    command: str
    code: int  # of the shell: 128 and the signal's number when one ended it
    out: str
    err: str
    resident: int  # bytes, the most that a process of this test has had so far: of this try, at most

    @property
    def text(self):
        return self.out + self.err


def arguments(tries, seed=0, *, more=lambda parser: None):
    """ROOT PROGRAMS [--tries N] [--seed S] of a test that draws at random; `more` adds options of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("programs", type=pathlib.Path)
    parser.add_argument("--tries", type=int, default=tries)
    parser.add_argument("--seed", type=type(seed), default=seed)
    more(parser)
    return parser.parse_args()


def run_cases(*cases):
    """Each case in an empty folder of its own, which it gets."""
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            case(pathlib.Path(folder))
        print(case.__name__)


def attempt(command, *, folder=None, stdin=b"", environment=None, limit=HANG):
    """Runs `command` (a list, or a line for bash) in a session of its own. It is killed with all that it started when it hangs."""
    words = ["bash", "-c", command] if isinstance(command, str) else [str(word) for word in command]
    shown = command if isinstance(command, str) else " ".join(words)
    # As a user's shell has it: without what only developers set, such as PYTHONUNBUFFERED, which changes how programs end.
    before = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | (environment or {})
    process = subprocess.Popen(words, cwd=folder, env=before, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = process.communicate(stdin, timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"hangs: {shown[:300]}") from None
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
    return Outcome(shown, code, out.decode(errors="replace"), err.decode(errors="replace"), resident)


def check(outcome, codes=(0, 1, 2, 64)):
    """No crash, no traceback, no control character, and one of these exit codes. Returns the outcome."""
    shown = f"{outcome.command[:300]}: exit code {outcome.code}\n{outcome.text[-1500:]}"
    assert outcome.code in codes, shown
    assert "Traceback (most recent call last)" not in outcome.text, shown
    assert not CONTROL.search(outcome.text), f"control characters: {outcome.command[:300]}: {CONTROL.findall(outcome.text)[:5]}"
    return outcome


def refused(outcome, *words, codes=(64,)):
    """One line that has these words, nothing on standard output, and exit code 64."""
    check(outcome, codes)
    lines = outcome.err.strip().splitlines()
    assert len(lines) == 1 and not outcome.out, f"{outcome.command[:300]}: wanted one line:\n{outcome.text[:1500]}"
    for word in words:
        assert word in lines[0], f"{outcome.command[:300]}: no '{word}' in: {lines[0][:500]}"
    return outcome


def files(folder):
    """All files below a folder, by their path in it, with what they hold."""
    folder = pathlib.Path(folder)
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}
