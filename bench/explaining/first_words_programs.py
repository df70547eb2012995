"""What to do first, by the program that made the message; see first_words.py."""

PROGRAMS = {
    "vllm_lower": (
        "Leave room beside vLLM's reservation: take a smaller share of the card, and serve fewer requests at a time.",
        "调低 vLLM 的显存份额，并减少同时处理的请求，在 vLLM 的预留之外留出空间。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64"),
    "vllm_weights": (
        "If it fails while weights load, split them over more cards (--tensor-parallel-size) or quantise them: PyTorch holds more than vLLM's usual share. Else take a smaller share, and fewer requests at a time.",
        "若在加载权重时失败，把权重分到更多卡（--tensor-parallel-size）或量化，因为 PyTorch 占用的已超过 vLLM 通常的份额。否则调低 vLLM 的显存份额，并减少同时处理的请求。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64"),
    "vllm_graphs": (
        "Take a smaller share: it must leave room for what is outside PyTorch (communication, workspaces, CUDA graphs). Then try --enforce-eager, which is slower.",
        "调低 vLLM 的显存份额，给不由 PyTorch 分配的部分（通信缓冲区、工作区、CUDA 图）留出空间。再试 --enforce-eager，但会变慢。",
        "vllm serve MODEL --gpu-memory-utilization 0.85"),
    "vllm_sampler": (
        "Serve fewer requests at a time (the sampler makes logits for {requests} of them), or take a smaller share of the card.",
        "减少同时处理的请求（采样器要为 {requests} 个请求生成 logits），或调低 vLLM 的显存份额。",
        "vllm serve MODEL --max-num-seqs {fewer} --gpu-memory-utilization 0.85"),
    "vllm_start": (
        "Ask for no more than is free at the start, or free the card first.",
        "申请量不要超过启动时的空闲量，或先释放显存。",
        "vllm serve MODEL --gpu-memory-utilization {share_free}"),
    "vllm_raise": (
        "Give vLLM a larger share, for the weights leave nothing for the cache, and limit the length of a request.",
        "调高 vLLM 的显存份额（权重没有给缓存留下空间），并限制请求的长度。",
        "vllm serve MODEL --gpu-memory-utilization 0.95 --max-model-len 4096"),
    "vllm_length": (
        "Limit a request to what the cache holds, or give vLLM a larger share of the card (--gpu-memory-utilization).",
        "让请求不超过缓存的容量，或调高 vLLM 的显存份额（--gpu-memory-utilization）。",
        "vllm serve MODEL --max-model-len {length}"),
    "sglang_raise": (
        "Raise the static share (this error calls for a higher value) above {above}, which is what the weights took of the free memory; or split the weights over two cards (--tp 2).",
        "调高 --mem-fraction-static（遇到这个报错应调高），要大于 {above}，即权重占加载前空闲显存的比例；或把权重分到两张卡（--tp 2）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static {raised}"),
    "sglang_raise_some": (
        "Raise the static share (this error calls for a higher value), step by step; or split the weights over two cards (--tp 2).",
        "逐步调高 --mem-fraction-static（遇到这个报错应调高），或把权重分到两张卡（--tp 2）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.92"),
    "sglang_split": (
        "Quantise the weights, or split them over two cards: they leave almost nothing.",
        "量化权重，或分到两张卡。权重几乎占满显存。",
        "python -m sglang.launch_server --model-path MODEL --tp 2"),
    "sglang_lower": (
        "Lower the static share (this error calls for a lower value), and prefill in smaller chunks (--chunked-prefill-size 1024).",
        "调低 --mem-fraction-static（遇到这个报错应调低），并减小预填充的分块（--chunked-prefill-size 1024）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.75"),
    "sglang_graphs": (
        "Capture CUDA graphs for smaller batches only, or lower --mem-fraction-static. (SGLang before June 2026: --cuda-graph-max-bs.)",
        "只为较小的 batch 捕获 CUDA 图，或调低 --mem-fraction-static。（2026 年 6 月之前的 SGLang：--cuda-graph-max-bs。）",
        "python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs-decode 4"),
    "sglang_requests": (
        "Serve fewer requests at a time, or give the pool a larger share (--mem-fraction-static).",
        "减少同时处理的请求，或调高 --mem-fraction-static。",
        "python -m sglang.launch_server --model-path MODEL --max-running-requests 64"),
    "sglang_retract": (
        "Ignore it if it comes about once a minute or less. If it comes more often, let requests in more slowly, or give the pool a larger share (--mem-fraction-static).",
        "每分钟一次左右无妨。更频繁时，放慢接收请求，或给 token 池更大的份额（--mem-fraction-static）。",
        "python -m sglang.launch_server --model-path MODEL --schedule-conservativeness 1.3"),
    "vllm_retract": (
        "Ignore it if it comes now and then. If it comes often, serve fewer requests at a time, or give vLLM a larger share.",
        "偶尔发生无妨。频繁时，减少同时处理的请求，或调高 vLLM 的显存份额。",
        "vllm serve MODEL --max-num-seqs 64 --gpu-memory-utilization 0.95"),
    "vllm_swap": (
        "Ask for less swap space: it is host memory, for each card.",
        "减小交换空间。它是主机内存，每张卡各一份。",
        "vllm serve MODEL --swap-space 1"),
    "sglang_pages": (
        "Update SGLang (old versions count the new pages wrongly), or serve fewer requests at a time. Where the attention backend allows it, use pages of one token (--page-size 1).",
        "升级 SGLang（旧版会算错所需的新页数），或减少同时处理的请求。注意力后端允许时，也可用单 token 的页（--page-size 1）。",
        "python -m sglang.launch_server --model-path MODEL --max-running-requests 64"),
    "tgi_tokens": (
        "Lower what the warm-up tries. If small values fail, too, the weights alone fill the card: quantise or shard.",
        "调低预热所用的 token 数。若调到很小仍然失败，说明权重就占满了显存，应量化或分片。",
        "text-generation-launcher --model-id MODEL {flag} {fewer}"),
    "tgi_lower": (
        "Allow fewer tokens at a time.",
        "减少同时处理的 token。",
        "text-generation-launcher --model-id MODEL --max-batch-total-tokens 8192"),
    "trtllm_lower": (
        "Give the KV cache a smaller share of what is left, and lower max_num_tokens.",
        "调低 KV 缓存在剩余显存中的份额，并降低 max_num_tokens。",
        "trtllm-serve MODEL --kv_cache_free_gpu_memory_fraction 0.8 --max_num_tokens 4096"),
    "mlc_split": (
        "Take weights of fewer bits, or split them over two cards (tensor_parallel_shards=2).",
        "换用位数更低的权重，或把权重分到两张卡（tensor_parallel_shards=2）。",
        "mlc_llm convert_weight MODEL --quantization q4f16_1 -o MODEL-q4f16_1"),
    "workspace_vllm": (
        "Enlarge FlashInfer's workspace by at least what was asked for: vLLM's default is 394 MiB.",
        "加大 FlashInfer 的工作区，至少再加上这次申请的量（vLLM 默认 394 MiB）。",
        "export VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE={workspace}"),
    "workspace_sglang": (
        "Enlarge FlashInfer's workspace by at least what was asked for: SGLang's default is 384 MiB.",
        "加大 FlashInfer 的工作区，至少再加上这次申请的量（SGLang 默认 384 MiB）。",
        "export SGLANG_FLASHINFER_WORKSPACE_SIZE={workspace}"),
    "workspace": (
        "Enlarge FlashInfer's workspace by at least what was asked for.",
        "加大 FlashInfer 的工作区，至少再加上这次申请的量。",
        'workspace = torch.empty(old_size + {more}, dtype=torch.uint8, device="cuda")'),
    "llama_context": (
        "Shorten the context; then keep the cache in 8 bits (-ctk q8_0 -ctv q8_0, with flash attention).",
        "缩短上下文；再用 8 位缓存（-ctk q8_0 -ctv q8_0，并用 FlashAttention）。",
        "llama-server -m MODEL.gguf -c 8192"),
    "llama_buffers": (
        "Use smaller micro-batches and flash attention, which shrink the compute buffers; fewer layers on the card only leave them more room. (Builds before September 2025: -fa alone.)",
        "减小微批并启用 FlashAttention，以缩小计算缓冲区；少放几层到卡上只能腾出空间，不能缩小它。（2025 年 9 月之前的版本只写 -fa，不带 on。）",
        "llama-server -m MODEL.gguf -ub 256 -fa on"),
    "llama_layers": (
        "Put fewer layers on the card, step by step, until it loads; the rest runs on the processor.",
        "逐步减少放到卡上的层数，直到能加载；其余在处理器上运行。",
        "llama-server -m MODEL.gguf -ngl 20"),
    "llama_fit": (
        "Leave out -ngl and -c, so that llama.cpp fits both by itself; or put fewer layers on the card.",
        "不写 -ngl 和 -c，llama.cpp 会自己适配；或少放几层到卡上。",
        "llama-server -m MODEL.gguf --fit on"),
    "llama_slots": (
        "Take fewer slots (requests at a time), or a longer context for them to share.",
        "减少槽数（同时处理的请求数），或加长各槽共享的上下文。",
        "llama-server -m MODEL.gguf -np 1 -c 16384"),
    "ollama_layers": (
        "Put fewer layers on the card (in `ollama run`, as below), step by step; then shorten the context (OLLAMA_CONTEXT_LENGTH).",
        "逐步减少放到卡上的层数（在 `ollama run` 里输入下面一行）；再缩短上下文（OLLAMA_CONTEXT_LENGTH）。",
        "/set parameter num_gpu 20"),
    "ollama_buffers": (
        "Shorten the context and use flash attention, which shrink the compute buffers (a smaller num_batch does, too); fewer layers on the card only leave them more room.",
        "缩短上下文并启用 FlashAttention，以缩小计算缓冲区（减小 num_batch 也行）；少放几层到卡上只能腾出空间，不能缩小它。",
        "OLLAMA_FLASH_ATTENTION=1 OLLAMA_CONTEXT_LENGTH=2048 ollama serve"),
    "ollama_host": (
        "Take a smaller model or one of fewer bits, or free host memory: the part that is not on the card lies there.",
        "换更小的模型或位数更低的量化版本，或释放主机内存。不在卡上的部分放在那里。",
        "free -h && ollama ps"),
    "ollama_killed": (
        "See whether Linux's OOM killer did it; in a container, what its memory limit is. Then use a smaller model or a shorter context.",
        "查看是否被 Linux 的 OOM killer 终止；在容器里则查看内存上限。再换更小的模型，或缩短上下文。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "llama_host": (
        "Take a smaller model, fewer bits, or put more layers on the card: the other layers lie in host memory.",
        "换更小的模型或位数更低的量化版本，或多放几层到卡上。其余的层放在主机内存。",
        "free -h"),
    "llama_pinned": (
        "Turn pinned memory off. If the program stopped, the reason is further down in the log.",
        "关闭锁页内存。若程序停了，原因在日志后面。",
        "export GGML_CUDA_NO_PINNED=1"),
    "diffusers": (
        "Keep on the card only the part of the model that runs; the rest waits in host memory.",
        "只把模型中正在运行的部分留在卡上，其余放在主机内存。",
        "pipe.enable_model_cpu_offload()"),
    "comfyui": (
        "Keep on the card only the part of the model that runs; the rest waits in host memory.",
        "只把模型中正在运行的部分留在卡上，其余放在主机内存。",
        "python main.py --novram"),
    "webui": (
        "Keep on the card only the part of the model that runs; the rest waits in host memory.",
        "只把模型中正在运行的部分留在卡上，其余放在主机内存。",
        "python launch.py --medvram"),
    "trainer": (
        "Take one sequence at a time, add up the gradients of eight, and use activation checkpointing: the same gradient, far less memory.",
        "每次一个序列，用梯度累积合并八次的梯度，并用激活检查点。梯度相同，显存少得多。",
        "per_device_train_batch_size=1, gradient_accumulation_steps=8, gradient_checkpointing=True"),
    "lightning": (
        "Take a smaller batch, add up the gradients of eight, and use 16 bits for the activations.",
        "减小 batch，用梯度累积合并八次的梯度，激活用 16 位。",
        'Trainer(accumulate_grad_batches=8, precision="bf16-mixed")'),
    "deepspeed": (
        "Split parameters and state over the ranks, and move the optimizer to the host.",
        "把参数和状态分到各 rank，并把优化器移到主机。",
        '"zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "cpu"}}}}'),
    "ultralytics": (
        "Take smaller images (the default is 640), and a smaller batch.",
        "减小图像尺寸（默认 640）和 batch。",
        "yolo train imgsz=512 batch=8"),
    "dispatched": (
        "Free the card: an earlier model in this process or notebook often fills it. Else take a smaller model. (With `device_map={{'': 0}}` you get a plain CUDA out-of-memory error with figures.)",
        "释放显存。本进程或 Notebook 里常常还有之前的模型。否则换更小的模型。（想得到带数字的 CUDA out of memory 报错，可用 `device_map={{'': 0}}`。）",
        "model = None; import gc; gc.collect(); torch.cuda.empty_cache()"),
    "nvml": (
        "Treat it as CUDA out of memory, and print in MiB what is free, the total, and what PyTorch holds. (NVML often does not answer with MIG, on Jetson, in WSL.)",
        "当作 CUDA out of memory 处理，并自己打印空闲、总量和 PyTorch 占用（单位 MiB）。（MIG、Jetson、WSL 上 NVML 常常不可用。）",
        "print(*(n >> 20 for n in (*torch.{module}.mem_get_info(), torch.{module}.memory_reserved())))"),
    "tensorrt": (
        "While an engine is built, give the builder a smaller workspace (in MiB). If the build goes on, it only left out one way to compute a layer (a tactic). While an engine runs, see what holds the card (nvidia-smi).",
        "构建引擎时，减小构建器的工作区（单位 MiB）；若构建继续，只是跳过了某一层的一种实现（tactic）。运行引擎时，用 nvidia-smi 查看谁占用显存。",
        "trtexec --onnx=MODEL.onnx --memPoolSize=workspace:1024"),
    "xgboost": (
        "See who holds the card (nvidia-smi); then use a QuantileDMatrix, with fewer bins. (Before 1.7: DeviceQuantileDMatrix.)",
        "用 nvidia-smi 查看谁占用显存；再改用 QuantileDMatrix（按分位数分箱），并减少分箱数。（1.7 之前：DeviceQuantileDMatrix。）",
        'dtrain = xgboost.QuantileDMatrix(X, y, max_bin=64); params["max_bin"] = 64'),
    "catboost": (
        "Use fewer borders (bins) and fewer combinations of categories, keep categorical features in host memory, and do not set gpu_ram_part below 0.95.",
        "减少分箱数和类别组合，把类别特征放在主机内存；gpu_ram_part 不要低于 0.95。",
        'm.set_params(border_count=64, max_ctr_complexity=1, gpu_cat_features_storage="CpuPinnedMemory")'),
    "julia": (
        "Run the garbage collector, then take a smaller batch: the cache alone cannot give {asked}.",
        "回收不再使用的数组，然后减小 batch。光靠缓存腾不出 {asked}。",
        "GC.gc(true); CUDA.reclaim()"),
    "faiss": (
        "Search in smaller batches. Where the index itself does not fit, store it in 16 bits (useFloat16 of GpuClonerOptions), or split it over cards.",
        "分成更小的批检索。若是索引本身放不下，用 16 位存储（GpuClonerOptions 的 useFloat16），或分到多张卡。",
        "results = [index.search(part, k) for part in numpy.array_split(queries, 16)]"),
    "half_model": (
        "Use 16-bit weights, or a smaller model.",
        "使用 16 位权重，或更小的模型。",
        "model = model.half()"),
    "blender": (
        "Simplify the scene: limit subdivisions (below) and textures (Texture Limit in the same panel).",
        "简化场景，限制细分级数（见下）和纹理分辨率（同一面板的 Texture Limit）。",
        "r = bpy.context.scene.render; r.use_simplify = True; r.simplify_subdivision_render = 2"),
    "unified": (
        'See what holds it (free -h). If "buff/cache" is large, drop it as below and load again; else close programs, or take a smaller model.',
        "用 free -h 查看占用。若“buff/cache”很大，用下面的命令清掉后重新加载；否则关闭其他程序，或换更小的模型。",
        "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"),
    "trtllm_unsaid": (
        "Lower max_num_tokens and max_batch_size. If the lines below the message name the KV cache, give it a smaller share of what is left, too (--kv_cache_free_gpu_memory_fraction).",
        "降低 max_num_tokens 和 max_batch_size。若报错下面几行写明是 KV 缓存，再调低它在剩余显存中的份额（--kv_cache_free_gpu_memory_fraction）。",
        "trtllm-serve MODEL --max_num_tokens 4096 --max_batch_size 16"),
    "ollama_context": (
        "Shorten the context, and serve one request at a time.",
        "缩短上下文，每次只处理一个请求。",
        "OLLAMA_CONTEXT_LENGTH=2048 OLLAMA_NUM_PARALLEL=1 ollama serve"),
}
