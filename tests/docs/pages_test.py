"""What docs/ has in two languages says the same, and its data are what they should be: pages_test.py ROOT

  - All 34 rows of docs/data/articles.toml are there, each with a verdict, a chapter and a figure; no number of an answer is typed by hand.
  - Articles and claims have the same figures in English and in Chinese.
  - Each card's memory is what CUDA reports, a little less than what is sold, and says where it was read; what is derived follows
    its rule.
  - A sentence about a claim (docs/data/verdicts.toml) has the figure that was measured, and in Chinese (verdicts.zh.toml) the same ones.
  - Chinese words for what other data and programs say have the same figures, and each of them is of use.
  - What is planned in BF16 names no card that does not compute in it.
"""
import json
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(root / "bench"))
from publishing import markdown, pages, pictures  # noqa: E402

ARTICLES = 34
wrong = []


def numbers(text):
    """Those of a text without its links. 1.4 billion and 14 亿 are the same."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"(\d+(?:\.\d+)?) (billion|亿)", lambda match: f"{float(match[1]) * (1e9 if match[2] == 'billion' else 1e8):.0f}", text)
    return sorted(re.findall(r"\d[\d.,]*\d|\d", text))


def typed(answer):
    """Numbers of an answer that no file gives. Those of names (FP32, 1F1B, 16 bits) are none."""
    return re.findall(r"(?<![A-Za-z\d-])\d[\d.,]*(?![\d.,]|[A-Za-z]|-bit| bits| 位)", re.sub(r"\{\w+\}|`[^`]*`|Llama \S+ 8B", "", answer))


def wrong_rows(rows):
    found = []
    for row in rows:
        figures = {name for name, value in row.items() if isinstance(value, dict)}
        say = found.append
        for answer in (row["answer"], row["answer_zh"]):
            if set(re.findall(r"\{(\w+)\}", answer)) != figures:
                say(f"row {row['number']}: figures {sorted(figures)}, but the answer has {re.findall(r'{.*?}', answer)}")
            if typed(answer.replace("第 00 章", "").replace("Chapter 00", "")):
                say(f"row {row['number']}: typed by hand: {typed(answer)}")
        if not figures or not row["chapters"] or row["verdict"] not in pages.VERDICTS:
            say(f"row {row['number']}: no figure, no chapter, or no such verdict")
        if numbers(row["said"]) != numbers(row["said_zh"]):
            say(f"row {row['number']}: {numbers(row['said'])} is said in English, {numbers(row['said_zh'])} in Chinese")
    if [row["number"] for row in rows] != list(range(1, ARTICLES + 1)):
        found.append(f"the rows are not 1 to {ARTICLES}")
    return found


def different(english, chinese, columns):
    """Lines of two tables in which a column of `columns` has other numbers."""
    rows = [[re.split(r"(?<!\\) \| ", line.strip("| ")) for line in text.splitlines() if line.startswith("| ")] for text in (english, chinese)]
    if len(rows[0]) != len(rows[1]) or not rows[0]:
        return [f"{len(rows[0])} rows in English, {len(rows[1])} in Chinese"]
    return [f"{a[0]}: {a[i]} is not {b[i]}" for a, b in zip(*rows) for i in columns if numbers(a[i]) != numbers(b[i])]


rows = pages.data(root, "articles.toml")["row"]
wrong += (of_rows := wrong_rows(rows))
for name, columns in (("articles", (1, 3, 4)), ("claims", (1, 2))):
    english, chinese = (pages.page(root, name, language, root / "docs/articles.md") for language in pages.LANGUAGES)
    wrong += different(english, chinese, columns)
    figure = re.search(r"\d\d", chinese.split("|---|", 1)[1])
    assert different(english, chinese.replace(figure[0], "77777"), columns), "a planted figure is not found"
planted = [dict(rows[0], answer_zh=rows[0]["answer_zh"] + "3 倍")] + rows[1:]
for planted in (planted, rows[:-1], [dict(rows[0], answer="")] + rows[1:], [dict(rows[0], said_zh="")] + rows[1:]):
    assert len(wrong_rows(planted)) > len(of_rows), "a planted mistake is not found"

terms = pages.data(root, "glossary.toml")["entry"]
wrong += [f"glossary: {term['term']} would stand twice in its Chinese row" for term in terms if f"（{term['term']}）" in term["term_zh"]]
wrong += [f"glossary: {term['term']} is there twice" for term in terms if [t["term"] for t in terms].count(term["term"]) > 1]
wrong += [f"glossary: {term['term']} lacks {key}" for term in terms for key in ("is", "term_zh", "is_zh") if not term.get(key)]

LEAST_LEFT = 0.88  # of what is sold, in GiB: ECC takes a sixteenth of some cards, the driver its part


def wrong_cards(cards):
    found, of_name = [], {card["name"]: card for card in cards}
    for card in cards:
        try:
            link = pages.source_link(card, cards)
        except ValueError as error:
            found.append(str(error))
            continue
        if not LEAST_LEFT * card["memory"] <= card["total"] < card["memory"]:
            found.append(f"{card['name']}: {card['total']} GiB of {card['memory']} are implausible")
        if card["smi"] and card["total"] * 1024 >= card["smi"]:
            found.append(f"{card['name']}: CUDA cannot see more than nvidia-smi")
        if card["total_from"].startswith("as "):
            like = of_name[card["total_from"][3:]]
            derived = card["smi"] / 1024 * like["total"] * 1024 / like["smi"]
            if like["total_from"].startswith("as ") or not derived - 0.011 < card["total"] <= derived + 1e-9:
                found.append(f"{card['name']}: {card['total']} GiB, derived are {derived:.3f}")
        elif "](https://github.com/" not in link:
            found.append(f"{card['name']}: no address in {link}")
        if any(not card[column] for column, mark in zip(pages.MARKED, card["marks"]) if mark != "-"):
            found.append(f"{card['name']}: a figure of 0 has a mark")
        if not set(card["marks"]) <= set("NMDCL-"):
            found.append(f"{card['name']}: marks {card['marks']}")
    return found


cards = pages.cards(root)
wrong += wrong_cards(cards)
if len(cards) < 40 or len({card["name"] for card in cards}) < len(cards) or not 20 < sum(card["bf16"] for card in cards) < len(cards):
    wrong.append(f"{len(cards)} cards")
derived = next(card for card in cards if card["total_from"].startswith("as "))
for bad in (dict(cards[0], total=cards[0]["memory"]), dict(cards[0], total_from="somebody said so"), dict(cards[0], total=12.0),
            dict(derived, total=derived["total"] - 0.1)):
    assert len(wrong_cards([bad, *cards[1:]])) > len(wrong_cards(cards)), "a planted mistake is not found"

# A row of "what fits" that computes in BF16 names only cards that do.
plain = {card["title"] for card in cards if not card["bf16"]}


def named_in(line):
    return plain & set(line.strip("| ").split(" | ")[-1].split(" / "))


table = pages.page(root, "fits", "en", root / "docs/hardware.md").splitlines()[2:]
planned = list(zip(pages.rows_of(root, "fits.csv"), table, strict=True))
in_bf16 = [line for row, line in planned if pages.computes_in_bf16(json.loads((root / f"bench/results/plan/{row['plan']}.json").read_text()), row["variant"])]
wrong += [f"hardware.md: {sorted(named_in(line))} do not compute in BF16: {line}" for line in in_bf16 if named_in(line)]
wrong += [f"hardware.md: says BF16, and is not planned in it: {line}" for _, line in planned if "BF16" in line and line not in in_bf16]
plan = json.loads((root / "bench/results/plan/12_llama_8b.json").read_text())  # which has a table of cards of its own
(holding,) = [[(row[0], row[2]) for row in table["rows"]] for table in plan["tables"] if table["name"] == "cards"]
wrong += [f"12_llama_8b.json: {n} cards compute {variant}'s rest in BF16; {len(cards) - len(plain)} do" for variant, n in holding
          if pages.computes_in_bf16(plan, variant) and n > len(cards) - len(plain)]
assert len(holding) >= 5 and len(in_bf16) >= 5 and any(named_in(line) for line in table), "no row of either kind: nothing was checked"

# The sentences about claims are of chapters that have results, and each has the figure that was measured.
verdicts, chapters = pages.data(root, "verdicts.toml"), pages.Figures(root).chapters
wrong += [f"verdicts.toml: there is no chapter {digits} with results" for digits in verdicts if digits not in chapters]
for digits, said in verdicts.items():
    measured = {claim["claim"] for claim in chapters.get(digits, {"claims": []})["claims"] if claim["verdict"] != "not measured"}
    wrong += [f"verdicts.toml: chapter {digits}: '{claim}' has no figure" for claim, words in said.items()
              if claim in measured and "{" not in (words["host"] if isinstance(words, dict) else words)]
    wrong += [f"verdicts.toml: chapter {digits}: '{claim}' has words for {sorted(words)}, not for host and GPU, or none with a GPU's figure"
              for claim, words in said.items() if isinstance(words, dict) and (sorted(words) != ["gpu", "host"] or "{" not in words["gpu"])]


def other_figures(english, chinese):
    """Claims whose Chinese words have other figures than their English ones, or that only one language has."""
    def of(said):
        return {(claim, where): sorted(re.findall(r"\{.*?\}", text)) for claim, words in said.items()
                for where, text in (words.items() if isinstance(words, dict) else [("", words)])}

    ours, theirs = of(english), of(chinese)
    return sorted({claim for claim, where in ours.keys() | theirs.keys() if ours.get((claim, where)) != theirs.get((claim, where))})


in_chinese = pages.data(root, "verdicts.zh.toml")
wrong += [f"verdicts.zh.toml: chapter {digits}: '{claim}' has other figures than in English" for digits in verdicts.keys() | in_chinese.keys() - {"phrases"}
          for claim in other_figures(verdicts.get(digits, {}), in_chinese.get(digits, {}))]
assert other_figures({"a": "{v:.1f}"}, {"a": "{run:.1f}"}) == ["a"] and other_figures({"a": {"host": "x", "gpu": "{v}"}}, {"a": {"host": "x", "gpu": "{v}"}}) == []



def other_numbers(pairs):
    return [f"{name}: '{english}' has other figures in Chinese" for name, english, chinese in pairs
            if numbers(english) != numbers(chinese) or english.count("{}") != chinese.count("{}")]


pairs = [("fits.csv", row["words"], row["words_zh"]) for row in pages.rows_of(root, "fits.csv")]
pairs += [("gpus.toml", *limits) for device in pages.data(root, "gpus.toml")["device"].values() for limits in zip(device["limits"], device["limits_zh"], strict=True)]
for name, tables in (("levers.zh.toml", ("levers",)), ("fit_public.zh.toml", ("fit-public", "fit-public-unasked"))):
    said = "".join(pages.page(root, table, "en", root / "docs/levers.md") for table in tables)
    phrases = pages.data(root, name)["phrases"]
    pairs += [(name, *phrase) for phrase in phrases.items()]
    wrong += [f"{name}: nothing says '{english}'" for english in phrases if not re.search(markdown.pattern(english), said)]
phrases, english = pages.data(root, "pictures.zh.toml")["phrases"], [picture for _, picture in (pictures.drawn(root, name) for name in pictures.PICTURES)]
said = [part.words for picture in english if picture.chinese for part in picture.parts if not isinstance(part, str) and not part.name]
pairs += [("pictures.zh.toml", *phrase) for phrase in phrases.items() if "{million}" not in phrase[1]]
wrong += [f"pictures.zh.toml: nothing says '{words}'" for words in phrases if not any(re.fullmatch(markdown.pattern(words), text) for text in said)]
wrong += other_numbers(pairs)
assert other_numbers([("x", "{} of 7", "8 个里的 {} 个")]) and not other_numbers([("x", "{} of 7", "7 个里的 {} 个")])

print(*wrong, f"{len(rows)} articles, {len(terms)} terms, {len(cards)} cards", sep="\n")
sys.exit(1 if wrong else 0)
