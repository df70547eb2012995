#!/usr/bin/env python3
"""What chapters say in English has Chinese words: findings_test.py ROOT

Reads the sources of common/harness and chapters/, but no lesson, puzzle or test: lines for a report, reasons and why a row is skipped, with {} for each field of
fmt::format. Each has a phrase in docs/data/findings.zh.toml, or in [phrases] of verdicts.zh.toml, and no phrase of findings.zh.toml is without a text that needs it. Rows
and heads of tables, which begin with a field that has a width, stay English. Phrases have as many fields in Chinese, and no English words.
"""
import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(sys.argv[1])
CHINESE = re.compile("[\u4e00-\u9fff]")
STRING = r'"(?:[^"\\]|\\.)*"'
STRINGS = rf"(?:\s*{STRING})+"
FIELD = re.compile(r"\{(?:\d*|million|billion)\}")
# What is said, up to the end of its statement.
SAID = re.compile(r"\b(?:report\.line|differs_by_design|VariantSkipped)\((.*?);\n|\.(?:here|holds_where) = (.*?)[,}]\n|\{Numbers::Change::\w+, (.*?)\}"
                  r"|(?:\bTable \w+|report\.table\()\{\s*(?:\"\w+\"|name),(.*?)\{\{|\bshow\(\"\w+\", (.*?), |\bhow = (.*?);\n"
                  r"|const std::string (?:small|shallow|another) = (.*?);\n", re.S)
# The first text of a row or a head of a table.
HEADS = re.compile(r"\s*\{:[<>]|one step  |loss after ")


def literals(code):
    """The texts in a piece of code: strings that stand side by side are one."""
    for found in re.findall(STRINGS, code):
        yield re.sub(r"\\(.)", r"\1", "".join(part[1:-1] for part in re.findall(STRING, found)))


def as_key(text):
    """{} for each field of fmt::format, and for what is put before or after a text."""
    text = re.sub(r"\{[^{}]*\}", "{}", text)
    return ("{}" if text.startswith(": ") else "") + text + ("{}" if text.endswith(" ") else "")


def sources(*folders):
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in (".h", ".cpp", ".cu") and not re.search(r"/(tests|puzzle|bench)/|/lesson\.", file.relative_to(ROOT).as_posix()):
                yield file, file.read_text(encoding="utf-8")


def said():
    """{text: file} of all that is said in English only."""
    texts = {}
    for file, code in sources("common/harness", "common/plan/lever", "chapters"):
        for match in SAID.finditer(re.sub(r"^\s*//.*$|\s//[^\"\n]*$", "", code, flags=re.M)):
            found = [*literals(next(group for group in match.groups() if group is not None))]
            if found and not HEADS.match(found[0]) and not CHINESE.search("".join(found)):
                texts.update((as_key(text), file.relative_to(ROOT).as_posix()) for text in found if len(re.findall("[A-Za-z]{2,}", text)) >= 2)
    return texts


def main():
    with open(ROOT / "docs/data/findings.zh.toml", "rb") as file:
        words = {english: chinese for group in tomllib.load(file).values() for english, chinese in group.items()}
    with open(ROOT / "docs/data/verdicts.zh.toml", "rb") as file:
        pages = tomllib.load(file)["phrases"]
    texts = said()
    wrong = [f"{name}: docs/data/findings.zh.toml has no Chinese for '{text}'" for text, name in texts.items() if text not in words and text not in pages]
    everything = {as_key(text) for _, code in sources("common", "chapters") for text in literals(code)}
    wrong += [f"docs/data/findings.zh.toml: nothing says '{text}'" for text in words if text not in everything]
    for english, chinese in words.items():
        fields = FIELD.findall(chinese)
        if english.count("{}") != len(fields) or not CHINESE.search(chinese) and "batch" not in english:
            wrong.append(f"docs/data/findings.zh.toml: not the same in Chinese: '{english}'")
    print(*wrong, f"{len(texts)} texts, {len(words)} phrases", sep="\n")
    return bool(wrong)


sys.exit(main())
