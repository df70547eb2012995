"""Do the links of all documents lead somewhere? Relative ones, to files and to headings; and one version is named everywhere.

  links_test.py ROOT

Links to other hosts are only looked at, not followed: the suite needs no network.
"""
import pathlib
import re
import sys
import tempfile
import urllib.parse

LEFT_OUT = {"build", ".git"}


def without_code(text):
    """The text with code blanked, so that lines keep their numbers."""
    text = re.sub(r"^(```|~~~).*?^\1\s*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", lambda m: re.sub(r"[^\n]", "x", m[0]), text)


def anchors_of(text):
    """What GitHub names the headings, and what the document names itself."""
    found, times = set(re.findall(r'<[^>]+ (?:id|name)="([^"]+)"', text)), {}
    blanked = re.sub(r"^(```|~~~).*?^\1\s*$", "", text, flags=re.M | re.S)
    for heading in re.findall(r"^ {0,3}#{1,6}\s+(.+?)\s*#*$", blanked, re.M):
        heading = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")
        found.add(name if name not in times else f"{name}-{times[name]}")
        times[name] = times.get(name, 0) + 1
    return found


def links_of(text):
    """(line, target) of every link and picture."""
    text = without_code(text)
    for pattern in (r"\]\(\s*<?([^)\s>]*)>?(?:\s+\"[^\"]*\")?\s*\)", r"^\s*\[[^\]]+\]:\s*(\S+)", r"<(?:a|img|source)\b[^>]*?(?:href|src|srcset)=\"([^\"]*)\""):
        for match in re.finditer(pattern, text, re.M):
            yield text.count("\n", 0, match.start(1)) + 1, match[1]


def dead(root):
    documents = [p for p in sorted(root.rglob("*.md")) if not LEFT_OUT & set(p.relative_to(root).parts)]
    wrong, count, led_to = [], 0, set()
    for document in documents:
        for line, target in links_of(document.read_text(encoding="utf-8")):
            count += 1
            where = f"{document.relative_to(root)}:{line}: {target or 'an empty link'}"
            if re.match(r"https?://[\w.-]+(?:/|$)|mailto:.+@", target):
                continue
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            file = (document.parent / path).resolve() if path else document
            led_to.add(file)
            if anchor and (file / "README.md").is_file():
                file = file / "README.md"  # which a folder's page shows
            if not target or re.match(r"\w+:", target) or not file.is_relative_to(root) or not file.exists():
                wrong.append(where)
            elif anchor and (file.suffix != ".md" or anchor not in anchors_of(file.read_text(encoding="utf-8"))):
                wrong.append(f"{where} (no such heading)")
    pictures = [p for p in sorted(root.rglob("*.svg")) if not LEFT_OUT & set(p.relative_to(root).parts)]
    wrong += [f"{p.relative_to(root)}:0: a picture that no document shows" for p in pictures if p not in led_to]
    return wrong, count, len(documents)


def versions(root):
    """The version of the build, and the two documents that must have the same."""
    find = {"cmake/Oomlab.cmake": r"set\(OOMLAB_VERSION (\S+)\)", "CITATION.cff": r"^version: (\S+)$", "CHANGELOG.md": r"^## (\S+)"}
    return {name: (re.search(pattern, (root / name).read_text(), re.M) or ["", "none"])[1] for name, pattern in find.items()}


def try_itself():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "sub").mkdir()
        (root / "sub/README.md").write_text("# Shown\n")
        (root / "sub/other.md").write_text("# A `b` & c\n\n## Twice\n\n## Twice\n\n```\n# not a heading\n```\n")
        (root / "good.md").write_text("# Here\n[a](sub/other.md) ![b](sub) [c](#here) [d](sub/other.md#a-b--c) [e](sub/other.md#twice-1) [f](https://x.org/y) [j](sub#shown) `[g](no)`\n"
                                      "\n```\n[h](no)\n```\n[i]: good.md\n")
        assert dead(root)[0] == [], dead(root)
        (root / "sub/lonely.svg").write_text("<svg/>")
        bad = ("[a](none.md)", "![a](none.svg)", "[a](#nowhere)", "[a](sub/other.md#not-a-heading)", "[a](sub#here)", "[a](../outside.md)", "[a](ftp:x)", "[a]()", '<img src="none.png">', "[a]: none.md")
        (root / "bad.md").write_text("# Bad\n" + "\n\n".join(bad) + "\n")
        assert sorted(int(w.split(":")[1]) for w in dead(root)[0]) == [0] + [2 + 2 * i for i in range(len(bad))], dead(root)


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    try_itself()
    wrong, count, documents = dead(root)
    if len(set((named := versions(root)).values())) != 1:
        wrong.append(f"more than one version: {named}")
    print(*wrong, f"{count} links in {documents} documents", sep="\n")
    sys.exit(1 if wrong or count < 100 else 0)


main()
