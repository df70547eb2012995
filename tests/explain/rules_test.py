"""Every rule of bench/explain is needed: rules_test.py ROOT. With one of them taken away, some text of the tests is read otherwise.

So a wording that is added needs a text that no other rule reads as well; the shortest stand in ALONE, as they are left of a message of
which the rest is lost.
"""
import io
import json
import pathlib
import sys

ROOT = pathlib.Path(sys.argv[1])
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "bench"), str(HERE)]
from answers import ANSWERS  # noqa: E402
from cases import CASES  # noqa: E402
from refused import REFUSED, REPEATED  # noqa: E402
from explaining import log  # noqa: E402
from explaining.first import first  # noqa: E402
from explaining.text import RULES  # noqa: E402
from load import explain  # noqa: E402

CARD, HOST, CACHE, LIVE = "not_enough_information", "host_memory", "kv_cache_or_pool_reservation", "live_tensors_fill_it"
# (text, diagnosis)
ALONE = [
    ("XlaRuntimeError: Error loading program: Attempting to reserve 14.80G at the bottom of memory. There are 9.12G free.", CARD),
    ("XlaRuntimeError: Error allocating device buffer: Attempting to allocate 14.80G. That was not possible. There are 9.12G free.", LIVE),
    ("Ran out of memory in memory space hbm. Used 17.20G of 15.75G hbm. Exceeded hbm capacity by 1.45G.", "too_big_for_the_card"),
    ("INTERNAL: Failed to allocate request for 2.00GiB (2147483648B) on device ordinal 0", CARD),
    ("Out of memory while trying to allocate 21474836480 bytes.", CARD),
    ("[W] Requested amount of GPU memory (8589934592 bytes) could not be allocated.", CARD),
    ("Failed to allocate memory for requested buffer of size 1073741824", CARD),
    ("NCCL WARN Failed to CUDA host alloc 4194304 bytes", HOST),
    ("NCCL WARN Error while creating shared memory segment nccl-shm-recv-1 (size 9637888)", HOST),
    ("NCCL WARN Error: failed to extend /dev/shm/nccl-Fz9 to 33030532 bytes", HOST),
    ("RuntimeError: GET was unable to find an engine to execute this computation", CARD),
    ("RuntimeError: Unable to find a valid cuDNN algorithm to run convolution", CARD),
    ("error: Device(id:0) memory isn't enough and alloc failed, kernel name: MatMul, alloc size: 1073741824B.", CARD),
    ("Fail to allocate memory 1073741824 bytes!! result = 2", CARD),
    ("ray.exceptions.RayTaskError(torch.cuda.OutOfMemoryError)", CARD),
    ("error: not enough video memory", CARD),
    ("pyopencl error: CL_OUT_OF_RESOURCES", CARD),
    ("D3D12 error: E_OUTOFMEMORY", CARD),
    ("glTexImage2D error: GL_OUT_OF_MEMORY", CARD),
    ("vk::AllocateMemory: ErrorOutOfDeviceMemory", CARD),
    ("GPUassert: out of memory kernel.cu 12\nCUBLAS_STATUS_ALLOC_FAILED", CARD),
    ("RuntimeError: HIP error: out of memory\nCUBLAS_STATUS_ALLOC_FAILED", CARD),
    ("thrust: status cudaErrorMemoryAllocation (2)", CARD),
    ("cuda runtime error (2) : out of memory at THCGeneral.cpp:405\nCUBLAS_STATUS_ALLOC_FAILED", CARD),
    ("DefaultCPUAllocator: not enough memory", HOST),
    ("Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nMemoryError", HOST),
    ("terminate called after throwing an instance of 'std::bad_alloc'", HOST),
    ('Error: Out of memory. Type "help memory" for your options.', HOST),
    ("OSError: [Errno 12] Cannot allocate memory", HOST),
    ("RuntimeError: unable to mmap 1073741824 bytes from file <w.pt>: (12)", HOST),
    ("RuntimeError: unable to write to file </torch_4711_1>", HOST),
    ("RuntimeError: unable to open shared memory object </torch_4711_1> in read-write mode", HOST),
    ("The paging file is too small for this operation to complete.", HOST),
    ("virtual memory exhausted: Cannot allocate memory", HOST),
    ("LLVM ERROR: out of memory", HOST),
    ("the program ended: signal: killed", HOST),
    ("the process died of signal 9", HOST),
    ("slurmstepd: error: Exceeded job memory limit", HOST),
    ("kernel: Killed process 4711 (python) total-vm:61203456kB, anon-rss:28764444kB, file-rss:0kB", HOST),
    ("slurmstepd: error: Detected 3 oom_kill events in StepId=1.0.", HOST),
    ("python: killed\n", HOST),
    ("ValueError: You are trying to offload the whole model to the disk.", CARD),
    ("23.70 GiB total capacity; 22.40 GiB already allocated; 201.69 MiB free; 110.00 MiB cached)", CARD),
    ("22.40 GiB is allocated by PyTorch, and 10.00 MiB is reserved by PyTorch but unallocated.", CARD),
    ("Tried to allocate 20.00 MiB. GPU 0 has", CARD),
    ("ggml_vulkan: Device memory allocation of size 2147483648 failed.", CARD),
    ("llama_model_load: error loading model: unable to allocate CUDA0 buffer", CARD),
    ("alloc_tensor_range: failed to allocate CUDA0 buffer of size 1073741824", CARD),
    ("llama_init_from_model: failed to allocate compute pp buffers", CARD),
    ("failed to initialize the context: failed to allocate buffer for kv cache", CACHE),
    ("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 1073741824", HOST),
    ("ggml_aligned_malloc: insufficient memory (attempted to allocate 900.00 MB)", HOST),
    ("AssertionError: Error in memory profiling. Initial free memory 20.10 GiB, current free memory 21.05 GiB.", "other_process"),
    ("(16.00 GiB KV cache is needed, which is larger than the available KV cache memory (5.73 GiB).", CACHE),
]


def read(text):
    """What is read of a text: None, or all that rests on the rule."""
    found = log.find(io.BytesIO(text))
    if found is None:
        return None
    result = explain.Explanation(found, "en")
    figures = sorted((name, str(size.bytes)) for name, size in found.message.figures.items())
    return found.message.rule, result.diagnosis, first(result)[0], figures, found.others


reports = json.loads((HERE / "reports.json").read_text(encoding="utf-8"))
texts = [text for _, text, *_ in (*CASES, *ANSWERS)] + [text for text, *_ in (*REFUSED, *REPEATED, *ALONE)] + [report["message"] for report in reports]
texts = list(dict.fromkeys(text if isinstance(text, bytes) else text.encode() for text in texts))
for text, diagnosis in ALONE:
    said = read(text.encode())
    assert said and said[1] == diagnosis, (text, said)
whole, needless = {}, []
for place, rule in enumerate(list(RULES)):
    mine = [text for text in texts if rule.needle in text.lower() and rule.trigger.search(text.lower())]
    whole.update((text, read(text)) for text in mine if text not in whole)
    del RULES[place]
    if all(read(text) == whole[text] for text in mine):
        needless.append((rule.name, rule.needle.decode(), rule.trigger.pattern.decode()[:200], len(mine)))
    RULES.insert(place, rule)
assert not needless, "read as well without them:\n" + "\n".join(map(str, needless))
print(f"{len(RULES)} rules, {len(texts)} texts")
