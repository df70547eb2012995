"""What pages say of the GPUs whose results are published, which are the folders of bench/results/ whose system.json names a CUDA device.
Where there is none, the pages say that. The words are in docs/data/gpus.toml, the figures are from the results."""
import functools
import os

from publishing.markdown import data, escaped, in_chinese, in_language, record, table, with_units
from shared.results_files import format_bytes

# Verdicts that leave a claim open: the host has no times of a GPU, and no driver.
OPEN = ("not judged", "not measured")
MOST_ROWS = 9  # of a chapter's block; longer ones leave out what docs/data/gpus.toml does not name
KERNELS = "bench_kernels.txt"
COLUMNS = {
    "heads": {"en": ("variant", "samples/s", "p10 to p90", "of the bound", "reserved", "device used, more"),
              "zh": ("方案", "每秒样本数", "p10 到 p90", "占理论上限的比例", "已保留", "设备已用，增加")},
    "range": {"en": "{:,.1f} to {:,.1f}", "zh": "{:,.1f} 到 {:,.1f}"},
    "meaning": {"en": "([What the columns mean](../../docs/reading.md#on-a-gpu).)\n", "zh": "（[各列的含义](../../docs/reading.md#on-a-gpu)。）\n"},
}
DEVICES = {
    "en": {"heads": ("device", "driver, CUDA", "chapters", "peaks equal to the byte, predicted and on the host", "files"), "of": "{} of {}",
           "limits": "What the results of {} do not say:", "also": "Also from there: {}.", "next": ", ",
           "kernels": "The kernels of `common/` on {}, each beside the least time that memory and arithmetic allow:",
           "none": "None yet: nobody has run the course on one and sent the files. Yours would be the first ([how](../CONTRIBUTING.md)).\n"},
    "zh": {"heads": ("设备", "驱动和 CUDA", "章数", "与预测、与主机逐字节相同的峰值", "文件"), "of": "{} / {}",
           "limits": "{} 的结果没有说明的：", "also": "在那里得到的还有：{}。", "next": "、",
           "kernels": "`common/` 的核函数在 {} 上用的时间，旁边是显存和运算所允许的最短时间：",
           "none": "还没有：没有人在 GPU 上运行过本课程并发来文件。你的会是第一份（[怎么做](../CONTRIBUTING.md)）。\n"},
}
OTHER_BENCHES = ("bench_attention.txt", "bench_convolution.txt")


class Gpu:
    """One folder of results."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.system = record(folder / "system.json")
        name = self.system["device"].removeprefix("NVIDIA ")
        words = data(root, "gpus.toml") if (root / "docs/data/gpus.toml").exists() else {}
        self.words = {"short": name, "article": "a", "limits": []} | words.get("device", {}).get(folder.name, {})
        self.short = self.words["short"]

    def called(self, language="en"):
        return f"{self.words['article']} {self.short}" if language == "en" else self.short

    @functools.cached_property
    def chapters(self):
        """{"04": what the result file has}."""
        return {path.name[:2]: record(path) for path in sorted(self.folder.glob("[0-9][0-9]_*.json"))}

    def file(self, chapter, ending):
        """Beside the results of a chapter, as "04_checkpointing"; None where it is not there."""
        path = self.folder / f"{chapter}{ending}"
        return path if path.exists() else None


def published(root):
    """All of them, by the name of their folder."""
    folders = sorted(path.parent for path in (root / "bench/results").glob("*/system.json") if not path.parent.name.startswith("pytorch"))
    return [gpu for gpu in (Gpu(root, folder) for folder in folders) if gpu.system["backend"] == "cuda"]


def judged(gpus, digits, claim):
    """(GPU, its claim) that answers what the host's claim leaves open; (None, claim) where nothing is open, or no GPU's run has an answer."""
    for gpu in gpus if claim["verdict"] in OPEN else ():
        if claim["claim"] in gpu.words.get("unanswered", ()):
            continue
        for other in gpu.chapters.get(digits, {"claims": []})["claims"]:
            if other["claim"] == claim["claim"] and other["verdict"] not in OPEN:
                return gpu, other
    return None, claim


def ran(chapter):
    return [row for row in chapter["variants"] if row.get("peak_allocated_bytes") is not None]


def count(chapters, host):
    """(peaks that are the prediction's and the host's to the byte, all peaks) of a GPU's {"04": chapter}; `host` has the host's."""
    equal = total = 0
    for digits, chapter in chapters.items():
        of_host = {row["name"]: row.get("peak_allocated_bytes") for row in host.get(digits, {"variants": []})["variants"]}
        for row in ran(chapter):
            total += 1
            equal += row["peak_allocated_bytes"] == row["predicted_bytes"] == of_host.get(row["name"])
    return equal, total


def said_of(equal, total, language):
    if language == "zh":
        if total == 1:
            return "这一个峰值与预测值、也与 CPU 上的峰值逐字节相同" if equal else "这一个峰值与预测值或 CPU 上的峰值并非逐字节相同"
        return f"{total} 个峰值{'全部' if equal == total else f'中有 {equal} 个'}与预测值、也与 CPU 上的峰值逐字节相同"
    if total == 1:
        return "the one peak is " + ("" if equal else "not ") + "the predicted one and the CPU's, to the byte"
    return f"all {total} peaks are the predicted ones and the CPU's, to the byte" if equal == total else f"{equal} of {total} peaks are the predicted ones and the CPU's to the byte"


def front(root, _, language, host):
    """The sentences of the two front pages."""
    found = []
    for gpu in published(root):
        said = said_of(*count(gpu.chapters, host), language)
        if language == "zh":
            found.append(f"在 {gpu.short} 上也跑过：{said}（[哪些跑过，哪些没有](docs/results.md#on-gpus)）。\n")
        else:
            found.append(f"It has run on {gpu.called()}, too: **{said}** ([what ran there, and what did not](docs/results.md#on-gpus)).\n")
    if found:
        return "".join(found)
    return ("目前还没有发布任何 GPU 的结果：你的会是第一份（[怎么做](CONTRIBUTING.md)）。\n" if language == "zh" else
            "No GPU's results have been published yet: yours would be the first ([how](CONTRIBUTING.md)).\n")


def rows_of(chapter, named):
    """The variants of a chapter's block, of those that ran: all where they are few, otherwise the first and the named ones."""
    found = ran(chapter)
    return found if len(found) <= MOST_ROWS or not named else [row for i, row in enumerate(found) if i == 0 or row["name"] in named]


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %" if value >= 0.1 else f"{100 * value:.2g} %"


def chapter_block(root, folder, language, host):
    """Times, and what the driver gave, of a chapter's run on each GPU."""
    text, digits = "", folder.name[:2]
    for gpu in published(root):
        chapter = gpu.chapters.get(digits)
        if not chapter:
            continue
        words = data(root, "gpus.toml").get(digits, {})
        equal, total = count({digits: chapter}, host)
        skipped = [row for row in chapter["variants"] if row["outcome"] == "skipped"]
        printed = gpu.file(folder.name, ".txt")
        link = os.path.relpath(printed, folder) if printed else None
        if language == "zh":
            text += f"**在 {gpu.called(language)} 上**，{said_of(equal, total, language)}"
            text += f"；另外 {len(skipped)} 行没有运行（{in_chinese(root, skipped[0]['reason'])}）" if skipped else ""
            text += (f"。[它打印的全部内容]({link})：" if link else "：") + "\n\n"
        else:
            text += f"**On {gpu.called()}** {said_of(equal, total, language)}"
            text += f"; {len(skipped)} {'rows were' if len(skipped) > 1 else 'row was'} skipped ({skipped[0]['reason']})" if skipped else ""
            text += (f". [Everything it printed]({link}):" if link else ":") + "\n\n"
        shown = []
        for row in rows_of(chapter, words.get("rows")):
            rate, least = row.get("throughput"), row.get("least_time") or {}
            used, before = row.get("peak_device_used_bytes"), row.get("device_used_before_bytes")
            shown.append((escaped(row["name"]), f"{rate['median']:,.1f}" if rate else "-",
                          COLUMNS["range"][language].format(rate["p10"], rate["p90"]) if rate else "-",
                          share(least.get("share_of_bound")),
                          format_bytes(row["peak_reserved_bytes"]), format_bytes(used - before) if used is not None and before is not None else "-"))
        text += with_units(table(COLUMNS["heads"][language], shown), language)
        if words.get("said"):
            text += f"\n{words[in_language('said', language)]}\n"
        text += "\n"
    return text + COLUMNS["meaning"][language] if text else ""


def lesson(root, folder, language, host):
    """What the chapter's lesson printed on each GPU."""
    text = ""
    for gpu in published(root):
        output = gpu.file(folder.name, ".lesson.txt")
        if output:
            words = data(root, "gpus.toml").get(folder.name[:2], {})
            said = words[in_language("lesson", language)] if "lesson" in words else ""
            said = f"在 {gpu.called(language)} 上，示例程序打印如下。{said}" if language == "zh" else f"On {gpu.called()} the lesson prints this. {said}".rstrip()
            text += f"{said}\n\n```text\n{output.read_text(encoding='utf-8')}```\n"
    return text


def devices(root, folder, language, host):
    """docs/results.md: which GPUs, what was the same there, and what was not tried."""
    gpus, words = published(root), DEVICES[language]
    if not gpus:
        return words["none"]
    rows = []
    for gpu in gpus:
        equal, total = count(gpu.chapters, host)
        rows.append((gpu.system["device"], f"{gpu.system['driver']}, {gpu.system['runtime']}", str(len(gpu.chapters)), words["of"].format(equal, total),
                     f"[`{gpu.folder.name}`]({os.path.relpath(gpu.folder, folder)})"))
    text = table(words["heads"], rows)
    for gpu in gpus:
        if gpu.words["limits"]:
            text += f"\n{words['limits'].format(gpu.called(language))}\n\n" + "".join(f"- {limit}\n" for limit in gpu.words[in_language("limits", language)])
        if (gpu.folder / KERNELS).exists():
            text += (f"\n{words['kernels'].format(gpu.called(language))}\n\n"
                     f"```text\n{(gpu.folder / KERNELS).read_text(encoding='utf-8').strip()}\n```\n")
        others = [f"[`{name[:-4]}`]({os.path.relpath(gpu.folder / name, folder)})" for name in OTHER_BENCHES if (gpu.folder / name).exists()]
        text += f"\n{words['also'].format(words['next'].join(others))}\n" if others else ""
    return text


PAGES = {"gpu-front": front, "gpu": chapter_block, "gpu-lesson": lesson, "gpu-devices": devices}
