"""What chapters' claims become on pages: the verdicts in a chapter's README, and the table of all claims in docs/. Verdicts and figures are from result
files; the words are in docs/data/, for English in verdicts.toml, for Chinese in claims.zh.toml and verdicts.zh.toml."""
import re

from publishing import on_gpus
from publishing.markdown import LANGUAGES, chapter_link, data, escaped, number, said_in, table

HEADS = {
    "claims": {"en": ("claim", "figure", "true if", "verdict"), "zh": ("说法", "数值", "成立条件", "判定")},
    "verdicts": {"en": ("people say", "what was measured"), "zh": ("大家的说法", "测得的结果")},
    "measured": {"en": ("claim", "figure", "true if", "in this run"), "zh": ("说法", "数值", "成立条件", "本次运行")},
}
OF_CLAIMS = {"holds": ("holds", "成立"), "does not hold": ("does not hold", "不成立"), "holds for some sizes": ("holds for some sizes", "部分成立"),
             "not judged": ("judged on a GPU only", "未判定（要在 GPU 上判定）"), "not measured": ("not measured", "未测")}
SAID = {"holds": ("Yes", "成立"), "does not hold": ("No", "不成立"), "holds for some sizes": ("In part", "部分成立"), "not judged": ("Open", "未判定"),
        "not measured": ("Not measured", "未测")}
WORDS = {
    "en": {"run": " (in this run {})", "on": " (on {})", "cpu": " (on a CPU {})", "at most": "at most {}", "at least": "at least {}", "is": "{}", "between": "{} to {}", "size": "; {}",
           "counts": "{n} claims: {list}.", "verdict": "**{}**: {}", "if": "; it {}", "measured on": ", in this chapter's program on {}", "below on": "on {}",
           "open": " (a CPU's time; a GPU decides)", "served": ("is refused", "is served"), "agrees": ("says something else", "says so"),
           "what": "What each figure is, and the range in which the claim would be true",
           "judged": "A claim is judged for the model below its figure. *In this run*: the same figure for this chapter's own, smaller model{}; `-`: not measured there.",
           "times": ", and of a time on this CPU"},
    "zh": {"run": "（本次运行 {}）", "on": "（在 {} 上）", "cpu": "（CPU 上 {}）", "at most": "至多 {}", "at least": "至少 {}", "is": "{}", "between": "{} 到 {}", "size": "；{}",
           "counts": "共 {n} 条说法：{list}。", "verdict": "**{}**：{}", "if": "；{}", "measured on": "（本章的程序，在 {} 上）", "below on": "在 {} 上",
           "open": "（这是 CPU 上的时间；要在 GPU 上判定）", "served": ("被拒绝", "可以满足"), "agrees": ("说法不同", "也这样说"),
           "what": "每个数值是什么，说法在什么范围内成立",
           "judged": "每条说法都按数值下面写的那个模型判定。*本次运行*：换成本章自己的小模型得到的同一个数值{}；`-` 是那里没有测。",
           "times": "；如果是时间，则是在这块 CPU 上测的"},
}

def with_commas(text):
    """Large counts as all pages write them: 83,754."""
    return re.sub(r"(?<![\d.,])\d{5,}(?![\d.])", lambda count: f"{int(count[0]):,}", text)


def range_of(claim, words):
    """The range in which a claim would be true."""
    low, high = (None if v is None else number(v) for v in (claim["low"], claim["high"]))
    kind = "is" if low == high else "at most" if low is None else "at least" if high is None else "between"
    return words[kind].format(*(v for v in (low, high) if v is not None))


def sentence(root, claim, said, gpu, language):
    """What was measured about a claim, on the host or on a GPU: its verdict, and what docs/data/ says of it with its figures."""
    words, value, run = WORDS[language], claim["at_size"], claim["measured"]
    v = run if value is None else value
    known = {} if v is None else {"v": v, "rest": 1 - v, "inverse": 1 / v if v else 0, "more": -v, "plus": 1 + v, "served": words["served"][bool(v)],
                                  "agrees": words["agrees"][bool(v)]}
    if isinstance(said, dict):
        said = said["gpu" if gpu else "host"]
    said = re.sub(r"(?<=\d)%", " %", said.format(**known, **({} if run is None else {"run": run})))
    text = words["verdict"].format(SAID[claim["verdict"]][LANGUAGES.index(language)], said)
    if claim["verdict"] == "holds for some sizes":
        text += words["if"].format(with_commas(said_in(root, claim["verdict_text"], language)))
    return text + (words["measured on"].format(gpu.called(language)) if gpu else words["open"] if claim["verdict"] == "not judged" else "")


def names_of(root, digits, claims, language):
    """{claim: (its name, what is compared)} of a chapter."""
    if language == "en":
        return {claim["claim"]: (claim["claim"], claim["what"]) for claim in claims}
    chinese = data(root, "claims.zh.toml").get(digits, {})
    for claim in claims:
        if claim["claim"] not in chinese:
            raise ValueError(f"docs/data/claims.zh.toml has no words for chapter {digits}'s claim '{claim['claim']}'")
        theirs = chinese[claim["claim"]][1]
        if figures_of(claim["what"]) != figures_of(theirs):
            raise ValueError(f"docs/data/claims.zh.toml: chapter {digits}: other figures in '{theirs}' than in '{claim['what']}'")
    return chinese


def figures_of(what):
    """The numbers in what is compared; a variant's name, which stands in quotes, is none of it."""
    return set(re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<!\w)'[^']*'(?!\w)|“[^”]*”", "", what).replace(",", "")))


def verdicts(root, folder, language, chapters):
    """A chapter's claims as one table of sentences; what each figure is stands folded below it."""
    digits, gpus, words = folder.name[:2], on_gpus.published(root), WORDS[language]
    file = "verdicts.toml" if language == "en" else "verdicts.zh.toml"
    claims, said = chapters[digits]["claims"], data(root, file).get(digits, {})
    keys, names = [claim["claim"] for claim in claims], names_of(root, digits, claims, language)
    if sorted(keys) != sorted(said):
        raise ValueError(f"docs/data/{file}: chapter {digits}: no words, or no claim, for {sorted(set(keys) ^ set(said))}")
    rows, measured, on_a_gpu = [], [], False
    for host in claims:
        gpu, claim = on_gpus.judged(gpus, digits, host)
        on_a_gpu = on_a_gpu or gpu is not None
        name, what = names[claim["claim"]]
        rows.append((escaped(name), escaped(sentence(root, claim, said[claim["claim"]], gpu, language))))
        value, run = claim["at_size"], claim["measured"]
        shown = "-" if value is None and run is None else number(run if value is None else value)
        below = said_in(root, claim["size"], language) or (words["below on"].format(gpu.called(language)) if gpu else "")
        here = host["measured"] if gpu or value is not None else None
        measured.append((escaped(f"{name}<br><sub>{what}</sub>"), escaped(shown + (f"<br><sub>{below}</sub>" if below else "")), range_of(claim, words),
                         number(here) if here is not None else "-"))
    return (table(HEADS["verdicts"][language], rows) + f"\n<details><summary>{words['what']}</summary>\n\n"
            + words["judged"].format(words["times"] if on_a_gpu else "") + "\n\n" + table(HEADS["measured"][language], measured) + "\n</details>\n")


def title_of(root, digits, language):
    """What a chapter is called: in English as its folder, in Chinese as its page says ("# 00 - ...")."""
    folder = next(root.glob(f"chapters/{digits}_*"))
    if language == "en":
        return folder.name[3:].replace("_", " ")
    with (folder / "README.zh-CN.md").open(encoding="utf-8") as page:
        return page.readline().removeprefix(f"# {digits} - ").strip()


def all_claims(root, folder, language, chapters):
    which, words, gpus = LANGUAGES.index(language), WORDS[language], on_gpus.published(root)
    text, count = "", {}
    for digits, chapter in chapters.items():
        rows, names = [], names_of(root, digits, chapter["claims"], language)
        for host in chapter["claims"]:
            gpu, claim = on_gpus.judged(gpus, digits, host)
            value, run = claim["at_size"], claim["measured"]
            figure = "-" if value is None and run is None else number(run if value is None else value)
            if value is not None and run is not None:
                figure += words["run"].format(number(run))
            elif gpu and host["measured"] is not None:
                figure += words["cpu"].format(number(host["measured"]))
            name, what = names[claim["claim"]]
            size = words["size"].format(said_in(root, claim["size"], language)) if claim["size"] else ""
            verdict = with_commas(said_in(root, claim["verdict_text"], language)) if claim["verdict"] == "holds for some sizes" else OF_CLAIMS[claim["verdict"]][which]
            rows.append((escaped(f"{name}<br><sub>{what}{size}</sub>"), figure, range_of(claim, words),
                         verdict + (words["on"].format(gpu.called(language)) if gpu else "")))
            count[claim["verdict"]] = count.get(claim["verdict"], 0) + 1
        text += f"\n**{chapter_link(root, folder, digits)} {title_of(root, digits, language)}**\n\n" + table(HEADS["claims"][language], rows)
    each = ", ".join(f"{OF_CLAIMS[verdict][which]} {n}" for verdict, n in sorted(count.items(), key=lambda item: -item[1]))
    return words["counts"].format(n=sum(count.values()), list=each.replace(", ", "，") if language == "zh" else each) + "\n" + text


PAGES = {"claims": all_claims, "verdicts": verdicts}
