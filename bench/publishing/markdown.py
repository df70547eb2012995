"""How the generated pages write tables, figures and links, and the words that they take from docs/data/."""
import functools
import json
import os
import re
import tomllib

LANGUAGES = ("en", "zh")


AMOUNT = r"(\d[\d.,:x -]*(?:bytes|[KMGT]i?B)?)"  # what a {} of [phrases] stands for
IN_CHINESE = {"{}": (1, {1: ""}), "{million}": (1e6, {1e8: " 亿", 1e4: " 万"}), "{billion}": (1e9, {1e8: " 亿"})}


def number(value):
    return f"{value:.4g}"


def line(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(head, rows):
    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(line(row) for row in rows)


def escaped(text):
    """As a cell of a table."""
    return text.replace("|", "\\|")


@functools.cache
def parsed(parse, text):
    """What is in a file, once for each text: nobody changes it."""
    return parse(text)


def data(root, name):
    return parsed(tomllib.loads, (root / "docs/data" / name).read_text(encoding="utf-8"))


def record(path):
    """What a result file has."""
    return parsed(json.loads, path.read_text(encoding="utf-8"))


def with_units(text, language):
    """Text with amounts of memory: KiB and more are the same in both languages, bytes are not."""
    return text if language == "en" else re.sub(r"(?<=\d) bytes\b", " 字节", text)


def chapter_link(root, folder, digits):
    return f"[{digits}]({os.path.relpath(next(root.glob(f'chapters/{digits}_*')), folder)})"


def in_language(key, language):
    """The key of the Chinese words beside English ones in docs/data/."""
    return key if language == "en" else f"{key}_zh"


def counted(amount, placeholder):
    """An amount as Chinese counts it: 7.5 {billion} are 75 亿."""
    factor, units = IN_CHINESE[placeholder]
    if factor == 1:
        return amount
    count = float(amount.replace(",", "")) * factor
    unit = next((unit for unit in units if count >= unit), min(units))
    return f"{count / unit:.10g}{units[unit]}"


def pattern(english):
    """What is as a phrase says."""
    return AMOUNT.join(re.escape(part) for part in english.split("{}"))


def in_chinese(root, text, name="verdicts.zh.toml"):
    """What a result file, a program or other data say in English, in the words of a file of docs/data/."""
    for english, chinese in data(root, name)["phrases"].items():
        match = re.fullmatch(pattern(english), text)
        if match:
            amounts = iter(amount.strip().replace(", ", "、") for amount in match.groups())
            return re.sub("|".join(map(re.escape, IN_CHINESE)), lambda m: counted(next(amounts), m[0]), chinese)
    raise ValueError(f"docs/data/{name}: [phrases] has no words for '{text}'")


def said_in(root, text, language, name="verdicts.zh.toml"):
    return text if language == "en" or not text else in_chinese(root, text, name)
