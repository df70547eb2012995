"""Messages in the frameworks' wordings, with what is true of them: a list of (name, message, diagnosis, figures, device).

A figure is written as it is printed, or as the sum or difference that it is; what is not named must be null. The figures
are made up; the wordings are the frameworks'.
"""

from more_cases import MORE

CUDA = "CUDA out of memory. Tried to allocate"
HINT = " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."


def old(asked, capacity, allocated, free, reserved, device=0, head=CUDA):
    """PyTorch 1.4 to 2.0, and what follows from its figures."""
    return (f"{head} {asked} (GPU {device}; {capacity} total capacity; {allocated} already allocated; {free} free; "
            f"{reserved} reserved in total by PyTorch)",
            {"asked": asked, "capacity": capacity, "free": free, "allocated": allocated, "reserved": reserved,
             "reserved_unallocated": f"{reserved} - {allocated}", "outside_framework": f"{capacity} - {free} - {reserved}"})


def new(asked, capacity, free, allocated, cached, this=None, before=(), after=(), head=CUDA, device=0, extra="", hint=""):
    """PyTorch 2.1 and newer; `before` and `after` this process are others, as (id, size)."""
    listed = [f" Process {pid} has {size} memory in use." for pid, size in before]
    listed += [f" Including non-PyTorch memory, this process has {this} memory in use."] if this else []
    listed += [f" Process {pid} has {size} memory in use." for pid, size in after]
    figures = {"asked": asked, "capacity": capacity, "free": free, "allocated": allocated, "reserved": f"{allocated} + {cached}",
               "reserved_unallocated": cached}
    if this:
        figures |= {"this_process": this, "outside_framework": f"{this} - {allocated} - {cached}"}
        if before or after:
            figures["other_processes"] = " + ".join(size for _, size in (*before, *after))
    else:
        figures["outside_framework"] = f"{capacity} - {free} - {allocated} - {cached}"
    return (f"{head} {asked}. GPU {device} has a total capacity of {capacity} of which {free} is free.{''.join(listed)}{extra} Of the "
            f"allocated memory {allocated} is allocated by PyTorch, and {cached} is reserved by PyTorch but unallocated.{hint}",
            figures)


def pytorch_cases():
    text, figures = old("870.00 MiB", "23.70 GiB", "19.18 GiB", "323.81 MiB", "21.70 GiB", device=2)
    yield "the article's", text, "fragmentation", figures, 2
    text, figures = old("1.20 GiB", "10.76 GiB", "8.90 GiB", "511.06 MiB", "9.31 GiB")
    yield "1.4, live", f"RuntimeError: {text}", "live_tensors_fill_it", figures, 0
    text, figures = old("2.02 GiB", "39.59 GiB", "11.07 GiB", "811.19 MiB", "11.52 GiB", device=1)
    yield "1.4, others", f"torch.cuda.OutOfMemoryError: {text} If reserved memory is >> allocated memory try setting max_split_size_mb " \
        "to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF", "other_process", figures, 1
    text, figures = old("40.00 GiB", "31.74 GiB", "2.11 GiB", "28.00 GiB", "2.30 GiB")
    yield "1.4, too big", text, "too_big_for_the_card", figures, 0
    text, figures = old("20.00 MiB", "7.79 GiB", "60.11 MiB", "5.02 GiB", "80.00 MiB")
    yield "1.4, enough free", text, "not_enough_information", figures, 0
    text, figures = old("350.00 MiB", "7.93 GiB", "6.02 GiB", "1.27 MiB", "7.01 GiB", head="HIP out of memory. Tried to allocate")
    yield "1.4, HIP", text, "fragmentation", figures, 0
    text, figures = old("300.00 MiB", "23.70 GiB", "22.01 GiB", "210.31 MiB", "22.20 GiB")
    yield "1.4, free and cached together are enough", text, "fragmentation", figures, 0
    text, figures = old("31.67 GiB", "32.00 GiB", "6.30 GiB", "24.39 GiB", "6.55 GiB", head="NPU out of memory. Tried to allocate")
    yield "an NPU's", text.replace("(GPU", "(NPU"), "live_tensors_fill_it", figures, 0
    text, figures = old("200.00 MiB", "23.69 GiB", "10.40 GiB", "1.02 GiB", "9.93 GiB")
    for name in ("allocated", "reserved", "reserved_unallocated", "outside_framework"):
        del figures[name]
    yield "allocated above reserved", text, "not_enough_information", figures, 0
    figures = {"asked": "14.00 MiB", "capacity": "10.92 GiB", "free": "9.06 MiB", "allocated": "10.12 GiB",
               "reserved_unallocated": "1.50 MiB", "reserved": "10.12 GiB + 1.50 MiB",
               "outside_framework": "10.92 GiB - 9.06 MiB - 10.12 GiB - 1.50 MiB"}
    yield "1.0, cached", f"RuntimeError: {CUDA} 14.00 MiB (GPU 3; 10.92 GiB total capacity; 10.12 GiB already allocated; 9.06 MiB free; " \
        "1.50 MiB cached)", "live_tensors_fill_it", figures, 3
    text, figures = old("64.00 MiB", "22.17 GiB", "3.90 GiB", "17.85 GiB", "3.98 GiB")
    yield "2.0, a fraction", text.replace("free; ", "free; 4.00 GiB allowed; "), "limit_set_by_user", figures, 0
    text, figures = old("412.00 MiB", "22.17 GiB", "21.02 GiB", "11.12 MiB", "21.09 GiB")
    yield "2.0, a fraction of one", text.replace("free; ", "free; 22.17 GiB allowed; "), "live_tensors_fill_it", figures, 0

    text, figures = new("1.95 GiB", "23.65 GiB", "902.19 MiB", "17.33 GiB", "3.40 GiB", this="22.58 GiB", hint=HINT)
    yield "2.1", f"torch.cuda.OutOfMemoryError: {text}".replace("capacity", "capacty"), "fragmentation", figures, 0
    # Pieces count from 1/200 of the card on, 405 MiB here: below that they are what every program leaves over.
    for allocated, cached, asked, diagnosis in (("78.60 GiB", "31.00 MiB", "20.00 MiB", "live_tensors_fill_it"),
                                                ("78.20 GiB", "398.00 MiB", "20.00 MiB", "live_tensors_fill_it"),
                                                ("78.20 GiB", "412.00 MiB", "20.00 MiB", "fragmentation"),
                                                ("78.20 GiB", "412.00 MiB", "500.00 MiB", "live_tensors_fill_it")):
        text, figures = new(asked, "79.15 GiB", "9.06 MiB", allocated, cached, this="79.13 GiB")
        yield f"2.4, a full card, {cached} in pieces, {asked} asked", text, diagnosis, figures, 0
    text, figures = old("20.00 MiB", "79.15 GiB", "78.60 GiB", "9.06 MiB", "78.63 GiB")
    yield "1.4, a full card, a little in pieces", text, "live_tensors_fill_it", figures, 0
    text, figures = new("10.00 GiB", "15.77 GiB", "9.97 GiB", "5.20 GiB", "40.00 MiB", this="5.70 GiB")
    yield "2.4, half of the card in one request, a little in pieces", text, "live_tensors_fill_it", figures, 0
    text, figures = new("60.00 MiB", "23.64 GiB", "30.00 MiB", "17.40 GiB", "60.00 MiB", this="17.91 GiB",
                        after=[(912, "5.69 GiB")])
    yield "2.4, others, and less than 1/200 in pieces", text, "other_process", figures, 0
    text, figures = new("9.00 GiB", "139.72 GiB", "901.38 MiB", "131.02 GiB", "4.29 GiB")
    yield "2.4, a device without a blank", text.replace("GPU 0", "GPU7"), "live_tensors_fill_it", figures, 7
    text, figures = new("410.00 MiB", "23.64 GiB", "102.25 MiB", "6.40 GiB", "71.10 MiB", this="6.91 GiB",
                        before=[(71001, "380.19 MiB")], after=[(912, "16.20 GiB")], hint=HINT)
    yield "2.4, others", f"torch.OutOfMemoryError: {text}", "other_process", figures, 0
    text, figures = new("410.00 MiB", "79.15 GiB", "102.25 MiB", "76.80 GiB", "71.10 MiB", this="77.92 GiB", before=[(9, "1.02 GiB")])
    yield "2.4, a little of others", text, "live_tensors_fill_it", figures, 0
    text, figures = new("512.00 MiB", "23.64 GiB", "11.06 MiB", "22.71 GiB", "1.40 MiB")
    figures["outside_framework"] = "23.62 GiB - 22.71 GiB - 1.40 MiB"  # the process's own, for it is this one
    yield "2.4, in a container", text.replace(" Of the", " Process 4153 has 23.62 GiB memory in use. Of the"), "live_tensors_fill_it", figures, 0
    text, figures = new("512.00 MiB", "23.64 GiB", "11.06 MiB", "2.71 GiB", "1.40 MiB")
    yield "2.4, others in a container", text.replace(" Of the", " Process 4153 has 3.20 GiB memory in use. Process 77 has 20.40 GiB memory in use. Of the"), \
        "other_process", figures, 0
    text, figures = new("1.10 GiB", "8.00 GiB", "0 bytes", "13.90 GiB", "310.20 MiB")
    del figures["outside_framework"]
    yield "2.4, spilled", text, "live_tensors_fill_it", figures, 0
    yield "2.4, WSL", text.replace(" Of the", " Including non-PyTorch memory, this process has 17179869184.00 GiB memory in use. Of the"), \
        "live_tensors_fill_it", figures, 0
    text, figures = new("700.00 MiB", "31.73 GiB", "640.19 MiB", "28.20 GiB", "913.02 MiB", this="30.60 GiB")
    yield "2.5, private pools", text.replace("PyTorch, and", "PyTorch, with 61.00 MiB allocated in private pools (e.g., CUDA Graphs), and"), \
        "fragmentation", figures, 0
    text, figures = new("30.00 MiB", "191.98 GiB", "180.02 GiB", "2001.01 MiB".replace("2001.01 MiB", "1.95 GiB"), "58.99 MiB", extra=" 2.02 GiB allowed;",
                        head="torch.OutOfMemoryError: HIP out of memory. Tried to allocate")
    yield "2.6, HIP, allowed", text, "limit_set_by_user", figures, 0
    # As 2.11 printed them on an H100, of the programs whose snapshots are in snapshots/gpu/.
    for asked, free, allocated, cached, this, allowed in (("394.00 MiB", "75.68 GiB", "2.05 GiB", "77.03 MiB", "2.88 GiB", "2.16 GiB"),
                                                          ("1002.00 MiB", "75.19 GiB", "2.60 GiB", "17.92 MiB", "3.38 GiB", "2.65 GiB"),
                                                          ("32.00 MiB", "77.71 GiB", "96.99 MiB", "5.01 MiB", "882.00 MiB", "127.40 MiB")):
        text, figures = new(asked, "79.18 GiB", free, allocated, cached, this=this, before=[(535, "612.00 MiB")], extra=f" {allowed} allowed;", hint=HINT)
        yield "2.11, an H100, " + asked, "torch.OutOfMemoryError: " + text, "limit_set_by_user", figures, 0
    text, figures = new("5.00 GiB", "15.91 GiB", "3.20 GiB", "12.00 GiB", "300.00 MiB", head="XPU out of memory. Tried to allocate")
    yield "XPU", text, "live_tensors_fill_it", figures, 0
    text, figures = new("13.40 GiB", "127.00 GiB", "18.21 GiB", "99.12 GiB", "133.80 MiB")
    yield "2.9, enough free", text, "not_enough_information", figures, 0
    text, figures = new("16.00 MiB", "79.15 GiB", "4.06 MiB", "120.00 MiB", "20.00 MiB")
    yield "2.4, others, and a small cache", text, "other_process", figures, 0
    text, figures = new("300.00 MiB", "23.64 GiB", "110.00 MiB", "6.40 GiB", "71.10 MiB", this="6.91 GiB")
    yield "2.4, others that are not listed", text, "other_process", figures, 0
    text, figures = new("410.00 MiB", "23.64 GiB", "102.25 MiB", "6.40 GiB", "71.10 MiB", this="6.91 GiB", after=[(9, "2.20 GiB")])
    del figures["other_processes"]
    yield "2.4, not all listed", text, "other_process", figures, 0
    yield "1 EB", "RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "too_big_for_the_card", {}, None
    yield "preemptive", "torch.OutOfMemoryError: CUDA out of memory. Allocation was preemptively rejected because it would exceed " \
        "per_process_memory_fraction limit. Requested size: 3.50 GiB", "limit_set_by_user", {"asked": "3.50 GiB"}, None
    yield "no figures", "torch.cuda.OutOfMemoryError: CUDA out of memory.", "not_enough_information", {}, None
    yield "async", "torch.OutOfMemoryError: Allocation on device 1 would exceed allowed memory. (out of memory)\nCurrently allocated     : " \
        "22.01 GiB\nRequested               : 512.00 MiB\nDevice limit            : 23.64 GiB\nFree (according to CUDA): 20.19 MiB\n" \
        "PyTorch limit (set by user-supplied memory fraction)\n                        : 17179869184.00 GiB", "live_tensors_fill_it", \
        {"asked": "512.00 MiB", "capacity": "23.64 GiB", "free": "20.19 MiB", "allocated": "22.01 GiB"}, 1
    yield "a mapping", "[W CUDACachingAllocator.cpp:637] expandable_segments: memory mapping failed with OOM on device 3 while trying to map 20971520 bytes " \
        "(free: 1048576, total: 25769803776)", "not_enough_information", {"asked": "20971520 bytes", "free": "1048576 bytes", "capacity": "25769803776 bytes"}, 3
    yield "addresses", "[ExpandableSegmentVA] Failed to reserve 96636764160 bytes (~90.00 GiB) of virtual address space for an expandable CUDA segment on " \
        "device 0", "host_memory", {"asked": "96636764160 bytes"}, None
    yield "MPS", "RuntimeError: MPS backend out of memory (MPS allocated: 17.51 GB, other allocations: 641.02 KB, max allowed: 18.13 GB). " \
        "Tried to allocate 1.02 GB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory " \
        "allocations (may cause system failure).", "live_tensors_fill_it", {"asked": "1.02 GiB", "allocated": "17.51 GiB"}, None
    yield "MPS, a buffer", "RuntimeError: Invalid buffer size: 48.25 GB", "too_big_for_the_card", {"asked": "48.25 GiB"}, None
    yield "the CPU's", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to " \
        "allocate 17179869184 bytes. Error code 12 (Cannot allocate memory)", "host_memory", {"asked": "17179869184 bytes"}, None
    yield "the CPU's, Windows", "RuntimeError: [enforce fail at ..\\c10\\core\\CPUAllocator.cpp:76] data. DefaultCPUAllocator: not enough " \
        "memory: you tried to allocate 4096000000 bytes.", "host_memory", {"asked": "4096000000 bytes"}, None


def other_cases():
    yield "TensorFlow", "ResourceExhaustedError: OOM when allocating tensor with shape[64,256,56,56] and type half on " \
        "/job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc [Op:Conv2D]", "not_enough_information", {"asked": "102760448 bytes"}, 1
    stats = "Stats: \nLimit:                      7365066752\nInUse:                      {}\nMaxInUse:                   7151588352\n"
    dump = "W bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 512.00MiB (rounded to 536870912)requested by op " \
        "model/dense\nCurrent allocation summary follows.\nI bfc_allocator.cc:1103] total_region_allocated_bytes_: {region} memory_limit_: " \
        "7365066752 available bytes: 0 curr_region_allocation_bytes_: 14730133504\nI bfc_allocator.cc:1109] " + stats
    yield "TensorFlow, its pool is full", dump.format(7151588096, region=7365066752), "live_tensors_fill_it", \
        {"asked": "512.00 MiB", "allocated": "7151588096 bytes", "reserved": "7365066752 bytes", "reserved_unallocated": "213478656 bytes"}, 0
    yield "TensorFlow, its pool is in pieces", dump.format(6151588096, region=7365066752), "fragmentation", \
        {"asked": "512.00 MiB", "allocated": "6151588096 bytes", "reserved": "7365066752 bytes", "reserved_unallocated": "1213478656 bytes"}, 0
    yield "TensorFlow on the CPU", "OOM when allocating tensor with shape[2,3] and type double on /job:localhost/replica:0/task:0/device:CPU:0 by " \
        "allocator cpu", "host_memory", {"asked": "48 bytes"}, None
    yield "XLA's pool", "2024-01-01 10:00:00.123: E external/xla/stream_executor/cuda/cuda_driver.cc:802] failed to allocate 21.02G (22570000384 bytes) " \
        "from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "not_enough_information", {"asked": "22570000384 bytes"}, None
    yield "XLA's pinned memory", "E cuda_driver.cc:924] failed to alloc 268435456 bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", \
        "host_memory", {"asked": "268435456 bytes"}, None
    yield "XLA's pinned memory, newer", "E cuda_executor.cc:1] Failed to allocate 1.50GiB (1610612736 bytes) of pinned host memory: CUDA_ERROR_OUT_OF_MEMORY: out of " \
        "memory", "host_memory", {"asked": "1610612736 bytes"}, None
    yield "XLA, staging", "Failed to allocate a 33554432-byte pinned host staging buffer for a device-to-host transfer.", "host_memory", \
        {"asked": "33554432 bytes"}, None
    yield "XLA, a graph", "INTERNAL: Underlying backend ran out of memory trying to instantiate command buffer with 71 nodes (total of 12 alive graphs in the " \
        "process).", "kv_cache_or_pool_reservation", {}, None
    yield "RMM", "MemoryError: std::bad_alloc: out_of_memory: RMM failure at: limiting.hpp:149: Exceeded memory limit (failed to allocate 1.500000 GiB)", \
        "limit_set_by_user", {"asked": "1.500000 GiB"}, None
    yield "TensorFlow, cuda_malloc_async", "E gpu_cudamallocasync_allocator.cc:288] gpu_async_0 cuMemAllocAsync failed to allocate 1879048192 bytes: " \
        "CUDA error: out of memory (CUDA_ERROR_OUT_OF_MEMORY)\n Reported by CUDA: Free memory/Total memory: 149291008/8370061312", \
        "not_enough_information", {"asked": "1879048192 bytes", "free": "149291008 bytes", "capacity": "8370061312 bytes"}, None
    yield "JAX", "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.\n" \
        "BufferAssignment OOM Debugging.\nBufferAssignment stats:\n             parameter allocation:    1.02GiB\n              constant " \
        "allocation:         4B\n  preallocated temp allocation:    2.00GiB\n                 total allocation:    3.12GiB\n              total " \
        "fragmentation:    1.2MiB (0.04%)", "not_enough_information", {"asked": "2147483648 bytes"}, None
    yield "JAX, a device", "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 1.20GiB (1288490188B) on device ordinal 3", \
        "not_enough_information", {"asked": "1288490188 bytes"}, 3
    yield "JAX on a TPU, compiled", "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.66G of " \
        "15.48G hbm. Exceeded hbm capacity by 6.18G.", "too_big_for_the_card", {"asked": "21.66 GiB", "capacity": "15.48 GiB"}, None
    yield "JAX on a TPU, running", "ValueError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 293.79M. That was not " \
        "possible. There are 12.76M free.; (0x0x0_HBM0)", "live_tensors_fill_it", {"asked": "293.79 MiB", "free": "12.76 MiB"}, None
    yield "llama.cpp, cache", "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 5830.00 MiB on device 1: cudaMalloc failed: out of memory\n" \
        "E alloc_tensor_range: failed to allocate CUDA1 buffer of size 6113198080\nE llama_init_from_model: failed to initialize the context: " \
        "failed to allocate buffer for kv cache", "kv_cache_or_pool_reservation", {"asked": "5830.00 MiB"}, 1
    yield "llama.cpp, weights", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 18770.25 MiB on device 0: cudaMalloc failed: out of memory\n" \
        "llama_model_load: error loading model: unable to allocate CUDA0 buffer", "not_enough_information", {"asked": "18770.25 MiB"}, 0
    yield "llama.cpp, a new backend", "ggml_backend_alloc_ctx_tensors_from_buft: failed to allocate ROCm0 buffer of size 5368709120", "not_enough_information", \
        {"asked": "5368709120 bytes"}, None
    yield "llama.cpp, buffers", "llama_init_from_model: failed to initialize the context: failed to allocate compute pp buffers", \
        "not_enough_information", {}, None
    yield "vLLM, warming up", "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering " \
        "`max_num_seqs` or `gpu_memory_utilization` when initializing the engine.", "kv_cache_or_pool_reservation", {}, None
    yield "Thrust", "terminate called after throwing an instance of 'thrust::system::detail::bad_alloc'\n  what():  std::bad_alloc: " \
        "cudaErrorMemoryAllocation: out of memory", "not_enough_information", {}, None
    yield "NCCL, a full /dev/shm", "NCCL WARN Call to posix_fallocate failed : No space left on device", "host_memory", {}, None
    yield "TensorFlow, a copy", "InternalError: Failed copying input tensor from CPU:0 to GPU:0 in order to run _EagerConst: Dst tensor is not " \
        "initialized.", "not_enough_information", {}, None
    yield "Ray", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "host_memory", {}, None
    yield "a file in shared memory", "RuntimeError: unable to write to file </torch_4711_2>", "host_memory", {}, None
    yield "Torch 0.4", "RuntimeError: $ Torch: not enough memory: you tried to allocate 23GB. Buy new RAM! at THGeneral.cpp:204", "host_memory", \
        {"asked": "23 GiB"}, None
    yield "a TPU's program", "RESOURCE_EXHAUSTED: Attempting to reserve 8.47G at the bottom of memory. That was not possible. There are 7.89G free, 0B " \
        "reserved, and 7.89G reservable.", "not_enough_information", {"asked": "8.47 GiB", "free": "7.89 GiB"}, None
    yield "expandable segments' driver error", "RuntimeError: CUDA driver error: out of memory", "not_enough_information", {}, None
    yield "Jetson", "NvMapMemAllocInternalTagged: 1075072515 error 12", "not_enough_information", {}, None
    yield "TensorRT", "[E] [TRT] 2: [virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (no further information)", \
        "not_enough_information", {}, None
    yield "Slurm, newer", "slurmstepd: error: Detected 2 oom_kill events in StepId=4711.0. Some of the step tasks have been OOM Killed.", \
        "host_memory", {}, None
    yield "Slurm's srun", "srun: error: node07: task 3: Out Of Memory", "host_memory", {}, None
    yield "llama.cpp, after a warning", "WARNING: failed to allocate 258.00 MB of pinned memory: out of memory\nggml_backend_cuda_buffer_type_alloc_buffer: " \
        "allocating 16384.00 MiB on device 0: cudaMalloc failed: out of memory\nllama_kv_cache_init: failed to allocate buffer for kv cache", \
        "kv_cache_or_pool_reservation", {"asked": "16384 MiB"}, 0
    yield "TensorFlow's host pool", "Allocator (cuda_host_bfc) ran out of memory trying to allocate 3.72GiB.  Current allocation summary follows.", \
        "host_memory", {"asked": "3.72 GiB"}, None
    yield "XPU, older", "RuntimeError: XPU out of memory. Tried to allocate 1.95 GiB (GPU 0; 15.56 GiB total capacity; 13.90 GiB already allocated; " \
        "13.98 GiB reserved in total by PyTorch)", "live_tensors_fill_it", {"asked": "1.95 GiB", "capacity": "15.56 GiB", "allocated": "13.90 GiB",
        "reserved": "13.98 GiB", "reserved_unallocated": "13.98 GiB - 13.90 GiB"}, 0
    text, figures = old("1.71 GiB", "6.00 GiB", "3.49 GiB", "1.04 GiB", "3.50 GiB")
    yield "a small card that others hold", text, "other_process", figures, 0
    yield "a post", "I get CUDA out of memory. Tried to allocate 20.00 MiB :(", "not_enough_information", {"asked": "20.00 MiB"}, None
    yield "MPS, others hold it", "RuntimeError: MPS backend out of memory (MPS allocated: 119.30 MB, other allocations: 43.18 GB, max allowed: 36.27 GB). Tried " \
        "to allocate 4.76 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).", \
        "limit_set_by_user", {"asked": "4.76 MiB", "allocated": "119.30 MiB"}, None
    yield "Slurm", "slurmstepd: error: Detected 1 oom-kill event(s) in step 4711.0 cgroup.", "host_memory", {}, None
    yield "the killer, invoked", "python3 invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0", \
        "host_memory", {}, None
    yield "llama.cpp, pinned", "ggml_cuda_host_malloc: failed to allocate 2048.00 MiB of pinned memory: out of memory", "host_memory", \
        {"asked": "2048.00 MiB"}, None
    yield "llama.cpp, CUDA", "CUDA error: out of memory\n  current device: 1, in function alloc at ggml-cuda.cu:291\n  cuMemCreate(&handle, " \
        "reserve_size, &prop, 0)", "not_enough_information", {}, 1
    yield "Ollama", "Error: model requires more system memory (5.6 GiB) than is available (3.4 GiB)", "host_memory", {"asked": "5.6 GiB"}, None
    yield "vLLM, others", "ValueError: Free memory on device (12.40/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, 71.33 GiB). " \
        "Decrease GPU memory utilization or reduce GPU memory used by other processes.", "other_process", \
        {"asked": "71.33 GiB", "capacity": "79.25 GiB", "free": "12.40 GiB"}, None
    yield "vLLM, a little", "ValueError: Free memory on device cuda:2 (22.61/23.64 GiB) on startup is less than desired GPU memory utilization (0.96, " \
        "22.69 GiB).", "kv_cache_or_pool_reservation", {"asked": "22.69 GiB", "capacity": "23.64 GiB", "free": "22.61 GiB"}, 2
    yield "vLLM, no blocks", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the " \
        "engine.", "kv_cache_or_pool_reservation", {}, None
    yield "vLLM, tokens", "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can be stored in KV cache " \
        "(19280).", "kv_cache_or_pool_reservation", {}, None
    yield "vLLM, V1", "ValueError: To serve at least one request with the models's max seq len (40960), (10.00 GiB KV cache is needed, which is larger " \
        "than the available KV cache memory (1.25 GiB).", "kv_cache_or_pool_reservation", {"asked": "10.00 GiB"}, None
    yield "CuPy", "cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: 536,870,912 bytes).", \
        "not_enough_information", {"asked": "1073741824 bytes", "allocated": "536870912 bytes"}, None
    yield "CuPy, a limit", "OutOfMemoryError: Out of memory allocating 1,073,741,824 bytes (allocated so far: 536,870,912 bytes, limit set to: " \
        "1,200,000,000 bytes).", "limit_set_by_user", {"asked": "1073741824 bytes", "allocated": "536870912 bytes"}, None
    for name in ("CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"):
        yield name, f"RuntimeError: CUDA error: {name} when calling `cublasCreate(handle)`", "not_enough_information", {}, None
    for name in ("CUDNN_STATUS_ALLOC_FAILED", "CUDNN_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_INTERNAL_ERROR"):
        yield name, f"RuntimeError: cuDNN error: {name}", "not_enough_information", {}, None
    yield "NCCL", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled cuda error\nncclUnhandledCudaError: Call " \
        "to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'", "not_enough_information", {}, None
    yield "NCCL, a size", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 6291456 bytes", \
        "not_enough_information", {"asked": "6291456 bytes"}, None
    yield "NCCL, shared memory", "node:31:91 [1] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-Xb3Qsa to 9637892 bytes", \
        "host_memory", {"asked": "9637892 bytes"}, None
    yield "CUDA", "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call", \
        "not_enough_information", {}, None
    yield "old CUDA", "RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/generic/THCStorage.cu:58", \
        "not_enough_information", {}, None
    yield "the driver", "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY", \
        "not_enough_information", {}, None
    yield "the loader", "RuntimeError: DataLoader worker (pid 2714) is killed by signal: Killed. ", "host_memory", {}, None
    yield "the loader, shared memory", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).", \
        "host_memory", {}, None
    yield "the killer", "[12345.678901] Out of memory: Killed process 2714 (python3) total-vm:49870312kB, anon-rss:30218748kB, file-rss:70128kB, " \
        "shmem-rss:11904kB, UID:0 pgtables:61000kB oom_score_adj:0", "host_memory", {}, None
    yield "the killer, a container", "memory: usage 16777216kB, limit 16777216kB, failcnt 71\nMemory cgroup out of memory: Killed process 2714 " \
        "(python) total-vm:49870312kB, anon-rss:16018748kB, file-rss:70128kB", "host_memory", {}, None
    yield "Kubernetes", "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137", "host_memory", {}, None
    yield "killed", "./train.sh: line 4: 2714 Killed                  python train.py", "host_memory", {}, None
    yield "NumPy", "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 14.9 GiB for an array with shape (50000, 40000) and data type float64", \
        "host_memory", {"asked": "14.9 GiB"}, None


REPORT = """CUDA out of memory. Tried to allocate 96.00 MiB for layer 3 weight m under a budget of 480.00 MiB of which 90.50 MiB is free. GPU 0 has a total capacity of 16.02 GiB of which 15.20 GiB is free. This run has 389.50 MiB allocated, and 26.50 MiB is reserved but unallocated.
Why: live blocks fill the budget: 96.00 MiB asked + 389.50 MiB live - 480.00 MiB budget = 5.50 MiB short.
Largest live allocations:
     96.00 MiB  parameters   layer 3 weight
Live by category: parameters 160.25 MiB, gradients 160.25 MiB, optimizer 69.00 MiB
What helps:
  - chapter 07, ZeRO-3: each of 8 GPUs keeps an eighth of the parameters, 140.22 MiB less"""


def our_cases():
    figures = {"asked": "96.00 MiB", "capacity": "16.02 GiB", "free": "15.20 GiB", "allocated": "389.50 MiB", "reserved_unallocated": "26.50 MiB",
               "reserved": "389.50 MiB + 26.50 MiB", "outside_framework": "16.02 GiB - 15.20 GiB - 389.50 MiB - 26.50 MiB"}
    yield "ours, the budget", REPORT, "limit_set_by_user", figures, 0
    yield "ours, the headline alone", REPORT.split("\n")[0], "limit_set_by_user", figures, 0
    device = "CUDA out of memory. Tried to allocate 20.00 MiB for layer 3 hidden. GPU 1 has a total capacity of 8.00 GiB of which 16.00 MiB is " \
        "free. This run has 6.84 GiB allocated, and {} is reserved but unallocated."
    for cached, diagnosis in (("167.00 MiB", "fragmentation"), ("1.00 MiB", "live_tensors_fill_it")):
        figures = {"asked": "20.00 MiB", "capacity": "8.00 GiB", "free": "16.00 MiB", "allocated": "6.84 GiB", "reserved_unallocated": cached,
                   "reserved": f"6.84 GiB + {cached}", "outside_framework": f"8.00 GiB - 16.00 MiB - 6.84 GiB - {cached}"}
        yield f"ours, the device, {cached}", device.format(cached), diagnosis, figures, 1
    yield "ours, a row", "none: OOM: asked for 2.00 MiB (attention probabilities), had 410.00 KiB", "limit_set_by_user", {"asked": "2.00 MiB"}, None
    yield "ours, a row in pieces", "best fit: OOM: asked for 16.00 MiB (one block), had 36.80 MiB in pieces, the largest 5.00 MiB", "fragmentation", \
        {"asked": "16.00 MiB"}, None


ARTICLE = old("870.00 MiB", "23.70 GiB", "19.18 GiB", "323.81 MiB", "21.70 GiB", device=2)[0]  # docs/explain.md shows it
CASES = [*pytorch_cases(), *other_cases(), *our_cases(), *MORE]
