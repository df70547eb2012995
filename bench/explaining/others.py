"""The messages of TensorFlow and JAX. For bench/explain."""

import itertools
import math
import re

from .figures import NUMBER, exact, read_size
from .text import SIZE, Text, message, number, rule

ELEMENT_BYTES = {"float": 4, "half": 2, "bfloat16": 2, "double": 8, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
                 "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "qint8": 1,
                 "quint8": 1, "qint32": 4, "float8_e5m2": 1, "float8_e4m3fn": 1, "float32": 4, "float16": 2, "float64": 8}


def pool_figures(before, after):
    """What TensorFlow's allocator prints of its pool, before the error or after it."""
    for text in (before.far, after):
        limit, used = text.first(r"\bLimit:\s+(\d+)\s"), text.first(r"\bInUse:\s+(\d+)\s")
        region = text.first(r"total_region_allocated_bytes_?:\s*(\d+)\s")
        if limit and used:
            return exact(int(limit[0])), exact(int(used[0])), exact(int(region[0])) if region else None
    return None, None, None


def in_pool(m, limit, used, reserved):
    """The verdict of a pool with a limit of its own, which is not the card's capacity."""
    if limit is None or used is None:
        m.verdict = "not_enough_information"
        return m
    m.figures.update({"limit": limit, "allocated": used}, **({"reserved": reserved} if reserved else {}))
    m.facts.add("pool_limit")
    asked = m.figures.get("asked")
    if asked is None:
        m.verdict = "not_enough_information"
    elif asked.bytes > limit.bytes:
        m.verdict = "too_big_for_the_card"
    elif used.bytes + asked.bytes > limit.bytes:
        m.verdict = "live_tensors_fill_it"
    elif reserved and reserved.bytes + asked.bytes <= limit.bytes:
        m.verdict = "other_process"  # the pool may still grow, and found nothing to grow into
    else:
        m.verdict = "fragmentation"
    return m


@rule("tensorflow", "oom when", r"oom when allocating (?:temporary )?tensor")
def tensorflow(before, after):
    text = after.until_another(r"OOM\s+when\s+allocating")
    shape = text.find(r"OOM\s+when\s+allocating\s+(?:temporary\s+)?tensor\s+(?:with|of)\s+shape\s*"
                      r"\[(\d{1,19}(?:,\d{1,19}){0,15})\]\s*and\s*type\s*(\w{1,20}?)\s*(?:on\s*/|\[|$)")
    asked = None
    if shape and shape[1] in ELEMENT_BYTES:
        sides = [int(n) for n in re.findall(r"\d+", shape[0])]
        asked = read_size(str(math.prod(sides) * ELEMENT_BYTES[shape[1]]), "bytes")
    device = text.first(r"device:GPU:(\d+)\s+by\s+allocator") or text.first(r"by\s+allocator\s+GPU_(\d+)_bfc\b")
    m = message("tensorflow", "TensorFlow", text.loose, device=number(device), asked=asked, facts={"shape"} if asked else ())
    if text.has(r"by\s+allocator\s+(?:cpu|mklcpu|cuda_host)"):
        m.verdict = "host_memory"
        if text.has(r"by\s+allocator\s+cuda_host"):
            m.facts.add("tensorflow_pool")
        return m
    return in_pool(m, *pool_figures(before, text))


@rule("tensorflow_pool", "ran out", r"allocator \(\w+\) ran out of memory trying to allocate", rank=1)
def tensorflow_pool(before, after):
    text = after.until_another(r"ran\s+out\s+of\s+memory\s+trying\s+to\s+allocate")
    if text.has(r"is not a failure") and not text.has(r"Current\s+allocation\s+summary|OOM\s+when"):
        return None  # a warning: it went on with another algorithm
    groups = after.first(rf"trying\s+to\s+allocate\s+{SIZE}(?:\s+\(rounded\s+to\s+(\d+)\))?")
    asked = read_size(*groups[:2]) if groups else None
    rounded = exact(int(groups[2])) if groups and groups[2] else None
    if rounded and asked and abs(rounded.bytes - asked.bytes) <= asked.half:
        asked = rounded
    jax = re.search(r"external/xla|\bjaxlib\b|pjrt_|XlaRuntimeError", before.raw[-4000:] + after.raw) and not re.search(r"tensorflow/", after.raw)
    m = message("xla_pool" if jax else "tensorflow_pool", "JAX (XLA)" if jax else "TensorFlow", after.loose, asked=asked,
                device=number(after.first(r"Allocator\s+\(GPU_(\d+)_bfc\)")))
    if after.has(r"Allocator\s+\(\w*(?:host|cpu)\w*\)\s+ran"):
        m.verdict = "host_memory"
        if not jax:
            m.facts.add("tensorflow_pool")
        return m
    return in_pool(m, *pool_figures(Text(""), after.far))


@rule("xla_host", "on host", r"(?:failed to alloc(?:ate)? [\d.,]+~[kmgt]?i?b?(?:ytes)? on host|could not allocate pinned host memory)")
@rule("xla_host", "pinned host", r"failed to allocate [\d.,]+~[kmgt]?i?b? \([\d,]+ bytes\) of pinned host memory")
@rule("xla_host", "pinned host", r"failed to allocate a \d+-byte pinned host")
def xla_host(before, after):
    return message("xla_host", "TensorFlow or JAX (XLA)", after.loose, "host_memory", facts={"pinned"},
                   asked=after.whole(rf"failed\s+to\s+alloc(?:ate)?\s+({NUMBER})\s+bytes\s+on\s+host")
                   or after.whole(r"pinned\s+host\s+memory\s+of\s+size:?\s+(\d+)\b")
                   or after.whole(r"\((\d+)\s+bytes\)\s+of\s+pinned\s+host") or after.whole(r"allocate\s+a\s+(\d+)-byte\s+pinned"))


@rule("xla_graph", "command buffer", r"ran out of memory trying to instantiate command buffer")
def xla_graph(before, after):
    return message("xla_graph", "JAX (XLA)", after.loose, "kv_cache_or_pool_reservation", facts={"pool_took_all"})


@rule("xla_device", "from device", r"failed to allocate [\d.,]+~[kmgt]?i?b? \([\d.,]+ bytes\) from device", rank=2)
def xla_device(before, after):
    return message("xla_device", "TensorFlow or JAX (XLA)", after.loose, "not_enough_information", facts={"pool"},
                   asked=exact(int(re.sub(r"\D", "", after.first(rf"\(({NUMBER})\s+bytes\)")[0]))))


@rule("tensorflow_async", "memallocasync", r"cumemallocasync failed to allocate [\d.,]+ bytes")
def tensorflow_async(before, after):
    pair = after.first(r"Free\s+memory/Total\s+memory:\s*(\d+)/(\d+)\b")
    free, total = (exact(int(n)) for n in pair) if pair else (None, None)
    return message("tensorflow_async", "TensorFlow, cuda_malloc_async", after.loose, free=free, capacity=total,
                   asked=after.whole(rf"failed\s+to\s+allocate\s+({NUMBER})\s+bytes"))


@rule("xla", "exhausted", r"resource(?:_| )exhausted: ", rank=2)
@rule("xla", "trying to", r"out of memory while trying to allocate")
@rule("xla", "request for", r"failed to allocate request for [\d.,]+")
@rule("xla", "memory space", r"ran out of memory in memory space")
@rule("xla", "new constant", r"failed to allocate \d+ bytes for new constant")
@rule("xla", "device buffer", r"error allocating device buffer[^.\n]{0,200}: attempting to (?:allocate|reserve)")
@rule("xla", "loading program", r"error loading program[^.\n]{0,200}: attempting to (?:allocate|reserve)")
def xla(before, after):
    text, framework = after, "JAX (XLA)"
    # The words of whoever pasted it, below it, are not the message's.
    sentence = Text("\n".join(itertools.takewhile(str.strip, after.lines[:12])))
    if sentence.has(r"shared\s+memory\s+size\s+limit|out\s+of\s+resources?:\s+shared\s+memory|larger\s+than\s+max|quota|\bvmem\b"):
        return None
    used = text.find(rf"Used\s+({NUMBER}[KMGT]?)i?B?\s+of\s+({NUMBER}[KMGT]?)i?B?\s+\w+\.\s+Exceeded")
    if used:
        asked, capacity = (read_size(*re.fullmatch(rf"({NUMBER})([KMGT]?)", figure, re.I).groups()) for figure in used)
        if asked and capacity and asked.bytes >= capacity.bytes:
            return message("xla_program", f"{framework}, on a TPU", text.loose, "too_big_for_the_card", asked=asked,
                           capacity=capacity, facts={"whole_program"})
    free = text.size(rf"There\s+are\s+{SIZE}\s+free")
    if free:
        asked = text.size(rf"Attempting\s+to\s+(?:allocate|reserve)\s+{SIZE}")
        reserve = text.has(r"Attempting\s+to\s+reserve")  # for a program that is loaded, not for an array
        fills = not reserve and asked and asked.bytes > free.bytes
        return message("xla_buffer", f"{framework}, on a TPU", text.loose, "live_tensors_fill_it" if fills else
                       "not_enough_information", asked=asked, free=free, facts={"whole_program"} if reserve else ())
    asked = text.whole(rf"while\s+trying\s+to\s+allocate\s+({NUMBER})\s+bytes") \
        or text.whole(r"failed\s+to\s+allocate\s+(\d+)\s+bytes\s+for\s+new\s+constant") \
        or text.whole(rf"request\s+for\s+{NUMBER}\s*\w+\s+\(({NUMBER})B\)\s+on\s+device") \
        or text.whole(r"Out\s+of\s+memory\s+allocating\s+(\d+)\s+bytes\.") \
        or text.size(r"(?:while\s+trying\s+to\s+allocate|failed\s+to\s+allocate\s+request\s+for)\s+(\d+\.\d+)([KMGT]iB)\b")
    m = message("xla", framework, text.loose, "not_enough_information", asked=asked,
                device=number(text.first(r"\)\s+on\s+device\s+ordinal\s+(\d+)")),
                program=text.size(rf"\btotal\s+allocation:\s*{SIZE}"), arguments=text.size(rf"parameter\s+allocation:\s*{SIZE}"),
                outputs=text.size(rf"maybe_live_out\s+allocation:\s*{SIZE}"),
                temporaries=text.size(rf"preallocated\s+temp\s+allocation:\s*{SIZE}"))
    if "program" in m.figures:
        m.facts.add("program")
    return m if asked or sentence.has(r"out\s+of\s+memory|allocat") else None
