"""The built site as a folder of files: what its links lead to. Needs no browser."""
import collections
import html
import pathlib
import posixpath
import re
import urllib.parse

LINK = re.compile(r"""<(?:a|link|script|img|iframe|source)\b[^>]*?\s(?:href|src)=(?:"([^"]*)"|([^\s>"]+))""")
NAME = re.compile(r"""\s(?:id|name)=(?:"([^"]*)"|([^\s>"]+))""")
PICTURE = re.compile(r"<img\b[^>]*>")


class Folder:
    def __init__(self, top):
        self.top, self.names = pathlib.Path(top), {}

    def texts(self):
        """The HTML of every page. 404.html is shown at any address, so its links begin at the top of a server that is not here."""
        for file in sorted(self.top.rglob("*.html")):
            if file.name != "404.html":
                yield file.relative_to(self.top).as_posix(), file.read_text(encoding="utf-8")

    def wrong(self):
        """Links and pictures that lead nowhere or out of the folder without being a link of the reader's, and pictures without words."""
        texts = dict(self.texts())
        names = {path: {html.unescape(a or b) for a, b in NAME.findall(text)} for path, text in texts.items()}
        found, count = [], collections.Counter()
        for path, text in texts.items():
            for tag in LINK.finditer(text):
                target = html.unescape(tag[1] if tag[1] is not None else tag[2])
                if re.match(r"(?:mailto|data|javascript):", target):
                    continue
                if re.match(r"(?:https?:)?//", target):
                    if not tag[0].startswith("<a") and 'rel="canonical"' not in tag[0] and "rel=canonical" not in tag[0]:
                        found.append(f"{path}: fetches {target}")
                    continue
                count["links"] += 1
                there, _, anchor = target.partition("#")
                there = urllib.parse.unquote(there.partition("?")[0])
                leads = posixpath.normpath(posixpath.join(posixpath.dirname(path), there)) if there else path
                if leads.startswith("..") or not (self.top / leads).is_file():
                    found.append(f"{path}: {target}")
                # What stands behind the # of the planner's page is a question.
                elif anchor and leads != "fit/index.html" and leads in names and urllib.parse.unquote(anchor) not in names[leads]:
                    found.append(f"{path}: {target} (no such part)")
            for picture in PICTURE.findall(text):
                count["pictures"] += 1
                if not re.search(r"""\salt=(?:"[^"]+"|[^\s">]+)""", picture):
                    found.append(f"{path}: a picture without words: {picture[:80]}")
        return found, count
