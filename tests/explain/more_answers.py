"""More answers, as in answers.py: of warnings, of other cards' tools, of schedulers, and of memories that are neither the card's nor the loader's."""
from cases import new, old

HOST, RESERVED, UNKNOWN, LIVE = "host_memory", "kv_cache_or_pool_reservation", "not_enough_information", "live_tensors_fill_it"
FULL = new("448.00 MiB", "94.97 GiB", "100.31 MiB", "90.11 GiB", "200.32 MiB", this="94.80 GiB")[0]
ERROR = "torch.OutOfMemoryError: "


def framed(path, function, code, error=ERROR + FULL):
    return f'Traceback (most recent call last):\n  File "{path}", line 12, in {function}\n    {code}\n{error}'


def serving():
    yield "SGLang, a request put back", "[2025-05-24 03:51:46 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.0980 -> 0.8353\n[2025-05-24 " \
        "03:51:47 TP0] Decode batch. #running-req: 36, #token: 958017, token usage: 0.96", RESERVED, "sglang_retract", ["(3 this time)", "a warning", "--schedule-conservativeness 1.3", "!error"]
    yield "SGLang, a request put back, older", "decode out of memory happened, #retracted_reqs: 1, #new_token_ratio: 0.60 -> 0.70", RESERVED, "sglang_retract", ["(1 this time)"]
    yield "SGLang, a request put back, then an error", "KV cache pool is full. Retract requests. #retracted_reqs: 1\n" + ERROR + FULL, LIVE, "sglang_lower", \
        ["90.11 GiB of 94.97 GiB", "--mem-fraction-static 0.75", "!If you train"]
    yield "vLLM, a request put back, then an error", "Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode\n" + ERROR + FULL, LIVE, "vllm_lower", ["!If you train"]
    yield "SGLang, a request put back, then a kill", "KV cache pool is full. Retract requests. #retracted_reqs: 1\n./run.sh: line 3:  4711 Killed    python serve.py", HOST, "killed", []
    yield "vLLM, a request put back", "WARNING scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode because there is not enough KV cache space. This can " \
        "affect the end-to-end performance. Increase gpu_memory_utilization or tensor_parallel_size.", RESERVED, "vllm_retract", ["a warning", "--max-num-seqs"]
    yield "vLLM, swap space", "ValueError: Too large swap space. 64.00 GiB out of the 62.50 GiB total CPU memory is allocated for the swap space.", HOST, "vllm_swap", \
        ["64.00 GiB", "62.50 GiB", "--swap-space"]
    yield "SGLang, graphs", "sglang: Exception: Capture cuda graph failed: " + FULL + "\nPossible solutions:\n1. set --mem-fraction-static to a smaller value", LIVE, "sglang_graphs", \
        ["--cuda-graph-max-bs-decode 4"]
    yield "llama.cpp, the host", "llama_model_load: error loading model: unable to allocate CPU buffer", HOST, "llama_host", ["more layers on the card", "!not certain"]
    yield "llama.cpp, a mapping of the host", "llama_model_load: error loading model: unable to allocate CUDA_Host buffer", HOST, "llama_host", []
    yield "llama.cpp, mmap", "error loading model: mmap failed: Cannot allocate memory", HOST, "host", []
    yield "llama.cpp, a pin that is refused", "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory", HOST, "llama_pinned", ["not fatal", "!ulimit", "!Do first"]
    yield "SGLang, pages of a prefill", "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 900 tokens.\nAvailable tokens: 1024", RESERVED, "sglang_pages", \
        ["each sequence begins pages", "!900 sequences"]
    yield "SGLang, nothing of what was free", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", RESERVED, "sglang_raise_some", ["!above"]
    yield "Ollama, the runner's kill", "Error: llama runner process has terminated: signal: killed", HOST, "ollama_killed", ["smaller model", "!loader"]


def tensors():
    yield "attention of a picture", framed("/env/site-packages/diffusers/models/attention_processor.py", "__call__", "x = attention_scores.softmax(dim=-1)"), LIVE, \
        "diffusers_attention", ["enable_attention_slicing", "chapters/08", "!chapters/01"]
    yield "fused attention of a picture", framed("/env/site-packages/diffusers/models/attention_processor.py", "__call__", "x = F.scaled_dot_product_attention(q, k, v)"), LIVE, \
        "diffusers", ["enable_model_cpu_offload", "!slic"]
    yield "attention that is fused already", framed("model.py", "forward", "x = flash_attn_func(q, k, v)"), LIVE, "smaller_batch", ["!enable_math_sdp"]
    yield "a fused attention that is none", framed("model.py", "forward", "x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"), LIVE, "fused_attention", \
        ["says why it cannot", "enable_math_sdp(False)"]
    yield "a checkpoint that is gathered", framed("/env/torch/distributed/fsdp/_state_dict_utils.py", "_full_post_state_dict_hook", "return hook(module)"), LIVE, "save", \
        ["offload_to_cpu=True"]
    yield "logits to FP32", framed("/env/site-packages/trl/trainer/dpo_trainer.py", "concatenated_forward", "all_logits = outputs.logits.to(torch.float32)"), LIVE, "loss_trainer", []
    yield "ComfyUI, a node", "Error occurred when executing KSampler: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently allocated     : 10.59 GiB\n" \
        "Requested               : 32.00 MiB\nDevice limit            : 11.99 GiB\nFree (according to CUDA): 0 bytes\nPyTorch limit (set by user-supplied memory fraction)\n" \
        "                        : 17179869184.00 GiB", LIVE, "comfyui", ["--novram"]
    shown = "XPU out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.91 GiB. Of the allocated memory 10.20 GiB is allocated by PyTorch, and 301.00 MiB is " \
        "reserved by PyTorch but unallocated."
    yield "XPU, nothing of what is free", ERROR + shown, UNKNOWN, "look", ["torch.xpu.mem_get_info", "!torch.cuda"]
    npu = new("448.00 MiB", "60.97 GiB", "100.31 MiB", "20.11 GiB", "200.32 MiB", this="20.60 GiB", head="NPU out of memory. Tried to allocate")[0].replace("GPU 0", "NPU 0")
    yield "an NPU beside others", ERROR + npu, "other_process", "holders", ["npu-smi", "!nvidia-smi --"]
    hip = new("448.00 MiB", "60.97 GiB", "100.31 MiB", "20.11 GiB", "200.32 MiB", this="20.60 GiB", head="HIP out of memory. Tried to allocate")[0]
    limit = old("64.00 MiB", "22.17 GiB", "3.90 GiB", "17.85 GiB", "3.98 GiB", head="NPU out of memory. Tried to allocate")[0].replace("17.85 GiB free", "17.85 GiB free; 4.00 GiB allowed")
    yield "an NPU's limit", "RuntimeError: " + limit.replace("GPU 0", "NPU 0"), "limit_set_by_user", "fraction", ["torch.npu.set_per", "PYTORCH_NPU_ALLOC_CONF", "!torch.cuda"]
    xpu = new("1.50 GiB", "23.64 GiB", "210.19 MiB", "18.10 GiB", "4.02 GiB", head="XPU out of memory. Tried to allocate")[0]
    yield "pieces, XPU", ERROR + xpu, "fragmentation", "segments_xpu", \
        ["2.10", "export PYTORCH_ALLOC_CONF=expandable_segments:True", "!XPU_ALLOC", "!max_split"]
    yield "HIP beside others", ERROR + hip, "other_process", "holders", ["rocm-smi", "!nvidia-smi --"]
    yield "JAX's pool", "W external/xla/xla/tsl/framework/bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 14.31GiB (rounded to 15364751360)requested " \
        "by op \nXlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 15364751288 bytes.", UNKNOWN, "xla_share", ["XLA_PYTHON_CLIENT_MEM_FRACTION"]
    yield "cuDNN in TensorFlow", "E tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc:417] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED", UNKNOWN, "tf_grow", \
        ["TF_FORCE_GPU_ALLOW_GROWTH"]
    yield "Metal's command buffer", "libc++abi: terminating due to uncaught exception: [METAL] Command buffer execution failed: Insufficient Memory " \
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", UNKNOWN, "metal_full", ["share one memory", "!nvidia"]
    stats = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes.\nBufferAssignment stats:\n parameter allocation: 1.20GiB\n constant allocation: " \
        "52.0KiB\n maybe_live_out allocation: {}\n preallocated temp allocation: 4.00GiB\n total allocation: {}\n"
    yield "JAX, outputs", stats.format(4294967296, "8.00GiB", "13.20GiB"), UNKNOWN, "xla_outputs", ["13.20 GiB in all", "outputs 8.00 GiB", "!not certain"]
    yield "JAX, temporaries", stats.format(4294967296, "1.00GiB", "6.20GiB"), UNKNOWN, "xla_share", ["6.20 GiB in all", "temporaries 4.00 GiB"]
    yield "MLX waits in vain", "RuntimeError: [malloc_or_wait] Unable to allocate 1073741824 bytes.", UNKNOWN, "metal_full", ["1.00 GiB"]
    yield "ONNX Runtime's device 0", "[E:onnxruntime:Default, cuda_call.cc:116 CudaCall] CUDA failure 2: out of memory ; GPU=0 ; hostname=box ; expr=cudaMalloc((void**)&p, size);", \
        UNKNOWN, "look_card", []
    yield "PyCUDA", "pycuda._driver.MemoryError: cuMemAlloc failed: out of memory", UNKNOWN, "look_card", ["!host"]
    yield "LightGBM, a word in brackets", "[LightGBM] [Fatal] [CUDA] out of memory src/io/cuda/cuda_column_data.cpp 54", UNKNOWN, "look_card", []
    yield "OpenCL", "pyopencl._cl.MemoryError: clEnqueueNDRangeKernel failed: MEM_OBJECT_ALLOCATION_FAILURE", UNKNOWN, "look_card", ["!library often fails"]
    yield "OpenCL, resources", "RuntimeError: clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES", UNKNOWN, "look_card", ["often fails"]
    yield "OpenCL, the host", "pyopencl.MemoryError: clCreateContext failed: OUT_OF_HOST_MEMORY", HOST, "host", []
    yield "Vulkan", "vk::Device::allocateMemory: VK_ERROR_OUT_OF_DEVICE_MEMORY", UNKNOWN, "look_card", []
    yield "Vulkan, the host", "VkResult: VK_ERROR_OUT_OF_HOST_MEMORY", HOST, "host", []
    yield "a game", "Out of video memory trying to allocate a rendering resource", UNKNOWN, "look_card", []
    yield "PaddlePaddle, in other Chinese", "SystemError: GPU 0 上无法分配 1.250000GB 显存，已分配 23.500000GB 显存，可用显存仅 256.000000MB。", LIVE, "slightly_smaller", \
        ["PaddlePaddle holds 23.50 GiB", "256.00 MiB are free"]


def hosts():
    yield "Kubernetes evicts", "The node was low on resource: memory. Threshold quantity: 100Mi, available: 82120Ki. Container trainer was using 61020304Ki, request is 0.", HOST, \
        "evicted", ["kubectl", "Kubernetes"]
    yield "PBS", "=>> PBS: job killed: mem 33558528kb exceeded limit 33554432kb", HOST, "more_memory", ["qsub", "PBS ended the process", "!Linux"]
    yield "LSF", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.", HOST, "more_memory", ["bsub -M", "LSF ended the process", "!Linux"]
    yield "Windows, too few resources", "OSError: [WinError 8] Not enough memory resources are available to process this command", HOST, "page_file_either", []
    yield "Rust", "memory allocation of 10737418240 bytes failed", HOST, "host", []
    yield "safetensors", "OSError: Cannot allocate memory (os error 12)", HOST, "host", []
    yield "Colab's memory", "Your session crashed after using all available RAM.", HOST, "host", []
    yield "Kaggle's memory", "Your notebook tried to allocate more memory than is available. It has restarted.", HOST, "host", []
    yield "Ray's store", "ray.exceptions.ObjectStoreFullError: Failed to put object ffffff in object store because it is full.", HOST, "object_store", ["!killed"]
    yield "ptxas", "ptxas fatal   : Memory allocation failure", HOST, "compiler", ["got none", "!Linux"]
    yield "a build that was killed", "FAILED: flash_fwd.cuda.o\n/usr/local/cuda/bin/nvcc -c flash_fwd.cu\nKilled\nninja: build stopped: subcommand failed.", HOST, "compiler", ["MAX_JOBS"]
    yield "a line of docker inspect", '"State": {"Status": "exited", "Running": false, "OOMKilled": true, "Dead": false, "ExitCode": 137}', HOST, "more_memory", ["docker run -m", "!sacct"]


def elsewhere():
    yield "a program that does not say", "Aw, Snap! Error code: Out of Memory", UNKNOWN, "look_both", ["whose memory", "free -h", "!See how much of the card"]
    yield "PostgreSQL", 'ERROR:  out of memory\nDETAIL:  Failed on request of size 1048576 in memory context "ExecutorState".', HOST, "host", []
    yield "MySQL", "ERROR 1037 (HY001): Out of memory; restart server and try again (needed 4194304 bytes)", HOST, "host", []
    yield "Git", "fatal: Out of memory, malloc failed (tried to allocate 536870912 bytes)", HOST, "host", []
    yield "Go", "fatal error: runtime: out of memory", HOST, "host", []
    yield "Julia, the host", "ERROR: OutOfMemoryError()", HOST, "host", []
    yield "R", "Error: cannot allocate vector of size 3.7 Gb", HOST, "host", []
    yield "OpenCV, the host", "cv2.error: OpenCV(4.7.0) alloc.cpp:73: error: (-4:Insufficient memory) Failed to allocate 124416000 bytes in function 'OutOfMemoryError'", HOST, "host", []
    yield "systemd", "systemd[1]: train.service: A process of this unit has been killed by the OOM killer.\nsystemd[1]: train.service: Failed with result 'oom-kill'.", HOST, "host", ["MemoryMax"]
    yield "systemd-oomd", "systemd-oomd[812]: Killed /user.slice/train.scope due to memory used (30.1G) / total (31.2G) and swap used being more than 90.00%", HOST, "host", []
    yield "earlyoom", 'earlyoom[700]: sending SIGTERM to process 4711 uid 1000 "python": badness 1310, VmRSS 28764 MiB', HOST, "host", []
    yield "YARN", "Reason: Container killed by YARN for exceeding memory limits. 5.6 GB of 5.5 GB physical memory used.", HOST, "more_memory", ["spark-submit", "YARN ended the process", "!Linux"]
    yield "Airflow", "Task exited with return code Negsignal.SIGKILL", HOST, "killed", []
    yield "cuBLAS in words", "CUDA error: the resource allocation failed\n  cublasCreate_v2(&cublas_handles[device])", UNKNOWN, "look_card", ["!often fails"]
    yield "ggml's abort", "ggml-cuda.cu:7036: out of memory", UNKNOWN, "llama_layers", []
    yield "ExLlama", "ValueError: Insufficient VRAM in split for model and cache", UNKNOWN, "look_card", []
    yield "MindSpore", "RuntimeError: Malloc device memory failed, size[1073741824], ret[207001], Device[0]", UNKNOWN, "look_card", ["1.00 GiB", "npu-smi", "!nvidia", "!torch"]
    yield "Warp", "Warp error: Failed to allocate 1073741824 bytes on device 'cuda:0'", UNKNOWN, "look_card", ["1.00 GiB"]
    yield "GPTQ on the host", "ValueError: Found modules on cpu/disk. Using Exllama or Exllamav2 backend requires all the modules to be on GPU.", UNKNOWN, "dispatched", []


MORE_ANSWERS = [*serving(), *tensors(), *hosts(), *elsewhere()]
