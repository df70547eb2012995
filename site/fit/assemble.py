#!/usr/bin/env python3
"""One file that needs no other: assemble.py PROGRAM.wasm PAGE.html

Style, scripts and the program stand in the page itself, so that it opens from a folder and from any server. Its policy allows these scripts by
their hashes and nothing else: no address is ever asked, and nothing that is typed can become a script.
"""
import base64
import gzip
import hashlib
import html
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))
from shared.results_files import COLOURS, COLOURS_DARK  # noqa: E402


def read(name):
    return (HERE / name).read_text(encoding="utf-8")


def variables(colours):
    return ":root {" + "".join(f" --{name}: {colour};" for name, colour in colours.items()) + " }\n"


def hashed(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def script(names):
    text = "\n".join(map(read, names))
    assert "</script" not in text.lower(), f"{names}: would end the element that it stands in"
    return text


def licences(names):
    """The course's own, and those of the libraries that are compiled into the program."""
    texts = [(ROOT / (name if name == "LICENSE" else f"licenses/{name}.txt")).read_text(encoding="utf-8") for name in names]
    return html.escape(f"\n{'-' * 72}\n\n".join(texts))


def assembled(program):
    page = read("index.html")
    style = variables(COLOURS) + "@media (prefers-color-scheme: dark) { " + variables(COLOURS_DARK) + "}\n" + read("style.css")
    scripts = re.findall(r'<script src="([^"]+)"></script>\n', page)
    code = script(scripts)
    policy = "; ".join(("default-src 'none'", f"script-src {hashed(code)} 'wasm-unsafe-eval'", "worker-src blob:", f"style-src {hashed(style)}", "img-src data:",
                        "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'", "trusted-types worker"))
    packed = base64.b64encode(gzip.compress(program, 9, mtime=0)).decode()
    made = [('<meta charset="utf-8">', f'<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            ('<link rel="stylesheet" href="style.css">', f"<style>{style}</style>"),
            ('<script type="text/plain" id="program"></script>', f'<script type="text/plain" id="program">{packed}</script>'),
            ("".join(f'<script src="{name}"></script>\n' for name in scripts), f"<script>{code}</script>\n")]
    worker = re.search(r'<script type="text/plain" id="worker" data-of="([^"]+)"></script>', page)
    made.append((worker.group(0), f'<script type="text/plain" id="worker">{script(worker.group(1).split())}</script>'))
    place = re.search(r'(<pre id="licences"[^>]*) data-of="([^"]+)">', page)
    made.append((place.group(0), place.group(1) + ">" + licences(place.group(2).split())))
    for old, new in made:
        assert page.count(old) == 1, old
        page = page.replace(old, new)
    return page


if __name__ == "__main__":
    whole = assembled(pathlib.Path(sys.argv[1]).read_bytes())
    pathlib.Path(sys.argv[2]).write_text(whole, encoding="utf-8")
    print(f"{sys.argv[2]}: {len(whole.encode()):,} bytes, {len(gzip.compress(whole.encode(), 9)):,} as a server sends it")
