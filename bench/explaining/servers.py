"""The messages of programs that serve language models: llama.cpp, Ollama, vLLM and others. For bench/explain."""

import re

from .figures import NUMBER, exact, read_size
from .text import SIZE, Text, message, number, rule


@rule("llama", "cudamalloc", r"allocating [\d.,]+~mi?b on device \d+: cudamalloc failed")
@rule("llama", "gallocr", r"gallocr_reserve\w*: failed to allocate \w+ buffer of size")
@rule("llama", "failed to", r"failed to allocate (?:cuda|rocm|vulkan|sycl|metal)\d* buffer of size")
@rule("llama", "compute", r"failed to allocate compute (?:pp |tg )?buffers?", rank=2)
@rule("llama", "kv cache", r"failed to allocate buffer for kv cache")
@rule("llama", "unable to", r"unable to allocate \w+ buffer")
@rule("llama", "ggml", r"ggml_(?:vulkan|metal|backend_metal)\w*: (?:error: )?(?:device memory allocation of size|failed to allocate buffer)")
def llama(before, after):
    near, text = Text("\n".join(before.lines[-6:])), Text("\n".join(after.lines[:12]))
    asked = text.find(rf"allocating\s+({NUMBER})\s*(MiB|MB)\s+on\s+device\s+(\d+)\s*:") if len(
        re.findall(r"cudaMalloc\s+failed", text.loose, re.I)) == 1 else text.first(rf"allocating\s+({NUMBER})\s*(MiB|MB)\s+on\s+device\s+(\d+)\s*:")
    size = read_size(*asked[:2]) if asked and re.search(r"[.,]\d\d$", asked[0]) else None
    if size is None and not asked:
        size = text.whole(r"buffer\s+of\s+size\s+(\d+)\b") or text.whole(r"allocation\s+of\s+size\s+(\d+)\b") \
            or text.size(rf"failed\s+to\s+allocate\s+buffer,\s+size\s+=\s+{SIZE}")
    whole = text.whole(r"buffer\s+of\s+size\s+(\d+)\b")
    if size and whole and abs(whole.bytes - size.bytes) <= size.half:
        size = whole
    device = int(asked[2]) if asked else number(text.first(r"failed\s+to\s+allocate\s+CUDA(\d+)\s+buffer"))
    cache = text.has(r"kv[\s_-]{0,3}cache|kv_self|llama_kv") or near.has(r"llama_kv_cache\w*:.{0,80}$")
    return message("llama", "llama.cpp", text.loose, "kv_cache_or_pool_reservation" if cache else "not_enough_information",
                   device=device, asked=size, facts={"kv_cache"} if cache else ())


@rule("llama_host", "pinned", r"failed to allocate [\d.,]+~mi?b of pinned memory", rank=2)
@rule("llama_host", "attempted to", r"insufficient memory \(attempted to allocate")
@rule("llama_host", "cpu_buffer", r"cpu_buffer_type_alloc_buffer: failed to allocate buffer of size")
def llama_host(before, after):
    text = Text(after.lines[0])
    return message("llama_host", "llama.cpp", text.loose, "host_memory", facts={"pinned"} if text.has("pinned") else (),
                   asked=text.size(rf"failed\s+to\s+allocate\s+{SIZE}\s+of\s+pinned") or text.size(rf"attempted\s+to\s+allocate\s+{SIZE}") or text.whole(r"of\s+size\s+(\d+)\b"))


@rule("ollama", "system memory", r"model requires more system memory")
def ollama(before, after):
    return message("ollama", "Ollama", after.lines[0], "host_memory",
                   asked=after.size(rf"system\s+memory\s+\({SIZE}\)"), within=after.size(rf"available\s+\({SIZE}\)"))


@rule("vllm_start", "free memory on", r"free memory on device")
def vllm_start(before, after):
    pair = after.find(rf"Free\s+memory\s+on\s+device\s*(?:[a-z]{{1,20}}:\d+\s*)?\(({NUMBER})/({NUMBER})\s+(GiB|GB)\)\s+on\s+"
                      "startup")
    wanted = after.find(rf"utilization\s+\(({NUMBER}),\s+({NUMBER})\s+(GiB|GB)\)")
    free, capacity = (read_size(n, pair[2]) for n in pair[:2]) if pair else (None, None)
    asked = read_size(wanted[1], wanted[2]) if wanted else None
    return message("vllm_start", "vLLM", after.loose, free=free, capacity=capacity, asked=asked,
                device=number(after.first(r"on\s+device\s+[a-z]{1,20}:(\d+)")), facts={"at_start"})


@rule("vllm_profile", "profiling", r"error in memory profiling")
def vllm_profile(before, after):
    return message("vllm_profile", "vLLM", after.loose, "other_process",
                   free=after.size(rf"current\s+free\s+memory:?\s+{SIZE}"))


@rule("vllm_cache", "cache blocks", r"no available memory for the cache blocks")
@rule("vllm_cache", "max seq len", r"max seq len \([\d,.]+\)")
@rule("vllm_cache", "kv cache is needed", r"kv cache is needed, which is larger")
@rule("vllm_cache", "warming", r"out of memory occurred when warming up")
@rule("vllm_cache", "mem", r"not enough memory[.;,] please try (?:to increase|increasing) --?mem[-_]fraction[-_]static")
def vllm_cache(before, after):
    lengths = after.first(r"max\s+seq\s+len\s+\((\d+)\)\s+is\s+larger\s+than\s+the\s+maximum\s+number\s+of\s+tokens.{0,60}\((\d+)\)")
    m = message("vllm_cache", "SGLang" if after.has(r"mem[-_]fraction[-_]static") else "vLLM", after.loose,
                "kv_cache_or_pool_reservation", facts={"tokens"} if lengths else (),
                asked=after.size(rf"\(?{SIZE}\s+KV\s+cache\s+is\s+needed"),
                within=after.size(rf"available\s+KV\s+cache\s+memory\s+\({SIZE}\)"))
    if lengths:
        m.figures.update(tokens_wanted=exact(int(lengths[0])), tokens_held=exact(int(lengths[1])))
    return m
