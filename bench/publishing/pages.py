"""The tables of docs/ that bench/publish makes from docs/data/ and bench/results/, where `<!-- page NAME LANGUAGE -->` stands; and of a
chapter's README its lesson.py, with what it prints, and the verdicts on its claims.

The words are in docs/data/, in English and Chinese; the figures are from result files, the same for both languages.
"""
import ast
import collections
import functools
import csv
import operator
import os
import pathlib
import re

from publishing import claims, fit_public, on_gpus
from publishing.markdown import LANGUAGES, chapter_link, counted, data, in_language, record, said_in, table
from shared.results_files import format_bytes

HEADS = {
    "articles": {"en": ("#", "said", "verdict", "measured, or derived", "chapter"), "zh": ("#", "说法", "判定", "测得或推得", "章")},
    "gpus": {"en": ("card", "its name", "memory, GB", "`nvidia-smi`, MiB", "CUDA, GiB", "GB/s", "FP32, TFLOP/s",
                    "FP16, TFLOP/s", "PCIe, GB/s each way", "NVLink, GB/s each way", "compute capability"),
             "zh": ("显卡", "名字", "显存，GB", "`nvidia-smi`，MiB", "CUDA，GiB", "GB/s", "FP32，TFLOP/s",
                    "FP16，TFLOP/s", "PCIe，单向 GB/s", "NVLink，单向 GB/s", "计算能力")},
    "fits": {"en": ("what", "peak allocated", "reserved", "the smallest memory that holds it", "cards of that size"),
             "zh": ("做什么", "已分配的峰值", "已保留", "放得下它的最小显存", "这么大的卡")},
    "levers": {"en": ("#", "lever", "options", "what it costs", "chapter"), "zh": ("#", "手段", "选项", "代价", "章")},
    "fit-public": {"en": ("what", "published", "`bench/fit`", "ratio"), "zh": ("做什么", "公布的", "`bench/fit`", "比值")},
    "fit-public-unasked": {"en": ("what", "published", "why it is not asked"), "zh": ("做什么", "公布的", "为什么没有问")},
    "glossary": {"en": ("term", "what it is", "chapter"), "zh": ("术语", "含义", "章")},
}
VERDICTS = {"true": ("true", "属实"), "in part": ("true in part", "部分属实"), "false": ("not true", "不属实"), "open": ("not decided", "未判定")}
# What stands in and around tables.
WORDS = {
    "en": {"and": ", ", "as": "{} (as {})", "no card": "no single card", "option": "`--{}`: {}", "with": " with ", "next": ", ", "law": "{}. ({})", "in brackets": "{} ({})",
           "tokens": "{:,} tokens", "fits": "fits", "does not fit": "does not fit", "right": "right", "wrong": "wrong", "none": "none of them fits", "wrong ones": "wrong: {}",
           "pairs": "Each of the {values} values that these levers have beside the textbook's was asked about with each value of another lever: {together} of {pairs} pairs "
                    "go together. The others have a law against them. An empty cell: they go together. A number is the law's below; where a lever has several values, it is true of some of them.",
           "public": "{entries} entries, {asked} asked. {figures} have a figure: median ratio {median:.2f}, smallest {least:.2f}, largest {most:.2f};\n"
                     "{within} of them ({share:.0f} %) lie within {from_:.2f} and {to:.2f}. {out} ran out of memory: {wrong}.\n"},
    "zh": {"and": "、", "as": "{}（同 {}）", "no card": "没有一块卡", "option": "`--{}`：{}", "with": " 与 ", "next": "；", "law": "{}。（{}）", "in brackets": "{}（{}）",
           "tokens": "{:,} 个 token", "fits": "放得下", "does not fit": "放不下", "right": "对", "wrong": "错", "none": "没有一条被说成放得下", "wrong ones": "说错的：{}",
           "pairs": "除了教科书式的取值，这些手段共有 {values} 个取值。它们与别的手段的取值两两试过：{pairs} 对里有 {together} 对能一起用，"
                    "其余的各被下面的一条规则排除。空格：能一起用。表里的数字是下面那条规则的编号；手段有几个取值时，规则只针对其中一些。",
           "public": "共 {entries} 条，问了 {asked} 条。{figures} 条有数字：比值的中位数 {median:.2f}，最小 {least:.2f}，最大 {most:.2f}；\n"
                     "其中 {within} 条（{share:.0f} %）在 {from_:.2f} 到 {to:.2f} 之间。{out} 条显存不足：{wrong}。\n"},
}
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
        self.chapters = {path.name[:2]: record(path) for path in sorted((self.results / "host").glob("[0-9][0-9]_*.json"))}
        for chapter, name in ((chapter, name) for chapter, name in LONGER_RUNS.items() if chapter in self.chapters):
            longer = {claim["claim"]: claim for claim in self.plan(name)["claims"]}
            size = {"size": self.plan(name)["config"]["model"]}
            claims_now = [claim | longer[claim["claim"]] | size if claim["verdict"] == "not measured" else claim for claim in self.chapters[chapter]["claims"]]
            self.chapters[chapter] = self.chapters[chapter] | {"claims": claims_now}

    def claim(self, chapter, name, exact=False):
        found = [c for c in self.chapters[chapter]["claims"] if (c["claim"] == name if exact else name in c["claim"])]
        if len(found) != 1:
            raise ValueError(f"chapter {chapter} has {len(found)} claims with '{name}'")
        return found[0]["measured"] if found[0]["at_size"] is None else found[0]["at_size"]

    def plan(self, name):
        return record(self.results / f"plan/{name}.json")

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
        said = re.sub(r"(?<=\d)%", " %", spec["as"].format(value))
        return counted(said, "{billion}").strip() if language == "zh" and spec.get("billions") else said


def articles(root, folder, language):
    figures, which = Figures(root), LANGUAGES.index(language)
    suffix = "" if language == "en" else "_zh"
    rows = []
    for row in data(root, "articles.toml")["row"]:
        values = {name: figures.text(spec, language) for name, spec in row.items() if isinstance(spec, dict)}
        rows.append((str(row["number"]), row["said" + suffix], VERDICTS[row["verdict"]][which], row["answer" + suffix].format(**values),
                     WORDS[language]["and"].join(chapter_link(root, folder, chapter) for chapter in row["chapters"])))
    return table(HEADS["articles"][language], rows)


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


def source_link(card, all_cards, language="en"):
    """What a card's total is from, as a link, or the card that it is derived from."""
    source = card["total_from"]
    if source.startswith("as "):
        (like,) = [other for other in all_cards if other["name"] == source[3:]]
        return WORDS[language]["as"].format(f"{card['total']:.2f}", like["title"])
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
            return source_link(card, all_cards, language)
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
        plan = record(path)
        found = [variant for variant in plan["variants"] if variant["name"] == row["variant"]]
        if not found:
            raise ValueError(f"{path.name} has no variant '{row['variant']}'")
        allocated, reserved = found[0]["peak_allocated_bytes"], found[0]["peak_reserved_bytes"]
        bf16 = computes_in_bf16(plan, row["variant"])
        held = [(memory, name) for memory, room, name, has_bf16 in rooms if room >= reserved and (has_bf16 or not bf16)]
        smallest = f"{min(held)[0]:g} GB" if held else WORDS[language]["no card"]
        printed = os.path.relpath(path.with_suffix(".txt"), folder)
        what = WORDS[language]["in brackets"].format(row[in_language("words", language)], f"[{row['plan'][:2]}]({printed})")
        rows.append((what, format_bytes(allocated), format_bytes(reserved), smallest, " / ".join(name for memory, name in held if memory == min(held)[0]) or "-"))
    return table(HEADS["fits"][language], rows)


def levers(root, folder, language):
    """All levers, and which go together: what the program lever_pairs found out by asking each of them."""
    answer, words = record(root / "bench/results/plan/16_lever_pairs.json"), WORDS[language]
    said = functools.partial(said_in, root, language=language, name="levers.zh.toml")
    names = [lever["name"] for lever in answer["levers"]]
    costs = data(root, "lever_costs.toml")["costs"]
    if sorted(costs) != sorted(names):
        raise ValueError(f"docs/data/lever_costs.toml: no costs, or no lever, for {sorted(set(costs) ^ set(names))}")
    rows = []
    for number, lever in enumerate(answer["levers"], 1):
        options = "<br>".join(words["option"].format(option["name"], said(option["help"])) for option in lever["options"])
        rows.append((str(number), said(lever["name"]), options, costs[lever["name"]][LANGUAGES.index(language)], chapter_link(root, folder, lever["chapter"][:2])))
    text = table(HEADS["levers"][language], rows)

    text += "\n" + words["pairs"].format(**{key: answer[key] for key in ("values", "together", "pairs")}) + "\n\n"
    laws = collections.defaultdict(list)
    for number, law in enumerate(answer["laws"], 1):
        for pair in law["pairs"]:
            at = tuple(sorted(names.index(name) for name in pair["levers"]))
            if number not in laws[at]:
                laws[at].append(number)

    def cell(row, column):
        if row == column:
            return "-"
        return words["and"].join(map(str, laws[min(row, column), max(row, column)]))

    everything = range(len(names))
    text += table(("", *(str(n + 1) for n in everything)), [(f"{row + 1} {said(names[row])}", *(cell(row, column) for column in everything)) for row in everything])
    for number, law in enumerate(answer["laws"], 1):
        pairs = words["next"].join(words["with"].join(f"`{options}`" for options in pair["options"]) for pair in law["pairs"])
        sentence = said(law["law"])
        text += f"\n{number}. " + words["law"].format(sentence[0].upper() + sentence[1:], pairs)
    return text + "\n"


def glossary(root, folder, language):
    suffix = "" if language == "en" else "_zh"

    def name(term):  # in Chinese with the English word behind it, unless it has that already
        own = term["term" + suffix]
        return own if term["term"] in own else f"{own}（{term['term']}）"

    def place(term):  # English by the alphabet; Chinese by pinyin, in which GB 18030 has its common characters
        return term["term"].lower() if language == "en" else term["term_zh"].lower().encode("gb18030")

    rows = [(name(term), term["is" + suffix], chapter_link(root, folder, term["chapter"])) for term in sorted(data(root, "glossary.toml")["entry"], key=place)]
    return table(HEADS["glossary"][language], rows)


FIT_PUBLIC = "fit_public.zh.toml"


def sourced(root, entry, language):
    """The published figure, with its source."""
    figure, source = said_in(root, entry["figure"], language, FIT_PUBLIC), entry["source"]
    return f"[{figure}]({source})" if source.startswith("https://") else WORDS[language]["in brackets"].format(figure, said_in(root, source, language, FIT_PUBLIC))


def fit_public_page(root, _, language):
    """What fit says of settings that others published figures of: docs/fit_public.md."""
    found, words = record(root / fit_public.ANSWERS), WORDS[language]
    said = functools.partial(said_in, root, language=language, name=FIT_PUBLIC)
    rows = []
    for entry in fit_public.entries(root)["entry"]:
        answer = found.get(str(entry["id"]))
        if not answer:
            continue
        ratio = fit_public.ratio(entry, answer)
        figure = words["tokens"].format(answer["bytes"]) if entry["of"] == fit_public.TOKENS else f"{answer['bytes'] / 1e9:.2f} GB"
        shown = figure if ratio else words["fits" if answer["fits"] else "does not fit"]
        what = said(entry["what"]) if "note" not in entry else words["in brackets"].format(said(entry["what"]), said(entry["note"]))
        mark = f"{ratio:.2f}" if ratio else words["wrong" if fit_public.wrong_side(entry, answer) else "right"]
        rows.append((what, sourced(root, entry, language), shown, mark))
    return table(HEADS["fit-public"][language], rows)


def fit_public_summary(root, _, language):
    said, words = fit_public.summary(root, record(root / fit_public.ANSWERS)), WORDS[language]
    ratios = said["ratios"]
    wrong = words["none"] if not said["wrong"] else words["wrong ones"].format(", ".join(map(str, said["wrong"])))
    return words["public"].format(**said | {"figures": len(ratios), "median": ratios[len(ratios) // 2], "least": ratios[0], "most": ratios[-1], "wrong": wrong,
                                            "share": 100 * said["within"] / len(ratios), "from_": fit_public.LEAST, "to": fit_public.MOST})


def fit_public_unasked(root, _, language):
    said = functools.partial(said_in, root, language=language, name=FIT_PUBLIC)
    entries = [entry for entry in fit_public.entries(root)["entry"] if "reach" in entry]
    same = {"en": "as above", "zh": "同上"}[language]
    rows = [(said(entry["what"]), sourced(root, entry, language), same if entry["reach"] == before.get("reach") else said(entry["reach"]))
            for before, entry in zip([{}, *entries], entries)]
    return table(HEADS["fit-public-unasked"][language], rows)


def pytorch_lesson(root, folder, language):
    """The lesson.py of the chapter in `folder`, and what bench/publish --pytorch stored of a run of it."""
    output = root / f"bench/results/pytorch-lessons/{folder.name}.txt"
    code, printed = (file.read_text(encoding="utf-8") for file in (folder / "lesson.py", output))
    if language == "zh":
        return ("[`lesson.py`](lesson.py) 是同一个示例程序的 PyTorch 版：先 `pip install torch`，再 `python3 lesson.py`。在 GPU 上，它的峰值是\n"
                "`torch.cuda.max_memory_allocated()`；在 CPU 上，是性能分析器记录里的最高点（`KINETO_LOG_LEVEL=99` 让它不往 stderr 写）。\n"
                "PyTorch 的临时张量与 `lesson.cu` 不同，所以两者不必逐字节相同。\n\n"
                f"```python\n{code}```\n\n"
                f"在 CPU 上[它打印]({os.path.relpath(output, folder)})：\n\n```text\n{printed}```\n")
    return ("[`lesson.py`](lesson.py) is the lesson in plain PyTorch: `pip install torch`, then `python3 lesson.py`. On a GPU its peak is\n"
            "`torch.cuda.max_memory_allocated()`, on a CPU the highest point of the profiler's record\n"
            "(`KINETO_LOG_LEVEL=99` keeps that from writing to stderr). PyTorch makes other temporary tensors than `lesson.cu`, so the two need not agree to\n"
            "the byte.\n\n"
            f"```python\n{code}```\n\n"
            f"[What it prints]({os.path.relpath(output, folder)}) on a CPU:\n\n"
            f"```text\n{printed}```\n")


def of_chapters(make, root, folder, language):
    return make(root, folder, language, Figures(root).chapters)


PAGES = {"articles": articles, "gpus": gpus, "fits": fits, "fit-public": fit_public_page, "fit-public-summary": fit_public_summary,
         "fit-public-unasked": fit_public_unasked, "glossary": glossary, "levers": levers, "pytorch-lesson": pytorch_lesson}
PAGES |= {name: functools.partial(of_chapters, make) for name, make in [*claims.PAGES.items(), *on_gpus.PAGES.items()]}


def page(root, name, language, document):
    """What stands between the marks in `document`."""
    return PAGES[name](pathlib.Path(root), document.parent, language)
