"""More of answers.py: messages of programs of all kinds in the words of 2018 to 2025, each of which was once answered wrongly or not at all."""
from cases import new, old

HOST, UNKNOWN, LIMIT, LIVE = "host_memory", "not_enough_information", "limit_set_by_user", "live_tensors_fill_it"
# A process that the driver does not see, as from within a container, is printed with 0 bytes.
UNSEEN = new("1.50 GiB", "79.11 GiB", "1.20 GiB", "70.10 GiB", "22.16 MiB", this="0 bytes")[0]
DECODED = new("7.90 GiB", "23.53 GiB", "3.10 GiB", "18.10 GiB", "1.80 GiB", this="20.41 GiB")[0]
STATE = old("12.50 GiB", "39.39 GiB", "30.10 GiB", "7.10 GiB", "30.70 GiB")[0]


def servers():
    yield "vLLM's sampler, a process that is not seen", '  File "/v/vllm/v1/sample/ops/topk.py", line 9, in f\n    logits_sort, idx = logits.sort(dim=-1)\n' \
        "torch.OutOfMemoryError: " + UNSEEN, LIVE, "vllm_lower", ["70.10 GiB of 79.11 GiB", "!contradict"]
    yield "Ollama, the host's figures", "Error: model requires more system memory (43.1 GiB) than is available (29.4 GiB)", HOST, "ollama_host", ["43.10 GiB are needed", "29.40 GiB are available"]


def nothing_around_it():
    """Who has only the phrase."""
    yield "the phrase alone", "CUDA out of memory", UNKNOWN, "look", ["no figures"]
    yield "the phrase alone, of no card", " Out of memory!\n", UNKNOWN, "look_both", ["whose memory"]


def limits():
    """PyTorch 2.15's, of addresses."""
    full = new("6.00 GiB", "79.15 GiB", "60.00 GiB", "15.00 GiB", "3.00 GiB", this="19.00 GiB")[0]
    yield "a segment's addresses", "torch.OutOfMemoryError: " + full + " This allocation exceeds the expandable-segment reserve of 4.00 GiB for this stream, and a single allocation cannot " \
        "span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve or expandable_segments_reserve_by_class (or unset it) so that a segment is at least 6.00 GiB.", \
        LIMIT, "segment_reserve", ["4.00 GiB", "6.00 GiB", "expandable_segments_reserve_by_class", "!fraction"]


def drawing():
    yield "ComfyUI, a model that moves", '  File "/c/ComfyUI/comfy/model_patcher.py", line 607, in load\n    x[2].to(device_to)\n  File "/c/torch/nn/modules/module.py", line 9, in convert\n' \
        "    return t.to(\ntorch.OutOfMemoryError: Allocation on device\n\nGot an OOM, unloading all loaded models.", UNKNOWN, "comfyui", ["--novram", "!bfloat16"]
    yield "diffusers, a model that moves", '  File "/e/diffusers/pipelines/pipeline_utils.py", line 9, in to\n    module.to(device)\n  File "/e/torch/nn/modules/module.py", line 9, in convert\n' \
        "    return t.to(\ntorch.OutOfMemoryError: " + DECODED, LIVE, "diffusers", ["enable_model_cpu_offload", "!bfloat16"]
    yield "a video that is decoded", '  File "/e/diffusers/models/autoencoders/autoencoder_kl_wan.py", line 1240, in decode\n    decoded = self._decode(z).sample\n' \
        "torch.OutOfMemoryError: " + DECODED, LIVE, "decode", ["enable_tiling"]


def training():
    yield "DeepSpeed's own optimizer", '  File "/e/deepspeed/ops/adam/fused_adam.py", line 128, in step\n    state[\'exp_avg\'] = torch.zeros_like(p.data)\n' \
        "torch.cuda.OutOfMemoryError: " + STATE, LIVE, "deepspeed", ["offload_optimizer", "!bitsandbytes"]
    yield "cuSOLVER's handle", "torch._C._LinAlgError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`.", UNKNOWN, "look_library", ["often fails", "CUDA_LAUNCH_BLOCKING=1"]
    yield "cuSOLVER's workspace", "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnXsyevd(...)`", UNKNOWN, "look", ["!often fails"]
    yield "cuFFT", "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", UNKNOWN, "look", ["!often fails"]
    yield "cuSPARSE", "RuntimeError: CUDA error: insufficient resources when calling `cusparseSpGEMM_workEstimation(...)`", UNKNOWN, "look", ["!often fails"]
    yield "JAX, a constant", "jaxlib.xla_extension.XlaRuntimeError: INTERNAL: Failed to allocate 8589934592 bytes for new constant", UNKNOWN, "xla_share", ["8.00 GiB"]
    yield "a saver of memory", "[torch_memory_saver.cpp] CUresult error  result=2 file=csrc/torch_memory_saver.cpp func=cu_mem_create line=103", UNKNOWN, "look", []


def on_a_mac():
    yield "MPS, most of it beside PyTorch", "RuntimeError: MPS backend out of memory (MPS allocated: 9.50 GiB, other allocations: 17.30 GiB, max allowed: 27.00 GiB). Tried to " \
        "allocate 292.50 MiB on private pool.", LIMIT, "fraction_mps", ["9.50 GiB", "17.30 GiB", "27.00 GiB"]
    yield "MPS, 256 bytes", "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max allowed: 18.13 GB). Tried to allocate 256 bytes on shared pool.", \
        LIVE, "smaller_batch", ["3.31 GiB more are Metal memory outside", "!of it are live"]


def elsewhere():
    yield "RMM in 2019", "rmm.rmm.RMMError: RMM_ERROR_OUT_OF_MEMORY", UNKNOWN, "look_card", []
    yield "RMM's pool, with figures", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at:/r/pool_memory_resource.hpp:254: Maximum pool size exceeded (failed to allocate 4.660675 GiB)", \
        LIMIT, "fraction_rmm", ["4.66 GiB"]
    yield "Kokkos", 'Kokkos failed to allocate memory for label "x". Allocation using MemorySpace named "Cuda" failed with the following error: Allocation of size 4.2 G failed, likely ' \
        "due to insufficient memory.", UNKNOWN, "look_card", []
    yield "Kokkos, the host", 'Kokkos failed to allocate memory for label "x". Allocation using MemorySpace named "Host" failed', HOST, "host", []
    yield "FFmpeg's decoder", "[vist#0:0/h264 @ 0x55] Device setup failed for decoder on input stream #0:0 : Cannot allocate memory", UNKNOWN, "look_card", []
    yield "pinned memory of a simulation", "Fatal error:\ncudaMallocHost of size 123456 bytes failed: out of memory", HOST, "locked", ["Pinned", "!nvidia-smi"]
    yield "DyNet, the host", "CPU memory allocation failed n=8053063680 align=32\nterminate called after throwing an instance of 'dynet::out_of_memory'", HOST, "host", ["7.50 GiB"]
    yield "a loader's bus error", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", HOST, "shared_memory", \
        ["most likely host memory", "Usually shared memory"]
    yield "Windows, weights", "OSError: The paging file is too small for this operation to complete. (os error 1455)", HOST, "page_file_larger", ["page file larger", "!num_workers"]
    yield "Windows, a library", 'OSError: [WinError 1455] The paging file is too small for this operation to complete. Error loading "C:\\t\\cudnn_cnn64_9.dll"', HOST, "page_file_either", ["num_workers=0", "page file larger. "]
    yield "NumPy's array", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 37.3 GiB for an array with shape (100000, 50000) and data type float64", HOST, "array", ["37.30 GiB", "shape is meant", "float32"]


def that_failed_before():
    """Messages whose first advice once failed, did nothing, or said the opposite of its figures."""
    yield "XLA's graphs", "INTERNAL: Underlying backend ran out of memory trying to instantiate command buffer with 71 nodes (total of 12 alive graphs in the process).", \
        "kv_cache_or_pool_reservation", "xla_less", ["MEM_FRACTION=.60", "xla_gpu_enable_command_buffer=", "!chapters/11", "!KV cache"]
    overflow = "RuntimeError: Buffer overflow when allocating memory for batch_prefill_tmp_v with size 402653184 and alignment 16, but only 8 bytes available in AlignedAllocator."
    yield "FlashInfer in SGLang, its size and more", "sglang: " + overflow, "kv_cache_or_pool_reservation", "workspace_sglang", ["SIZE=1073741824", "!KV cache", "!chapters"]
    yield "FlashInfer, more than it has", overflow, "kv_cache_or_pool_reservation", "workspace", ["old_size + 402653184"]
    yield "pieces of an old HIP", "RuntimeError: " + old("350.00 MiB", "7.93 GiB", "6.02 GiB", "1.27 MiB", "7.01 GiB", head="HIP out of memory. Tried to allocate")[0], "fragmentation", \
        "keep_large_rocm", ["max_split_size_mb:256", "!2.1 or newer"]
    yield "a small request that misses nearly all of it", "torch.OutOfMemoryError: " + new("512.00 MiB", "23.64 GiB", "11.06 MiB", "22.71 GiB", "1.40 MiB", this="23.40 GiB")[0], LIVE, \
        "smaller_batch", ["only the last straw", "!a tenth"]
    yield "a small request that misses a little", "torch.OutOfMemoryError: " + new("512.00 MiB", "23.64 GiB", "400.06 MiB", "22.41 GiB", "1.40 MiB", this="23.10 GiB")[0], LIVE, \
        "slightly_smaller", ["max(1,", "!last straw"]
    yield "one request, half of the card", "torch.OutOfMemoryError: " + new("10.00 GiB", "15.77 GiB", "8.97 GiB", "5.20 GiB", "40.00 MiB", this="6.70 GiB")[0], LIVE, "shapes", \
        ["one request is too large", "!live tensors fill", "are live tensors"]
    yield "one request, and more that is live", "torch.OutOfMemoryError: " + new("8.00 GiB", "15.77 GiB", "5.97 GiB", "9.20 GiB", "40.00 MiB", this="9.70 GiB")[0], LIVE, "smaller_batch", \
        ["live tensors fill"]
    yield "pieces of a full card", "torch.OutOfMemoryError: " + new("100.00 MiB", "23.64 GiB", "9.06 MiB", "22.10 GiB", "900.00 MiB", this="23.60 GiB")[0], "fragmentation", "segments", \
        ["22.10 GiB of 23.64 GiB are live tensors", "a smaller batch for longer"]
    yield "pieces of a card that is not full", "torch.OutOfMemoryError: " + new("900.00 MiB", "23.64 GiB", "9.06 MiB", "18.10 GiB", "4.90 GiB", this="23.60 GiB")[0], "fragmentation", "segments", \
        ["!smaller batch"]
    windows = '  File "C:\\Users\\me\\train.py", line 9, in main\n    y = model(x)\ntorch.OutOfMemoryError: '
    yield "pieces, Windows", windows + new("900.00 MiB", "23.64 GiB", "9.06 MiB", "18.10 GiB", "4.90 GiB", this="23.60 GiB")[0], "fragmentation", "keep_large_windows", \
        ['os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:512"', "!export", "!=expandable"]
    yield "pieces, Linux", windows.replace("C:\\Users\\me\\", "/home/c:/work/") + new("900.00 MiB", "23.64 GiB", "9.06 MiB", "18.10 GiB", "4.90 GiB", this="23.60 GiB")[0], "fragmentation", \
        "segments", ["export PYTORCH"]
    yield "MPS, one buffer", "RuntimeError: Invalid buffer size: 48.25 GB", "too_big_for_the_card", "metal_buffer", ["48.25 GiB", "!card", "!computed wrongly"]
    yield "CuPy, without a limit", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: 536,870,912 bytes).", UNKNOWN, "holders", ["CuPy holds 512.00 MiB"]
    yield "TensorFlow's copy", "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: Dst tensor is not initialized.", UNKNOWN, "tf_grow", \
        ["A copy to the GPU found no memory", "!no figures"]
    yield "a message that ends", "I get torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", UNKNOWN, "paste_whole", ["20.00 MiB were asked for", "Paste the whole message"]
    yield "a mapping that is tried again", "[W CUDACachingAllocator.cpp:637] expandable_segments: memory mapping failed with OOM on device 3 while trying to map 20971520 bytes (free: 1048576, " \
        "total: 25769803776)", UNKNOWN, "look_card", ["a warning", "1.00 MiB of 24.00 GiB"]
    yield "cuda_malloc_async", "E gpu_cudamallocasync_allocator.cc:288] gpu_async_0 cuMemAllocAsync failed to allocate 1879048192 bytes: CUDA error: out of memory\n Reported by CUDA: Free " \
        "memory/Total memory: 149291008/8370061312", UNKNOWN, "halve_tensorflow_below", ["142.38 MiB of 7.80 GiB", "below this line"]
    yield "old Torch", "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", UNKNOWN, "look_card", ["nvidia-smi -l 1", "!mem_get_info"]
    yield "TensorRT's builder", "[E] [TRT] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)", UNKNOWN, "tensorrt", \
        ["workspace:1024", "!whose memory"]
    yield "TensorRT, a size", "[TRT] [E] 2: Error Code 2: OutOfMemory (Requested size was 2147483648 bytes.)", UNKNOWN, "tensorrt", ["2.00 GiB were asked for", "workspace:1024"]
    yield "ggml's pool", "CUDA error: out of memory\n  current device: 1, in function alloc at /b/ggml-cuda.cu:291\n  cuMemCreate(&handle, reserve_size, &prop, 0)", UNKNOWN, "llama_buffers", \
        ["compute buffers did not fit"]
    yield "Ollama's cache", "ollama: ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to " \
        "allocate buffer for kv cache", "kv_cache_or_pool_reservation", "ollama_context", ["!llama-server", "OLLAMA_CONTEXT_LENGTH"]
    yield "TensorRT-LLM, no component", "[TRT-LLM] Executor creation failed due to insufficient GPU memory.", "kv_cache_or_pool_reservation", "trtllm_unsaid", ["lines below", "!reserves a KV cache"]
    yield "TensorFlow's pinned pool", "Allocator (cuda_host_bfc) ran out of memory trying to allocate 3.72GiB.  Current allocation summary follows.", HOST, "host_tensorflow", \
        ["TF_GPU_HOST_MEM_LIMIT_IN_MB", "64 GiB"]
    yield "RMM's limit", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at: limiting.hpp:149: Exceeded memory limit (failed to allocate 1.500000 GiB)", LIMIT, \
        "fraction_rmm_limit", ["allocation_limit", "!pool"]
    yield "our report, without PyTorch", OURS, LIVE, "levers", ["!PyTorch", "!chunk", "outside this program"]
    yield "a TPU's program that is loaded", "RESOURCE_EXHAUSTED: Attempting to reserve 8.47G at the bottom of memory. That was not possible. There are 7.89G free, 0B reserved, and 7.89G " \
        "reservable.", UNKNOWN, "whole_program", ["7.89 GiB of the chip's memory are free", "!live tensors", "!card"]
    yield "a TPU's array", "ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 293.79M. That was not possible. There are 12.76M free.; (0x0x0_HBM0)", LIVE, \
        "halve_batch", ["293.79 MiB", "12.76 MiB", "!card"]
    stats = "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes.\nBufferAssignment stats:\n parameter allocation: 1.20GiB\n constant allocation: " \
        "52.0KiB\n{} preallocated temp allocation: 4.00GiB\n total allocation: 13.20GiB\n"
    yield "JAX, its outputs fail", stats.format(8589934592, " maybe_live_out allocation: 8.00GiB\n"), UNKNOWN, "xla_outputs", ["8.00 GiB of it did not fit", "!not printed"]
    yield "JAX, an argument fails", stats.format(1288490188, ""), UNKNOWN, "xla_share", ["of it arguments 1.20 GiB", "1.20 GiB of it did not fit"]
    yield "JAX, temporaries alone", stats.format(4294967296, ""), UNKNOWN, "xla_share", ["The buffer for temporaries did not fit", "!not printed"]


def that_kill():
    yield "a Mac's shell", "zsh: Killed: 9 python train.py", HOST, "killed_mac", ["log show", "!dmesg", "!Linux"]
    yield "a shell of Linux", "./train.sh: line 4: 2714 Killed                  python train.py", HOST, "killed", ["dmesg", "!macOS"]
    yield "Slurm's job", "slurmstepd: error: Detected 1 oom-kill event(s) in step 4711.0 cgroup.", HOST, "more_memory", ["sacct -j 4711 ", "!/sys/fs/cgroup"]
    yield "Slurm, no number", "srun: error: node07: task 3: Out Of Memory", HOST, "more_memory", ["sacct -j JOBID "]
    yield "Kubernetes", "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", HOST, "more_memory", ["kubectl set resources", "!/sys/fs/cgroup"]
    yield "the killer in a container", "memory: usage 16777216kB, limit 16777216kB, failcnt 71\nMemory cgroup out of memory: Killed process 2714 (python) total-vm:49870312kB, " \
        "anon-rss:16018748kB, file-rss:70128kB", HOST, "container", ["/sys/fs/cgroup/memory.max"]
    yield "who asked", "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0", HOST, "host", ["'Killed process'", "!was killed"]
    yield "Windows, the host", "RuntimeError: [enforce fail at ..\\c10\\core\\CPUAllocator.cpp:76] data. DefaultCPUAllocator: not enough memory: you tried to allocate 4096000000 bytes.", \
        HOST, "host_windows", ["Task Manager", "!free -h"]
    yield "Windows, NumPy", 'Traceback (most recent call last):\n  File "D:/data/prepare.py", line 12, in <module>\n    table = table + other\nMemoryError', HOST, "host_windows", ["Task Manager"]
    yield "Windows, workers", '  File "<string>", line 1, in <module>\n  File "C:\\env\\multiprocessing\\spawn.py", line 116, in spawn_main\nOSError: [WinError 1455] The paging file is too ' \
        'small for this operation to complete. Error loading "C:\\t\\cudnn64_8.dll"', HOST, "page_file", ["DataLoader(dataset, num_workers=0)"]


OURS = "CUDA out of memory. Tried to allocate 20.00 MiB for layer 3 hidden. GPU 1 has a total capacity of 8.00 GiB of which 16.00 MiB is free. This run has 6.84 GiB allocated, and 1.00 MiB is " \
    "reserved but unallocated."
LATEST_ANSWERS = [*nothing_around_it(), *that_failed_before(), *that_kill(), *servers(), *limits(), *drawing(), *training(), *on_a_mac(), *elsewhere()]
