"""More messages with what is true of them, as in cases.py: of programs that serve, of libraries beside PyTorch, of the host."""

HOST, RESERVED, UNKNOWN = "host_memory", "kv_cache_or_pool_reservation", "not_enough_information"


def serving_cases():
    yield "TensorRT-LLM", "[TRT-LLM] [RANK 0] [E] Failed to initialize executor on rank 0: Executor creation failed due to insufficient GPU memory.\n\nThe following " \
        "component could not be created: KV cache\nTotal GPU memory (GiB): 79.11\nFree GPU memory before component creation attempt (GiB): 40.25\n\nPreviously created " \
        "components and free GPU memory before/after creation (GiB):\nModel: 78.50 / 42.25\nSampler: 42.25 / 42.20", RESERVED, \
        {"capacity": "79.11 GiB", "free": "40.25 GiB"}, None
    yield "TensorRT-LLM, without its components", "Executor creation failed due to insufficient GPU memory.", RESERVED, {}, None
    yield "TGI", "Server error: Not enough memory to handle 8192 total tokens with 4096 prefill tokens. You need to decrease `--max-batch-total-tokens`", RESERVED, {}, None
    yield "SGLang, its pool", "RuntimeError: Prefill out of memory. Try to lower your batch size.\nTry to allocate 7168 tokens.\nAvaliable tokens: 640", RESERVED, {}, None
    yield "SGLang, its share", "RuntimeError: Not enough memory. Please try increasing --mem-fraction-static.", RESERVED, {}, None
    yield "SGLang, a graph", '  File "/env/sglang/srt/model_executor/cuda_graph_runner.py", line 9, in capture\nRuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB', \
        UNKNOWN, {"asked": "96.00 MiB"}, None
    yield "MLC", "Insufficient GPU memory error: The available single GPU memory is 13569.438 MB, which is less than the sum of model weight size (14449.125 MB) and temporary " \
        "buffer size (1024.000 MB).", RESERVED, {}, None
    yield "FlashInfer", "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_s with size 2097152 and alignment 16, but only 1024 bytes available in " \
        "AlignedAllocator. Increase the workspace buffer size.", RESERVED, {"asked": "2097152 bytes"}, None
    yield "FlashInfer in SGLang", "sglang: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 402653184 and alignment 16, but only 8 bytes available in " \
        "AlignedAllocator.", RESERVED, {"asked": "402653184 bytes"}, None
    yield "llama.cpp, slots", "llama_decode: could not find a KV slot for the batch (try reducing the size of the batch or increase the context)", RESERVED, {}, None
    yield "llama.cpp, no space in the cache", "update_slots: failed to find free space in the KV cache, retrying with smaller batch size, n_batch = 256", RESERVED, {}, None
    yield "llama.cpp, fit", "llama_params_fit: projected to use 30720 MiB of device memory vs. 22528 MiB of free device memory\nllama_params_fit: failed to fit params to free device " \
        "memory: n_gpu_layers already set by user to 80, abort", UNKNOWN, {"asked": "30720 MiB", "free": "22528 MiB"}, None
    yield "Ollama, the card", "ollama: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_model_load: error loading " \
        "model: unable to allocate CUDA0 buffer", UNKNOWN, {"asked": "4096 MiB"}, 0
    yield "Ollama, the cache", "ollama: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to " \
        "allocate buffer for kv cache", RESERVED, {"asked": "4096 MiB"}, 0
    yield "vLLM, CUDA graphs", "(EngineCore_DP0 pid=9) ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 900.00 MiB. GPU 0 has a total capacity of 79.19 GiB of which " \
        "100.00 MiB is free. Process 88 has 79.09 GiB memory in use. Of the allocated memory 66.10 GiB is allocated by PyTorch, with 700.00 MiB allocated in private pools (e.g., CUDA " \
        "Graphs), and 200.00 MiB is reserved by PyTorch but unallocated.", "live_tensors_fill_it", {"asked": "900.00 MiB", "capacity": "79.19 GiB", "free": "100.00 MiB",
        "allocated": "66.10 GiB", "reserved_unallocated": "200.00 MiB", "reserved": "66.10 GiB + 200.00 MiB",
        "outside_framework": "79.09 GiB - 66.10 GiB - 200.00 MiB"}, 0
    yield "TGI, running", "text_generation_server: RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB", UNKNOWN, {"asked": "512.00 MiB"}, None
    yield "Ascend", "RuntimeError: NPU out of memory. Tried to allocate 640.00 MiB (NPU 3; 60.96 GiB total capacity; 58.02 GiB already allocated; 58.02 GiB current active; 40.31 MiB free; " \
        "58.40 GiB reserved in total by PyTorch)", "live_tensors_fill_it", {"asked": "640.00 MiB", "capacity": "60.96 GiB", "allocated": "58.02 GiB", "free": "40.31 MiB",
        "reserved": "58.40 GiB", "reserved_unallocated": "58.40 GiB - 58.02 GiB", "outside_framework": "60.96 GiB - 40.31 MiB - 58.40 GiB"}, 3


def translated_cases():
    figures = {"asked": "2.00 GiB", "capacity": "15.78 GiB", "free": "202.75 MiB", "allocated": "14.40 GiB", "reserved": "14.41 GiB",
               "reserved_unallocated": "14.41 GiB - 14.40 GiB", "outside_framework": "15.78 GiB - 202.75 MiB - 14.41 GiB"}
    yield "PyTorch, translated", "RuntimeError: CUDA 内存不足。尝试分配 2.00 GiB（GPU 0；总容量 15.78 GiB；已分配 14.40 GiB；空闲 202.75 MiB；PyTorch 总共保留 14.41 GiB）", \
        "live_tensors_fill_it", figures, 0
    yield "PyTorch, translated the other way", "RuntimeError：CUDA显存不足。试图分配 2.00 GiB（GPU 1；15.78 GiB 总容量；14.40 GiB 已分配；202.75 MiB 空闲；PyTorch 总计保留 14.41 GiB）", \
        "live_tensors_fill_it", figures, 1


def library_cases():
    yield "XGBoost", "xgboost.core.XGBoostError: Memory allocation error on worker 0: std::bad_alloc: cudaErrorMemoryAllocation: out of memory\n- Free memory: 104857600\n- Requested " \
        "memory: 734003200", UNKNOWN, {"asked": "734003200 bytes", "free": "104857600 bytes"}, None
    yield "XGBoost, newer", "XGBoostError: Memory allocation error on worker 2: out of memory\n- Free memory: 1.5GB\n- Requested memory: 2.25GB", UNKNOWN, \
        {"asked": "2.25 GiB", "free": "1.5 GiB"}, None
    yield "CatBoost", "_catboost.CatBoostError: catboost/cuda/cuda_lib/memory_pool/stack_like_memory_pool.h:303: Error: Out of memory. Requested 5120 MB; Free 1024.5 MB", UNKNOWN, \
        {"asked": "5120 MiB", "free": "1024.5 MiB"}, None
    paddle = "ResourceExhaustedError: \n\nOut of memory error on GPU {}. Cannot allocate {} memory on GPU {}, {} memory has been allocated and available memory is only {}.\n"
    yield "PaddlePaddle", paddle.format(1, "1.500000GB", 1, "21.250000GB", "1.250000GB"), "live_tensors_fill_it", {"asked": "1.5 GiB", "allocated": "21.25 GiB", "free": "1.25 GiB"}, 1
    yield "PaddlePaddle, others", paddle.format(0, "240.000000MB", 0, "0.000000B", "0.000000B"), UNKNOWN, {"asked": "240 MiB", "allocated": "0 bytes", "free": "0 bytes"}, 0
    yield "PaddlePaddle, in Chinese", "\u9519\u8bef\uff1a\u65e0\u6cd5\u5728GPU 0\u4e0a\u5206\u914d2.50GB\u5185\u5b58\uff0c\u5df2\u5206\u914d21.00GB\u5185\u5b58\uff0c\u53ef\u7528" \
        "\u5185\u5b58\u4ec5512.00MB", "live_tensors_fill_it", {"asked": "2.50 GiB", "allocated": "21.00 GiB", "free": "512.00 MiB"}, 0
    yield "CUDA.jl", "ERROR: LoadError: Out of GPU memory trying to allocate 6.250 GiB\nEffective GPU memory usage: 98.40% (7.750 GiB/7.875 GiB)\nMemory pool usage: 6.500 GiB (7.250 GiB " \
        "reserved)", "live_tensors_fill_it", {"asked": "6.250 GiB", "capacity": "7.875 GiB", "free": "7.875 GiB - 7.750 GiB", "allocated": "6.500 GiB", "reserved": "7.250 GiB",
        "reserved_unallocated": "7.250 GiB - 6.500 GiB", "outside_framework": "7.750 GiB - 7.250 GiB"}, None
    yield "faiss", "Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type TemporaryMemoryOverflow dev 1 space Device stream 0x55 size 3221225472 bytes (cudaMalloc error " \
        "out of memory [2])", UNKNOWN, {"asked": "3221225472 bytes"}, 1
    yield "faiss, older", "Faiss assertion 'err == cudaSuccess' failed; details: Failed to cudaMalloc 805306368 bytes (error 2 out of memory)", UNKNOWN, {"asked": "805306368 bytes"}, None
    yield "TensorRT, a size", "[TRT] [E] 2: Error Code 2: OutOfMemory (Requested size was 2147483648 bytes.)", UNKNOWN, {"asked": "2147483648 bytes"}, None
    yield "MLX", "RuntimeError: [metal::malloc] Attempting to allocate 68719476736 bytes which is greater than the maximum allowed buffer size of 9534832640 bytes.", \
        "too_big_for_the_card", {"asked": "68719476736 bytes"}, None
    yield "DirectML", "RuntimeError: Could not allocate tensor with 536870912 bytes. There is not enough GPU video memory available!", UNKNOWN, {"asked": "536870912 bytes"}, None
    yield "Level Zero", "RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", UNKNOWN, {}, None
    yield "Level Zero, resources", "RuntimeError: Native API failed. Native API returns: -5 (PI_ERROR_OUT_OF_RESOURCES)", UNKNOWN, {}, None
    yield "Level Zero, the host", "level_zero backend failed with error: 38 (UR_RESULT_ERROR_OUT_OF_HOST_MEMORY)", HOST, {}, None
    yield "Blender", "Error: System is out of GPU and shared host memory", UNKNOWN, {}, None
    yield "Blender, CUDA", "CUDA error: Out of memory in cuMemAlloc_v2(&device_pointer, size) (intern/cycles/device/cuda/device_impl.cpp:514)", UNKNOWN, {}, None
    yield "ONNX Runtime, CUDA", "onnxruntime: CUDA failure 2: out of memory ; GPU=3 ; hostname=box ; file=cuda_allocator.cc ; expr=cudaMalloc((void**)&p, size);", UNKNOWN, {}, 3
    yield "ONNX Runtime, a limit", "BFCArena: Available memory of 1048576 is smaller than requested bytes of 4194304", "limit_set_by_user", {"asked": "4194304 bytes"}, None
    yield "transformers", "ValueError: Some modules are dispatched on the CPU or the disk. Make sure you have enough GPU RAM to fit the quantized model.", UNKNOWN, {}, None
    yield "NVML", 'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":1090, please report a bug to PyTorch.', UNKNOWN, {}, None
    yield "GB10", "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from alloc\nkernel: DGX Spark, GB10", UNKNOWN, {}, None
    yield "a web interface", '  File "/opt/stable-diffusion-webui/modules/processing.py", line 9, in run\nRuntimeError: CUDA out of memory. Tried to allocate 3.00 GiB', UNKNOWN, \
        {"asked": "3.00 GiB"}, None
    yield "YOLO", '  File "/env/ultralytics/engine/trainer.py", line 9, in run\nRuntimeError: CUDA out of memory. Tried to allocate 30.00 MiB', UNKNOWN, {"asked": "30.00 MiB"}, None
    yield "a trainer, backward", '  File "/env/transformers/trainer.py", line 9, in training_step\n    self.accelerator.backward(loss)\nRuntimeError: CUDA out of memory. Tried to allocate ' \
        "30.00 MiB", UNKNOWN, {"asked": "30.00 MiB"}, None


def host_cases():
    yield "Ray, memory pressure", "(raylet) node_manager.cc:3069: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons", HOST, {}, None
    yield "Ray, a node", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.7) where the task was running was 59.05GB " \
        "/ 62.00GB (0.952), which exceeds the memory usage threshold of 0.95.", HOST, {}, None
    yield "Windows' page file", "OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading \"cudnn.dll\"", HOST, {}, None
    yield "Windows' page file, in Chinese", "OSError: [WinError 1455] \u9875\u9762\u6587\u4ef6\u592a\u5c0f\uff0c\u65e0\u6cd5\u5b8c\u6210\u64cd\u4f5c\u3002", HOST, {}, None
    yield "an error that denies something else", "RuntimeError: Could not create the context: out of memory", UNKNOWN, {}, None
    yield "a compiler", "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.", HOST, {}, None
    yield "an older compiler", "g++: internal compiler error: Killed (program cc1plus)", HOST, {}, None
    yield "nvcc", "nvcc error   : 'cicc' died due to signal 9 (Kill signal)", HOST, {}, None
    yield "NumPy's array", "numpy.core._exceptions.MemoryError: Unable to allocate 30.0 GiB for an array with shape (40000, 100000) and data type float64", HOST, {"asked": "30.0 GiB"}, None
    yield "killed, macOS", "zsh: Killed: 9 python train.py", HOST, {}, None
    yield "torchrun", "torch.distributed.elastic: Signal 9 (SIGKILL) received by PID 4711", HOST, {}, None
    yield "a process that was waited for", "subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", HOST, {}, None
    yield "a job that ended", "Error: Process completed with exit code 137.", HOST, {}, None
    yield "a process pool", "worker 3 ended, exit code: -9", HOST, {}, None
    yield "docker inspect", '"OOMKilled": true, "ExitCode": 137', HOST, {}, None
    yield "kubectl", "web-0   0/1   OOMKilled   3   2m", HOST, {}, None


MORE = [*serving_cases(), *translated_cases(), *library_cases(), *host_cases()]
