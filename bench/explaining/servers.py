"""The messages of programs that serve language models: llama.cpp, Ollama, vLLM and others. For bench/explain."""

import re

from .figures import NUMBER, exact, read_size
from .text import SIZE, Text, message, number, rule


@rule("llama", "cudamalloc", r"allocating [\d.,]+~mi?b on device \d+: cudamalloc failed")
@rule("llama", "gallocr", r"gallocr_reserve\w*: failed to allocate \w+ buffer of size")
@rule("llama", "failed to", r"failed to allocate (?:cuda|rocm|vulkan|sycl|metal)\d* buffer of size")
@rule("llama", "compute", r"failed to allocate compute (?:pp |tg )?buffers?", rank=2)
@rule("llama", "kv cache", r"failed to allocate buffer for kv cache")
@rule("llama", "unable to", r"unable to allocate (?!cpu|\w+_host )\w+ buffer")
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
                   device=device, asked=size,
                   facts={"kv_cache"} if cache else {"compute_buffer"} if text.has(r"gallocr|compute\s+(?:pp\s+|tg\s+)?buffer") else {"weights_buffer"})


@rule("llama_host", "pinned", r"failed to allocate [\d.,]+~mi?b of pinned memory", rank=2)
@rule("llama_host", "attempted to", r"insufficient memory \(attempted to allocate")
@rule("llama_host", "cpu_buffer", r"cpu_buffer_type_alloc_buffer: failed to allocate buffer of size")
@rule("llama_host", "unable to", r"unable to allocate cpu\w* buffer")
@rule("llama_host", "cuda_host", r"unable to allocate \w+_host buffer")
def llama_host(before, after):
    text = Text(after.lines[0])
    return message("llama_host", "llama.cpp", text.loose, "host_memory", facts={"pinned", "pinned_llama"} if text.has("pinned") else (),
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
def vllm_cache(before, after):
    lengths = after.first(r"max\s+seq\s+len\s+\((\d+)\)\s+is\s+larger\s+than\s+the\s+maximum\s+number\s+of\s+tokens.{0,60}\((\d+)\)")
    m = message("vllm_cache", "vLLM", after.loose,
                "kv_cache_or_pool_reservation", facts={"tokens"} if lengths else (),
                asked=after.size(rf"\(?{SIZE}\s+KV\s+cache\s+is\s+needed"),
                within=after.size(rf"available\s+KV\s+cache\s+memory\s+\({SIZE}\)"))
    length, estimated = after.first(r"max\s+seq\s+len\s+\((\d+)\)"), after.first(r"estimated\s+maximum\s+model\s+length\s+is\s+(\d+)")
    if estimated:
        m.values["length"] = int(estimated[0])
    elif length and {"asked", "within"} <= m.figures.keys() and 0 < m.figures["within"].bytes < m.figures["asked"].bytes:
        m.values["length"] = int(int(length[0]) * m.figures["within"].bytes / m.figures["asked"].bytes)
    if lengths:
        m.figures.update(tokens_wanted=exact(int(lengths[0])), tokens_held=exact(int(lengths[1])))
    return m


@rule("llama_slots", "slot", r"(?:failed to find (?:a )?(?:memory |kv cache )?slot for|could not find a kv slot)", rank=2)
@rule("llama_slots", "kv cache", r"failed to find free space in the kv cache", rank=2)
def llama_slots(before, after):
    """The KV cache that is there already is full: cells of it, not bytes of the card."""
    return message("llama_slots", "llama.cpp", Text("\n".join(after.lines[:3])).loose, "kv_cache_or_pool_reservation", facts={"cells"})


@rule("llama_fit", "fit params", r"failed to fit params to free device memory", rank=2)
def llama_fit(before, after):
    """llama.cpp looks before it loads whether it will fit; the error that follows, where one does, tells what failed."""
    near = Text("\n".join((*before.lines[-12:], *after.lines[:6])))
    pair = near.first(r"projected\s+to\s+use\s+(\d+)\s+MiB\s+of\s+device\s+memory\s+vs\.\s+(\d+)\s+MiB\s+of\s+free")
    asked, free = (read_size(number_, "MiB") for number_ in pair) if pair else (None, None)
    return message("llama_fit", "llama.cpp", after.lines[0], "not_enough_information", asked=asked, free=free, facts={"whole_model"})


@rule("sglang_cache", "mem", r"not enough memory[.;,] please try (?:to increase|increasing) --?mem[-_]fraction[-_]static")
def sglang_cache(before, after):
    return message("sglang_cache", "SGLang", after.lines[0], "kv_cache_or_pool_reservation")


@rule("sglang_tokens", "out of memory", r"(?:decode|prefill) out of memory\. try to lower")
def sglang_tokens(before, after):
    text = after.until_another(r"(?:Decode|Prefill)\s+out\s+of\s+memory")
    wanted, held = text.first(r"allocate\s+(\d+)\s+tokens"), text.first(r"Ava\w{1,8}\s+tokens:\s+(\d+)")
    m = message("sglang_tokens", "SGLang", text.loose, "kv_cache_or_pool_reservation", facts={"token_pool"})
    if wanted and held:
        m.figures.update(tokens_wanted=exact(int(wanted[0])), tokens_held=exact(int(held[0])))
        if int(held[0]) >= int(wanted[0]):
            # Enough tokens are free, and yet too few pages: what is free is whole pages. Which size they have is not printed.
            page = 64
            while int(held[0]) // page >= int(wanted[0]):
                page *= 2
            m.facts.add("pages" if text.has(r"Decode\s+out") else "pages_prefill")
            m.values.update(page=page, pages=int(held[0]) // page)
    return m


@rule("sglang_retract", "retract", r"kv cache pool is full\. retract requests", rank=4)
@rule("sglang_retract", "retract", r"decode out of memory happened[.,]? #retracted", rank=4)
@rule("vllm_preempt", "preempted", r"is preempted by [^\n]{1,60} because there is not enough kv cache space", rank=4)
def retracted(before, after):
    """A warning: requests wait for their turn again, and the server goes on."""
    line = Text(after.lines[0])
    vllm = line.has(r"preempted")
    m = message("vllm_preempt" if vllm else "sglang_retract", "vLLM" if vllm else "SGLang", line.loose, "kv_cache_or_pool_reservation",
                facts={"retracted"})
    count = line.first(r"#retracted_reqs:\s+(\d+)")
    m.values["requests"] = int(count[0]) if count else 1
    return m


@rule("vllm_swap", "swap space", r"too large swap space\. [\d.]+ gib out of the [\d.]+ gib total cpu memory")
def vllm_swap(before, after):
    return message("vllm_swap", "vLLM", after.lines[0], "host_memory", facts={"swap"}, asked=after.size(rf"swap\s+space\.\s+{SIZE}"),
                   within=after.size(rf"out\s+of\s+the\s+{SIZE}"))


@rule("sglang_unbalanced", "unbalanced", r"memory capacity is unbalanced")
def sglang_unbalanced(before, after):
    return message("sglang_unbalanced", "SGLang", after.loose, "other_process", facts={"unbalanced"})


@rule("tgi", "tokens", r"not enough memory to handle \d+ (?:total |prefill |max )?tokens")
def tgi(before, after):
    tokens, flag = after.first(r"to\s+handle\s+(\d+)\s+"), after.first(r"decrease\s+\W{0,3}(--[a-z-]+)")
    if not tokens:
        return None
    m = message("tgi", "text-generation-inference", after.lines[0], "kv_cache_or_pool_reservation", facts={"prefill"})
    m.values.update(tokens=int(tokens[0]), flag=flag[0] if flag else "--max-batch-prefill-tokens")
    return m


@rule("trtllm", "insufficient gpu memory", r"executor creation failed due to insufficient gpu memory")
def trtllm(before, after):
    label = r"GPU\s+memory\s+(?:before\s+component\s+creation\s+attempt\s+)?\(GiB\):\s+"
    capacity, free = (after.find(rf"{word}\s+{label}({NUMBER})") for word in ("Total", "Free"))
    part = after.first(r"could\s+not\s+be\s+created:\s+([\w ()/-]{2,40}?)\s+Total\s+GPU")
    model = after.first(rf"\bModel:\s+({NUMBER})\s?/\s?({NUMBER})")
    m = message("trtllm", "TensorRT-LLM", after.loose, "kv_cache_or_pool_reservation", facts={"component"},
                capacity=read_size(capacity[0], "GiB") if capacity else None, free=read_size(free[0], "GiB") if free else None)
    m.values["component"] = part[0] if part else "-"
    sizes = [read_size(figure, "GiB") for figure in model] if model else []
    if len(sizes) == 2 and all(sizes) and sizes[0] - sizes[1]:
        m.figures["weights"] = sizes[0] - sizes[1]
    return m


@rule("mlc", "single gpu memory", r"the available single gpu memory is [\d.]+ mb, which is less than")
def mlc(before, after):
    return message("mlc", "MLC", after.loose, "kv_cache_or_pool_reservation", facts={"weights_and_buffer"},
                   within=after.size(rf"available\s+single\s+GPU\s+memory\s+is\s+{SIZE}"),
                   weights=after.size(rf"weight\s+size\s+\({SIZE}\)"), temporaries=after.size(rf"buffer\s+size\s+\({SIZE}\)"))


@rule("flashinfer", "buffer overflow", r"buffer overflow when allocating memory for \w+ with size \d+")
def flashinfer(before, after):
    return message("flashinfer", "FlashInfer", after.lines[0], "kv_cache_or_pool_reservation", facts={"workspace"},
                   asked=after.whole(r"with\s+size\s+(\d+)\s+and"), within=after.whole(r"but\s+only\s+(\d+)\s+bytes\s+available"))
