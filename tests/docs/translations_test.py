"""Pages in two languages are kept together (bench/publishing/translations.py): translations_test.py ROOT

  - X.md and X.zh-CN.md have the same headings in the same order and levels, and below each heading the same blocks, links, figures, code and rows of
    tables. What is meant to differ stands in docs/data/translations.toml, with its reason.
  - A section of an English page that has changed since somebody looked at its translation fails, until somebody has looked:
    bench/publish --translated PAGE.
  - A chapter, and a page of docs/ that is to be read in both languages, has a Chinese page, or stands in the list of those that have none, and not in both.
  - Links, and the line below the title, lead to the language of the page. A link to a Chinese page is not marked as English.
"""
import pathlib
import re
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "bench"))
from publishing import translations  # noqa: E402

MARKED = re.compile(r"\]\([^)\s]*zh-CN\.md[^)\s]*\)(?:（英\s*文）|，英文[）：])")
DOCS = ("articles", "command-line", "explain", "fit", "glossary", "hardware", "levers", "my_program", "pytorch", "reading", "site")
ENGLISH = """# 01 - One

[中文](README.zh-CN.md)

## The idea

It takes 1.5 GiB, or sixteen pieces of 8 million bytes ([glossary](../../docs/glossary.md), [the lesson](../02_two#the-lesson)).

<!-- picture 01 -->
![made](picture.svg)
<!-- end -->

<!-- from said.txt -->
```text
It fits.
```

### How

    peak = 4 x 1,024

```sh
run --plan    # only counts
```

`--plan` counts.

| a | b |
|---|---|
| 1 | 2 |

<details><summary>Solution</summary>
It is 7.
</details>
"""
CHINESE = """# 01 - 一

[English](README.md)

## 思路

占 1.5 GiB，或 16 块各 800 万字节（[术语表](../../docs/glossary.md)，[示例程序](../02_two/README.zh-CN.md#示例程序)）。

<!-- picture 01 zh -->
![别的文字](picture.svg)
<!-- end -->

<!-- from said_zh.txt -->
```text
放得下。
```

### 怎么做

    峰值 = 4 x 1,024

```sh
run --plan    # 只计数
```

`--plan` 只计数。

| 甲 | 乙 |
|---|---|
| 1 | 2 |

<details><summary>解答</summary>
是 7。
</details>
"""
# What is changed in a page, and what is said of it.
PLANTED = (("占 1.5 GiB", "占 1.6 GiB", "figure 1.5"), ("16 块", "17 块", "figure 17"), ("800 万", "80 万", "figure 8e+06"), ("是 7。", "是它。", "figure 7"),
           ("### 怎么做", "怎么做", "other headings"), ("### 怎么做", "## 怎么做", "other headings"), ("## 思路", "## 主意", "is '思路' in all chapters"),
           ("<!-- picture 01 zh -->\n![别的文字](picture.svg)\n<!-- end -->\n", "", "block <!-- picture 01 -->"), ("picture 01 zh", "picture 02 zh", "block <!-- picture 02 -->"),
           ("said_zh", "other_zh", "block <!-- from other.txt -->"),
           ("[术语表](../../docs/glossary.md)", "术语表", "link ../../docs/glossary.md"), ("glossary.md", "articles.md", "link ../../docs/articles.md"),
           ("#示例程序", "", "link ../02_two#the-lesson"), ("run --plan ", "run --plan --quick ", "code run --plan --quick"), ("`--plan` 只", "只", "word in code --plan"),
           ("| 1 | 2 |\n", "", "2 rows"), ("<details>", "", "0 parts"))


def try_itself():
    with tempfile.TemporaryDirectory() as name:
        there = pathlib.Path(name).resolve()
        for folder in ("chapters/01_one", "chapters/02_two", "docs/data"):
            (there / folder).mkdir(parents=True)
        english, chinese = (there / f"chapters/01_one/README{ending}" for ending in (".md", ".zh-CN.md"))
        (there / "docs/glossary.md").write_text("# Glossary\n")
        (there / "docs/articles.md").write_text("# Articles\n")
        (there / "chapters/02_two/README.md").write_text("# 02 - Two\n\n## The lesson\n")
        (there / "chapters/02_two/README.zh-CN.md").write_text("# 02 - 二\n\n## 示例程序\n")
        english.write_text(ENGLISH)
        chinese.write_text(CHINESE)

        def wrong():
            different, changed = translations.wrong_with(there, chinese, translations.looked_at(there))
            return different, changed

        assert translations.store(there, [english]) == [] and wrong() == ([], []), wrong()
        for was, planted, said in PLANTED:
            assert was in CHINESE
            chinese.write_text(CHINESE.replace(was, planted))
            assert any(said in line for line in wrong()[0]), (planted, wrong())
            assert translations.store(there, [chinese]), "what differs is stored as looked at"
        chinese.write_text(CHINESE)

        # An English section that changes, is added or goes is stale until somebody has looked; other line breaks and other blocks are no change.
        first, second = ENGLISH.split("## The idea")[0], "## The idea" + ENGLISH.split("## The idea")[1].split("### How")[0]
        swapped = first + "### How" + ENGLISH.split("### How")[1] + "\n" + second
        for was, now, said in ((ENGLISH, swapped, "the sections stand in another order"), ("counts.", "counts bytes.", "'How' has changed"), ("### How\n", "### How\n\n#### Now\n", "'Now' is new"), ("### How", "### Where", "'How' is gone")):
            english.write_text(ENGLISH.replace(was, now))
            assert any(line.endswith(said) for line in wrong()[1]), (now, wrong())
        english.write_text(ENGLISH.replace("counts.", "counts bytes."))
        assert translations.store(there, [english]) == [] and wrong() == ([], [])
        english.write_text(ENGLISH.replace("![made]", "![made again]").replace("It takes", "It\ntakes").replace("counts.", "counts bytes."))
        assert wrong() == ([], []), wrong()

        # What is meant to differ is listed with its reason, and only while it differs.
        known = translations.looked_at(there)
        known["meant"] = [{"page": "chapters/01_one/README.zh-CN.md", "section": "How", "what": "figure", "only": "English", "is": "7", "because": "a test"}]
        (there / "docs/data" / translations.LOOKED_AT).write_text(translations.written(known), encoding="utf-8")
        assert translations.looked_at(there) == known and "nothing differs as it says" in wrong()[0][0]
        chinese.write_text(CHINESE.replace("是 7。", "是它。"))
        assert wrong() == ([], []), wrong()

        # Links are filled in for the language of the page.
        english.write_text(ENGLISH.replace("[中文](README.zh-CN.md)\n\n", ""))
        chinese.write_text(CHINESE.replace("02_two/README.zh-CN.md#示例程序", "02_two#the-lesson").replace("[English](README.md)\n\n", ""))
        assert translations.linked(english.read_text(), english) == ENGLISH and translations.linked(chinese.read_text(), chinese) == CHINESE
        assert translations.linked("# X\n\n`[a](README.md)` [b](https://x.org/README.md)\n", chinese) == (
            "# X\n\n[English](README.md)\n\n`[a](README.md)` [b](https://x.org/README.md)\n")
        chinese.write_text(CHINESE)
        assert "](#怎么做)" in translations.linked("# X\n\n[c](#how)\n", chinese)
        assert translations.linked(chinese.read_text(), english.with_name("OTHER.md")) == CHINESE
    assert MARKED.search("[表](docs/results.zh-CN.md#gpu)（英文）") and MARKED.search("（[表](a.zh-CN.md)，英文）") and not MARKED.search("[表](a.md)（英文）")
    assert translations.counted("一千零二十四") == 1024 and translations.counted("十六") == 16 and translations.counted("八十亿") == 8e9 and translations.counted("两") == 2


def main():
    try_itself()
    known, pages, wrong = translations.looked_at(root), translations.pages(root), []
    for page in pages:
        different, changed = translations.wrong_with(root, page, known)
        wrong += different + [f"{line}: look at its translation, then: bench/publish --translated {page.relative_to(root)}" for line in changed]
        if translations.linked(page.read_text(encoding="utf-8"), page) != page.read_text(encoding="utf-8"):
            wrong.append(f"{page.relative_to(root)}: links of another language: bench/publish --fill")
        wrong += [f"{page.relative_to(root)}: {found[0]} is a Chinese page" for found in MARKED.finditer(page.read_text(encoding="utf-8"))]
    have = {str(translations.english_of(page).relative_to(root)) for page in pages}
    wanted = {"README.md", "chapters/README.md", *(str(page.relative_to(root)) for page in root.glob("chapters/*/README.md")),
              *(f"docs/{name}.md" for name in DOCS)}
    wrong += [f"{name} has no Chinese page" for name in sorted(wanted - have - set(known["missing"]))]
    wrong += [f"translations.toml: {name} has a Chinese page, or is none that needs one: take it off the list" for name in known["missing"] if name in have or name not in wanted]
    wrong += [f"translations.toml: there is no page {name}" for name in known["page"] if root / name not in pages]
    wrong += [f"translations.toml: {entry} needs a page, a section, what, only, is and a reason" for entry in known["meant"]
              if sorted(entry) != ["because", "is", "only", "page", "section", "what"] or not entry["because"]]
    print(*wrong, f"{len(pages)} pages in two languages, {len(known['missing'])} still missing", sep="\n")
    sys.exit(1 if wrong or len(pages) < 3 else 0)


if __name__ == "__main__":
    main()
