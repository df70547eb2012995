"""The messages of TensorFlow, JAX, llama.cpp, vLLM and others, of NVIDIA's libraries, and of the host. For bench/explain."""

import math
import re

from .figures import NUMBER, exact, read_size
from .text import SIZE, Text, message, number, rule

# ------------------------------------------------------------------------------------------- TensorFlow, JAX, and XLA's

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
    m = message("tensorflow_pool", "TensorFlow", after.loose, asked=asked,
                device=number(after.first(r"Allocator\s+\(GPU_(\d+)_bfc\)")))
    if after.has(r"Allocator\s+\(\w*(?:host|cpu)\w*\)\s+ran"):
        m.verdict = "host_memory"
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
@rule("xla", "device buffer", r"error (?:allocating device buffer|loading program)[^.\n]{0,200}: attempting to (?:allocate|"
                              r"reserve)")
def xla(before, after):
    text, framework = after, "JAX (XLA)"
    used = text.find(rf"Used\s+({NUMBER}[KMGT]?)i?B?\s+of\s+({NUMBER}[KMGT]?)i?B?\s+\w+\.\s+Exceeded")
    if used:
        asked, capacity = (read_size(*re.fullmatch(rf"({NUMBER})([KMGT]?)", figure, re.I).groups()) for figure in used)
        if asked and capacity and asked.bytes >= capacity.bytes:
            return message("xla_program", f"{framework}, on a TPU", text.loose, "too_big_for_the_card", asked=asked,
                           capacity=capacity, facts={"whole_program"})
    free = text.size(rf"There\s+are\s+{SIZE}\s+free")
    if free:
        asked = text.size(rf"Attempting\s+to\s+(?:allocate|reserve)\s+{SIZE}")
        fills = asked and asked.bytes > free.bytes
        return message("xla_buffer", f"{framework}, on a TPU", text.loose, "live_tensors_fill_it" if fills else
                       "not_enough_information", asked=asked, free=free)
    asked = text.whole(rf"while\s+trying\s+to\s+allocate\s+({NUMBER})\s+bytes") \
        or text.whole(rf"request\s+for\s+{NUMBER}\s*\w+\s+\(({NUMBER})B\)\s+on\s+device") \
        or text.whole(r"Out\s+of\s+memory\s+allocating\s+(\d+)\s+bytes\.") \
        or text.size(r"(?:while\s+trying\s+to\s+allocate|failed\s+to\s+allocate\s+request\s+for)\s+(\d+\.\d+)([KMGT]iB)\b")
    m = message("xla", framework, text.loose, "not_enough_information", asked=asked,
                device=number(text.first(r"\)\s+on\s+device\s+ordinal\s+(\d+)")),
                program=text.size(rf"\btotal\s+allocation:\s*{SIZE}"), arguments=text.size(rf"parameter\s+allocation:\s*{SIZE}"),
                temporaries=text.size(rf"preallocated\s+temp\s+allocation:\s*{SIZE}"))
    if "program" in m.figures:
        m.facts.add("program")
    return m if asked or text.has(r"out\s+of\s+memory|allocat") else None


# ------------------------------------------------------------------------------------------ llama.cpp, vLLM, and others

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


@rule("cupy", "out of memory", r"out of memory allocating [\d.,']+ bytes")
def cupy(before, after):
    asked = after.whole(rf"Out\s+of\s+memory\s+allocating\s+({NUMBER})\s+bytes\s*(?:\(allocated|\.)")
    used = after.whole(rf"allocated\s+so\s+far:\s+({NUMBER})\s+bytes\s*[,)]")
    if used is None and not before.has(r"cupy\S*\s*$"):
        return xla(before, after)
    limit = after.whole(rf"limit\s+set\s+to:\s+({NUMBER})\s+bytes")
    bound = limit and used and asked and used.bytes + asked.bytes > limit.bytes
    return message("cupy", "CuPy", after.loose, "limit_set_by_user" if bound else "not_enough_information", asked=asked,
                   allocated=used, limit=limit)


@rule("onnx", "smaller than", r"available memory of [\d]+ is smaller than requested bytes of")
def onnx(before, after):
    return message("onnx", "ONNX Runtime", after.loose, "limit_set_by_user",
                   asked=after.whole(r"requested\s+bytes\s+of\s+(\d+)\b"),
                   within=after.whole(r"Available\s+memory\s+of\s+(\d+)\s+is"))


@rule("onnx", "requested buffer", r"failed to allocate memory for requested buffer of size")
@rule("tensorrt", "requested amount", r"requested amount of (?:gpu )?memory \([\d.,]+ bytes\) could not be allocated")
def requested_buffer(before, after):
    return message("engine", "ONNX Runtime or TensorRT", after.loose, "not_enough_information",
                   asked=after.whole(r"requested\s+buffer\s+of\s+size\s+(\d+)\b")
                   or after.whole(rf"memory\s+\(({NUMBER})\s+bytes\)\s+could"))


@rule("rmm", "pool size", r"maximum pool size exceeded")
@rule("rmm", "memory limit", r"exceeded memory limit \(failed to allocate")
def rmm(before, after):
    return message("rmm", "RMM (RAPIDS)", after.loose, "limit_set_by_user",
                   asked=after.size(rf"failed\s+to\s+allocate\s+{SIZE}"))


# ------------------------------------------------------------------------------------------------- the host's own memory

@rule("cpu", "cpuallocator", r"defaultcpuallocator: ")
@rule("cpu", "you tried to", r"you tried to (?:allocate|mmap) [\d.,]+")
def cpu(before, after):
    if not (before.has(r"memory\W*$") or after.has(r"memory|bytes")):
        return None
    return message("cpu", "PyTorch, on the CPU", after.loose, "host_memory",
                   asked=after.whole(rf"you\s+tried\s+to\s+(?:allocate|mmap)\s+({NUMBER})\s+bytes")
                   or after.size(rf"you\s+tried\s+to\s+(?:allocate|mmap)\s+{SIZE}"))


@rule("mmap", "mmap", r"unable to mmap [\d]+ bytes")
@rule("mmap", "shared memory", r"unable to (?:allocate|open) shared memory")
@rule("mmap", "write to", r"unable to write to file </?torch")
@rule("mmap", "running low", r"node running low on memory")
@rule("mmap", "unable to allocate", r"unable to allocate [\d.]+~[kmgt]ib for an array")
@rule("mmap", "cannot allocate memory", r"\[errno 12\] cannot allocate memory", rank=2)
@rule("mmap", "bad_alloc", r"std::bad_alloc", rank=3)
@rule("mmap", "memoryerror", r"\bmemoryerror\b", rank=3)
def host(before, after):
    text = Text(after.lines[0])
    if text.has(r"Too\s+many\s+open\s+files"):
        return None
    if text.has(r"bad_alloc") and after.has(r"CUDA error|cudaError|out_of_memory"):
        return cuda(before, after)
    return message("host", "the host's allocator", text.loose, "host_memory",
                   asked=text.whole(r"unable\s+to\s+mmap\s+(\d+)\s+bytes")
                   or text.size(rf"Unable\s+to\s+allocate\s+{SIZE}\s+for\s+an\s+array"))


@rule("loader", "dataloader worker", r"dataloader worker \(pid(?:\(s\))? [^)]{1,2000}\) (?:is killed by signal|exited "
                                     r"unexpectedly)")
@rule("loader", "bus error", r"unexpected bus error encountered in worker")
def loader(before, after):
    killed = after.has(r"signal:\s+(?:Killed|Bus)|Bus\s+error") or after.has(r"exited\s+unexpectedly")
    shared = after.has(r"Bus\s+error|shared\s+memory|\bshm\b")
    other = after.first(r"killed\s+by\s+signal:\s+(?!Killed|Bus)(\w+)")
    return None if other or not killed else message(
        "loader", "PyTorch's DataLoader", after.loose, "host_memory", facts={"shared_memory"} if shared else ())


@rule("killer", "memory", r"out of memory: kill(?:ed)? process \d+")
@rule("killer", "oom-kill", r"oom[-_]kill(?:er|:| event)")
@rule("killer", "oom_kill", r"\boom_kill events?")
@rule("killer", "srun", r"srun: error: [^\n]{1,80}: out of memory")
@rule("killer", "oomkilled", r"oomkilled")
@rule("killer", "total-vm", r"killed process \d+ \([^)]{0,64}\),?(?: uid:?~\d+,)? total-vm", back=200)
@rule("killer", "exceeded", r"exceeded (?:job|step) memory limit", rank=2)
@rule("killer", "137", r"exit(?:ed)?(?: with)?(?: code| status)?[:=]?~137\b", rank=3)
@rule("killer", "exitcode", r"exitcode~: -9\b", rank=3)
@rule("killer", "sigkill", r"sigkill", rank=3)
@rule("killer", "killed", r"(?m:^|\s)killed(?:\s{2,200}|\s{0,200}(?m:$))", rank=3)
def killer(before, after):
    near = Text("\n".join(before.lines[-40:]))
    text = Text("\n".join(after.lines[:12]))
    group = text.has(r"memory\s+cgroup|CONSTRAINT_MEMCG|OOMKilled|oom[-_]kill\s+event|srun:|memory\s+limit") \
        or near.has(r"memory\s+cgroup|CONSTRAINT_MEMCG|Memory\s+limit\s+reached|memory:\s+usage\s+\d+kB,\s+limit")
    m = message("killer", "the operating system", text.loose, "host_memory",
                facts={"cgroup"} if group else (), resident=text.size(r"anon-rss:\s*(\d+)(kB)\b"),
                limit=near.size(r"memory:\s+usage\s+\d+kB,\s+limit\s+(\d+)(kB)\b") if group else None)
    if not text.has(r"out\s+of\s+memory|oom|total-vm|memory\s+limit"):
        m.facts.add("only_killed")
    return m


# ------------------------------------------------------------------------------------------------------ NVIDIA's libraries

@rule("nccl_host", "/dev/shm", r"(?:failed to extend|(?:error while )?creating shared memory segment) /dev/shm/nccl")
@rule("nccl_host", "nccl-shm", r"(?:error while )?creating shared memory segment nccl-shm")
@rule("nccl_host", "posix_fallocate", r"posix_fallocate failed~: no space left")
@rule("nccl_host", "cuda host", r"failed to cuda host alloc [\d]+ bytes")
def nccl_host(before, after):
    text = Text(after.lines[0])
    return message("nccl_host", "NCCL", text.loose, "host_memory",
                   facts={"pinned"} if text.has("host alloc") else {"shared_memory"},
                   asked=text.whole(r"/dev/shm/\S+\s+to\s+(\d+)\s+bytes") or text.whole(r"\(?size\s+(\d+)\)?")
                   or text.whole(r"host\s+alloc\s+(\d+)\s+bytes"))


@rule("nccl", "cuda", r"failed to cuda (?:c|m)alloc(?: async)? [\d]+ bytes")
@rule("nccl", "cuda failure", r"cuda failure (?:\d+ )?'?out of memory")
def nccl(before, after):
    return message("nccl", "NCCL", after.loose, "not_enough_information",
                   asked=after.whole(r"failed\s+to\s+CUDA\s+[cm]alloc(?:\s+async)?\s+(\d+)\s+bytes"))


@rule("cublas", "cublas_status", r"cublas_status_(?:alloc_failed|not_initialized)", rank=2)
@rule("cudnn", "cudnn_status", r"cudnn_status_(?:alloc_failed|not_initialized|internal_error\w*)", rank=2)
@rule("cudnn", "cudnn", r"unable to find a valid cudnn algorithm", rank=2)
@rule("cudnn", "was unable", r"get was unable to find an engine to execute this computation", rank=2)
def library(before, after):
    name = "cuBLAS" if after.has(r"^\W*CUBLAS_") else "cuDNN"
    on_host = after.has(r"HOST_ALLOCATION_FAILED")
    sure = after.has(r"ALLOC(?:ATION)?_FAILED")
    return message(name.lower(), name, after.loose, "host_memory" if on_host else "not_enough_information",
                   facts=() if sure else {"perhaps_memory"})


@rule("cuda", "cuda", r"cuda error(?: \d+)?(?: at [^\n]{1,80})?:~out of memory", rank=2)
@rule("cuda", "(2)", r"(?:cuda|hip) (?:runtime )?error~\(2\)~: out of memory", rank=2)
@rule("cuda", "hip error", r"hip error: out of memory", rank=2)
@rule("cuda", "memoryallocation", r"(?:cuda|hip)error(?:memoryallocation|outofmemory)", rank=2)
@rule("cuda", "out_of_memory", r"cuda_error_out_of_memory", rank=2)
@rule("cuda", "erroroutofdevicememory", r"erroroutofdevicememory", rank=2)
@rule("cuda", "outofmemory", r"outofmemory", rank=3)
@rule("cuda", "dst tensor", r"dst tensor is not initialized", rank=2)
@rule("cuda", "nvmapmemalloc", r"nvmapmemalloc\w*:(?: \d+)? error 12", rank=2)
@rule("cuda", "memory", r"out of memory", rank=3)
def cuda(before, after):
    text = Text("\n".join(after.lines[:6]))
    if text.has(r"is\s+not\s+a\s+failure"):
        return None
    return message("cuda", "Apple's Metal" if text.has(r"kIOGPU") else "CUDA or its driver", text.loose, "not_enough_information",
                   device=number(text.first(r"current\s+device:\s+(\d+)")))
