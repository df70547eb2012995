"""The pictures of the READMEs and of docs/, drawn from files in bench/results/: bench/publish puts them where `<!-- picture NAME -->` stands.

PICTURES has for each name the SVG file and the function that draws it. picture.desc says in words what is seen, and
picture.table has the figures where the README has no table of them.
"""
import pathlib

from .capstone import frontier, ladder
from .layouts import attention, cache, lighter, pages, places, quantisation, tiles
from .overview import front, rooms
from .reading import Results
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
        "16": ladder}.items()},
}


def drawn(root, name):
    """The SVG file's path below root, and the picture."""
    path, draw = PICTURES[name]
    if "{}" in path:
        path = path.format(next(pathlib.Path(root).glob(f"chapters/{name}_*")).name)
    return path, draw(Results(root))


def markdown(picture, link):
    """What stands in a README: the picture with its text alternative, and its figures as a table where it brings one."""
    def line(row):
        return "| " + " | ".join(row) + " |\n"

    text = f"![{picture.title}{'' if picture.title[-1] in '?!' else '.'} {picture.desc}]({link})\n"
    if picture.table:
        head, *rows = picture.table
        text += "\n<details><summary>The same as a table</summary>\n\n" + line(head) + "|" + "---|" * len(head) + "\n" + "".join(line(row) for row in rows) + "\n</details>\n"
    return text
