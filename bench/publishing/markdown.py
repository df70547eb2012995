"""How the generated pages write tables, figures and links, and the words that they take from docs/data/."""
import os
import tomllib

LANGUAGES = ("en", "zh")


def number(value):
    return f"{value:.4g}"


def line(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(head, rows):
    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(line(row) for row in rows)


def escaped(text):
    """As a cell of a table."""
    return text.replace("|", "\\|")


def data(root, name):
    return tomllib.loads((root / "docs/data" / name).read_text(encoding="utf-8"))


def chapter_link(root, folder, digits):
    return f"[{digits}]({os.path.relpath(next(root.glob(f'chapters/{digits}_*')), folder)})"
