"""Slides for a class, from the chapters' READMEs, their puzzles and their results: one deck a chapter, and one for the half day of chapters/README.md.

A slide shows the heading, and what is short: a message, a picture, the lines of the mitigation, a table, the first sentence of a paragraph. Whatever else the
section says stands in the speaker's notes, with the solutions of exercises. reveal.js shows them.
"""
import html
import importlib.util
import pathlib
import re
import shutil
import typing

from markdown_it.token import Token
from publishing import translations
from shared.results_files import Result, format_bytes
from siting import rendering
from siting.tree import relative

MARK = "THE MITIGATION"
AROUND = 8  # lines of lesson.py that are shown before the mitigation, and after it
WORDS = {
    "en": {"half": "Half a day", "table": ("variant", "under budget", "peak allocated", "of the first"), "python": "In PyTorch", "puzzle": "Puzzle: ", "minutes": "minutes", "solution": "Solution",
           "all": "Slides", "chapters": "Chapter by chapter", "how": "Arrow keys turn the pages, S opens the speaker's notes, O shows all slides, F fills the screen, and ?print-pdf behind the address makes pages to print.",
           "back": "The course", "other": "中文"},
    "zh": {"half": "半天", "table": ("方案", "预算之下", "已分配的峰值", "为第一行的"), "python": "在 PyTorch 里", "puzzle": "题目：", "minutes": "分钟", "solution": "解答",
           "all": "幻灯片", "chapters": "逐章", "how": "方向键翻页，S 打开讲者备注，O 显示全部幻灯片，F 全屏；在地址后加 ?print-pdf 可以打印。", "back": "课程", "other": "English"},
}


class Section(typing.NamedTuple):
    level: int
    heading: str
    tokens: list


class Slide(typing.NamedTuple):
    heading: str
    body: str   # HTML
    notes: str  # HTML
    kind: str = ""


def sections(tokens):
    """The tokens below each heading, down to the next one."""
    found = []
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            found.append(Section(int(token.tag[1]), rendering.words_of(tokens[i + 1]), []))
        elif found and not (token.type == "heading_close" or tokens[i - 1].type == "heading_open"):
            found[-1].tokens.append(token)
    return found


def blocks(tokens):
    """Lists of tokens that stand at the top of a section: a paragraph, a list, a table, a block of code."""
    found, depth = [], 0
    for token in tokens:
        if depth == 0:
            found.append([])
        found[-1].append(token)
        depth += token.nesting
    return found


def is_picture(block):
    return any(child.type == "image" for token in block for child in token.children or ())


def first_sentence(text):
    """Of Markdown, not in the middle of a link, of bold words or of code."""
    for end in re.finditer(r"\.(?=\s)|。", text):
        said = text[:end.end()]
        if said.count("`") % 2 == 0 and said.count("**") % 2 == 0 and all(said.count(a) == said.count(b) for a, b in ("[]", "()", "（）", "“”")):
            return said
    return re.sub(r"[:：]$", "", text)  # which leads to a block that is not shown


def short(block):
    """A paragraph or a list with the first sentence of each paragraph in it."""
    out = []
    for token in block:
        if token.type == "inline":
            out.append(rendering.COMMONMARK.parseInline(first_sentence(token.content))[0])
        elif token.type not in ("fence", "code_block", "html_block"):
            out.append(token)
    return out


class Deck:
    """The slides of one chapter in one language."""

    def __init__(self, site, chapter, language, address):
        self.site, self.chapter, self.words = site, chapter, WORDS[language]
        english = f"chapters/{chapter}/README.md"
        page = site.in_language(english, language)
        self.page = page._replace(address=address)
        self.language = page.language
        told, names = sections(rendering.parsed(site.text(page.path))), [s.heading for s in sections(rendering.parsed(site.text(english)))]
        # Both languages have the same headings in the same order (tests/docs/translations_test.py).
        self.sections = told
        self.at = {name: i for i, name in reversed(list(enumerate(names)))}
        self.title = told[0].heading

    def html(self, tokens):
        return rendering.to_html(rendering.with_links(tokens, lambda target: self.site.link(self.page, target)))

    def section(self, name, below=False):
        """(its heading, its blocks), with those of the smaller headings below it."""
        i = self.at[name]
        found = [self.sections[i]]
        for later in self.sections[i + 1:] if below else ():
            if later.level <= found[0].level:
                break
            found.append(later)
        return found[0].heading, [block for section in found for block in blocks(section.tokens)]

    def question(self):
        """What the front page asks about the chapter."""
        front = self.site.in_language("README.md", self.language)
        row = re.search(rf"^\| \[[^\]]*\]\(chapters/{self.chapter}[^)]*\) \| (.+?) \|$", self.site.text(front.path), re.M)
        return row[1]

    def error(self):
        heading, all_of_it = self.section("The error you see")
        message = next(i for i, block in enumerate(all_of_it) if block[0].type == "fence")
        said = [block for block in all_of_it if block[0].type == "paragraph_open"]
        return Slide(heading, self.html(all_of_it[message]) + "".join(self.html(short(block)) for block in said[:1]), "".join(self.html(b) for i, b in enumerate(all_of_it) if i != message))

    def idea(self):
        heading, all_of_it = self.section("The idea")
        pictures = [block for block in all_of_it if is_picture(block)]
        first = next(block for block in all_of_it if block[0].type == "paragraph_open" and not is_picture(block))
        rest = [block for block in all_of_it if not is_picture(block) and block[0].type == "paragraph_open"]
        return Slide(heading, self.html(short(first)) + "".join(map(self.html, pictures[:1])), "".join(map(self.html, rest)), "picture")

    def lesson(self):
        heading, all_of_it = self.section("The lesson", below=True)
        quoted = [i for i, block in enumerate(all_of_it) if block[0].type == "fence" and block[0].info == "cuda"]
        shown = next((i for i in quoted if MARK in all_of_it[i][0].content), quoted[0])
        notes = [block for block in all_of_it[max(shown - 2, 0):shown + 2] if block[0].type == "paragraph_open"]
        yield Slide(heading, self.html(all_of_it[shown]), "".join(map(self.html, notes)), "code")
        said = next((i for i, block in enumerate(all_of_it) if block[0].type == "fence" and block[0].content.startswith("$ ")), None)
        if said is not None:
            yield Slide(heading, self.html(all_of_it[said]), "".join(self.html(b) for b in all_of_it[said + 1:said + 2] if b[0].type == "paragraph_open"), "code")

    def measured(self):
        heading, all_of_it = self.section("What it measured")
        result = Result(self.site.root / f"bench/results/host/{self.chapter}.json")
        first = next(v for v in result.variants if v.baseline)
        rows = [[v.name, v.outcome.upper() if v.outcome == "oom" else v.outcome, format_bytes(v.peak) if v.peak is not None else "-",
                 f"{v.peak / first.peak:.0%}" if v.peak is not None and first.peak else "-"] for v in result.variants]
        body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        head = "".join(f"<th>{word}</th>" for word in self.words["table"])
        notes = [block for block in all_of_it if block[0].type in ("paragraph_open", "bullet_list_open")]
        return Slide(heading, f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", "".join(map(self.html, notes)), "table")

    def said(self, name):
        """A section whose paragraphs are shown by their first sentences."""
        heading, all_of_it = self.section(name)
        all_of_it = [block for block in all_of_it if block[0].type in ("paragraph_open", "bullet_list_open", "ordered_list_open")]
        lists = [block for block in all_of_it if block[0].type != "paragraph_open"]
        return Slide(heading, "".join(self.html(short(block)) for block in lists or all_of_it[:3]), "".join(map(self.html, all_of_it)))

    def python(self):
        heading, all_of_it = self.section("The same in PyTorch", below=True)
        for block in all_of_it:
            if block[0].type == "fence" and block[0].info == "python" and MARK in block[0].content:
                lines = block[0].content.splitlines()
                at = next(i for i, line in enumerate(lines) if MARK in line and not line.startswith("#"))
                begin = next((i for i in range(at, -1, -1) if lines[i].startswith("def ")), at - AROUND)
                part = Token("fence", "code", 0, content="\n".join(lines[max(begin, at - AROUND, 0):at + AROUND + 1]) + "\n", info="python")
                return Slide(heading, self.html([part]), "".join(self.html(b) for b in all_of_it if b[0].type in ("paragraph_open", "bullet_list_open")), "code")
        return None

    def exercises(self):
        heading, all_of_it = self.section("Exercises")
        shown, notes, inside = [], [], False
        for block in all_of_it:
            mark = block[0].content if block[0].type == "html_block" else ""
            if "<details" in mark:
                inside = True
                notes.append([Token("html_block", "", 0, content=f"<h4>{self.words['solution']}</h4>")])
            elif "</details" in mark:
                inside = False
            elif inside:
                notes.append(block)
            elif block[0].type in ("paragraph_open", "ordered_list_open"):
                shown.append(block)
        return Slide(heading, "".join(map(self.html, shown)), "".join(map(self.html, notes)))

    def puzzles(self):
        asked = " --lang zh" if self.language == "zh" else ""
        for english in self.site.puzzles(self.chapter):
            page = self.site.in_language(english, self.language)._replace(address=self.page.address)
            first, *rest = sections(rendering.parsed(self.site.text(page.path)))
            name = f"{self.chapter[:2]}-{pathlib.PurePosixPath(english).parent.name}"
            minutes = re.search(r"^minutes: (\d+)$", self.site.text(page.path), re.M)[1]
            paragraphs = [block for block in blocks(first.tokens) if not (block[0].type == "paragraph_open" and block[1].content.startswith("minutes:"))]
            told = "".join(f"<h4>{html.escape(s.heading)}</h4>" + rendering.to_html(s.tokens) for s in rest)
            yield Slide(self.words["puzzle"] + first.heading, "".join(rendering.to_html(b) for b in paragraphs) + rendering.code(f"bench/puzzle {name}{asked}    # {minutes} {self.words['minutes']}\n", "bash"), told)

    def slides(self):
        yield Slide(self.title, f"<p class=\"question\">{rendering.COMMONMARK.renderInline(self.question())}</p>", "", "title")
        yield self.error()
        yield self.idea()
        yield from self.lesson()
        yield self.measured()
        for name in ("What it costs", "When not to use it"):
            if name in self.at:
                yield self.said(name)
        python = self.python()
        if python:
            yield python
        yield self.exercises()
        yield from self.puzzles()


def half_a_day(site, language, address):
    """The slides of the table "Half a day" in chapters/README.md, a slide a row, and after it those of the chapter that it names."""
    page = site.in_language("chapters/README.md", language)._replace(address=address)
    english = [s.heading for s in sections(rendering.parsed(site.text("chapters/README.md")))]
    told = sections(rendering.parsed(site.text(page.path)))
    day = told[english.index("Half a day")]
    link = lambda target: site.link(page, target)  # noqa: E731
    all_of_it = blocks(day.tokens)
    begin = rendering.to_html(rendering.with_links([t for block in all_of_it for t in block], link))
    before = told[english.index("Before the day")]
    yield Slide(day.heading, begin, rendering.to_html(rendering.with_links(before.tokens, link)), "table")
    lines = translations_section(site.text(page.path), day.heading).splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    for minutes, what, learnt in (row for row in rows if row[0].isdigit()):
        chapter = re.search(r"\]\((\d\d_\w+)", what)
        notes = f"<p>{minutes} {WORDS[language]['minutes']}</p>"
        words = rendering.to_html(rendering.with_links(rendering.COMMONMARK.parse(f"{what}\n\n{learnt}"), link))
        yield Slide(f"{minutes} {WORDS[language]['minutes']}", words, notes, "title")
        if chapter:
            yield from Deck(site, chapter[1], language, address).slides()
    asked = told[english.index("Questions that come up")]
    yield Slide(asked.heading, rendering.to_html(short(asked.tokens)), rendering.to_html(rendering.with_links(asked.tokens, link)))


def translations_section(text, heading):
    return next(section.text for section in translations.sections(text) if section.heading == heading)


def shown(slides):
    """Slides as reveal.js wants them."""
    out = []
    for slide in slides:
        tag = "h1" if slide.kind == "title" else "h2"
        out.append(f'<section class="{slide.kind}"><{tag}>{html.escape(slide.heading)}</{tag}>\n{slide.body}<aside class="notes">{slide.notes}</aside></section>\n')
    return "".join(out)


def write(site, out, template):
    """slides/ and zh/slides/ below `out`. Returns how many slides there are."""
    package = importlib.util.find_spec("sphinx_revealjs").submodule_search_locations[0]  # not imported: that would need Sphinx
    shutil.copytree(pathlib.Path(package) / "_static/revealjs", out / "slides/reveal",
                    ignore=shutil.ignore_patterns("*.map", "*.esm.js", "*.scss", "plugin.js", "speaker-view.html", "theme", "css", "highlight", "markdown", "math", "search", "zoom"))
    for name in ("slides.css", "slides.js"):
        shutil.copy(template.parent / name, out / "slides" / name)
    page, total = template.read_text(encoding="utf-8"), 0
    for language, words in WORDS.items():
        folder = ("zh/" if language == "zh" else "") + "slides/"
        (out / folder).mkdir(parents=True, exist_ok=True)
        decks = {"half_day": (words["half"], lambda address: half_a_day(site, language, address))}
        for chapter in site.chapters:
            deck = Deck(site, chapter, language, folder + f"{chapter[:2]}.html")
            decks[chapter[:2]] = (deck.title, lambda address, deck=deck: deck.slides())
        for name, (title, slides) in decks.items():
            made = list(slides(folder + f"{name}.html"))
            total += len(made)
            (out / folder / f"{name}.html").write_text(filled(page, language, title, folder, shown(made)), encoding="utf-8")
        listed = "".join(f'<li><a href="{name}.html">{html.escape(title)}</a></li>' for name, (title, _) in decks.items() if name != "half_day")
        other = ("slides/" if language == "zh" else "zh/slides/") + "index.html"
        front = (f'<section class="list"><h2>{words["all"]}</h2><p><a href="half_day.html"><strong>{words["half"]}</strong></a></p><h3>{words["chapters"]}</h3><ul>{listed}</ul><p>{words["how"]}</p>'
                 f'<p><a href="../index.html">{words["back"]}</a> · <a href="{relative(other, folder + "index.html")}">{words["other"]}</a></p></section>')
        (out / folder / "index.html").write_text(filled(page, language, words["all"], folder, front), encoding="utf-8")
    return total


def filled(page, language, title, folder, slides):
    return (page.replace("{{language}}", {"en": "en", "zh": "zh-CN"}[language]).replace("{{title}}", html.escape(title))
            .replace("{{top}}", relative("slides", folder + "x.html")).replace("{{slides}}", slides))
