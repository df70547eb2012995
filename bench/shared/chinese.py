"""Chinese for the commands of bench/: who asks for it, and errors of usage. Needs nothing but Python 3.8."""
import re
import sys

LANGUAGES = ("en", "zh")

# Errors of usage, as argparse and shared/usage.py have them: what the English line is, as an expression, and the Chinese with its groups.
# What a system or Python says stays as it is.
USAGE = (
    (r"unrecognized arguments: (.*)", r"不认识的参数：\1"),
    (r"argument (\S+): invalid choice: (.*?) \(choose from (.*)\)", r"\1 没有 \2 这个值（可选：\3）"),
    (r"argument (\S+): invalid (\w+) value: (.*)", r"\1 的值 \3 不是 \2"),
    (r"argument (\S+): expected one argument", r"\1 需要一个值"),
    (r"argument (\S+): expected (\d+) arguments", r"\1 需要 \2 个值"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1 没有值，不能写 \2"),
    (r"ambiguous option: (\S+) could match (.*)", r"\1 有歧义，可能是 \2"),
)


def wanted(arguments, stream=None):
    """Whether the arguments of a command ask for Chinese, and the stream (standard error, if none is given) can show it."""
    asked = any(a == "--lang=zh" or (a, b) == ("--lang", "zh") for a, b in zip(arguments, [*arguments[1:], ""]))
    return asked and can_show(stream or sys.stderr)


def can_show(stream):
    return "utf" in (getattr(stream, "encoding", None) or "").lower()


def said(text, ends):
    """The same error in Chinese; as it is where none of `ends` and USAGE is it."""
    body, see, _ = text.partition("; see --help")
    for pattern, chinese in (*ends, *USAGE):
        found = re.fullmatch(pattern, body, re.S)
        if found:
            return found.expand(chinese) + ("；见 --help" if see else "")
    return text


def refusal_to_write(stream):
    """Why Chinese cannot be written to the stream; empty where it can."""
    try:
        "显存不足".encode(stream.encoding)
    except UnicodeEncodeError:
        return f"Chinese cannot be written as {stream.encoding}, as this terminal is set up; PYTHONIOENCODING=utf-8 changes that"
    return ""
