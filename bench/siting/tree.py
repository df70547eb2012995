"""What the site consists of, from what is in the repository: its pages, their order, where each stands, and where a link leads.

Nothing here needs more than Python: tests/site/tree_test.py looks at all of it by day. Paths are of the repository, with "/", unless they are called addresses:
those are of the site. English is at the top of it, Chinese below zh/, a file of another kind that a page links to below source/.
"""
import os
import pathlib
import posixpath
import re
import typing
import urllib.parse

from publishing import translations

LANGUAGES = ("en", "zh")
LEFT_OUT = {"build", "puzzles"}  # and what begins with a dot
PICTURES = (".svg", ".png")

# The tabs of the site, with the pages of each; chapters/ is filled in. A page that stands nowhere here is an error.
GROUPS = (
    ({"en": "Find it", "zh": "找出原因"}, ("docs/explain.md", "docs/my_program.md", "docs/pytorch.md")),
    ({"en": "Will it fit?", "zh": "放得下吗？"}, ("docs/fit.md", "docs/fit_pytorch.md", "docs/fit_engines.md", "docs/fit_public.md", "docs/hardware.md", "docs/levers.md", "docs/web.md", "fit/")),
    ({"en": "Chapters", "zh": "各章"}, ("chapters/README.md", "chapters/", "slides/")),
    ({"en": "Results", "zh": "结果"}, ("docs/articles.md", "docs/results.md", "docs/reading.md", "report/", "docs/glossary.md", "docs/command-line.md", "notebooks/README.md")),
    ({"en": "Python", "zh": "Python 包"}, ("docs/pip.md", "api/", "bench/package/README.md")),
    ({"en": "Contribute", "zh": "参与"}, ("CONTRIBUTING.md", "docs/architecture.md", "docs/site.md", "common/data/digits/README.md", "common/data/text/README.md", "common/data/digit_images/README.md", "CHANGELOG.md")),
)
ONLY_ENGLISH = "（英文）"
# What the site has beside the pages: {name in GROUPS: (its words, its address in a language)}.
MADE = {
    "fit/": ({"en": "The planner, in this browser", "zh": "在浏览器里规划"}, {"en": "fit/index.html#lang=en", "zh": "fit/index.html#lang=zh"}),
    "report/": ({"en": "The report of all results", "zh": "全部结果的报告" + ONLY_ENGLISH}, {"en": "report/index.html", "zh": "report/index.html"}),
    "slides/": ({"en": "Slides", "zh": "幻灯片"}, {"en": "slides/index.html", "zh": "zh/slides/index.html"}),
    "api/": ({"en": "What the package has", "zh": "包里有什么" + ONLY_ENGLISH}, {"en": "api.html", "zh": "api.html"}),
}


class Page(typing.NamedTuple):
    path: str
    language: str
    english: str  # the path of the same page in English
    address: str

    @property
    def key(self):
        """Its name in the site of its language, as MkDocs wants it."""
        return self.address.removeprefix("zh/").removesuffix(".html") + ".md"


class DeadLink(Exception):
    pass


def address_of_page(path):
    chinese = path.endswith(translations.ENDING)
    path = path.removesuffix(translations.ENDING).removesuffix(".md")
    folder, name = posixpath.split(path)
    return ("zh/" if chinese else "") + posixpath.join(folder, "index" if name == "README" else name) + ".html"


def relative(address, of):
    """The address as a link of the page at `of`."""
    address, mark, anchor = address.partition("#")
    return posixpath.relpath(address, posixpath.dirname(of) or ".") + mark + anchor


def title_of(text):
    return re.search(r"^# (.+?)\s*$", text, re.M)[1]


def documents(root):
    """The paths of all Markdown files that are the repository's."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
        for name in files:
            if name.endswith(".md"):
                yield (pathlib.Path(folder) / name).relative_to(root).as_posix()


class Tree:
    def __init__(self, root):
        self.root = pathlib.Path(root).resolve()
        self.pages = {}
        for path in sorted(documents(self.root)):
            chinese = path.endswith(translations.ENDING)
            english = path.removesuffix(translations.ENDING) + ".md" if chinese else path
            self.pages[path] = Page(path, "zh" if chinese else "en", english, address_of_page(path))
        self.chapters = [p.parent.name for p in sorted(self.root.glob("chapters/[0-9][0-9]_*/README.md"))]
        self.sources = {}  # {path: address} of what pages link to and is no page
        for page in self.pages.values():
            for target in translations.targets(self.text(page.path)):
                if translations.is_relative(target):
                    self.note(self.leads_to(page.path, target)[0])

    def text(self, path):
        return (self.root / path).read_text(encoding="utf-8")

    def title(self, path):
        return title_of(self.text(path)).replace("`", "")

    def in_language(self, english, language):
        """The page in this language, or in English where it has no other."""
        chinese = english.removesuffix(".md") + translations.ENDING
        return self.pages[chinese if language == "zh" and chinese in self.pages else english]

    def other(self, page):
        """The same page in the other language; the front page where there is none."""
        language = "en" if page.language == "zh" else "zh"
        found = self.in_language(page.english, language)
        return found if found.language == language else self.in_language("README.md", language)

    # Links

    def leads_to(self, path, target):
        """(what a link of a page is about, its anchor): a file, or a folder without a README."""
        there, _, anchor = target.partition("#")
        there = urllib.parse.unquote(there)
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), there)) if there else path
        if posixpath.join(file, "README.md").removeprefix("./") in self.pages:
            file = posixpath.join(file, "README.md").removeprefix("./")
        if file.startswith("..") or not (self.root / file).exists():
            raise DeadLink(f"{path}: {target}")
        return file, anchor

    def note(self, file):
        if file in self.pages or file in self.sources:
            return
        if file.endswith(PICTURES):
            self.sources[file] = file
        elif (self.root / file).is_dir():
            self.sources[file] = f"source/{file}/index.html"
        else:
            self.sources[file] = f"source/{file.removeprefix('.')}.html"  # MkDocs leaves out what begins with a dot

    def link(self, page, target):
        """A link of a page, as it is in the site."""
        if not translations.is_relative(target):
            return target
        file, anchor = self.leads_to(page.path, target)
        address = self.pages[file].address if file in self.pages else self.sources.get(file)
        if address is None:
            raise DeadLink(f"{page.path}: {target} was not found when the site was planned")
        return (relative(address, page.address) if address != page.address or not anchor else "") + ("#" + anchor if anchor else "")

    # Order

    def puzzles(self, chapter):
        return [p.relative_to(self.root).as_posix() for p in sorted((self.root / "chapters" / chapter / "puzzle").glob("*/task.md"))]

    def of_chapter(self, chapter):
        """The English pages of a chapter, in order."""
        details = f"docs/chapters/{chapter[:2]}.md"
        return [f"chapters/{chapter}/README.md", *([details] if details in self.pages else []), *self.puzzles(chapter)]

    def listed(self):
        """The English pages in the order of the site."""
        for _, names in GROUPS:
            for name in names:
                if name == "chapters/":
                    for chapter in self.chapters:
                        yield from self.of_chapter(chapter)
                elif name not in MADE:
                    yield name

    def entry(self, english, language, title=None):
        """A line of the navigation. What is not in the site of this language is marked "site:", for hooks.py."""
        page = self.in_language(english, language)
        words = title or self.title(page.path)
        return {words: page.key} if page.language == language else {words + ONLY_ENGLISH: "site:" + page.address}

    def navigation(self, language, made=tuple(MADE)):
        """MkDocs' `nav` for a language; `made` names what there is beside the pages."""
        puzzle = {"en": "Puzzle: ", "zh": "题目："}[language]
        front = self.in_language("README.md", language)
        nav = [{{"en": "Start", "zh": "首页"}[language]: front.key}]
        for words, names in GROUPS:
            inside = []
            for name in names:
                if name == "chapters/":
                    for chapter in self.chapters:
                        first, *rest = self.of_chapter(chapter)
                        begin = self.in_language(first, language)
                        inside.append({self.title(begin.path): [begin.key] + [
                            self.entry(path, language, puzzle + self.title(self.in_language(path, language).path) if path.endswith("task.md") else None) for path in rest]})
                elif name not in MADE:
                    inside.append(self.entry(name, language))
                elif name in made:
                    inside.append({MADE[name][0][language]: "site:" + MADE[name][1][language]})
            nav.append({words[language]: inside})
        return nav
