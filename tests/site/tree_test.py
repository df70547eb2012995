"""The plan of the site (bench/siting/tree.py), by which bench/site builds it. Nothing is installed or built for this: tree_test.py ROOT

  - Every document of the repository stands in the navigation once, in English and, where there is one, in Chinese; chapters in their order.
  - Every link of every page leads to a page, a picture or a file that the site has; what leads nowhere is found.
  - Issue forms ask for the same in both languages. The tools are pinned, and the picture for links is the one of these results.
"""
import pathlib
import re
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "bench"))
from publishing import translations  # noqa: E402
from siting import card, tree  # noqa: E402


def files_of(navigation):
    """What stands in a navigation, from top to bottom."""
    for entry in navigation:
        inside = entry if isinstance(entry, str) else next(iter(entry.values()))
        if isinstance(inside, str):
            yield inside
        else:
            yield from files_of(inside)


def try_itself():
    with tempfile.TemporaryDirectory() as folder:
        there = pathlib.Path(folder).resolve()
        for name in ("README.md", "README.zh-CN.md", "docs/one.md", "docs/one.zh-CN.md", "chapters/01_a/README.md", "chapters/01_a/README.zh-CN.md", "bench/x/README.md", "build/no.md"):
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / name).write_text(f"# {name}\n")
        (there / "bench/run").write_text("run\n")
        (there / "docs/a.svg").write_text("<svg/>\n")
        (there / "docs/one.md").write_text("# One\n[a](../bench/run) [b](../bench) ![c](a.svg) [d](../chapters/01_a#the-lesson) [e](#here) `[f](none)` [g](https://x.org)\n")
        made = tree.Tree(there)
        assert set(made.sources.values()) == {"source/bench/run.html", "source/bench/index.html", "docs/a.svg"}, made.sources
        page = made.pages["docs/one.md"]
        links = [made.link(page, target) for target in translations.targets(made.text(page.path))]
        assert links == ["../source/bench/run.html", "../source/bench/index.html", "a.svg", "../chapters/01_a/index.html#the-lesson", "#here", "https://x.org"], links
        chinese = made.pages["docs/one.zh-CN.md"]
        assert chinese.address == "zh/docs/one.html" and chinese.key == "docs/one.md" and made.other(chinese) == page and made.other(page) == chinese
        assert made.link(chinese, "../bench/run") == "../../source/bench/run.html" and made.link(chinese, "../chapters/01_a/README.zh-CN.md") == "../chapters/01_a/index.html"
        assert made.link(chinese, "../bench/x") == "../../bench/x/index.html"  # which has no Chinese page
        for target in ("none.md", "../../outside.md", "../build", "../bench/fit"):
            try:
                made.link(page, target)
                raise AssertionError(f"{target} leads somewhere")
            except tree.DeadLink:
                pass
        (there / "docs/one.md").write_text("# One\n[a](none.md)\n")
        try:
            tree.Tree(there)
            raise AssertionError("a dead link was planned")
        except tree.DeadLink as error:
            assert "none.md" in str(error)


try_itself()
site = tree.Tree(root)
assert len(site.pages) > 100 and len(site.chapters) > 15
listed = list(site.listed())
english = [page.path for page in site.pages.values() if page.language == "en" and page.path != "README.md"]
assert sorted(listed) == sorted(english), ("bench/siting/tree.py, GROUPS", set(english) ^ set(listed), len(listed))
assert [path.split("/")[1] for path in listed if re.fullmatch(r"chapters/\d\d_\w+/README.md", path)] == site.chapters == sorted(site.chapters)
for language in tree.LANGUAGES:
    named = list(files_of(site.navigation(language)))
    own = [page.key for page in site.pages.values() if page.language == language]
    assert len(named) == len(set(named)) and sorted(own) == sorted(name for name in named if not name.startswith("site:")), language
    elsewhere = {name.removeprefix("site:") for name in named if name.startswith("site:")}
    assert elsewhere >= {words[1][language] for words in tree.MADE.values()}
    assert elsewhere - {words[1][language] for words in tree.MADE.values()} == ({page.address for page in site.pages.values() if page.language == "en" and site.in_language(page.path, "zh") == page} if language == "zh" else set())
assert len({page.address for page in site.pages.values()} | set(site.sources.values())) == len(site.pages) + len(site.sources), "two things at one address"
links = [(page, target) for page in site.pages.values() for target in translations.targets(site.text(page.path))]
for page, target in links:
    site.link(page, target)
# Issue forms ask for the same in both languages.
forms = sorted((root / ".github/ISSUE_TEMPLATE").glob("*.zh-CN.yml"))
asked = [[re.findall(r"^ *(?:- )?(type|id|title|labels|required|render|options|placeholder): *(\S.*)?$", form.read_text(encoding="utf-8"), re.M)
          for form in (chinese, chinese.with_name(chinese.name.replace(".zh-CN", "")))] for chinese in forms]
assert len(forms) == 2 and all(chinese == english for chinese, english in asked), asked
tools = [line for line in (root / "bench/siting/tools.txt").read_text().splitlines() if not line.startswith("#")]
assert tools and all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in tools), tools
assert card.source_in((root / "docs/card.png").read_bytes()) == card.source(card.drawn(root)), "docs/card.png is old: bench/site --card"
print(f"{len(site.pages)} pages, {len(site.sources)} other files, {len(links)} links")
