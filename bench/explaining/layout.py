"""Text in columns of a terminal, where a Chinese character takes two. For bench/explain."""

import re
import textwrap
import unicodedata

WIDTH = 100  # columns
MARKS = "，。；：、）"
OPENING = "（"


def columns(text):
    """How wide the text is on a terminal."""
    return len(text) if text.isascii() else sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text, width, before=False):
    space = " " * (width - columns(text))
    return space + text if before else text + space


def wrapped(text, first="", rest=None):
    """Lines of at most WIDTH columns; Chinese, which has no blanks, breaks between any two characters. A figure stays with
    its unit."""
    rest = first if rest is None else rest
    text = re.sub(r"(\d) (bytes|[KMGTP]iB|%)", "\\1\u00a0\\2", text)
    if columns(text) > len(text):
        lines, line, width = [], first, columns(first)
        for token in re.findall(r"[\x21-\x7e\u00a0]+ ?|.", text):
            # No line begins with a mark, for there is room for two of them at the end of each, and none ends with an opening one.
            if width + columns(token.rstrip()) > (WIDTH if token in MARKS else WIDTH - 4) and line.strip():
                kept = line.rstrip(" ")
                opened = kept[len(kept.rstrip(OPENING)):]
                lines, line, width = [*lines, kept.rstrip(OPENING)], rest + opened, columns(rest + opened)
            line, width = line + token, width + columns(token)
        lines.append(line.rstrip(" "))
    else:
        lines = textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in lines]
