"""What these pictures are drawn with: an SVG picture of a fixed width, its words checked to lie inside, in light and dark.

Lengths are units of the picture, which is 480 wide: shown 360 wide on a phone, the smallest words (14) are 10 pixels high.
Colours are names (CSS classes): those of memory's categories, and ink, faint, grid, budget and good.
"""
import html
import math
import re
import typing

from shared.results_files import CATEGORIES, COLOURS, COLOURS_DARK

WIDTH = 480
light = {**COLOURS, "ink": "#1f2328", "faint": "#59636e", "grid": "#d1d9e0", "budget": "#c3222f", "good": "#1a7f37", "paper": "#ffffff"}
dark = {**COLOURS_DARK, "ink": "#f0f6fc", "faint": "#a5afba", "grid": "#3d444d",
        "budget": "#ff7b80", "good": "#4cc26a", "paper": "#0d1117"}


def size(count):
    """Bytes for a reader: 692.5 MiB."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 2**power:
            value = count / 2**power
            return f"{value:.0f} {unit}" if value == int(value) else f"{value:.1f} {unit}" if value >= 10 else f"{value:.2f} {unit}"
    return f"{count:.0f} bytes"


def width_of(words, height):
    """About how wide words are; a little more than in the fonts that browsers have for sans-serif."""
    return sum(1 if c > "\u2e7f" else 0.32 if c in " .,:;il|()'" else 0.9 if c in "mwMW@+" else 0.68 if c.isupper() else 0.57 for c in words) * height


class Words(typing.NamedTuple):
    """Words at a place; a `name` is one that programs print, and the same in every language."""
    x: float
    y: float
    words: str
    colour: str
    anchor: str
    bold: bool
    height: float
    name: bool

    def svg(self):
        return (f'<text x="{self.x:.1f}" y="{self.y:.1f}" class="{self.colour}" text-anchor="{self.anchor}" font-size="{self.height}"'
                f'{" font-weight=" + chr(34) + "600" + chr(34) if self.bold else ""}>{html.escape(self.words)}</text>')


class Picture:
    def __init__(self, title, height):
        self.title, self.height, self.desc, self.parts, self.table, self.chinese = title, height, "", [], [], None
        self.text(16, 28, title, bold=True, height=17)

    def in_chinese(self, title, desc, cells=()):
        """What a Chinese page says of it: title and description, and the words for cells of the table that are words. What stands in the picture
        has its words in docs/data/pictures.zh.toml."""
        self.chinese = (title, desc, dict(cells))

    def inside(self, text):
        wide = width_of(text.words, text.height) * (1.1 if text.bold else 1)
        left = {"start": text.x, "middle": text.x - wide / 2, "end": text.x - wide}[text.anchor]
        if left < 0 or left + wide > WIDTH or text.y > self.height - 8:
            raise ValueError(f"'{text.words}' runs out of the picture '{self.title}': {left:.0f} to {left + wide:.0f}, {text.y:.0f} down")
        return text

    def text(self, x, y, words, colour="ink", anchor="start", bold=False, height=14, name=False):
        self.parts.append(self.inside(Words(x, y, words, colour, anchor, bold, height, name)))

    def rect(self, x, y, width, height, colour, outline=False, says="", faint=False):
        if x < -0.01 or x + width > WIDTH + 0.01 or y + height > self.height + 0.01 or width < 0 or height < 0:
            raise ValueError(f"a box runs out of the picture '{self.title}': {x:.0f} + {width:.0f}, {y:.0f} + {height:.0f}")
        look = f'class="line {colour}" stroke-dasharray="4 3"' if outline else f'class="{colour}"' + (' opacity="0.28"' if faint else "")
        said = f"><title>{html.escape(says)}</title></rect>" if says else "/>"
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" {look}{said}')

    def path(self, points, colour, dashed=False, wide=2):
        d = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
        self.parts.append(f'<path d="{d}" class="line {colour}" stroke-width="{wide}"{" stroke-dasharray=" + chr(34) + "6 4" + chr(34) if dashed else ""}/>')

    def area(self, points, colour):
        self.parts.append(f'<path d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}Z" class="{colour}"/>')

    def dot(self, x, y, colour, radius=4.5, says=""):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{colour}"><title>{html.escape(says)}</title></circle>')

    def arrow(self, start, end, colour="faint"):
        """A line with a head at its end."""
        (x0, y0), (x1, y1) = start, end
        long = max(((x1 - x0)**2 + (y1 - y0)**2)**0.5, 1)
        u, v = (x1 - x0) / long, (y1 - y0) / long
        self.path([(x0, y0), (x1 - 6 * u, y1 - 6 * v)], colour, wide=1.5)
        self.area([(x1, y1), (x1 - 9 * u + 4 * v, y1 - 9 * v - 4 * u), (x1 - 9 * u - 4 * v, y1 - 9 * v + 4 * u)], colour)

    def legend(self, y, names, x=16, name=False):
        """Coloured squares with words, or with names that programs print, on as many lines as they need; returns where the next line begins."""
        for words, colour in names:
            wide = 18 + width_of(words, 14) + 12
            if x + wide > WIDTH and x > 16:
                x, y = 16, y + 21
            self.rect(x, y - 11, 12, 12, colour)
            self.text(x + 18, y, words, name=name)
            x += wide
        return y + 24

    def bar(self, y, name, parts, scale, end="", height=16, outline=None, says=""):
        """The name of a variant, or what it `says` instead, and below it a bar of (colour, amount), each amount x scale wide, with words at its end."""
        self.text(16, y + 12, says or name, name=not says)
        x = 16
        for colour, amount in parts:
            self.rect(x, y + 18, amount * scale, height, colour, says=f"{colour} {size(amount)}" if colour in CATEGORIES else "")
            x += amount * scale
        if outline is not None:
            self.rect(16, y + 18, outline * scale, height, "faint", outline=True)
        if end:
            self.text(WIDTH - 16, y + 12, end, "ink", anchor="end")
        return y + 18 + height + 12

    def limit(self, x, top, bottom, words, anchor="start"):
        """A budget's line across bars, named above."""
        self.path([(x, top), (x, bottom)], "budget", dashed=True)
        self.text(x, top - 5, words, "budget", anchor)

    def part(self, part, say):
        """A part as SVG; `say` has the words of another language, and what is shown at a pointer stays out of that."""
        if isinstance(part, str):
            return re.sub("<title>[^<]*</title>", "", part) if say else part
        if say and not part.name:
            part = self.inside(part._replace(words=self.chinese[0] if part.words == self.title else say(part.words)))
        return part.svg()

    def svg(self, say=None):
        """The file; with `say`, which gives the Chinese words for English ones, that of Chinese pages."""
        title, desc, lang = (*self.chinese[:2], ' lang="zh-CN"') if say else (self.title, self.desc, "")
        style = "".join(f".{name}{{fill:{colour}}}.line.{name}{{stroke:{colour}}}" for name, colour in light.items())
        night = "".join(f".{name}{{fill:{colour}}}.line.{name}{{stroke:{colour}}}" for name, colour in dark.items())
        body = "\n".join(self.part(part, say) for part in self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="640" role="img" aria-labelledby="t d"{lang}'
                ' font-family="system-ui, -apple-system, Segoe UI, Roboto, Liberation Sans, DejaVu Sans, sans-serif">\n'
                f'<title id="t">{html.escape(title)}</title>\n<desc id="d">{html.escape(desc)}</desc>\n'
                f"<style>{style}\n@media (prefers-color-scheme: dark){{{night}}}\n.line.line{{fill:none}}</style>\n"
                f'<rect width="{WIDTH}" height="{self.height}" rx="8" class="paper"/>\n{body}\n</svg>\n')


class Plot:
    """Two axes in a picture; X and Y place a value on them."""

    def __init__(self, picture, box, x, y, log_x=False, log_y=False):
        self.picture, (self.left, self.top, self.right, self.bottom) = picture, box
        on = {True: math.log, False: float}

        def placed(limits, log, start, end):
            low, high = on[log](limits[0]), on[log](limits[1])
            return lambda value: start + (on[log](value) - low) / (high - low) * (end - start)

        self.X, self.Y = placed(x, log_x, self.left, self.right), placed(y, log_y, self.bottom, self.top)

    def ticks_y(self, values, name=size):
        for value in values:
            y = self.Y(value)
            self.picture.path([(self.left, y), (self.right, y)], "grid", wide=1)
            self.picture.text(self.left - 6, y + 5, name(value), "faint", "end")

    def ticks_x(self, values, name=str, label=""):
        for value in values:
            self.picture.path([(self.X(value), self.bottom), (self.X(value), self.bottom + 5)], "faint", wide=1)
            self.picture.text(self.X(value), self.bottom + 19, name(value), "faint", "middle")
        if label:
            self.picture.text((self.left + self.right) / 2, self.bottom + 39, label, "faint", "middle")

    def line(self, points, colour, **look):
        for x, y in points:
            if not (self.left - 1 < self.X(x) < self.right + 1 and self.top - 1 < self.Y(y) < self.bottom + 1):
                raise ValueError(f"a line leaves the axes of '{self.picture.title}' at {x:g}, {y:g}")
        self.picture.path([(self.X(x), self.Y(y)) for x, y in points], colour, **look)

    def dot(self, x, y, colour, says=""):
        self.picture.dot(self.X(x), self.Y(y), colour, says=says)

    def budget(self, value, words, left=False):
        self.picture.path([(self.left, self.Y(value)), (self.right, self.Y(value))], "budget", dashed=True)
        self.picture.text(self.left + 4 if left else self.right, self.Y(value) - 6, words, "budget", "start" if left else "end")
