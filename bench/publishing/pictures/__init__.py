"""The pictures of the READMEs and of docs/, drawn from files in bench/results/: bench/publish puts them where `<!-- picture NAME -->` stands.

PICTURES has for each name the SVG file and the function that draws it. picture.desc says in words what is seen, and
picture.table has the figures where the README has no table of them. picture.in_chinese() gets the same words for Chinese pages. These have the same
picture in a file of its own, with the words of docs/data/pictures.zh.toml; names that programs print stay.
"""
import pathlib
import re

from publishing import translations
from publishing.markdown import in_chinese, with_units

from .capstone import frontier, ladder
from .images import stages
from .layouts import attention, cache, lighter, pages, places, quantisation, tiles
from .overview import front, rooms
from .reading import Results
from .sequences import longest
from .state import adapters, learning, optimizer, sharing
from .training import accumulation, anatomy, batch, checkpointing, pipelines, precision, ranks

PICTURES = {
    "front": ("docs/front.svg", front),
    "rooms": ("docs/rooms.svg", rooms),
    "07-pipelines": ("chapters/07_multi_gpu/pipelines.svg", pipelines),
    "14-learning": ("chapters/14_adapters/learning.svg", learning),
    "16-frontier": ("chapters/16_capstone/frontier.svg", frontier),
    **{number: ("chapters/{}/picture.svg", draw) for number, draw in {
        "00": anatomy, "01": batch, "02": accumulation, "03": precision, "04": checkpointing, "05": places, "06": pages, "07": ranks,
        "08": attention, "09": tiles, "10": lighter, "11": cache, "12": quantisation, "13": optimizer, "14": adapters, "15": sharing,
        "16": ladder, "17": longest, "18": stages}.items()},
}


UNITS = re.compile(r"(?<=\d )(?:[KMGT]i?B|ms)\b")  # the same in both languages


def drawn(root, name):
    """The path of the SVG file in English below root, and the picture."""
    path, draw = PICTURES[name]
    if "{}" in path:
        path = path.format(next(pathlib.Path(root).glob(f"chapters/{name}_*")).name)
    return path, draw(Results(root))


def file_of(root, path, picture, language="en"):
    """(the path of the picture's SVG file in a language, what is in it)"""
    if language == "en":
        return path, picture.svg()
    if not picture.chinese:
        raise ValueError(f"'{picture.title}' has no Chinese words")

    def say(words):
        words = with_units(words, "zh")
        return in_chinese(root, words, "pictures.zh.toml") if re.search("[A-Za-z]", UNITS.sub("", words)) else words

    return path.removesuffix(".svg") + translations.PICTURE, picture.svg(say)


def markdown(picture, link, language="en"):
    """What stands in a README: the picture with its text alternative, and its figures as a table where it brings one."""
    def line(row):
        return "| " + " | ".join(row) + " |\n"

    if language == "zh":
        if not picture.chinese:
            raise ValueError(f"'{picture.title}' has no Chinese words")
        title, desc, cells = picture.chinese
        summary, alternative = "图中的数据，列成表格", f"{title}{'' if title[-1] in '？！' else '。'}{desc}"
    else:
        title, desc, cells = picture.title, picture.desc, {}
        summary, alternative = "The same as a table", f"{title}{'' if title[-1] in '?!' else '.'} {desc}"
    text = f"![{with_units(alternative, language)}]({link})\n"
    if picture.table:
        head, *rows = ([cells.get(cell, cell) for cell in row] for row in picture.table)
        text += f"\n<details><summary>{summary}</summary>\n\n" + line(head) + "|" + "---|" * len(head) + "\n" + with_units("".join(line(row) for row in rows), language) + "\n</details>\n"
    return text
