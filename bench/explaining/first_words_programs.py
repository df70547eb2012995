"""What to do first, by the program that made the message; see first_words.py."""

PROGRAMS = {
    "vllm_lower": (
        "Leave room beside vLLM's reservation: take a smaller share of the card, and serve fewer requests at a time.",
        "在 vLLM 的预留之外留出空间：减小份额和同时处理的请求数。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64"),
    "vllm_weights": (
        "If it fails while weights load, split them over more cards (--tensor-parallel-size) or quantise them: PyTorch holds more than vLLM's usual share. Else take a smaller share, and fewer requests at a time.",
        "若在加载权重时失败：把权重分到更多卡（--tensor-parallel-size）或量化，因为 PyTorch 占用的已超过 vLLM 通常的份额。否则减小份额和同时处理的请求数。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64"),
    "vllm_graphs": (
        "Take a smaller share: it must leave room for what is outside PyTorch (communication, workspaces, CUDA graphs). Then try --enforce-eager, which is slower.",
        "减小份额：要给 PyTorch 之外的内存（通信、工作区、CUDA 图）留出空间。再试 --enforce-eager，会变慢。",
        "vllm serve MODEL --gpu-memory-utilization 0.85"),
    "vllm_sampler": (
        "Serve fewer requests at a time (the sampler makes logits for {requests} of them), or take a smaller share of the card.",
        "减少同时处理的请求：采样器要为 {requests} 个请求生成 logits；或减小份额。",
        "vllm serve MODEL --max-num-seqs {fewer} --gpu-memory-utilization 0.85"),
    "vllm_start": (
        "Ask for no more than is free at the start, or free the card first.",
        "申请量不要超过启动时的空闲量，或先腾出显卡。",
        "vllm serve MODEL --gpu-memory-utilization {share_free}"),
    "vllm_raise": (
        "The weights leave nothing for the cache: give vLLM a larger share, and limit the length of a request.",
        "权重没有给缓存留下空间：给 vLLM 更大的份额，并限制请求的长度。",
        "vllm serve MODEL --gpu-memory-utilization 0.95 --max-model-len 4096"),
    "vllm_length": (
        "Limit a request to what the cache holds, or give the cache a larger share.",
        "让请求不超过缓存的容量，或给缓存更大的份额。",
        "vllm serve MODEL --max-model-len {length}"),
    "sglang_raise": (
        "Raise the static share (this failure wants it higher) above {above}, which is what the weights took of the free memory; or split the weights over two cards (--tp 2).",
        "提高静态份额（这种失败要求更高）：高于 {above}，即权重所占空闲显存的比例；或把权重分到两张卡（--tp 2）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static {raised}"),
    "sglang_raise_some": (
        "Raise the static share (this failure wants it higher), step by step; or split the weights over two cards (--tp 2).",
        "逐步提高静态份额（这种失败要求更高）；或把权重分到两张卡（--tp 2）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.92"),
    "sglang_split": (
        "The weights leave almost nothing: quantise them, or split them over two cards.",
        "权重几乎占满：量化，或分到两张卡。",
        "python -m sglang.launch_server --model-path MODEL --tp 2"),
    "sglang_lower": (
        "Lower the static share (this failure wants it lower), and prefill in smaller chunks (--chunked-prefill-size 2048).",
        "降低静态份额（这种失败要求更低），并减小预填充的分块（--chunked-prefill-size 2048）。",
        "python -m sglang.launch_server --model-path MODEL --mem-fraction-static 0.75"),
    "sglang_graphs": (
        "Capture graphs for smaller batches only, or lower the static share.",
        "只为较小的批捕获图，或降低静态份额。",
        "python -m sglang.launch_server --model-path MODEL --cuda-graph-max-bs 16"),
    "sglang_requests": (
        "Serve fewer requests at a time, or give the pool a larger static share.",
        "减少同时处理的请求，或提高静态份额。",
        "python -m sglang.launch_server --model-path MODEL --max-running-requests 64"),
    "sglang_retract": (
        "Once a minute is harmless. If it is more often, let requests in more slowly, or give the pool a larger share.",
        "每分钟一次无妨。更频繁时，放慢接收请求，或给 token 池更大的份额。",
        "python -m sglang.launch_server --model-path MODEL --schedule-conservativeness 1.3"),
    "vllm_retract": (
        "Now and then is harmless. If it is often, serve fewer requests at a time, or give vLLM a larger share.",
        "偶尔发生无妨。频繁时，减少同时处理的请求，或给 vLLM 更大的份额。",
        "vllm serve MODEL --max-num-seqs 64 --gpu-memory-utilization 0.95"),
    "vllm_swap": (
        "Ask for less swap space: it is host memory, for each card.",
        "减小交换空间：它是主机内存，每张卡各一份。",
        "vllm serve MODEL --swap-space 1"),
    "sglang_pages": (
        "Update SGLang (old versions count the new pages wrongly), or serve fewer requests at a time. Pages of one token (--page-size 1) where the attention backend allows them.",
        "升级 SGLang（旧版算错新页的数目），或减少同时处理的请求。注意力后端允许时，也可用单 token 的页（--page-size 1）。",
        "python -m sglang.launch_server --model-path MODEL --max-running-requests 64"),
    "tgi_tokens": (
        "Lower what the warm-up tries; if small values fail, too, the weights alone fill the card: quantise or shard.",
        "降低预热所用的 token 数；若很小也失败，则仅权重就占满显卡：量化或分片。",
        "text-generation-launcher --model-id MODEL {flag} {fewer}"),
    "tgi_lower": (
        "Fewer tokens at a time.", "减少同时处理的 token。",
        "text-generation-launcher --model-id MODEL --max-batch-total-tokens 8192"),
    "trtllm_lower": (
        "Give the KV cache a smaller share of what is left, and lower max_num_tokens.",
        "减小 KV 缓存在剩余显存中的份额，并降低 max_num_tokens。",
        "trtllm-serve MODEL --kv_cache_free_gpu_memory_fraction 0.8 --max_num_tokens 4096"),
    "mlc_split": (
        "Split the weights over two cards, or take weights of fewer bits.",
        "把权重分到两张卡，或使用更少位数的权重。",
        'mlc_llm serve MODEL --overrides "tensor_parallel_shards=2"'),
    "workspace_vllm": (
        "Make FlashInfer's workspace larger than what was asked for.", "让 FlashInfer 的工作区大于所申请的量。",
        "export VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE={workspace}"),
    "workspace_sglang": (
        "Make FlashInfer's workspace larger than what was asked for.", "让 FlashInfer 的工作区大于所申请的量。",
        "export SGLANG_FLASHINFER_WORKSPACE_SIZE={workspace}"),
    "workspace": (
        "Make FlashInfer's workspace larger than what was asked for.", "让 FlashInfer 的工作区大于所申请的量。",
        'workspace = torch.empty({workspace}, dtype=torch.uint8, device="cuda")'),
    "llama_context": (
        "Shorten the context; then keep the cache in 8 bits (-ctk q8_0 -ctv q8_0, with flash attention).",
        "缩短上下文；再用 8 位缓存（-ctk q8_0 -ctv q8_0，并用 flash attention）。",
        "llama-server -m MODEL.gguf -c 8192"),
    "llama_buffers": (
        "Smaller micro-batches and flash attention shrink the compute buffers; fewer layers on the card do not. (Builds before September 2025: -fa alone.)",
        "减小微批并用 flash attention 能缩小计算缓冲区；少放几层到卡上则不能。（2025 年 9 月之前的版本：只写 -fa。）",
        "llama-server -m MODEL.gguf -ub 256 -fa on"),
    "llama_layers": (
        "Put fewer layers on the card; the rest runs on the processor.",
        "少放几层到卡上，其余在处理器上运行。",
        "llama-server -m MODEL.gguf -ngl 20"),
    "llama_fit": (
        "Leave out -ngl and -c: then llama.cpp fits both by itself; or put fewer layers on the card.",
        "不写 -ngl 和 -c：llama.cpp 会自己适配；或少放几层到卡上。",
        "llama-server -m MODEL.gguf --fit on"),
    "llama_slots": (
        "Take fewer slots, or a longer context for them to share.",
        "减少槽数，或加长各槽共享的上下文。",
        "llama-server -m MODEL.gguf -np 1 -c 16384"),
    "ollama_layers": (
        "A shorter context, and fewer layers on the card.", "缩短上下文，少放几层到卡上。",
        "OLLAMA_CONTEXT_LENGTH=4096 OLLAMA_NUM_PARALLEL=1 ollama serve"),
    "ollama_buffers": (
        "A shorter context and flash attention shrink the compute buffers (a smaller num_batch, too); fewer layers on the card do not.",
        "缩短上下文并用 flash attention 能缩小计算缓冲区（减小 num_batch 也行）；少放几层到卡上则不能。",
        "OLLAMA_FLASH_ATTENTION=1 OLLAMA_CONTEXT_LENGTH=4096 ollama serve"),
    "ollama_host": (
        "Take a smaller model or one of fewer bits, or free host memory: the part that is not on the card lies there.",
        "换更小或位数更少的模型，或腾出主机内存：不在卡上的部分放在那里。",
        "free -h && ollama ps"),
    "ollama_killed": (
        "See whether the kernel did it; in a container, what its memory limit is. Then a smaller model or a shorter context.",
        "查看是否被内核终止；在容器里则查看内存上限。再换更小的模型或缩短上下文。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "llama_host": (
        "The layers that are not on the card lie in host memory: take a smaller model, fewer bits, or more layers on the card.",
        "不在卡上的层放在主机内存：换更小或位数更少的模型，或多放几层到卡上。",
        "free -h"),
    "llama_pinned": (
        "Leave pinned memory out. If it stopped, the reason is further down in the log.",
        "不用锁页内存。若程序停了，请看日志后面的错误。",
        "export GGML_CUDA_NO_PINNED=1"),
    "diffusers": (
        "Keep on the card only the part that runs.", "只把正在运行的部分留在卡上。",
        "pipe.enable_model_cpu_offload()"),
    "comfyui": ("Keep on the card only the part that runs.", "只把正在运行的部分留在卡上。", "python main.py --lowvram"),
    "webui": ("Keep on the card only the part that runs.", "只把正在运行的部分留在卡上。", "python launch.py --medvram"),
    "trainer": (
        "One sequence at a time, gradients added up over eight, and checkpoints: the same gradient, far less memory.",
        "每次一个序列，累加八次梯度，并用检查点：梯度相同，显存少得多。",
        "per_device_train_batch_size=1, gradient_accumulation_steps=8, gradient_checkpointing=True"),
    "lightning": (
        "A smaller batch, its gradients added up, and 16 bits for the activations.",
        "减小批量，累加梯度，激活用 16 位。",
        'Trainer(accumulate_grad_batches=8, precision="bf16-mixed")'),
    "deepspeed": (
        "Split parameters and state over the ranks, and move the optimizer to the host.",
        "把参数和状态分到各 rank，并把优化器移到主机。",
        '"zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "cpu"}}}}'),
    "ultralytics": ("Smaller images, and a smaller batch.", "减小图像和批量。", "yolo train batch=8 imgsz=640"),
    "dispatched": (
        "Free the card first: an earlier model in this process or notebook often fills it. Else take a smaller model. (With device_map={{'': 0}} it fails plainly.)",
        "腾出显卡：本进程或 Notebook 里常常还有之前的模型。否则换更小的模型。（用 device_map={{'': 0}} 会直接报错。）",
        "del model; import gc; gc.collect(); torch.cuda.empty_cache()"),
    "nvml": (
        "Treat it as CUDA out of memory, and print the figures yourself: MiB free, in all, and held by PyTorch. (NVML often does not answer with MIG, on Jetson, in WSL.)",
        "当作 CUDA out of memory 处理，并自己打印数字：空闲、总量和 PyTorch 占用的 MiB。（MIG、Jetson、WSL 上 NVML 常常不可用。）",
        "print(*(n >> 20 for n in (*torch.{module}.mem_get_info(), torch.{module}.memory_reserved())))"),
    "xgboost": (
        "See who holds the card (nvidia-smi); then quantise the data, with fewer bins. (Before 1.7: DeviceQuantileDMatrix.)",
        "用 nvidia-smi 查看谁占用显卡；再量化数据并减少分箱。（1.7 之前：DeviceQuantileDMatrix。）",
        'dtrain = xgboost.QuantileDMatrix(X, y, max_bin=64); params["max_bin"] = 64'),
    "catboost": (
        "Use fewer borders (bins) and fewer combinations of categories, keep categorical features in host memory, and do not set gpu_ram_part below 0.95.",
        "减少分箱数和类别组合，把类别特征放在主机内存；gpu_ram_part 不要低于 0.95。",
        'm.set_params(border_count=64, max_ctr_complexity=1, gpu_cat_features_storage="CpuPinnedMemory")'),
    "julia": (
        "Collect what is dead, then take a smaller batch: the cache alone cannot give {asked}.",
        "回收不再使用的数组，再减小批量：仅靠缓存给不出 {asked}。",
        "GC.gc(true); CUDA.reclaim()"),
    "faiss": (
        "Search in smaller batches, and bound the temporary memory.", "分成更小的批检索，并限制临时内存。",
        "resources.setTempMemory(256 * 1024 * 1024)"),
    "half_model": (
        "Use 16-bit weights, or a smaller model.",
        "使用 16 位权重，或更小的模型。",
        "model = model.half()"),
    "blender": (
        "Simplify the scene: limit textures and subdivisions.", "简化场景：限制纹理和细分。",
        "bpy.context.scene.render.use_simplify = True"),
    "unified": (
        "Card and host share one memory here, and the page cache fills it: drop it, and load again.",
        "这里显卡与主机共用内存，页缓存占满了它：清掉后重新加载。",
        "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"),
}
