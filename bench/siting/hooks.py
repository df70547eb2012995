"""What MkDocs calls while it builds the site of one language: the pages come from the repository's files as they are, and so do the words of every link.

MkDocs has the theme, the navigation and the search; it sees no Markdown. A link marked "site:" is an address of the whole site, of both languages.
"""
import html
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from mkdocs.structure.files import File  # noqa: E402
from mkdocs.structure.toc import get_toc  # noqa: E402
from siting import api, rendering  # noqa: E402
from siting.tree import Page, Tree, relative  # noqa: E402

TREE = Tree(ROOT)
CHAPTERS = {f"chapters/{name}/README.md" for name in TREE.chapters}
READ_HERE = {}  # {MkDocs' name of a page: what makes (its title, its HTML, its headings)}
SWITCH = {"en": ("zh", "中文"), "zh": ("en", "English")}


def page_of(page):
    """A document as (title, HTML, headings)."""
    done = rendering.document(TREE.text(page.path), lambda target: TREE.link(page, target), fold=page.english.endswith("/task.md"))
    title, inside = done.headings[0].words, done.html
    if page.english.startswith("chapters/") and page.english.count("/") == 2:
        inside = inside.replace("</h1>", "</h1>\n" + parts(page, done.headings), 1)
    if page.english.endswith("/task.md"):
        inside = re.sub(r"<p>minutes: (\d+)</p>", lambda m: how_to_begin(page, m[1]), inside, count=1)
    return title, inside, done.headings


def parts(page, headings):
    """The parts of a chapter, and its puzzles, in one line below its title."""
    puzzles = [TREE.in_language(path, page.language) for path in TREE.puzzles(page.english.split("/")[1])]
    links = [("#" + heading.name, heading.words) for heading in headings if heading.level == 2]
    links += [(relative(puzzle.address, page.address), {"en": "Puzzle: ", "zh": "题目："}[page.language] + TREE.title(puzzle.path)) for puzzle in puzzles]
    return '<nav class="parts">' + "".join(f'<a href="{html.escape(to)}">{html.escape(words)}</a>' for to, words in links) + "</nav>\n"


def how_to_begin(page, minutes):
    """Below the title of a puzzle: the command, the minutes, and the file that is to be mended."""
    _, chapter, _, name, _ = page.english.split("/")
    file = TREE.sources[page.english.removesuffix("task.md") + "puzzle.cu"]
    asked, comma, words = {"en": ("", ", ", "minutes"), "zh": (" --lang zh", "，", "分钟")}[page.language]
    return f'<p><code>bench/puzzle {chapter[:2]}-{name}{asked}</code>{comma}{minutes} {words}{comma}<a href="{relative(file, page.address)}"><code>puzzle.cu</code></a></p>'


def source(path, address):
    """A file that pages link to, as a page."""
    file = ROOT / path
    if file.is_dir():
        rows = []
        for inside in sorted(file.iterdir()):
            name = inside.relative_to(ROOT).as_posix()
            shown = TREE.pages[name].address if name in TREE.pages else TREE.sources.get(name)
            words = html.escape(inside.name + ("/" if inside.is_dir() else ""))
            rows.append(f'<li><a href="{relative(shown, address)}"><code>{words}</code></a></li>' if shown else f"<li><code>{words}</code></li>")
        inside = f'<ul>{"".join(rows)}</ul>'
    elif path.endswith(".ipynb"):
        here = Page(path, "en", path, address)
        return path, rendering.notebook(TREE.text(path), lambda target: TREE.link(here, target)), []
    else:
        inside = rendering.code(TREE.text(path), rendering.language_of(path))
    return path, f"<h1><code>{html.escape(path)}</code></h1>\n{inside}", []


def on_files(files, config):
    language = config.extra["language"]
    for page in TREE.pages.values():
        if page.language == language:
            READ_HERE[page.key] = lambda page=page: page_of(page)
    if language == "en":
        for path, address in TREE.sources.items():
            if address == path:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
            else:
                READ_HERE[address.removesuffix(".html") + ".md"] = lambda path=path, address=address: source(path, address)
        READ_HERE["api.md"] = lambda: api.page(ROOT / "bench/package/oomlab")
    for key in READ_HERE:
        files.append(File.generated(config, key, content=""))
    return files


def on_page_markdown(markdown, page, config, files):
    page.meta["title"], page.made, headings = READ_HERE[page.file.src_uri]()
    page.tree = next((p for p in TREE.pages.values() if p.language == config.extra["language"] and p.key == page.file.src_uri), None)
    page.table = []
    at = [(0, page.table)]
    for heading in headings:
        while at[-1][0] >= heading.level:
            at.pop()
        entry = {"level": heading.level, "id": heading.name, "name": html.escape(heading.words, quote=False), "children": []}
        at[-1][1].append(entry)
        at.append((heading.level, entry["children"]))
    if page.file.src_uri.startswith("source/"):
        page.meta["search"] = {"exclude": True}
    elif page.tree and page.tree.english in CHAPTERS:
        page.meta["search"] = {"boost": 4}  # before tables that have the word once among thousands
    return ""


def on_page_content(content, page, config, files):
    page.toc = get_toc(page.table)
    return page.made


def on_page_context(context, page, config, nav):
    language = config.extra["language"]
    other = TREE.other(page.tree) if page.tree else TREE.in_language("README.md", SWITCH[language][0])
    config.extra["alternate"] = [{"name": SWITCH[language][1], "link": "site:" + other.address, "lang": {"en": "en", "zh": "zh-CN"}[other.language]}]
    return context


def on_post_page(output, page, config):
    """Every link to an address of the whole site is made one from here."""
    output = output.replace("<svg ", '<svg aria-hidden="true" ')  # the theme's icons stand beside words, or in what has a label
    here = ("zh/" if config.extra["language"] == "zh" else "") + page.file.dest_uri
    return re.sub(r'href="site:([^"]+)"', lambda m: 'href="' + relative(m[1], here) + '"', output)


def on_post_template(output, template_name, config):
    """The page for what is not there is shown at any address: its links begin at the top of the server."""
    top = (urllib.parse.urlsplit(config.site_url or "").path or "/").removesuffix("zh/")
    return re.sub(r'href="site:([^"]+)"', lambda m: f'href="{top}{m[1]}"', output) if template_name == "404.html" else output
