"""Text in columns of a terminal, where a Chinese character takes two. For bench/explain."""

import functools
import re
import textwrap
import unicodedata

WIDTH = 100  # columns
MARKS = "，。；：、）"
OPENING = "（"
SHORTEST = 10  # columns of a last line of Chinese: one of one or two characters looks like a slip


def columns(text):
    """How wide the text is on a terminal."""
    return len(text) if text.isascii() else sum(map(columns_of, text))


@functools.lru_cache(maxsize=1 << 14)
def columns_of(character):
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def pad(text, width, before=False):
    space = " " * (width - columns(text))
    return space + text if before else text + space


def wrapped(text, first="", rest=None):
    """Lines of at most WIDTH columns; Chinese, which has no blanks, breaks between any two characters. A figure stays with
    its unit, and code between backticks is not broken."""
    rest = first if rest is None else rest
    text = re.sub(r"(\d) (bytes|字节|[KMGTP]iB|%)", "\\1\u00a0\\2", text)
    text = re.sub(r"`[^`\n]{1,80}`", lambda code: code[0].replace(" ", "\u00a0"), text)
    if columns(text) > len(text):
        lines, line, width = [], first, columns(first)
        for token in re.findall(r"[\x21-\x7e\u00a0]+ ?|.", text):
            # No line begins with a mark, for there is room for two of them at the end of each, and none ends with an opening one.
            if width + columns(token.rstrip()) > (WIDTH if token in MARKS else WIDTH - 4) and line.strip():
                kept = line.rstrip(" ")
                opened = kept[len(kept.rstrip(OPENING)):]
                lines, line, width = [*lines, kept.rstrip(OPENING) if opened else line], rest + opened, columns(rest + opened)
            line, width = line + token, width + columns(token)
        lines = [line.rstrip(" ") for line in longer_last([*lines, line], rest)]
    else:
        lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]


def longer_last(lines, rest):
    """The same lines, where the last would be a character or two: with some of the line before it."""
    tokens, last = re.findall(r"[\x21-\x7e\u00a0]+ ?|.", lines[-2]) if len(lines) > 1 else [], lines[-1][len(rest):]
    if not tokens or columns(last) >= SHORTEST:
        return lines
    while len(tokens) > 1 and (columns(last) < SHORTEST or last[0] in MARKS or tokens[-1] in OPENING):
        last = tokens.pop() + last
    before = "".join(tokens)
    return [*lines[:-2], before, rest + last] if before.strip() and columns(rest + last) <= WIDTH else lines
