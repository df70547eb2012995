"""The tables of docs/ that bench/publish makes from docs/data/ and bench/results/, where `<!-- page NAME LANGUAGE -->` stands; and of a
chapter's README its lesson.py, with what it prints, and the verdicts on its claims.

The words are in docs/data/, in English and Chinese; the figures are from result files, the same for both languages.
"""
import ast
import collections
import functools
import csv
import json
import operator
import os
import pathlib
import re

from publishing import fit_public, on_gpus
from publishing.markdown import LANGUAGES, chapter_link, data, escaped, number, table
from shared.results_files import format_bytes

HEADS = {
    "articles": {"en": ("#", "said", "verdict", "measured, or derived", "chapter"), "zh": ("#", "说法", "判定", "测得或推得", "章")},
    "claims": {"en": ("claim", "figure", "true if", "verdict"), "zh": ("说法", "数值", "成立条件", "判定")},
    "verdicts": {"en": ("people say", "what was measured"), "zh": ()},
    "measured": {"en": ("claim", "figure", "true if", "in this run"), "zh": ()},
    "gpus": {"en": ("card", "its name", "memory, GB", "`nvidia-smi`, MiB", "CUDA, GiB", "GB/s", "FP32, TFLOP/s",
                    "FP16, TFLOP/s", "PCIe, GB/s each way", "NVLink, GB/s each way", "compute capability"),
             "zh": ()},
    "fits": {"en": ("what", "peak allocated", "reserved", "the smallest memory that holds it", "cards of that size"), "zh": ()},
    "levers": {"en": ("#", "lever", "options", "chapter"), "zh": ()},
    "fit-public": {"en": ("what", "published", "`bench/fit`", "ratio"), "zh": ()},
    "fit-public-unasked": {"en": ("what", "published", "why it is not asked"), "zh": ()},
    "glossary": {"en": ("term", "what it is", "chapter"), "zh": ("术语", "含义", "章")},
}
VERDICTS = {"true": ("true", "属实"), "in part": ("true in part", "部分属实"), "false": ("not true", "不属实"), "open": ("not decided", "未判定")}
OF_CLAIMS = {"holds": ("holds", "成立"), "does not hold": ("does not hold", "不成立"), "holds for some sizes": ("holds for some sizes", "在某些规模下成立"),
             "not judged": ("judged on a GPU only", "只在 GPU 上判定"), "not measured": ("not measured", "未测")}
SAID = {"holds": "Yes", "does not hold": "No", "holds for some sizes": "In part", "not judged": "Open", "not measured": "Not measured"}
WORDS = {"en": {"run": " (in this run {})", "on": " (on {})", "cpu": " (on a CPU {})", "at most": "at most {}", "at least": "at least {}", "is": "{}", "between": "{} to {}", "counts": "{n} claims: {list}."},
         "zh": {"run": "（本次运行 {}）", "on": "（在 {} 上）", "cpu": "（CPU 上 {}）", "at most": "至多 {}", "at least": "至少 {}", "is": "{}", "between": "{} 到 {}", "counts": "共 {n} 条说法：{list}。"}}
UNITS = {"bytes": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
# The table of cards, and its columns. A column of MARKED has a letter in `marks`, in this order.
CARDS = "common/plan/cards.inc"
CARD_COLUMNS = ("name", "title", "device", "aliases", "memory", "smi", "total", "bandwidth", "l2", "fp32", "fp16",
                "bus", "link", "cc", "marks", "total_from")
MARKED = ("smi", "bandwidth", "fp32", "fp16", "bus", "link", "cc")
# What context and libraries take of a card: a twentieth, as chapter 12 reckons.
LEFT_FOR_CONTEXT = 0.05
# The least compute capability that computes in BF16.
BF16_FROM = 8.0
# Results in bench/results/plan/ that judge claims which a chapter's own run leaves open, because they take minutes.
LONGER_RUNS = {"13": "13_losses"}


def calculated(text):
    """The value of an arithmetic expression of numbers."""
    of = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.Pow: operator.pow}

    def value(node):
        if isinstance(node, ast.BinOp):
            return of[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return node.value
        raise ValueError(f"'{text}' is no arithmetic")

    return value(ast.parse(text, mode="eval").body)


class Figures:
    def __init__(self, root):
        self.root, self.results = root, root / "bench/results"
        self.chapters = {path.name[:2]: json.loads(path.read_text()) for path in sorted((self.results / "host").glob("[0-9][0-9]_*.json"))}
        for chapter, name in ((chapter, name) for chapter, name in LONGER_RUNS.items() if chapter in self.chapters):
            longer = {claim["claim"]: claim for claim in self.plan(name)["claims"]}
            for claim in self.chapters[chapter]["claims"]:
                if claim["verdict"] == "not measured":
                    claim.update(longer[claim["claim"]], size=self.plan(name)["config"]["model"])

    def claim(self, chapter, name, exact=False):
        found = [c for c in self.chapters[chapter]["claims"] if (c["claim"] == name if exact else name in c["claim"])]
        if len(found) != 1:
            raise ValueError(f"chapter {chapter} has {len(found)} claims with '{name}'")
        return found[0]["measured"] if found[0]["at_size"] is None else found[0]["at_size"]

    @functools.cache
    def plan(self, name):
        return json.loads((self.results / f"plan/{name}.json").read_text())

    def peak_of_plan(self, spec):
        """A variant's bytes at the peak: all of them, or those of a category."""
        (row,) = [v for v in self.plan(spec["plan"])["variants"] if v["name"] == spec["peak"]]
        return row["by_category_bytes"][spec["category"]] if "category" in spec else row["peak_allocated_bytes"]

    def field(self, spec):
        """A field of a variant in a chapter's result, or in one of its parts: `in` is "oom", or the name of a phase."""
        (row,) = [v for v in self.chapters[spec["variant"]]["variants"] if v["name"] == spec["name"]]
        part = row["oom"] if spec["in"] == "oom" else next(phase for phase in row["phases"] if phase["name"] == spec["in"])
        return part[spec["field"]] - (part[spec["less"]] if "less" in spec else 0)

    def cell(self, spec):
        """A cell of a table of a plan; the row by its first cell."""
        (table,) = [t for t in self.plan(spec["plan"])["tables"] if t["name"] == spec["table"]]
        at = [column["name"] for column in table["columns"]].index(spec["column"])
        (cell,) = [row[at] for row in table["rows"] if row[0] == spec["row"]]
        return cell / 2**UNITS[spec.get("unit", "bytes")]

    def from_batch(self, spec):
        """From which batch on a claim of a plan holds."""
        (claim,) = [c for c in self.plan(spec["plan"])["claims"] if spec["from_batch"] in c["claim"]]
        return claim["from_batch"]

    def peaks(self, which):
        rows = [v for c in self.chapters.values() for v in c["variants"] if v.get("peak_allocated_bytes") is not None]
        return len(rows) if which == "predicted" else sum(v["peak_allocated_bytes"] == v["predicted_bytes"] for v in rows)

    def time(self, spec, language):
        """A claim about time: what a GPU's run says of it, or the words for where none has."""
        (host,) = [c for c in self.chapters[spec["time"]]["claims"] if spec["name"] in c["claim"]]
        gpu, claim = on_gpus.judged(on_gpus.published(self.root), spec["time"], host)
        suffix = "" if language == "en" else "_zh"
        return re.sub(r"(?<=\d)%", " %", spec["as" + suffix].format(claim["measured"], on=gpu.called(language))) if gpu else spec["without" + suffix]

    def text(self, spec, language="en"):
        """What stands for a figure of docs/data/articles.toml, which says how one is given."""
        if "time" in spec:
            return self.time(spec, language)
        if "claim" in spec:
            value = self.claim(spec["claim"], spec["name"], spec.get("exact", False)) * (-1 if spec.get("negative") else 1)
        elif "finding" in spec:
            of = spec["finding"]
            found = self.plan(of.removeprefix("plan/")) if of.startswith("plan/") else self.chapters[of]
            value = found["findings"][spec["name"]] / 2**UNITS[spec.get("unit", "bytes")]
        elif "table" in spec:
            value = self.cell(spec)
        elif "from_batch" in spec:
            value = self.from_batch(spec)
        elif "option" in spec:
            value = self.plan(spec["plan"])["config"][spec["option"]]
        elif "grows" in spec:
            (row,) = [v for v in self.plan(spec["plan"])["variants"] if v["name"] == spec["grows"]]
            value = row["growth"][0]["bytes_a_round"] / 2**UNITS["MiB"]
        elif "plan" in spec and "over" in spec:
            value = self.peak_of_plan(spec) / self.peak_of_plan(spec["over"]) * spec.get("times", 1)
        elif "plan" in spec:
            value = self.peak_of_plan(spec) / 2**30
        elif "variant" in spec:
            value = self.field(spec) / 2**UNITS["MiB"]
        elif "calc" in spec:
            value = calculated(spec["calc"])
        else:
            value = self.peaks(spec["peaks"])
        return re.sub(r"(?<=\d)%", " %", spec["as"].format(value))


def articles(root, folder, language):
    figures, which = Figures(root), LANGUAGES.index(language)
    suffix = "" if language == "en" else "_zh"
    rows = []
    for row in data(root, "articles.toml")["row"]:
        values = {name: figures.text(spec, language) for name, spec in row.items() if isinstance(spec, dict)}
        rows.append((str(row["number"]), row["said" + suffix], VERDICTS[row["verdict"]][which], row["answer" + suffix].format(**values),
                     ", ".join(chapter_link(root, folder, chapter) for chapter in row["chapters"])))
    return table(HEADS["articles"][language], rows)


def range_of(claim, words):
    """The range in which a claim would be true."""
    low, high = (None if v is None else number(v) for v in (claim["low"], claim["high"]))
    kind = "is" if low == high else "at most" if low is None else "at least" if high is None else "between"
    return words[kind].format(*(v for v in (low, high) if v is not None))


def sentence(claim, words, gpu=None):
    """What was measured about a claim, on the host or on a GPU: its verdict, and the words of docs/data/verdicts.toml with its figures."""
    value, run = claim["at_size"], claim["measured"]
    v = run if value is None else value
    known = {} if v is None else {"v": v, "rest": 1 - v, "inverse": 1 / v if v else 0, "more": -v, "plus": 1 + v, "served": "is served" if v else "is refused",
                                  "agrees": "says so" if v else "says something else"}
    if isinstance(words, dict):
        words = words["gpu" if gpu else "host"]
    said = re.sub(r"(?<=\d)%", " %", words.format(**known, **({} if run is None else {"run": run})))
    text = f"**{SAID[claim['verdict']]}**: {said}"
    if claim["verdict"] == "holds for some sizes":
        text += f"; it {claim['verdict_text']}"
    return text + (f", on {gpu.called()}" if gpu else " (a CPU's time; a GPU decides)" if claim["verdict"] == "not judged" else "")


def verdicts(root, folder, language):
    """A chapter's claims as one table of sentences; what each figure is stands folded below it."""
    digits, gpus = folder.name[:2], on_gpus.published(root)
    claims, said = Figures(root).chapters[digits]["claims"], data(root, "verdicts.toml").get(digits, {})
    names = [claim["claim"] for claim in claims]
    if sorted(names) != sorted(said):
        raise ValueError(f"docs/data/verdicts.toml: chapter {digits}: no words, or no claim, for {sorted(set(names) ^ set(said))}")
    rows, measured = [], []
    for host in claims:
        gpu, claim = on_gpus.judged(gpus, digits, host)
        rows.append((escaped(claim["claim"]), escaped(sentence(claim, said[claim["claim"]], gpu))))
        value, run = claim["at_size"], claim["measured"]
        shown = "-" if value is None and run is None else number(run if value is None else value)
        size = f"<br><sub>{claim['size']}</sub>" if claim["size"] else f"<br><sub>on {gpu.called()}</sub>" if gpu else ""
        here = host["measured"] if gpu or value is not None else None
        measured.append((escaped(f"{claim['claim']}<br><sub>{claim['what']}</sub>"), escaped(shown + size), range_of(claim, WORDS["en"]),
                         number(here) if here is not None else "-"))
    return (table(HEADS["verdicts"]["en"], rows) + "\n<details><summary>What each figure is, and the range in which the claim would be true</summary>\n\n"
            "A claim is judged for the model below its figure. *In this run*: the same figure for this chapter's own, smaller model"
            + (", and of a time on this CPU.\n\n" if any(on_gpus.judged(gpus, digits, claim)[0] for claim in claims) else ".\n\n") + table(HEADS["measured"]["en"], measured) + "\n</details>\n")


def claims(root, folder, language):
    figures, which, words, gpus = Figures(root), LANGUAGES.index(language), WORDS[language], on_gpus.published(root)
    chinese = data(root, "claims.zh.toml") if language == "zh" else {}
    text, count = "", {}
    for digits, chapter in figures.chapters.items():
        rows = []
        for host in chapter["claims"]:
            gpu, claim = on_gpus.judged(gpus, digits, host)
            value, run = claim["at_size"], claim["measured"]
            figure = "-" if value is None and run is None else number(run if value is None else value)
            if value is not None and run is not None:
                figure += words["run"].format(number(run))
            elif gpu and host["measured"] is not None:
                figure += words["cpu"].format(number(host["measured"]))
            name, what = claim["claim"], claim["what"]
            if language == "zh":
                if name not in chinese.get(digits, {}):
                    raise ValueError(f"docs/data/claims.zh.toml has no words for chapter {digits}'s claim '{name}'")
                name, what = chinese[digits][name]
            size = claim["size"] if claim["size"] and language == "en" else ""
            verdict = claim["verdict_text"] if language == "en" and claim["verdict"] == "holds for some sizes" else OF_CLAIMS[claim["verdict"]][which]
            rows.append((escaped(f"{name}<br><sub>{what}{'; ' + size if size else ''}</sub>"), figure, range_of(claim, words),
                         verdict + (words["on"].format(gpu.called(language)) if gpu else "")))
            count[claim["verdict"]] = count.get(claim["verdict"], 0) + 1
        title = next(root.glob(f"chapters/{digits}_*")).name[3:].replace("_", " ")
        text += f"\n**{chapter_link(root, folder, digits)}{' ' + title if language == 'en' else ''}**\n\n" + table(HEADS["claims"][language], rows)
    each = ", ".join(f"{OF_CLAIMS[verdict][which]} {n}" for verdict, n in sorted(count.items(), key=lambda item: -item[1]))
    return words["counts"].format(n=sum(count.values()), list=each.replace(", ", "，") if language == "zh" else each) + "\n" + text


def rows_of(root, name):
    with (root / "docs/data" / name).open() as file:
        return list(csv.DictReader(line for line in file if line[0] != "#"))


def cards(root):
    """The rows of the table of cards. `unverified` has the columns that are known from other people's lists only."""
    text = re.sub(r"^ *//.*$", "", (root / CARDS).read_text(), flags=re.M)
    found = []
    for row in re.findall(r"\{([^{}]*)\}", text):
        card = dict(zip(CARD_COLUMNS, ast.literal_eval(f"({row})"), strict=True))
        card["unverified"] = {column for column, mark in zip(MARKED, card["marks"], strict=True) if mark == "L"}
        card["bf16"] = card["cc"] >= BF16_FROM
        found.append(card)
    return found


def source_link(card, all_cards):
    """What a card's total is from, as a link, or the card that it is derived from."""
    source = card["total_from"]
    if source.startswith("as "):
        (like,) = [other for other in all_cards if other["name"] == source[3:]]
        return f"{card['total']:.2f} (as {like['title']})"
    issue = re.match(r"([\w.-]+/[\w.-]+)#(\d+), \d{4}-\d\d-\d\d(?: \((.+)\))?$", source)
    file = re.match(r"([\w.-]+/[\w.-]+):(\S+)$", source)
    if not issue and not file:
        raise ValueError(f"{card['name']}: '{source}' is no source")
    link = f"https://github.com/{issue[1]}/issues/{issue[2]}" if issue else f"https://github.com/{file[1]}/blob/HEAD/{file[2]}"
    return f"[{card['total']:.2f}]({link})" + (f" ({issue[3]})" if issue and issue[3] else "")


def gpus(root, folder, language):
    all_cards = cards(root)

    def cell(card, column):
        if column == "total":
            return source_link(card, all_cards)
        if column == "name":
            return f"`{card['name']}`"
        if not card[column]:
            return "-"
        text = f"{card[column]:.1f}" if column == "cc" else f"{card[column]:.10g}"
        return text + (" (?)" if column in card["unverified"] else "")

    columns = ("name", "memory", "smi", "total", "bandwidth", "fp32", "fp16", "bus", "link", "cc")
    return table(HEADS["gpus"][language], [[card["title"], *(cell(card, column) for column in columns)] for card in all_cards])


def computes_in_bf16(plan, variant):
    """Whether a variant of a plan does: its name says so, or the plan's options, unless its name says something else."""
    options = (plan["config"].get("precision"), plan["config"].get("rest"))
    return "bf16" in variant or ("fp32" not in variant and "fp16" not in variant and "bf16" in options)


def fits(root, folder, language):
    """Planned variants, and the smallest memory that holds each, of cards that compute in its precision."""
    rooms = [(card["memory"], card["total"] * 2**30 * (1 - LEFT_FOR_CONTEXT), card["title"], card["bf16"]) for card in cards(root)]
    rows = []
    for row in rows_of(root, "fits.csv"):
        path = root / f"bench/results/plan/{row['plan']}.json"
        plan = json.loads(path.read_text())
        found = [variant for variant in plan["variants"] if variant["name"] == row["variant"]]
        if not found:
            raise ValueError(f"{path.name} has no variant '{row['variant']}'")
        allocated, reserved = found[0]["peak_allocated_bytes"], found[0]["peak_reserved_bytes"]
        bf16 = computes_in_bf16(plan, row["variant"])
        held = [(memory, name) for memory, room, name, has_bf16 in rooms if room >= reserved and (has_bf16 or not bf16)]
        smallest = min(held)[0] if held else 0
        printed = os.path.relpath(path.with_suffix(".txt"), folder)
        rows.append((f"{row['words']} ([{row['plan'][:2]}]({printed}))", format_bytes(allocated), format_bytes(reserved), f"{smallest:g} GB" if held else "no single card",
                     " / ".join(name for memory, name in held if memory == smallest) or "-"))
    return table(HEADS["fits"][language], rows)


def levers(root, folder, language):
    """All levers, and which go together: what the program lever_pairs found out by asking each of them."""
    answer = json.loads((root / "bench/results/plan/16_lever_pairs.json").read_text())
    names = [lever["name"] for lever in answer["levers"]]
    rows = []
    for number, lever in enumerate(answer["levers"], 1):
        options = "<br>".join(f"`--{option['name']}`: {option['help']}" for option in lever["options"])
        rows.append((str(number), lever["name"], options, chapter_link(root, folder, lever["chapter"][:2])))
    text = table(HEADS["levers"][language], rows)

    text += (f"\nEach of the {answer['values']} values that these levers have beside the textbook's was asked about with each value of another "
             f"lever: {answer['together']} of {answer['pairs']} pairs go together. The others have a law against them. A number is the law's below; "
             "where a lever has several values, it is true of some of them.\n\n")
    laws = collections.defaultdict(list)
    for number, law in enumerate(answer["laws"], 1):
        for pair in law["pairs"]:
            at = tuple(sorted(names.index(name) for name in pair["levers"]))
            if number not in laws[at]:
                laws[at].append(number)

    def cell(row, column):
        if row == column:
            return "-"
        return ", ".join(map(str, laws[min(row, column), max(row, column)])) or "yes"

    everything = range(len(names))
    text += table(("", *(str(n + 1) for n in everything)), [(f"{row + 1} {names[row]}", *(cell(row, column) for column in everything)) for row in everything])
    text += "\n"
    for number, law in enumerate(answer["laws"], 1):
        pairs = ", ".join(" with ".join(f"`{options}`" for options in pair["options"]) for pair in law["pairs"])
        text += f"\n{number}. {law['law'][0].upper() + law['law'][1:]}. ({pairs})"
    return text + "\n"


def glossary(root, folder, language):
    suffix = "" if language == "en" else "_zh"

    def name(term):  # in Chinese with the English word behind it, unless it has that already
        own = term["term" + suffix]
        return own if term["term"] in own else f"{own}（{term['term']}）"

    rows = [(name(term), term["is" + suffix], chapter_link(root, folder, term["chapter"]))
            for term in sorted(data(root, "glossary.toml")["entry"], key=lambda entry: entry["term"].lower())]
    return table(HEADS["glossary"][language], rows)


def sourced(entry):
    """The published figure, with its source."""
    source = entry["source"]
    return f"[{entry['figure']}]({source})" if source.startswith("https://") else f"{entry['figure']} ({source})"


def fit_public_page(root, _, language):
    """What fit says of settings that others published figures of: docs/fit_public.md."""
    found = json.loads((root / fit_public.ANSWERS).read_text())
    rows = []
    for entry in fit_public.entries(root)["entry"]:
        answer = found.get(str(entry["id"]))
        if not answer:
            continue
        ratio = fit_public.ratio(entry, answer)
        figure = f"{answer['bytes']:,} tokens" if entry["of"] == fit_public.TOKENS else f"{answer['bytes'] / 1e9:.2f} GB"
        shown = figure if ratio else "fits" if answer["fits"] else "does not fit"
        note = f" ({entry['note']})" if "note" in entry else ""
        mark = f"{ratio:.2f}" if ratio else "wrong" if fit_public.wrong_side(entry, answer) else "right"
        rows.append((entry["what"] + note, sourced(entry), shown, mark))
    return table(HEADS["fit-public"][language], rows)


def fit_public_summary(root, _, language):
    assert language == "en"
    said = fit_public.summary(root, json.loads((root / fit_public.ANSWERS).read_text()))
    ratios = said["ratios"]
    share = 100 * said["within"] / len(ratios)
    wrong = "none of them fits" if not said["wrong"] else f"wrong: {', '.join(map(str, said['wrong']))}"
    return (f"{said['entries']} entries, {said['asked']} asked. {len(ratios)} have a figure: median ratio {ratios[len(ratios) // 2]:.2f}, smallest "
            f"{ratios[0]:.2f}, largest {ratios[-1]:.2f};\n{said['within']} of them ({share:.0f} %) lie within {fit_public.LEAST:.2f} and "
            f"{fit_public.MOST:.2f}. {said['out']} ran out of memory: {wrong}.\n")


def fit_public_unasked(root, _, language):
    rows = [(entry["what"], sourced(entry), entry["reach"]) for entry in fit_public.entries(root)["entry"] if "reach" in entry]
    return table(HEADS["fit-public-unasked"][language], rows)


def pytorch_lesson(root, folder, language):
    """The lesson.py of the chapter in `folder`, and what bench/publish --pytorch stored of a run of it."""
    output = root / f"bench/results/pytorch-lessons/{folder.name}.txt"
    return ("[`lesson.py`](lesson.py) is the lesson in plain PyTorch: `pip install torch`, then `python3 lesson.py`. On a GPU its peak is\n"
            "`torch.cuda.max_memory_allocated()`, on a CPU the highest point of the profiler's record\n"
            "(`KINETO_LOG_LEVEL=99` keeps that from writing to stderr). PyTorch makes other temporary tensors than `lesson.cu`, so the two need not agree to\n"
            "the byte.\n\n"
            f"```python\n{(folder / 'lesson.py').read_text(encoding='utf-8')}```\n\n"
            f"[What it prints]({os.path.relpath(output, folder)}) on a CPU:\n\n"
            f"```text\n{output.read_text(encoding='utf-8')}```\n")


def of_gpus(make, root, folder, language):
    return make(root, folder, language, Figures(root).chapters)


PAGES = {"articles": articles, "claims": claims, "gpus": gpus, "fits": fits, "fit-public": fit_public_page, "fit-public-summary": fit_public_summary,
         "fit-public-unasked": fit_public_unasked, "glossary": glossary, "levers": levers, "pytorch-lesson": pytorch_lesson, "verdicts": verdicts}
PAGES |= {name: functools.partial(of_gpus, make) for name, make in on_gpus.PAGES.items()}


def page(root, name, language, document):
    """What stands between the marks in `document`."""
    return PAGES[name](pathlib.Path(root), document.parent, language)
