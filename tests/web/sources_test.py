#!/usr/bin/env python3
"""What of the page can be seen without a browser: sources_test.py ROOT FIT

No text is ever set as HTML, nothing is loaded from anywhere, both languages say everything, and what the form asks for is what bench/fit has.
"""
import hashlib
import base64
import html
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

ROOT, FIT = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
SITE = ROOT / "site/fit"
AS_HTML = re.compile(r"\b(innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|createContextualFragment|DOMParser|document\.write|eval\(|new Function|srcdoc|setAttribute\(.on)")
scripts = {file.name: file.read_text(encoding="utf-8") for file in SITE.glob("*.js")}
page = (SITE / "index.html").read_text(encoding="utf-8")

assert len(scripts) >= 6
for name, text in (scripts | {"index.html": page, "style.css": (SITE / "style.css").read_text()}).items():
    assert not (found := AS_HTML.search(text)), (name, found)
    assert not (found := re.search(r"https?://|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon|@import|url\(|localStorage|cookie", text)), (name, found)
assert not re.search(r"<[^>]+\son\w+=|\sstyle=", page), "a script or a style in an attribute, which the policy forbids"

# Both languages say the same things, and nothing is said that nobody shows.
languages = {head: set(re.findall(r"^    (\w+): ", body, re.M)) for head, body in re.findall(r"^  (en|zh): \{\n(.*?)^  \},", scripts["words.js"], re.M | re.S)}
assert languages["en"] == languages["zh"] and len(languages["en"]) > 40, languages["en"] ^ languages["zh"]
used = set(re.findall(r'data-(?:say|label)="(\w+)"', page)) | {word for text in scripts.values() for word in re.findall(r"say(?:\(\))?\.(\w+)", text)}
by_name = {"pytorch", "trainer", "deepspeed", "no_counterpart"}  # of other_words, in page.js
assert used <= languages["en"], used - languages["en"]
assert languages["en"] == used | by_name, languages["en"] - used - by_name

# A field is an option, and a list of words is that option's.
known = json.loads(subprocess.run([FIT, "--list", "--json"], capture_output=True, check=True).stdout)
text = subprocess.run([FIT, "--help"], capture_output=True, text=True, check=True).stdout
fields = set(re.findall(r'<(?:input|select)[^>]* name="([\w-]+)"', page))
assert len(fields) >= 18 and all(re.search(rf"--{field}\b", text) for field in fields), fields
lists = set(re.findall(r'<select name="([\w-]+)"[^>]* data-words', page))
assert len(lists) >= 9 and {f"--{name}" for name in lists} <= set(known["words"]), lists
assert set(known["words"]) - {f"--{name}" for name in lists} <= {"--attn-implementation", "--cache", "--lang", "--to-host"}, "a list that the form leaves out"
# Where a list says which word is the usual one, the first is: the same answer, said or not.
usual = re.findall(r'<select name="([\w-]+)"[^>]* data-first', page)
question = [FIT, "--model", "gpt2", "--gpu", "t4", "--json"]
said = [word for name in usual for word in (f"--{name}", known["words"][f"--{name}"][0])]
assert len(usual) == 4 and len({subprocess.run(words, capture_output=True, check=True).stdout for words in (question, question + said)}) == 1, said
assert len(known["models"]) == len(set(known["models"])) > 70 and len(known["cards"]) > 30
style = (SITE / "style.css").read_text()
for category in (*(one["name"] for one in known["categories"]), "allocator", "outside", "live"):
    assert f".of-{category} " in style, category

# The assembled page allows its own script and style, by their hashes, and holds the program.
spec = importlib.util.spec_from_file_location("assemble", SITE / "assemble.py")
assemble = importlib.util.module_from_spec(spec)
spec.loader.exec_module(assemble)
made = assemble.assembled(b"\0asm")
policy = re.search(r'Content-Security-Policy" content="([^"]+)"', made).group(1)
for kind in ("script", "style"):
    (body,) = re.findall(rf"<{kind}>(.*?)</{kind}>", made, re.S)
    assert f"{kind}-src 'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'" in policy, kind
assert policy.startswith("default-src 'none'") and "connect-src" not in policy and "unsafe-inline" not in policy
assert not re.search(r'<script src|<link rel="stylesheet"', made) and made.count("<script>") == 1
# What is compiled into the program is handed on with its licence.
for name in ("fmt", "json", "llvm", "wasi-libc", "musl", "zig"):
    text = (ROOT / f"licenses/{name}.txt").read_text(encoding="utf-8")
    assert text.count("\n") > 20 and html.escape(text) in made, name
print(f"{len(scripts)} scripts, {len(languages['en'])} phrases in two languages, {len(fields)} fields")
