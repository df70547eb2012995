"""bench/explain on what no framework printed: explain_test.py ROOT PROGRAMS [--tries N].

Every regular expression of bench/ takes steps in proportion to the text; explain reads a text of any kind in work in proportion to
its length; nothing of a message, a name or an option reaches the terminal as anything but text; and no end is a traceback.
"""
import ast
import dataclasses
import io
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading

import steps
import tries
from tries import attempt, check, refused

arguments = tries.arguments(tries=300)
ROOT = arguments.root
EXPLAIN = ROOT / "bench/explain"
sys.path[:0] = [str(ROOT / "tests/explain"), str(ROOT / "bench")]
import explaining.log  # noqa: E402
import explaining.text  # noqa: E402
from cases import ARTICLE, CASES  # noqa: E402
from kinds import kinds  # noqa: E402
from load import explain  # noqa: E402
from shared import terminal  # noqa: E402

RULE_FILES = ("pytorch", "others", "servers", "libraries", "learners", "host")  # of bench/explaining: their patterns are put together in Text
MATCHING = {"compile", "search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
READING = {"has", "find", "first", "size", "whole", "until_another"}  # of explaining.text.Text


# ------------------------------------------------------------------------------------------------- regular expressions

def scripts():
    """Every file of Python in bench/."""
    for file in sorted((ROOT / "bench").rglob("*")):
        if file.is_file() and (file.suffix == ".py" or file.open("rb").read(40).startswith(b"#!/usr/bin/env python3")):
            yield file


def written(node, names):
    """The text of a constant, or of an f-string: what it puts in is x where it is no name of the module."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, (str, bytes)) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else str(names.get(getattr(part.value, "id", ""), "x"))
                       for part in node.values)
    return None


def flags_of(call):
    """The flags of a call of re: those that are named in it."""
    said = (*call.args, *(keyword.value for keyword in call.keywords))
    named = {node.attr for argument in said for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
    return sum(getattr(re, name) for name in named & {"I", "M", "S", "X", "MULTILINE", "DOTALL", "IGNORECASE"})


def expressions():
    """{(pattern, flags): where it is} of all of bench/, and of those that its data files name."""
    found = {}
    for file in scripts():
        of_explain = file.parent.name == "explaining"
        names = vars(sys.modules.get(f"explaining.{file.stem}", re)) if of_explain else {}
        for call in ast.walk(ast.parse(file.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            of_re = isinstance(call.func.value, ast.Name) and call.func.value.id == "re" and call.func.attr in MATCHING
            of_text = of_explain and file.stem in RULE_FILES and call.func.attr in READING
            for node in call.args if of_text else call.args[:1] if of_re else ():
                pattern = written(node, names)
                if pattern is not None:
                    if call.func.attr in ("match", "fullmatch") and isinstance(pattern, str):
                        pattern = rf"\A(?:{pattern})"
                    key = (explaining.text.ended(pattern), int(re.I)) if of_text else (pattern, flags_of(call))
                    found.setdefault(key, f"{file.relative_to(ROOT)}:{call.lineno}")
    for rule in explaining.text.RULES:
        found[rule.trigger.pattern.decode("latin1"), 0] = f"the trigger of {rule.name}"
    for file in sorted((ROOT / "docs/data").glob("*.toml")):
        for literal in re.findall(r"\bfind = ('[^'\n]*'|\"[^\"\n]*\")", file.read_text()):
            found.setdefault((literal[1:-1].replace("\\\\", "\\") if literal[0] == '"' else literal[1:-1], int(re.M)), file.name)
    return found


def test_expressions():
    """Twice the text, twice the steps."""
    known = expressions()
    used, bounded = set(), explaining.text.bounded  # and those that are put together as they are needed
    explaining.text.bounded = lambda pattern: used.add(pattern) or bounded(pattern)
    for _, text, *_ in CASES:
        explaining.log.find(io.BytesIO(text.encode()))
    explaining.text.bounded = bounded
    for pattern in used:
        known.setdefault((explaining.text.ended(pattern), int(re.I)), "explain")
    assert len(known) > 250, f"only {len(known)} regular expressions were found in bench/"
    growing = {key: steps.grows(*key, tries=max(3, arguments.tries // 50)) for key in known}
    growing = [f"{where}: {key[0]!r} grows, on {growing[key]!r}" for key, where in known.items() if growing[key]]
    assert not growing, "steps that grow faster than the text:\n" + "\n".join(growing)
    for pattern in (r"cupy\S*\s*$", r"\\+[nrt]", r"(?:a+)+b", r"killed process \d+ \([^)]*\)", r"\d+(?:'\d+)*GiB",
                    r"1(?=b|\d+y)", r"(?:\w{1,9}(?:x|\d+){1,2})y"):
        assert steps.grows(pattern, tries=40), f"{pattern} grows, and was not found"
    return len(known)


# ---------------------------------------------------------------------------------------------------------- work, not time

class Counted:
    """A pattern that counts the characters it is tried on."""
    characters = 0

    def __init__(self, pattern):
        self.pattern = pattern

    def finditer(self, text, begin=0):
        Counted.characters += len(text) - begin
        return self.pattern.finditer(text, begin)

    def search(self, text):
        Counted.characters += len(text)
        return self.pattern.search(text)


def test_work():
    """The characters that explain looks at: about a hundred for each of the text (there are as many wordings), and no more than for
    some hundred messages beside."""
    rules, bounded, text = list(explaining.log.RULES), explaining.text.bounded, explaining.text.Text
    explaining.log.RULES[:] = [dataclasses.replace(rule, trigger=Counted(rule.trigger)) for rule in rules]
    explaining.text.bounded = lambda pattern: Counted(bounded(pattern))

    class CountedText(text):
        def __init__(self, raw, far=b""):
            super().__init__(raw, far)
            Counted.characters += len(raw) if raw else 0
    explaining.log.Text = CountedText
    for name, given in kinds(1 << 16):
        Counted.characters = 0
        explaining.log.find(io.BytesIO(given))
        looked = Counted.characters
        assert looked < 100 * len(given) + 5e7, f"{name}: looks at {looked:,} characters for {len(given):,}"
    explaining.log.RULES[:], explaining.text.bounded, explaining.log.Text = rules, bounded, text


def test_sizes(folder):
    """A text of 2 MB, and of lines without an end: whatever grew with the square would take hours."""
    chosen = ("warnings", "nothing but digits, after a message", "process numbers, after a message", "a mixture", "all that says nothing")
    for name, given in kinds(1 << 21):
        if name in chosen:
            (folder / "log").write_bytes(given)
            check(attempt([EXPLAIN, folder / "log"]), codes=(0, 1))


# ------------------------------------------------------------------------------------------------------ what reaches a terminal

CONTROLS = ["\x1b]0;title\x07", "\x1b]8;;http://x\x07", "\x1b]52;c;cm0gLXJm\x07", "\x1b[?1049h", "\x1b[2J", "\x1b[31m", "\x9b31m", "\x07", "\0",
            "\x7f", "\x08\x08", "\r", "\u202e", "\u2066", "\u200f", "\u2028", "\ufeff", "\x85"]
BITS = [*CONTROLS, "9" * 400, "1" * 5000, "1,234,567.89", "\u0661\u0662\u0663", "\u663e\u5b58", "\ud800", "(", ")" * 30, "[", "\\" * 9, "'" * 9, "GiB",
        " MiB", "\u00a0", "\t", "\n" * 3, "# ", "> ", "{asked}", "%s", "\U0001f4a5"]


def hostile(rng):
    """A message with something in it that does not belong there, as bytes."""
    text = rng.choice(CASES)[1] if rng.random() < 0.9 else ""
    for _ in range(rng.randint(1, 6)):
        digits = [m.span() for m in re.finditer(r"\d{1,9}", text)]
        at, end = rng.choice(digits) if digits and rng.random() < 0.5 else (rng.randint(0, len(text)),) * 2
        text = text[:at] + rng.choice(BITS) * rng.choice([1, 1, 1, 3, 40]) + text[end:]
    return text.encode("utf-8", errors="surrogatepass")


def test_messages():
    found_count = 0
    for number in range(arguments.tries):
        given = hostile(random.Random(number))
        try:
            found = explain.find(io.BytesIO(given))
            for language in explain.LANGUAGES if found else ():
                explanation = explain.Explanation(found, language)
                text = explanation.text() + explanation.short()
                json.dumps(explanation.json())
                text.encode("utf-8")
                assert not tries.CONTROL.search(text), text
                found_count += 1
        except Exception as error:
            raise AssertionError(f"try {number}: {given[:600]!r}") from error
    assert found_count > arguments.tries / 2


def test_controls(folder):
    """Whatever way it comes: in a message, a file's name, an option, a log."""
    everything = "".join(c for c in CONTROLS if c != "\0")
    message = ARTICLE.replace("memory.", f"memory{everything}.").replace("GPU 2", f"GPU 2{everything}")
    shown = check(attempt([EXPLAIN, "--all", f"{message} "]), codes=(0, 1)).out
    (folder / "log").write_bytes(f"\0{message}\0".encode())
    assert "\\x1b]0;title\\x07" in check(attempt([EXPLAIN, "--all", folder / "log"]), codes=(0,)).out and "\\u202e" in shown, shown
    name = f"{folder}/" + "".join(c for c in everything if c != "/" and not c.isspace())  # with a blank in it it would be a message
    for command in ([EXPLAIN, name], [EXPLAIN, "--lang", everything, "x"], [EXPLAIN, f"--{everything}"], [EXPLAIN, "a", everything]):
        refused(attempt(command), "\\x1b]0;title", codes=(2, 64))
    assert terminal.as_text("a\tb\n\x1b[31m\u202e\ud800\u00e9\u3000\U0001f4a5") == "a\tb\n\\x1b[31m\\u202e\\ud800\u00e9\u3000\U0001f4a5"
    assert terminal.as_text("a\nb\t", keep="") == "a\\nb\\t" and not tries.CONTROL.search(terminal.as_text("".join(map(chr, range(0x11000)))))


# ----------------------------------------------------------------------------------------------------------- how it ends

def test_ends(folder):
    """Numbers of 400 digits, terminals without Chinese, descriptors that are closed or full: a line, or the answer."""
    (folder / "log").write_text(ARTICLE)
    told = attempt([EXPLAIN, folder / "log"])
    ok = lambda command, **more: check(attempt(command, **more), codes=(0,))
    # 19 digits are a number like any other, 400 are no float, 5,000 are no int of Python's. Each wording with the first, and with one of the
    # others in turn (at night with both): past its own pattern, which takes at most 20 digits, all wordings are read by the same lines.
    for digits in (19, 400, 5000):
        for number, (name, text, *_) in enumerate(CASES):
            if digits > 19 and number % 2 != digits % 3 % 2 and arguments.tries < 10000:
                continue
            found = explain.find(io.BytesIO(re.sub(r"\d+", "9" * digits, text).encode()))
            said = explain.Explanation(found, "en").json() if found else {}
            assert not found or explain.Explanation(found, "zh").text()
            assert all(value is None or key == "diagnosis" or value < 2**90 for key, value in said.items()), f"{name}: {said}"
        check(attempt([EXPLAIN, "--json", re.sub(r"\d+", "9" * digits, ARTICLE)]), codes=(0,))
    ascii_only = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    assert ok([EXPLAIN, folder / "log"], environment=ascii_only).out == told.out
    assert ok([EXPLAIN, f"\u663e\u5b58 {ARTICLE}"], environment=ascii_only).out.isascii()
    assert json.loads(ok([EXPLAIN, "--json", "--lang", "zh", folder / "log"], environment=ascii_only).out)["device"] == 2
    for option in ("--lang=zh", "--table"):
        refused(attempt([EXPLAIN, option, "--lang", "zh", folder / "log"], environment=ascii_only), "PYTHONIOENCODING=utf-8", codes=(2,))
    assert "\u788e\u7247" in ok([EXPLAIN, "--lang", "zh", folder / "log"], environment={"LC_ALL": "C"}).out
    log = f"'{EXPLAIN}' '{folder}/log'"
    for command, word in ((f"{log} >/dev/full", "No space left"), (f"{log} >&-", "closed"), (f"'{EXPLAIN}' --json x >&-", "closed"),
                          (f"'{EXPLAIN}' --help >/dev/full", "No space left"), (f"'{EXPLAIN}' <&-", "closed"), (f"'{EXPLAIN}' - <&-", "closed"),
                          (f"'{EXPLAIN}' /dev/zero", "is a device"), (f"'{EXPLAIN}' '{folder}'", "directory"), (f"'{EXPLAIN}' /proc/self/mem", "cannot be read")):
        refused(attempt(command), word, codes=(2,))
    assert ok(f"{log} 2>&-").out == ok(f"{log} 2>/dev/full").out == ok(f"{log} <&-").out == ok(f"cat '{folder}/log' | '{EXPLAIN}' -").out == told.out
    for end in ("2>&-", "2>/dev/full", "2>&- >&-", "2>/dev/full >/dev/full"):
        outcome = check(attempt(f"'{EXPLAIN}' '{folder}/none' {end}"), codes=(2,))
        assert not outcome.text, outcome
    check(attempt(f"'{EXPLAIN}' /dev/null"), codes=(1,))
    check(attempt(f"'{EXPLAIN}' </dev/null"), codes=(1,))
    # Ctrl-C while it reads: a pipe holds less than was written here, so it has begun to.
    process = subprocess.Popen([EXPLAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write(b"x" * (1 << 18))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=tries.HANG) == (b"", b"") and process.returncode == -signal.SIGINT, process.returncode


def main():
    count = test_expressions()
    test_work()
    test_messages()
    with tempfile.TemporaryDirectory() as name:
        test_controls(pathlib.Path(name))
        test_ends(pathlib.Path(name))
        test_sizes(pathlib.Path(name))
    print(f"{count} regular expressions, {arguments.tries} messages")


if __name__ == "__main__":
    sys.setrecursionlimit(100000)
    threading.stack_size(512 << 20)
    failed = []
    threading.excepthook = lambda error: (failed.append(error), sys.excepthook(*error[:3]))
    thread = threading.Thread(target=main)
    thread.start()
    thread.join()
    sys.exit(bool(failed))
