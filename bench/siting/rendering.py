"""Markdown as the site shows it: read as GitHub reads it (CommonMark with tables), with the site's links and highlighted code."""
import html
import json
import re
import typing

from markdown_it import MarkdownIt
from markdown_it.token import Token
from publishing import translations
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.util import ClassNotFound

COMMONMARK = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
WIDE = "\u2e80-\u303e\u3041-\ua4cf\uf900-\ufaff\ufe30-\ufe6f\uff01-\uff60\uffe0-\uffe6"  # characters of two columns: Chinese ones, and their marks
NO_SPACE = re.compile(f"[{WIDE}“”‘’]\n[{WIDE}]|[{WIDE}]\n[“‘]|[，。、；：！？（）《》]\n")  # a line's end that is no space
SWITCH = re.compile(r"^\[(?:English|中文)\]\([^)]*\)\n", re.M)  # the site has one of its own, on every page
LANGUAGES = {"cuda": "cuda", "c": "c", "sh": "bash", "python": "python", "yaml": "yaml", "cmake": "cmake"}  # those of fences
FILES = {".cu": "cuda", ".h": "cuda", ".inc": "cuda", ".toml": "toml", ".txt": "text"}  # others by Pygments


def joined(state):
    """Takes a line's end away where a browser would show a space that Chinese does not have."""
    for token in state.tokens:
        children = token.children or []
        for i, child in enumerate(children):
            if child.type == "softbreak":
                before, after = ("".join(c.content for c in part if c.type in ("text", "code_inline")) for part in (children[:i], children[i + 1:]))
                if NO_SPACE.search(before[-1:] + "\n" + after[:1]):
                    child.type, child.content = "text", ""


COMMONMARK.core.ruler.push("joined", joined)


class Heading(typing.NamedTuple):
    level: int
    name: str
    words: str


class Rendered(typing.NamedTuple):
    html: str
    headings: typing.List[Heading]


def code(text, language):
    """A block of code in the classes of Pygments, for the style sheet of the theme."""
    if language in ("", "text"):
        inside = html.escape(text, quote=False)
    else:
        inside = highlight(text, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True))
    inside = re.sub(f"[{WIDE}]+", r'<span class="wide">\g<0></span>', inside)  # so that columns stay columns, whatever the font
    return f'<div class="highlight"><pre tabindex="0"><span></span><code>{inside}</code></pre></div>\n'


def language_of(path):
    suffix = re.search(r"\.\w+$", path)
    if suffix and suffix[0] in FILES:
        return FILES[suffix[0]]
    try:
        return get_lexer_for_filename(path).aliases[0]
    except ClassNotFound:
        return "text"


def without_comments(text):
    """The same without comments, and without the line's end behind each."""
    kept, rest = "", text
    while "<!--" in rest:
        before, _, comment = rest.partition("<!--")
        _, closed, after = comment.partition("-->")
        if not closed:
            break
        kept += before
        rest = after.removeprefix("\n")
    return kept + rest


def parsed(text):
    """The tokens of a document, without comments, which say how blocks are made."""
    tokens = COMMONMARK.parse(SWITCH.sub("", text, 1))
    for token in tokens:
        if token.type == "html_block":
            token.content = without_comments(token.content)
    return [token for token in tokens if token.type != "html_block" or token.content.strip()]


def words_of(inline):
    return "".join(child.content for child in inline.children if child.type in ("text", "code_inline")) or inline.content


def with_links(tokens, link):
    """The tokens with what `link` makes of the targets of links and pictures."""
    for token in tokens:
        for child in token.children or ():
            for name in ("href", "src"):
                if name in child.attrs:
                    child.attrs[name] = link(child.attrs[name])
    return tokens


def to_html(tokens):
    for token in tokens:
        if token.type in ("fence", "code_block"):
            token.content, token.type, token.tag = code(token.content, LANGUAGES.get(token.info.strip(), "text")), "html_block", ""
    return COMMONMARK.renderer.render(tokens, COMMONMARK.options, {})


def folded(tokens):
    """A puzzle's task with hints and solution as parts that open at a click."""
    out, is_open = [], False
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            out += [Token("html_block", "", 0, content="</details>\n" if is_open else ""), Token("html_block", "", 0, content=f"<details><summary>{html.escape(tokens[i + 1].content)}</summary>\n")]
            is_open = True
        elif not (is_open and (token.type == "heading_close" and token.tag == "h2" or i and tokens[i - 1].type == "heading_open" and tokens[i - 1].tag == "h2")):
            out.append(token)
    return out + ([Token("html_block", "", 0, content="</details>\n")] if is_open else [])


def document(text, link, fold=False):
    """A page. `link` is given the target of a link, and returns the site's."""
    tokens = with_links(parsed(text), link)
    if fold:
        tokens = folded(tokens)
    headings, times = [], {}
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            inline = tokens[i + 1]
            name = translations.anchor(inline.content)
            times[name] = times.get(name, 0) + 1
            name = name if times[name] == 1 else f"{name}-{times[name] - 1}"
            token.attrs["id"] = name
            headings.append(Heading(int(token.tag[1]), name, words_of(inline)))
    return Rendered(to_html(tokens), headings)


def notebook(text, link):
    """A notebook: its words, its code, and what that printed and drew."""
    out = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            out.append(to_html(with_links(parsed(source), link)))
            continue
        out.append(code(source, "python"))
        for output in cell.get("outputs", ()):
            if "data" in output:
                said = "".join(output["data"]["text/plain"])
                out.append(f'<img class="paper" src="data:image/png;base64,{output["data"]["image/png"].strip()}" alt="{html.escape(said)}">\n')
            else:
                out.append(code("".join(output["text"]), "text"))
    return "".join(out)
