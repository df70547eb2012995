"""The messages of CUDA, of NVIDIA's libraries, and of libraries on top of them. For bench/explain."""

import re

from .figures import NUMBER
from .others import xla
from .refusals import of_line
from .text import SIZE, Text, message, number, rule


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
@rule("tensorrt", "requested size was", r"outofmemory \(requested size was \d+ bytes")
@rule("tensorrt", "requested amount", r"requested amount of (?:gpu )?memory \([\d.,]+ bytes\) could not be allocated")
@rule("tensorrt", "no further", r"outofmemory \(no further information\)")
def requested_buffer(before, after):
    asked_for = after.has(r"requested\s+buffer")  # ONNX Runtime's words
    return message("engine", "ONNX Runtime or TensorRT", after.loose, "not_enough_information", facts=() if asked_for else {"tensorrt", "builder"} if after.has("no further information") else {"tensorrt"},
                   asked=after.whole(r"requested\s+buffer\s+of\s+size\s+(\d+)\b")
                   or after.whole(rf"memory\s+\(({NUMBER})\s+bytes\)\s+could") or after.whole(r"size\s+was\s+(\d+)\s+bytes"))


@rule("rmm", "pool size", r"maximum pool size exceeded")
@rule("rmm", "memory limit", r"exceeded memory limit \(failed to allocate")
def rmm(before, after):
    return message("rmm", "RMM (RAPIDS)", after.loose, "limit_set_by_user", facts={"adaptor"} if after.has(r"^Exceeded\s+memory\s+limit") else (),
                   asked=after.size(rf"failed\s+to\s+allocate\s+{SIZE}"))


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


@rule("cublas", "resource allocation", r"cuda error: the resource allocation failed", rank=2)
@rule("cublas", "cublas_status", r"cublas_status_(?:alloc_failed|not_initialized)", rank=2)
@rule("cusolver", "cusolver_status", r"cusolver_status_alloc_failed", rank=2)
@rule("cusolver", "cusolver_status", r"cusolver_status_(?:internal_error|not_initialized),? when calling .?cusolver\w{2}create", rank=2)
@rule("cufft", "cufft", r"cufft_alloc_failed", rank=2)
@rule("cusparse", "insufficient resources", r"insufficient resources when calling .?cusparse", rank=2)
@rule("cudnn", "cudnn_status", r"cudnn_status_(?:alloc_failed|not_initialized|internal_error\w*)", rank=2)
@rule("cudnn", "cudnn", r"unable to find a valid cudnn algorithm", rank=2)
@rule("cudnn", "was unable", r"get was unable to find an engine to execute this computation", rank=2)
def library(before, after):
    name = next((name for sign, name in (("CUBLAS_|CUDA\\s+error", "cuBLAS"), ("CUSOLVER_", "cuSOLVER"), ("CUFFT_", "cuFFT"),
                                         ("insufficient", "cuSPARSE")) if after.has(rf"^\W*(?:{sign})")), "cuDNN")
    on_host = after.has(r"HOST_ALLOCATION_FAILED")
    sure = after.has(r"ALLOC(?:ATION)?_FAILED|resource\s+allocation\s+failed|insufficient\s+resources")
    return message(name.lower(), name, after.loose, "host_memory" if on_host else "not_enough_information",
                   facts=() if sure else {"perhaps_memory"})


@rule("card", "insufficient vram", r"insufficient vram", rank=2)
@rule("card", "not enough", r"not enough (?:allocatable )?(?:device|gpu|video) memory", rank=2)
@rule("card", "on device", r"failed to allocate \d+ bytes on device", rank=2)
@rule("card", "result = 2", r"fail to allocate memory \d+ bytes!! result = 2", rank=2)
@rule("card", "kokkos failed", r"kokkos failed to allocate memory for label", rank=2)
@rule("card", "device setup failed", r"device setup failed for decoder[^\n]{0,60}: cannot allocate memory", rank=2)
@rule("card", "malloc device memory", r"malloc device memory failed, size\[\d+\]", rank=2)
@rule("card", "alloc failed", r"memory isn't enough and alloc failed", rank=2)
def card(before, after):
    line = Text(after.lines[0])
    host = line.has(r"MemorySpace\s+named\s+\"?Host\b")
    ascend = line.has(r"Malloc\s+device\s+memory\s+failed")  # MindSpore's words on an Ascend NPU
    return message("card", "a library of the GPU", line.loose, "host_memory" if host else "not_enough_information", facts={"npu"} if ascend else (),
                   device=number(line.first(r"Device(?:\(id:|\[|\s+\W?cuda:)(\d+)")),
                   asked=line.whole(r"(?:allocate|memory|alloc\s+size:)\s+(\d+)\s?(?:bytes|B)\b") or line.whole(r"size\[(\d+)\]"))


@rule("metal", "kiogpu", r"kiogpucommandbuffercallbackerroroutofmemory", rank=2)
def metal(before, after):
    return message("metal", "Apple's Metal", after.lines[0], "not_enough_information")


@rule("opencl", "mem_object_allocation", r"\b(?:cl_)?mem_object_allocation_failure", rank=2)
@rule("opencl", "out_of_resources", r"\bcl\w* failed: (?:cl_)?out_of_resources", rank=2)
@rule("opencl", "cl_out_of_resources", r"\bcl_out_of_resources", rank=2)
@rule("opencl", "out_of_host", r"\bcl(?:\w* failed: |_)out_of_host_memory", rank=2)
def opencl(before, after):
    line = Text(after.lines[0])
    host = line.has(r"OUT_OF_HOST")
    return message("opencl", "OpenCL", line.loose, "host_memory" if host else "not_enough_information",
                   facts=() if host or line.has(r"MEM_OBJECT") else {"perhaps_memory"})


@rule("graphics", "_out_of_", r"\bvk_error_out_of_(?:device|host|pool)_memory", rank=2)
@rule("graphics", "erroroutofdevicememory", r"erroroutofdevicememory", rank=2)
@rule("graphics", "gl_out_of_memory", r"\bgl_out_of_memory", rank=2)
@rule("graphics", "video memory", r"out of video memory", rank=2)
@rule("graphics", "e_outofmemory", r"\be_outofmemory", rank=2)
def graphics(before, after):
    line = Text(after.lines[0])
    return message("graphics", "Vulkan, OpenGL or Direct3D", line.loose, "host_memory" if line.has(r"OUT_OF_HOST") else "not_enough_information")


# The words are said of these, too.
OF_THE_CARD = re.compile(r"\brmm|cuda|gpu|\bhip|rocm|nv(?:idia|map|cc)|torch|tensor|xla|jax|cudnn|cublas|nccl|device|vram|\bcu[A-Z]|\.cuh?\b|onnx|ggml|llama|\.safetensors|"
                         r"OutOfMemoryError|comfy|diffus|vllm|sglang", re.I)
HOST_CALL = re.compile(r"\b(?:cuda(?:MallocHost|HostAlloc|HostRegister)|cuMem(?:HostAlloc|AllocHost|HostRegister))\w{0,4}\b[^\n]{0,60}$", re.I)
OTHER_MEMORY = re.compile(r"(?:\bheap\s?|java\.lang\.|OpenEncodeSession\w{0,4}[^\n]{0,60}|nvenc[^\n]{0,80}|shared memory[^\n]{0,20})$", re.I)


def card_facts(before, text):
    """What the words say beside that memory ran out."""
    near = Text(before.raw[-300:] + text.raw[:600])
    facts = (("unified", text.has(r"nvmap")), ("old_torch", near.has(r"\bTHC\w{0,30}\.(?:cu|cpp|h)")), ("copy", text.has(r"^\W{0,3}Dst\s+tensor")),
             ("compute_buffer", near.has(r"in\s+function\s+alloc\s+at\s+\S{0,80}ggml")))
    return {name for name, is_so in facts if is_so}


@rule("cuda", "cuda", r"cuda error(?: \d+)?(?: at [^\n]{1,80})?:~out of memory", rank=2)
@rule("cuda", "(2)", r"(?:cuda|hip) (?:runtime )?error~\(2\)~: out of memory", rank=2)
@rule("cuda", "hip error", r"hip error: out of memory", rank=2)
@rule("cuda", "memoryallocation", r"(?:cuda|hip)error(?:memoryallocation|outofmemory)", rank=2)
@rule("cuda", "out_of_memory", r"cuda_error_out_of_memory", rank=2)
@rule("cuda", "outofmemory", r"outofmemory", rank=3)
@rule("cuda", "rmm_error", r"rmm_error_out_of_memory", rank=2)
@rule("cuda", "curesult", r"curesult error~ result=2\b", rank=2)
@rule("cuda", "dst tensor", r"dst tensor is not initialized", rank=2)
@rule("cuda", "gpuassert", r"gpuassert: out of memory", rank=2)
@rule("cuda", "failed: out of memory", r"\bcu[a-z]\w{2,30} failed: out of memory", rank=2)
@rule("cuda", "nvmapmemalloc", r"nvmapmemalloc\w*:(?: \d+)? error 12", rank=2)
@rule("cuda", "memory", r"out of memory", rank=3)
def cuda(before, after):
    text = Text("\n".join(after.lines[:6]))
    head, tail = of_line(before, after)
    if text.has(r"is\s+not\s+a\s+failure|used\s+memory\s+>\s+'?maxmemory|^out\s+of\s+memory\s+in\s+memory\s+space\s+vmem") or OTHER_MEMORY.search(head) or (
            re.match(r"outofmemory", tail, re.I) and not re.match(r"outofmemory\w{0,12}(?:\s?[:)(\]]|\s?$|\s+Traceback)", tail, re.I)):
        return None
    if HOST_CALL.search(head + tail[:60].split(":")[0]):
        return message("cuda", "CUDA or its driver", text.loose, "host_memory", facts={"pinned"})
    if not OF_THE_CARD.search(before.raw[-1500:] + text.raw[:500]):
        return message("memory", "a program that does not say whose memory", text.loose, "not_enough_information", facts={"whose"})
    return message("cuda", "CUDA or its driver", text.loose, "not_enough_information", facts=card_facts(before, text), device=number(text.first(r"current\s+device:\s+(\d+)")))
