"""PyTorch's messages, of every version since 1.0, and OOM Lab's own report, which is worded like them. For bench/explain."""

import re

from .figures import NUMBER, read_pytorch_size
from .text import SIZE, SIZE_IN_CHINESE, Text, message, number, rule


@rule("pytorch", "memory", r"(?:cuda|hip|xpu|npu|musa|mlu) out of memory[.:!]")
@rule("pytorch", "tried", r"tried to allocate [\d.,]+~[kmgt]?i?b")
@rule("pytorch", "pytorch", r"(?:is allocated by pytorch|reserved (?:in total )?by pytorch|total capac[a-z]{0,6} of [\d.,]+)",
      back=800)
@rule("pytorch", "already", r"already allocated; ", back=300)
def pytorch(before, after):
    if before.has(r"\byou\s*$"):
        return None  # an allocator of the host says "you tried to allocate"
    # The next message of its kind is another one. A figure counts only between the words that stand around it in a whole
    # message: where some of it is lost, one figure may stand before another one's name.
    text = after.until_another(r"out\s+of\s+memory\.\s+Tried|Tried\s+to\s+allocate")
    if not text.has(r"\d") and not text.has(r"out\s+of\s+memory"):
        return None  # words that repeat, without a figure among them
    if text.has(r"preemptively rejected"):
        return message("pytorch", "PyTorch", text.loose, "limit_set_by_user",
                       asked=text.size(rf"Requested size:\s*{SIZE}"))
    if text.has(r"Tried to allocate more than 1EB"):
        return message("pytorch", "PyTorch", text.loose, "too_big_for_the_card")

    def size(*patterns):
        return text.size(*patterns, read=read_pytorch_size)

    ours = text.has(r"This run has .{1,20} allocated")
    m = message(
        "ours" if ours else "pytorch", "OOM Lab" if ours else "PyTorch", text.loose,
        device=number(text.find(r"\(\s*(?:GPU|NPU|XPU|MLU)\s*(\d+)\s*;") or text.find(r"\b(?:GPU|NPU|XPU|MLU)\s*(\d+)\s+has\s+a\s+total")),
        asked=size(rf"tried\s+to\s+allocate\s+{SIZE}(?=\s*(?:[.(:;,!?)]|\n|for\s|on\s|under\s|$))"),
        capacity=size(rf"\(\s*\w+\s*\d*\s*;\s+{SIZE}\s+total\s+capacity", rf"total\s+capaci?ty\s+of\s+{SIZE}\s+of\s+which",
                      *([rf"total\s+capacity\s+of\s+{SIZE}\s*\.\s+Of\s+the"] if text.has(r"XPU\s+out\s+of\s+memory") else [])),
        free=size(rf"already\s+allocated\s*;\s+(?:{NUMBER}\s*\w+\s+current\s+active\s*;\s+)?{SIZE}\s+free\b",
                  rf"total\s+capaci?ty\s+of\s+{NUMBER}\s*\w+\s+of\s+which\s+{SIZE}\s+is\s+free"),
        allocated=size(rf"total\s+capacity\s*;\s+{SIZE}\s+already\s+allocated",
                       rf"allocated\s+memory\s+{SIZE}\s+is\s+allocated\s+by\s+PyTorch", rf"This\s+run\s+has\s+{SIZE}\s+allocated"),
        reserved=size(rf"(?:free|allowed)\s*;\s+{SIZE}\s+reserved\s+in\s+total",
                      *([rf"already\s+allocated\s*;\s+{SIZE}\s+reserved\s+in\s+total"] if text.has(r"XPU\s+out\s+of\s+memory") else [])),
        cached=size(rf"(?:free|allowed)\s*;\s+{SIZE}\s+cached\b",
                    rf"(?:PyTorch|Graphs\)|pools|allocated)\s*,\s+and\s+{SIZE}\s+is\s+reserved\s+(?:by\s+PyTorch\s+)?but\s+unallocated"),
        limit=size(rf"(?:free\s*;|\.)\s+{SIZE}\s+allowed\s*;", rf"under\s+a\s+budget\s+of\s+{SIZE}"),
        private_pools=size(rf"with\s+{SIZE}\s+allocated\s+in\s+private\s+pools"),
        this_process=size(rf"this\s+process\s+has\s+{SIZE}\s+memory\s+in\s+use"))
    m.processes, m.processes_complete = processes(text)
    if ours:
        m.text = m.text.split(" Why: ")[0]
        return our_report(m, text)
    if not m.figures and not text.has(r"out\s+of\s+memory"):
        return None
    m.framework = version(m, before, text)
    if not m.figures.keys() - {"asked"} and not text.has(r"capac|already\s+allocated|allocated\s+memory"):
        m.facts.add("cut_off")  # every version prints more than that
    if text.has(r"in\s+private\s+pools"):
        m.facts.add("private_pools")
    reserve = size(rf"exceeds\s+the\s+expandable-segment\s+reserve\s+of\s+{SIZE}")
    if reserve is not None:  # since 2.15. Not memory ran out, but the addresses that somebody gave a segment.
        m.verdict = "limit_set_by_user"
        m.facts.add("segment_reserve")
        m.values["reserve"] = reserve.text()
    if text.has(r"\bProcess\s+\d+\s+has") and not text.has(r"this\s+process\s+has"):
        m.facts.add("listed_only")
    return m


def version(m, before, text):
    """The framework's name with the versions that print such a message, and as facts what they have."""
    kind = text.first(r"\b(CUDA|HIP|XPU|NPU|MUSA|MLU)\s+out\s+of\s+memory")
    variable = text.first(r"\b(PYTORCH_\w*ALLOC_CONF)\b")
    card = m.values["card"] = kind[0].upper() if kind else "CUDA"
    # XPU has no variable of its own: it reads the one that is common to all.
    m.values["variable"] = variable[0].upper() if variable else "PYTORCH_ALLOC_CONF" if card == "XPU" else f"PYTORCH_{card}_ALLOC_CONF"
    if text.has(r"reserved\s+in\s+total"):
        m.facts.add("no_segments")  # expandable ones are there since 2.1
        if not text.has(r"max_split_size_mb"):
            m.facts.add("no_split")  # so is the hint at max_split_size_mb since that is there
        return "PyTorch, 1.10 to 2.0" if text.has(r"max_split_size_mb") else "PyTorch, 1.4 to 2.0"
    if text.has(r"\bcached\b"):
        m.facts.update({"cached_wording", "no_segments", "no_split"})
        return "PyTorch, up to 1.3"
    if not text.has(r"total\s+capaci?ty\s+of"):
        return m.framework
    if text.has(r"\bPYTORCH_ALLOC_CONF"):
        return "PyTorch, 2.9 or newer"
    since = "2.5" if before.has(r"torch\.OutOfMemoryError:?\s*$") else "2.1"
    return f"PyTorch, {since} or newer"  # 2.11 still names PYTORCH_CUDA_ALLOC_CONF


def processes(text):
    """The other processes that are listed, as (id, Size), and whether these are all."""
    best = [], False
    for form in (text.loose, text.tight):
        listed = re.findall(rf"(?<!this )\bProcess\s+(\d+)\s+has\s+{SIZE}\s+memory\s+in\s+use", form, re.I)
        sizes = [(pid, read_pytorch_size(value, unit)) for pid, value, unit in listed]
        sizes = [(pid, size) for pid, size in sizes if size is not None]
        whole = re.search(r"Of\s+the\s+allocated\s+memory", form, re.I) \
            and len(sizes) == len(re.findall(r"\bprocess\s+\d", form, re.I))
        if len(sizes) > len(best[0]):
            best = sizes, bool(whole)
    return best


def our_report(m, text):
    """common/memory/out_of_memory.cpp: the headline, and the line "Why:" where it was pasted, too."""
    by_budget = text.has(rf"under\s+a\s+budget\s+of\s+{SIZE}\s+of\s+which")
    causes = (("fragmentation", r"Why: fragmentation|Why: the allocator's cache"),
              ("other_process", r"Why: memory held outside"),
              ("too_big_for_the_card", r"Why: one request .{1,40} whole device"),
              ("limit_set_by_user", r"Why: (?:one request .{1,40} whole budget|live blocks fill the budget)"),
              ("live_tensors_fill_it", r"Why: live blocks fill the device"))
    m.verdict = next((cause for cause, words in causes if text.has(words)), "limit_set_by_user" if by_budget else None)
    if not by_budget:
        m.figures.pop("limit", None)
    return m


@rule("ours_row", "oom: asked", r"oom: asked for [\d.,]+", rank=2)
def our_row(before, after):
    """A line below a chapter's table. What it had is of the budget, or of the device: it does not say which."""
    text = Text(after.lines[0])
    pieces = text.has(r"in\s+pieces")
    return message("ours_row", "OOM Lab", text.loose, "fragmentation" if pieces else "limit_set_by_user",
                   asked=text.size(rf"asked\s+for\s+{SIZE}", read=read_pytorch_size), within=text.size(rf"had\s+{SIZE}"))


@rule("pytorch_translated", "\u4e0d\u8db3", "(?:cuda|gpu)[^\\n]{0,6}(?:\u5185\u5b58|\u663e\u5b58)\u4e0d\u8db3[^\\n]{0,12}(?:\u5c1d\u8bd5|\u8bd5\u56fe)")
def pytorch_translated(before, after):
    """As a browser translates it: the words around the figures, in either order, and the figures untouched."""
    text = Text("\n".join(after.lines[:4]))

    def size(words):
        between = "(?:\u4e86|\u4e3a|[:\uff1a])?\\s?"
        return text.size(rf"{SIZE_IN_CHINESE}\s?(?:\u7684)?{words}", rf"{words}{between}{SIZE_IN_CHINESE}", read=read_pytorch_size)
    m = message("pytorch_translated", "PyTorch, translated", text.loose, device=number(text.first(r"GPU\s?(\d+)")),
                asked=size("(?:\u5c1d\u8bd5|\u8bd5\u56fe)\u5206\u914d"), capacity=size("\u603b\u5bb9\u91cf"), free=size("(?:\u7a7a\u95f2|\u53ef\u7528)"),
                allocated=size("\u5df2(?:\u7ecf)?\u5206\u914d"), reserved=size("(?:\u603b\u5171|\u603b\u8ba1)?\u4fdd\u7559"))
    m.facts.add("no_segments")
    return m


@rule("pytorch_async", "allocation on", r"allocation on device(?: \d+)?(?: would exceed allowed memory)?")
def pytorch_async(before, after):
    text = after
    if not (text.has(r"would\s+exceed\s+allowed\s+memory") or before.has(r"OutOfMemoryError:\s*$")):
        return None
    label, value = r"{}\s*:\s+", rf"{NUMBER}\s*\w+\s+"
    names = {"allocated": "Currently allocated", "asked": "Requested", "capacity": "Device limit",
             "free": r"Free \(according to CUDA\)"}
    after_it = {"allocated": "Requested", "asked": "Device limit", "capacity": "Free"}
    patterns = {key: label.format(words) + SIZE + (rf"\s+{after_it[key]}" if key in after_it else "")
                for key, words in names.items()}
    patterns["free"] = label.format("Device limit") + value + patterns["free"]
    patterns["limit"] = label.format(r"user-supplied memory fraction\)") + SIZE
    return message("pytorch_async", "PyTorch, backend cudaMallocAsync", text.loose,
                   device=number(text.first(r"Allocation\s+on\s+device\s+(\d+)\s+would")),
                   **{key: text.size(pattern, read=read_pytorch_size) for key, pattern in patterns.items()})


@rule("pytorch_map", "with oom on", r"memory (?:mapping|allocation) failed with oom on device \d+", rank=2)
def pytorch_map(before, after):
    """A warning of expandable segments; the error that follows mostly tells more."""
    text = Text(after.lines[0])
    return message("pytorch_map", "PyTorch", text.loose, device=number(text.first(r"on\s+device\s+(\d+)\s+while")),
                   asked=text.whole(r"while\s+trying\s+to\s+(?:map|allocate)\s+(\d+)\s+bytes"),
                   free=text.whole(r"\(free:\s+(\d+),"), capacity=text.whole(r",\s+total:\s+(\d+)\)"))


@rule("pytorch_addresses", "virtual address", r"failed to reserve \d+ bytes \(\x7e[\d.]+~gib\) of virtual address space")
def pytorch_addresses(before, after):
    return message("pytorch_addresses", "PyTorch", after.loose, "host_memory", facts={"addresses"},
                   asked=after.whole(r"Failed\s+to\s+reserve\s+(\d+)\s+bytes"))


@rule("pytorch_nvml", "nvml_success", r"nvml_success == r internal assert failed at [^\n]{1,200}cudacachingallocator")
def pytorch_nvml(before, after):
    """It was about to print a message, and NVML did not answer."""
    return message("pytorch_nvml", "PyTorch", after.lines[0], "not_enough_information", facts={"nvml"})


@rule("mps", "mps", "mps (?:backend )?out of memory")
def mps(before, after):
    m = message("mps", "PyTorch, Apple's MPS", after.loose,
                asked=after.size(rf"tried\s+to\s+allocate\s+{SIZE}"), allocated=after.size(rf"MPS\s+allocated:\s*{SIZE}"),
                other_allocations=after.size(rf"other\s+allocations:\s*{SIZE}"),
                limit=after.size(rf"max\s+allowed:\s*{SIZE}"))
    f = m.figures
    if "asked" in f and "limit" in f:
        others_more = "other_allocations" in f and "allocated" in f and f["other_allocations"].bytes > f["allocated"].bytes
        m.verdict = ("too_big_for_the_card" if f["asked"].bytes >= f["limit"].bytes else
                     "limit_set_by_user" if others_more else "live_tensors_fill_it")
    return m


@rule("mps_buffer", "invalid buffer", "invalid buffer size: [\\d.,]+")
def mps_buffer(before, after):
    return message("mps_buffer", "PyTorch, Apple's MPS", after.lines[0], "too_big_for_the_card",
                   asked=after.size(rf"Invalid\s+buffer\s+size:\s*{SIZE}"))
