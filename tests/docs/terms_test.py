"""One term, one word, on Chinese pages: terms_test.py ROOT

  - No second word for a term of docs/data/glossary.toml (avoid_zh) is on a Chinese page, or in the task of a puzzle.
  - Where a section of an English page has a term, the Chinese one has its Chinese word (term_zh), one of its other forms (also_zh), or the English word:
    so a second word is found that nobody thought of. Terms whose English word has another sense, too (everyday), are left out of this.

Code, and what stands between marks because bench/publish made it, do not count as the section's; second words are looked for in made tables, too.
"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "bench"))
from publishing import translations  # noqa: E402
from publishing.markdown import data  # noqa: E402


def said(text):
    return re.sub(r"`[^`\n]*`", " ", translations.prose(text))


def second_words(text, terms):
    """(word, the term's own) for each second word. Variants of programs have English names, in the plural."""
    text, found = said(text), []
    for term in terms:
        without = text.replace(f"（{term['term']}）", "")
        found += [(word, term["term_zh"]) for word in term.get("avoid_zh", ()) if re.search(re.escape(word) + "(?![a-z])", without)]
    return found


def missing(english, chinese, terms):
    """Terms of an English section that its Chinese one has no word for."""
    words, theirs = said(english), said(chinese).lower()
    found = []
    for term in terms:
        case = re.I if term["term"].islower() else 0
        in_english = re.search(rf"\b{re.escape(term['term'])}(?:s|es)?\b", words, case)
        in_chinese = any(word.lower() in theirs for word in (term["term_zh"], term["term"], *term.get("also_zh", ())))
        if in_english and not in_chinese and not term.get("everyday"):
            found.append(term["term"])
    return found


def try_itself():
    terms = [{"term": "page fault", "term_zh": "缺页", "avoid_zh": ["页错误"]}, {"term": "event", "term_zh": "事件", "everyday": True}]
    assert second_words("发生缺页，`页错误`。", terms) == [] and second_words("发生页错误。", terms) == [("页错误", "缺页")]
    assert missing("Page faults and events.", "有缺页。", terms) == [] and missing("Page faults.", "`缺页`。", terms) == ["page fault"]
    assert missing("A `page fault` in code.", "", terms) == [] and missing("Zero.", "", [{"term": "ZeRO", "term_zh": "ZeRO"}]) == []
    assert second_words("micro-batches：5 GB", [{"term": "micro-batch", "term_zh": "微批", "avoid_zh": ["micro-batch"]}]) == []


def main():
    try_itself()
    terms, wrong, sections = data(root, "glossary.toml")["entry"], [], 0
    pages = translations.pages(root)
    for page in [*pages, *sorted(root.glob("chapters/*/puzzle/*/task.zh-CN.md"))]:
        wrong += [f"{page.relative_to(root)}: '{word}', and the glossary says '{own}'" for word, own in second_words(page.read_text(encoding="utf-8"), terms)]
    for page in pages:
        texts = (translations.sections(file.read_text(encoding="utf-8")) for file in (translations.english_of(page), page))
        for english, chinese in zip(*texts):
            sections += 1
            wrong += [f"{page.relative_to(root)}: '{english.heading}' has '{term}', its translation no word of the glossary for it"
                      for term in missing(f"{english.heading}\n{english.text}", f"{chinese.heading}\n{chinese.text}", terms)]
    for term in terms:
        own = {term["term_zh"], *term.get("also_zh", ())}
        wrong += [f"glossary.toml: '{word}' is to be avoided, and is in '{good}'" for word in term.get("avoid_zh", ()) for good in own if word in good]
    print(*wrong, f"{len(terms)} terms in {sections} sections of {len(pages)} pages", sep="\n")
    sys.exit(1 if wrong or sections < 10 else 0)


if __name__ == "__main__":
    main()
