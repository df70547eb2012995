"""Pages in two languages: X.md in English, X.zh-CN.md beside it in Chinese. What must be the same in both, which sections changed since somebody looked
at their translation (docs/data/translations.toml), and the links between them. tests/docs/translations_test.py fails where something is wrong.

A section is what stands below a heading, down to the next one. Of blocks that bench/publish fills only the marks count.
"""
import collections
import hashlib
import json
import os
import pathlib
import re
import typing

from publishing.markdown import data

ENDING = ".zh-CN.md"
PICTURE = ".zh-CN.svg"  # a picture with Chinese words, where there is one
LOOKED_AT = "translations.toml"
# One translation for the headings that all chapters share.
HEADINGS = {"The error you see": "你看到的报错", "The idea": "思路", "The lesson": "示例程序", "By hand, at another size": "换个大小，手算", "The bytes": "字节账",
            "What it measured": "测得的结果", "What people say": "大家的说法", "When not to use it": "什么时候不该用", "The same in PyTorch": "在 PyTorch 里",
            "Exercises": "练习"}
MARK = r"<!-- (?:from|picture|run|page) [^\n]*-->"
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```[ ]*$", re.M | re.S)
LINK = re.compile(r"(\]\()([^)\s]{1,400})(\))")
WORDS_EN = {word: n for n, word in enumerate("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
                                             "nineteen twenty".split())} | {"thirty": 30, "forty": 40, "fifty": 50, "hundred": 100, "thousand": 1000, "twice": 2, "double": 2,
                                             "half": 2, "halves": 2, "third": 3, "quarter": 4, "quarters": 4, "fifth": 5, "eighth": 8, "tenth": 10, "first": 1, "second": 2,
                                             "twentieth": 20, "once": 1, "both": 2, "single": 1}
DIGITS_ZH = {character: n for n, character in enumerate("零一二三四五六七八九")} | {"两": 2, "半": 2}


class Section(typing.NamedTuple):
    level: int
    heading: str
    text: str


def english_of(page):
    return page.with_name(page.name.removesuffix(ENDING) + ".md")


def chinese_of(page):
    return page.with_name(page.name.removesuffix(".md") + ENDING)


def pages(root):
    """The Chinese pages. Tasks of puzzles are no pages: bench/puzzle shows them."""
    found = [*root.glob("*" + ENDING), *root.glob("chapters/*" + ENDING), *root.glob("chapters/*/*" + ENDING), *root.glob("docs/**/*" + ENDING)]
    return sorted(page for page in found if english_of(page).exists())


def without_made(text):
    """Without what bench/publish puts below its marks; the marks stay."""
    kept, until = [], ""
    for line in text.splitlines(keepends=True):
        mark = line.split(" ")[1] if line.startswith("<!-- ") and " " in line[5:] else ""
        if until == "```" and line.startswith("```"):  # the first line of a block of code
            until = "end of code"
        elif until == "end of code":
            until = "" if line.rstrip("\n") == "```" else until
        else:
            if until != "<!-- end -->" or line.startswith(until):
                until = ""
                kept.append(line)
            if not until and mark:
                until = {"from": "```", "picture": "<!-- end -->", "run": "<!-- end -->", "page": "<!-- end -->"}.get(mark, "")
    return "".join(kept)


def without_fences(text):
    return FENCE.sub("", text)


def sections(text):
    """The page as a list of sections. A line of code that begins with # is no heading."""
    text = without_made(text)
    code = [match.span() for match in FENCE.finditer(text)]
    heads = [head for head in re.finditer(r"^(#{1,6}) +(.+?)\s*$", text, re.M) if not any(begin <= head.start() < end for begin, end in code)]
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return [Section(len(head[1]), head[2], text[head.end():end]) for head, end in zip(heads, ends)]


def anchor(heading):
    """What GitHub calls a heading."""
    heading = re.sub(r"!?\[([^\[\]\n]{0,200})\]\([^)\n]{0,400}\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).lower()).replace(" ", "-")


def anchors(text):
    """What GitHub calls the headings, in their order."""
    found, times = [], collections.Counter()
    for section in sections(text):
        name = anchor(section.heading)
        found.append(f"{name}-{times[name]}" if times[name] else name)
        times[name] += 1
    return found


def hashes(text):
    """{heading: hash of its section}, for how it is said, not for how its lines are broken, nor for what blocks hold."""
    found, times = {}, collections.Counter()
    for section in sections(text):
        times[section.heading] += 1
        key = section.heading if times[section.heading] == 1 else f"{section.heading} ({times[section.heading]})"
        said = " ".join(re.sub(r"^\[(?:English|中文)\]\([^)]*\)$", "", section.text, flags=re.M).split())
        found[key] = hashlib.sha256(said.encode()).hexdigest()[:12]
    return found


# Links

def shown(page, path):
    """The file that a link's path leads to: of a folder, its README."""
    file = page.parent / path if path else page
    return file / "README.md" if (file / "README.md").is_file() else file


def targets(text):
    """Where links and pictures lead."""
    return [m[1] for m in re.finditer(r"\]\(([^)\s]{1,400})\)", re.sub(r"`[^`\n]*`", "", without_fences(text)))]


def is_relative(target):
    return not re.match(r"\w+:", target)


def with_anchor(target, there, other):
    """The anchor of a link, for the same heading of the page in the other language."""
    before, after = (anchors(file.read_text(encoding="utf-8")) for file in (there, other))
    anchor = target.partition("#")[2]
    return "#" + (after[before.index(anchor)] if anchor in before and len(before) == len(after) else anchor)


def chinese_link(target, page):
    """Where a link of a Chinese page leads: to the Chinese page where there is one."""
    path = target.partition("#")[0]
    there = shown(page, path)
    if not path and "#" in target:
        return with_anchor(target, english_of(page), page)
    if there.suffix == ".svg" and not there.name.endswith(PICTURE) and there.with_suffix(PICTURE).exists():
        return os.path.relpath(there.with_suffix(PICTURE), page.parent)
    if not there.name.endswith(".md") or there.name.endswith(ENDING) or not chinese_of(there).exists():
        return target
    other = chinese_of(there)
    return os.path.relpath(other, page.parent) + (with_anchor(target, there, other) if "#" in target else "")


def english_link(target, page):
    """The link of the English page for one of a Chinese page."""
    path = target.partition("#")[0]
    there = shown(page, path)
    if there.name.endswith(PICTURE):
        return path.removesuffix(PICTURE) + ".svg"
    if there.name.endswith(ENDING) and english_of(there).exists():
        other = english_of(there)
        path = os.path.relpath(other, page.parent) if path else ""
        target = path + (with_anchor(target, there, other) if "#" in target else "")
    return named(target, page)


def named(target, page):
    """A folder's README is named by its folder."""
    path, mark, anchor = target.partition("#")
    return (os.path.relpath((page.parent / path).parent, page.parent) if path.endswith("README.md") else path.rstrip("/")) + mark + anchor


def outside_code(change, text):
    """The text with `change` made of everything that is no code."""
    pieces = re.split(r"(^```.*?^```[ ]*$|`[^`\n]+`)", text, flags=re.M | re.S)
    return "".join(piece if i % 2 else change(piece) for i, piece in enumerate(pieces))


def linked(text, page):
    """The text of a page with a line below its title that leads to the other language, and, of a Chinese page, links to Chinese pages where there are some."""
    chinese = page.name.endswith(ENDING)
    other = english_of(page) if chinese else chinese_of(page)
    if chinese and other.exists():
        text = outside_code(lambda piece: LINK.sub(lambda m: m[1] + (chinese_link(m[2], page) if is_relative(m[2]) else m[2]) + m[3], piece), text)
    if not other.exists():
        return text
    title, _, rest = text.partition("\n")
    rest = re.sub(r"\A\n*\[(?:English|中文)\]\([^)]*\)\n+", "", rest).lstrip("\n")
    return f"{title}\n\n[{'English' if chinese else '中文'}]({other.name})\n\n{rest}"


# What both languages have

# What a Chinese page has in a mark, and an English one. What a program said in Chinese is stored in NAME_zh.txt.
IN_MARKS = ((r" --lang zh", ""), (r"^(<!-- page .*) zh -->$", r"\1 en -->"), (r"^(<!-- picture .*) zh -->$", r"\1 -->"),
            (r"^(<!-- from \S+)_zh\.txt", r"\1.txt"))


def marks(text):
    """The marks of blocks, as the English page has them."""
    found = re.findall(MARK, text)
    for chinese, english in IN_MARKS:
        found = [re.sub(chinese, english, mark) for mark in found]
    return found


def code(text):
    """The blocks of code, without comments, which may be translated, and without the option that a Chinese page's commands have."""
    return [re.sub(r"[ \t]{0,99}#[^\n]{0,999}$", "", match[1].replace(" --lang zh", ""), flags=re.M) for match in FENCE.finditer(text)]


def prose(text):
    text = re.sub(r"<!--.*?-->", "", without_fences(text), flags=re.S)
    return LINK.sub("]", re.sub(r"</?\w{1,20}[^<>]{0,400}>", " ", text))


def inline_code(text):
    """Without the option that a Chinese page's commands have."""
    return {word.replace(" --lang zh", "") for word in re.findall(r"`([^`\n]+)`", prose(text)) if word != "--lang zh"}


def figures(text):
    """(numbers written in digits, numbers written as words) of a section. 8 billion and 80 亿 are the same number."""
    text = re.sub(r"`[^`\n]*`", " ", prose(text))
    text = re.sub(r"(\d),(?=\d\d\d)", r"\1", text)
    digits = collections.Counter()
    for number, unit in re.findall(r"(?<![A-Za-z0-9_.\-])(\d+(?:\.\d+)?)(?: ?(million|billion|thousand|万|亿))?", text):
        digits[float(f"{float(number) * {'': 1, 'million': 1e6, 'billion': 1e9, 'thousand': 1e3, '万': 1e4, '亿': 1e8}[unit]:.9g}")] += 1
    words = {float(WORDS_EN[word]) for word in re.findall(r"[a-z]+", text.lower()) if word in WORDS_EN}
    for word in re.findall(r"[零一二三四五六七八九十百千万亿两半]+", text):
        words.add(float(counted(word)))
        words |= {float(DIGITS_ZH[character]) for character in word if character in DIGITS_ZH}
    return digits, words


def counted(word):
    """A number in Chinese characters."""
    total = below = 0
    for character in word:
        if character in DIGITS_ZH:
            below = DIGITS_ZH[character]
        else:
            unit = {"十": 10, "百": 100, "千": 1000, "万": 10**4, "亿": 10**8}[character]
            total, below = (total + below) * unit if unit >= 10**4 else total + (below or 1) * unit, 0
    return total + below


def of_both(english, chinese, page):
    """[(what, those of the English section, those of the Chinese one)]."""
    def targets(text, link):
        switch = re.sub(r"^\[(?:English|中文)\]\([^)]*\)$", "", without_fences(text), flags=re.M)
        return collections.Counter(link(m[1], page) if is_relative(m[1]) else m[1] for m in re.finditer(r"\]\(([^)\s]{1,400})\)", re.sub(r"`[^`\n]*`", "", switch)))

    (digits, words), (digits_zh, words_zh) = figures(english), figures(chinese)
    yield "block", collections.Counter(marks(english)), collections.Counter(marks(chinese))
    yield "link", targets(english, named), targets(chinese, english_link)
    yield "figure", {n for n in digits if n in digits_zh or n not in words_zh}, {n for n in digits_zh if n in digits or n not in words}
    yield "code", collections.Counter(code(english)), collections.Counter(code(chinese))
    yield "word in code", inline_code(english), inline_code(chinese)
    rows = [sum(line.lstrip().startswith("|") for line in text.splitlines()) for text in (english, chinese)]
    yield "row of a table", {f"{rows[0]} rows"}, {f"{rows[1]} rows"}
    folded = [text.count("<details>") for text in (english, chinese)]
    yield "folded part", {f"{folded[0]} parts"}, {f"{folded[1]} parts"}


def differences(english, chinese, page, meant=()):
    """What only one of two pages has, a line each; `meant` are entries of docs/data/translations.toml for this page, and those that are used are marked."""
    ours, theirs = sections(english), sections(chinese)
    if [section.level for section in ours] != [section.level for section in theirs]:
        only = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a.level != b.level), min(len(ours), len(theirs)))
        heads = [s[only].heading if only < len(s) else "none" for s in (ours, theirs)]
        return [f"other headings: {len(ours)} in English, {len(theirs)} in Chinese; from '{heads[0]}' and '{heads[1]}' on"]
    wrong = []
    for a, b in zip(ours, theirs):
        if a.heading in HEADINGS and b.heading != HEADINGS[a.heading]:
            wrong.append(f"'{a.heading}' is '{HEADINGS[a.heading]}' in all chapters, not '{b.heading}'")
        if marks(a.text) != marks(b.text) and sorted(marks(a.text)) == sorted(marks(b.text)):
            wrong.append(f"'{a.heading}': the blocks stand in another order")
        for what, in_english, in_chinese in of_both(a.text, b.text, page):
            for language, only in (("English", in_english - in_chinese), ("Chinese", in_chinese - in_english)):
                for thing in sorted(only, key=str):
                    said = {"section": a.heading, "what": what, "only": language, "is": f"{thing:g}" if isinstance(thing, float) else str(thing).strip()}
                    entry = next((entry for entry in meant if all(entry[key] == said[key] for key in said)), None)
                    if entry is None:
                        wrong.append(f"'{a.heading}': only in {language}: {what} {said['is']}")
                    else:
                        entry["used"] = True
    return wrong


# What somebody has looked at

def looked_at(root):
    return {"missing": [], "meant": [], "page": {}} | (data(root, LOOKED_AT) if (root / "docs/data" / LOOKED_AT).exists() else {})


def stale(root, page, known):
    """Sections of the English page that changed since somebody looked at their translation."""
    now, then = hashes(english_of(page).read_text(encoding="utf-8")), known["page"].get(str(page.relative_to(root)), {})
    in_order = [heading for heading in now if heading in then] == [heading for heading in then if heading in now]
    return ([f"'{heading}' is new" for heading in now if heading not in then] + [f"'{heading}' has changed" for heading in now if then.get(heading, now[heading]) != now[heading]]
            + [f"'{heading}' is gone" for heading in then if heading not in now] + ([] if in_order else ["the sections stand in another order"]))


def wrong_with(root, page, known):
    """What is wrong with a Chinese page, a line each: differences, and stale sections."""
    name = str(page.relative_to(root))
    meant = [entry for entry in known.get("meant", []) if entry["page"] == name]
    wrong = differences(english_of(page).read_text(encoding="utf-8"), page.read_text(encoding="utf-8"), page, meant)
    wrong += [f"translations.toml: nothing differs as it says: {entry['what']} {entry['is']}" for entry in meant if not entry.pop("used", False)]
    return [f"{name}: {line}" for line in wrong], [f"{name}: {line}" for line in stale(root, page, known)]


def to_look_at(root):
    """What is to be looked at in Chinese pages, a line each."""
    known, lines = looked_at(root), []
    for page in pages(root):
        different, changed = wrong_with(root, page, known)
        lines += different + changed
    return lines + [f"{name}: no Chinese page yet" for name in known["missing"]]


def written(known):
    """docs/data/translations.toml."""
    quoted = json.JSONEncoder(ensure_ascii=False).encode
    text = ("# Pages in two languages (bench/publishing/translations.py): which sections of an English page somebody has looked at since they changed, and translated.\n"
            "# bench/publish --stale lists what is to be looked at, bench/publish --translated PAGE... stores that it is done: nothing here is typed but [[meant]].\n"
            "#   missing    pages that have no Chinese one yet: none is added\n"
            "#   [[meant]]  what only one language has, and why\n\n"
            "missing = [" + "".join(f"\n  {quoted(name)}," for name in known["missing"]) + ("\n" if known["missing"] else "") + "]\n")
    for entry in known.get("meant", []):
        text += "\n[[meant]]\n" + "".join(f"{key} = {quoted(value)}\n" for key, value in entry.items())
    for name, found in sorted(known["page"].items()):
        text += f"\n[page.{quoted(name)}]\n" + "".join(f"{quoted(heading)} = {quoted(value)}\n" for heading, value in found.items())
    return text


def store(root, names):
    """Stores that somebody has looked at these pages; what is wrong with them instead, where something is."""
    known, wrong = looked_at(root), []
    for name in names:
        page = pathlib.Path(name).resolve()
        page = page if page.name.endswith(ENDING) else chinese_of(page)
        if not page.exists() or page not in pages(root):
            wrong.append(f"{name}: no page in two languages")
            continue
        different, _ = wrong_with(root, page, known)
        wrong += different
        known["page"][str(page.relative_to(root))] = hashes(english_of(page).read_text(encoding="utf-8"))
        english = str(english_of(page).relative_to(root))
        known["missing"] = [missing for missing in known["missing"] if missing != english]
    if not wrong:
        (root / "docs/data" / LOOKED_AT).write_text(written(known), encoding="utf-8")
    return wrong
