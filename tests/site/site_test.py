"""The site as bench/site built it (docs/site.md), from its folder: site_test.py ROOT

  - No link leads nowhere, nothing is fetched, every picture has words: in all of its files.
  - In Chromium, at two desktops and a phone, light and dark, in both languages: nothing overflows, no word is too near to its paper, code is coloured.
  - Chinese lines are joined without a space, and columns with Chinese words stay columns.
  - The search finds what is to be found, in both languages; the switch of languages and of colours do what they say.
  - No slide holds more than fits, and each has notes where its section has more to say.

Exit code 77 where nothing was built, where it is old, or where there is no Chromium: nothing is built for these tests by day.
"""
import pathlib
import re
import sys
import tempfile

from folder import Folder

root = pathlib.Path(sys.argv[1]).resolve()
top = root / "build/site/html"
PAGES = ("index.html", "chapters/06_caching_allocator/index.html", "docs/articles.html", "chapters/04_checkpointing/puzzle/segments/task.html", "docs/glossary.html")
ONLY_ENGLISH = ("source/chapters/04_checkpointing/lesson.cu.html", "source/notebooks/1_start_here.ipynb.html", "api.html", "CONTRIBUTING.html")
SEARCHES = (("index.html", "fragmentation", "chapters/06_caching_allocator/index.html"), ("zh/index.html", "显存碎片", "zh/chapters/06_caching_allocator/index.html"),
            ("zh/index.html", "fragmentation", "zh/chapters/06_caching_allocator/index.html"), ("zh/chapters/02_gradient_accumulation/index.html", "优化器", "zh/chapters/13_optimizer_memory/index.html"))


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def older_than():
    """A source that is newer than what was built; None where there is none."""
    built = (top / "index.html").stat().st_mtime
    sources = [*root.glob("*.md"), *(file for folder in ("bench/siting", "site/course", "site/slides", "docs", "chapters") for file in (root / folder).rglob("*") if file.suffix != ".pyc" and file.is_file())]
    return next((file.relative_to(root) for file in sources if file.stat().st_mtime > built), None)


if not (top / "index.html").exists():
    skip("build/site/html is not there; bench/site builds it")
if older_than():
    skip(f"{older_than()} is newer than build/site/html; bench/site builds it again")

# The folder

with tempfile.TemporaryDirectory() as planted:
    page = pathlib.Path(planted) / "index.html"
    page.write_text('<a href="#here">1</a><a href="none.html">2</a><a href="#nowhere">3</a><img src="data:,"><script src="https://x.org/a.js"></script><p id="here">')
    assert len(Folder(planted).wrong()[0]) == 4, Folder(planted).wrong()
wrong, count = Folder(top).wrong()
assert not wrong, "\n".join(wrong[:40])
assert count["links"] > 10000 and count["pictures"] > 100, count
print(dict(count))

import browser  # noqa: E402  (which looks for Chromium)

if not browser.there():
    skip("no Chromium here: apt-get install chromium")
chromium = browser.Page()


def pages():
    for path in PAGES:
        yield path
        yield "zh/" + path
    yield from ONLY_ENGLISH


def checked(path):
    """A page in all views."""
    for view in browser.screenshots.VIEWS:
        chromium.show(top / path, view)
        wrong = chromium.wrong()
        assert not wrong, (path, view, *wrong[:10])


def code_is_coloured():
    for path in ("chapters/06_caching_allocator/index.html", "zh/chapters/06_caching_allocator/index.html", ONLY_ENGLISH[0]):
        for view in ("desktop-light", "phone-dark"):
            chromium.show(top / path, view)
            assert chromium.js("new Set([...document.querySelectorAll('.highlight code span')].map(e => getComputedStyle(e).color)).size") >= 4, path


def columns_stay():
    """A Chinese character in a block of code is as wide as two others, whatever the font."""
    for path in ("zh/docs/fit.html", "zh/docs/my_program.html"):
        for view in ("desktop-light", "phone-dark"):
            chromium.show(top / path, view)
            off = chromium.js("(() => { const row = document.createElement('span'), one = document.querySelector('pre code .wide'); one.parentElement.prepend(row); row.textContent = '0'.repeat(100);"
                              " const ch = row.getBoundingClientRect().width / 100; row.remove(); const box = one.cloneNode(); one.before(box); box.textContent = '显'.repeat(40);"
                              " const wide = box.getBoundingClientRect().width / 40; box.remove(); return ch ? Math.abs(wide / ch - 2) : 9; })()")
            assert off < 0.01, (path, view, off)


def lines_are_joined():
    """No space in a Chinese sentence where a line of its source ends."""
    for file in (top / "zh").rglob("*.html"):
        text = re.sub(r"<(pre|script|style|nav)\b.*?</\1>", "", file.read_text(encoding="utf-8"), flags=re.S)
        found = re.search(r".{0,20}[\u4e00-\u9fff，。；：]\n[\u4e00-\u9fff].{0,20}", text)
        assert not found, (file, found[0])


def checks_can_fail():
    chromium.show(top / "index.html")
    chromium.js("document.querySelector('article').insertAdjacentHTML('beforeend', '<p style=\"color:#ccc\">faint words</p><p style=\"width:3000px\">wide</p><img src=\"none.png\">')")
    chromium.until("[...document.images].every(e => e.complete)")
    found = "\n".join(chromium.wrong())
    assert all(word in found for word in ("contrast", "overflows", "no text alternative", "does not load")), found


def asked(path, words):
    """Types words into the search of a page, once it is ready."""
    chromium.show(top / path)
    chromium.js("document.querySelector('#__search').click()")
    chromium.js("document.querySelector('[name=query]').focus()")
    chromium.until("!/Initializing|初始化/.test(document.querySelector('.md-search-result__meta').textContent)")
    chromium.browser("Input.insertText", text=words)
    chromium.browser("Input.dispatchKeyEvent", type="keyUp", key="Shift", code="ShiftLeft")  # it looks at the words whenever a key is let go


def search(path, words, wanted):
    asked(path, words)
    chromium.until("document.querySelector('.md-search-result__link')")
    # More of them are shown as the list is scrolled.
    chromium.js("new Promise(done => { const list = document.querySelector('.md-search__scrollwrap'); let before = -1; const look = () => { const n = list.querySelectorAll('a').length;"
                " if (n === before) return done(); before = n; list.scrollTo(0, list.scrollHeight); setTimeout(look, 200); }; look(); })")
    found = chromium.js("[...document.querySelectorAll('.md-search-result__link')].map(e => e.href.split('?')[0].split('#')[0])")
    assert (top / wanted).as_uri() in found, (words, found[:10])
    if words == "fragmentation":  # a chapter stands before tables that have the word once among thousands
        assert found[0] == (top / wanted).as_uri(), found[:3]


def no_search_result():
    asked("index.html", "qqzzqq")
    chromium.until("/^No /.test(document.querySelector('.md-search-result__meta').textContent.trim())")
    assert chromium.js("document.querySelectorAll('.md-search-result__link').length") == 0


def languages():
    """The switch leads to the same page, and back."""
    for path in ("docs/hardware.html", "chapters/13_optimizer_memory/index.html"):
        for begin, end, language in ((path, "zh/" + path, "zh"), ("zh/" + path, path, "en")):
            chromium.show(top / begin)
            assert chromium.js("document.querySelector('.other-language').href") == (top / end).as_uri(), begin
            chromium.show(top / end)
            assert chromium.js("document.documentElement.lang") == language
    chromium.show(top / "CONTRIBUTING.html")
    assert chromium.js("document.querySelector('.other-language').href") == (top / "zh/index.html").as_uri()


def colours():
    """The button changes them, whatever the system has."""
    chromium.show(top / "index.html", "desktop-light")
    before = chromium.js("getComputedStyle(document.body).backgroundColor")
    chromium.js("document.querySelectorAll('[data-md-component=palette] input')[2].click()")
    assert chromium.js("document.body.dataset.mdColorScheme") == "slate" and chromium.js("getComputedStyle(document.body).backgroundColor") != before
    chromium.js("localStorage.clear()")


def hints_are_folded():
    chromium.show(top / PAGES[3])
    assert chromium.js("document.querySelectorAll('article details').length") == 4 and not chromium.js("document.querySelector('article details[open]')")


def deck(path):
    """Every slide of a deck fits; words are far from their paper."""
    for scheme in ("desktop-light", "desktop-dark") if "half_day" in path else ("desktop-light",):
        chromium.show(top / path, scheme)
        chromium.browser("Emulation.setDeviceMetricsOverride", width=1280, height=720, deviceScaleFactor=1, mobile=False)
        chromium.until("window.Reveal && Reveal.isReady()")
        slides, notes = chromium.js("Reveal.getTotalSlides()"), 0
        assert slides > 8, path
        for i in range(slides if scheme == "desktop-light" else 4):
            chromium.js(f"Reveal.slide({i})")
            high, wide, words, said = chromium.js("(() => { const s = Reveal.getCurrentSlide(); return [s.scrollHeight, s.scrollWidth, s.querySelector('h1, h2').textContent, (Reveal.getSlideNotes() || '').length > 40]; })()")
            assert high <= 700 and wide <= 1281, (path, i, words, high, wide)
            notes += said
            if i % 3 == 0:
                low = chromium.js(browser.CONTRAST)["low"]
                assert not low, (path, i, low[:3])
        if scheme == "desktop-light":
            assert notes >= slides / 2, (path, notes, slides)
    assert not chromium.js("window.seen"), chromium.js("window.seen")


def notes_open():
    """S opens the speaker's notes in a window of their own."""
    chromium.show(top / "slides/04.html")
    chromium.until("window.Reveal && Reveal.isReady()")
    chromium.js("Reveal.slide(2)")
    wanted = chromium.js("Reveal.getSlideNotes().replace(/<[^>]*>/g, '').trim().slice(0, 40)")
    for kind in ("rawKeyDown", "keyUp"):
        chromium.browser("Input.dispatchKeyEvent", type=kind, key="s", code="KeyS", windowsVirtualKeyCode=83)
    deck, opened = chromium.browser.session, None
    while not opened:
        opened = next((target["targetId"] for target in chromium.browser("Target.getTargets")["targetInfos"] if "Speaker View" in target["title"]), None)
    chromium.browser.session = chromium.browser("Target.attachToTarget", targetId=opened, flatten=True)["sessionId"]
    chromium.until("document.querySelector('.speaker-controls-notes .value')?.textContent.trim()")
    said = chromium.js("document.querySelector('.speaker-controls-notes .value').textContent.trim()")
    assert said.startswith(wanted), (wanted, said[:80])
    chromium.browser("Target.closeTarget", targetId=opened)
    chromium.browser.session = deck


def everything():
    """Each check, as words and what carries it out."""
    yield "the checks can fail", checks_can_fail
    for path in pages():
        yield path, lambda path=path: checked(path)
    yield "code is coloured", code_is_coloured
    yield "columns stay", columns_stay
    yield "lines are joined", lines_are_joined
    for path, words, wanted in SEARCHES:
        yield f"search: {words}", lambda path=path, words=words, wanted=wanted: search(path, words, wanted)
    for check in (no_search_result, languages, colours, hints_are_folded):
        yield check.__name__.replace("_", " "), check
    yield "notes open", notes_open
    decks = ["half_day", *(chapter.name[:2] for chapter in sorted(root.glob("chapters/[0-9][0-9]_*")))]
    for path in (f"{language}slides/{name}.html" for name in decks for language in ("", "zh/")):
        yield path, lambda path=path: deck(path)


try:
    for words, check in everything():
        print(words, flush=True)
        check()
finally:
    chromium.browser.end()
