"""What to do first, in English and Chinese, with the line to paste, the same in both: for bench/explain. A name in braces is a value
of the message, or one that first.py computes from it."""

FIRST = {
    # By the diagnosis alone.
    "smaller_batch": (
        "Split the batch, and add up the gradients: the gradient stays the same, the activations become an eighth.",
        "把批拆开并累加梯度：梯度不变，激活只剩八分之一。",
        "for part in batch.chunk(8): (loss_fn(model(part)) / 8).backward()"),
    "slightly_smaller": (
        "Little is missing for this request: try a batch, or a sequence, that is a tenth smaller.",
        "这次申请只差一点：先把批量或序列减小十分之一。",
        "batch_size = batch_size * 9 // 10"),
    "halve_batch": (
        "Halve the batch, or what is computed at a time, until it fits.",
        "把批量（或一次计算的量）减半，直到放得下。",
        "batch_size = batch_size // 2"),
    "shapes": (
        "Look at the shapes first: a wrong dimension, or a broadcast to an outer product, is the usual reason.",
        "先看形状：常见原因是维度写错，或广播成了外积。",
        "print({{k: tuple(v.shape) for k, v in locals().items() if hasattr(v, 'shape')}})"),
    "whole_program": (
        "Make the program smaller: a smaller batch, rematerialisation, or more chips.",
        "让程序变小：减小批量、重计算（remat），或用更多芯片。",
        "step = jax.jit(jax.value_and_grad(jax.checkpoint(loss)))"),
    "segments": (
        "Set this before the program starts: the allocator then maps its free pieces side by side.",
        "在程序启动之前设置：分配器会把零散的空闲页并排映射。",
        "export {variable}=expandable_segments:True"),
    "keep_large": (
        "This PyTorch is older than expandable segments (2.1): update it, or keep large blocks whole.",
        "这个 PyTorch 早于可扩展段（2.1）：升级，或让大块不被拆分。",
        "export {variable}=max_split_size_mb:{split}"),
    "pool_async": (
        "Take the driver's pool, which moves memory between sizes.",
        "使用驱动的内存池，它能在不同大小之间移动内存。",
        "export TF_GPU_ALLOCATOR=cuda_malloc_async"),
    "planned": (
        "Take the allocator that maps free pages side by side.",
        "使用把空闲页并排映射的分配器。",
        ""),
    "holders": (
        "See who holds the card, and end what is yours: a notebook's kernel, a run that did not end.",
        "查看谁占用显卡，结束自己的：笔记本内核、未结束的程序。",
        "{holders}"),
    "own_device": (
        "Give each rank its own device.", "让每个 rank 使用自己的设备。",
        'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))'),
    "fraction": (
        "Raise or remove the limit that somebody set.",
        "提高或取消所设的上限。",
        "torch.cuda.set_per_process_memory_fraction(1.0)"),
    "fraction_cupy": ("Raise or remove the limit.", "提高或取消上限。", 'export CUPY_GPU_MEMORY_LIMIT="100%"'),
    "fraction_onnx": (
        "Raise gpu_mem_limit, and let the arena grow by what is asked.",
        "提高 gpu_mem_limit，并让内存池按申请量增长。",
        'providers=[("CUDAExecutionProvider", {{"arena_extend_strategy": "kSameAsRequested"}})]'),
    "fraction_rmm": (
        "Raise the pool's maximum, or leave it out.", "提高内存池的最大值，或不设。",
        "rmm.reinitialize(pool_allocator=True, maximum_pool_size=None)"),
    "fraction_mps": (
        "Close what else uses the Mac's memory; the limit is a share of it.",
        "关闭占用内存的其他程序；上限是整机内存的一个比例。",
        "top -o mem"),
    "budget": ("Give it a larger budget, or one of the levers that its report names.", "给它更大的预算，或用报告里列出的办法。", "--budget none"),
    "look": (
        "Print what is free just before the call that fails: that tells whether this program fills the card, or another.",
        "在失败的调用之前打印空闲量：由此可知占满显卡的是本程序还是别的程序。",
        "print([n / 2**30 for n in torch.{module}.mem_get_info()])"),
    "look_both": (
        "Look at both while it runs, the card and the host.", "在运行时同时查看显卡和主机。", "watch -n 1 'nvidia-smi; free -h'"),
    "look_card": (
        "See how much of the card is in use just before the call that fails, and by whom.",
        "在失败的调用之前查看显存已用多少、被谁占用。",
        "{in_use}"),
    "metal_full": (
        "Card and host share one memory here: close other programs, or take a smaller model, prompt or batch.",
        "这里显卡与主机共用内存：关闭其他程序，或换更小的模型、提示或批量。",
        "top -o mem"),
    "metal_buffer": (
        "Metal gives no larger buffer, whatever is free: a shorter prompt or image, a smaller batch, or tiles.",
        "无论空闲多少，Metal 都不给更大的缓冲区：缩短提示或缩小图像、减小批量，或分块。",
        ""),
    "xla_share": (
        "JAX takes 75 % of the card by default: give it more, and end what else uses the card.",
        "JAX 默认占用显卡的 75 %：给它更多，并结束占用显卡的其他程序。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.95"),
    "xla_less": (
        "Leave room outside the pool: the CUDA graph is made there.",
        "在内存池之外留出空间：CUDA 图建在那里。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.80"),
    "tf_grow": (
        "Let TensorFlow take memory as it needs it, and see who else holds the card (nvidia-smi).",
        "让 TensorFlow 按需占用显存，并用 nvidia-smi 查看谁占用显卡。",
        "export TF_FORCE_GPU_ALLOW_GROWTH=true"),

    # By the call that failed.
    "loss": (
        "The logits over the whole vocabulary fill the card: a chunked loss never holds all of them, a shorter sequence has fewer.",
        "占满它的是整个词表的 logits：分块损失不生成完整的 logits，序列短则更少。",
        "from cut_cross_entropy import linear_cross_entropy"),
    "loss_trainer": (
        "The logits over the whole vocabulary fill the card: a fused loss never holds all of them, a shorter max_seq_length has fewer.",
        "占满它的是整个词表的 logits：融合损失不生成完整的 logits，max_seq_length 小则更少。",
        "TrainingArguments(..., use_liger_kernel=True)"),
    "pinned": (
        "Do not pin: pin_memory asks for page-locked host memory, which the system limits; the card is not full.",
        "不要锁页：pin_memory 申请的是主机锁页内存，系统对其有限制；满的不是显卡。",
        "DataLoader(dataset, num_workers=2, pin_memory=False)"),
    "pinned_deepspeed": (
        "Do not pin what is offloaded: that is page-locked host memory, which WSL and ulimit limit; the card is not full.",
        "卸载时不要锁页：那是主机锁页内存，受 WSL 和 ulimit 限制；满的不是显卡。",
        '"offload_optimizer": {{"device": "cpu", "pin_memory": false}}'),
    "optimizer_first": (
        "The optimizer's state appears at the first step, with Adam two more copies of the parameters: keep it in 8 bits.",
        "优化器状态在第一步才出现，用 Adam 时相当于再存两份参数：用 8 位保存。",
        "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)"),
    "optimizer_first_trainer": (
        "The optimizer's state appears at the first step, with Adam two more copies of the parameters: keep it in 8 bits.",
        "优化器状态在第一步才出现，用 Adam 时相当于再存两份参数：用 8 位保存。",
        'TrainingArguments(..., optim="adamw_bnb_8bit")'),
    "optimizer": (
        "The default step makes temporaries as large as the gradients: the fused one makes none.",
        "默认的 step 会生成与梯度一样大的临时量：融合版不生成。",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"),
    "attention": (
        "Attention makes the whole matrix of scores, length times length: a fused one never does.",
        "注意力生成了整个分数矩阵（长度乘长度）：融合注意力不生成。",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    "attention_model": (
        "Attention makes the whole matrix of scores, length times length: a fused one never does.",
        "注意力生成了整个分数矩阵（长度乘长度）：融合注意力不生成。",
        'from_pretrained(name, attn_implementation="sdpa")'),
    "fused_attention": (
        "A fused attention fell back to the one with all scores (a mask, FP32, a head size): ask for a fused one, and it says why.",
        "融合注意力退回到了生成全部分数的实现（掩码、FP32 或头大小所致）：指定融合实现，它会说明原因。",
        "with torch.nn.attention.sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION): y = model(x)"),
    "diffusers_attention": (
        "Attention over the whole image fills it: compute it in slices, or make the image smaller.",
        "占满它的是整幅图像的注意力：分片计算，或缩小图像。",
        "pipe.enable_attention_slicing()"),
    "save": (
        "It fails while a checkpoint is gathered: gather on the host and on one rank only, or save shards.",
        "失败发生在汇集检查点时：只在一个 rank 上汇集到主机，或按分片保存。",
        "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"),
    "gathered": (
        "The evaluation keeps all its outputs on the card: move them to the host every few steps, and keep no logits.",
        "评估把所有输出都留在卡上：每隔几步移到主机，并且不保留 logits。",
        "TrainingArguments(..., eval_accumulation_steps=8, prediction_loss_only=True)"),
    "load": (
        "It fails while weights are loaded: load them to the host first, so that the card holds them once.",
        "失败发生在加载权重时：先加载到主机，使卡上只有一份。",
        'state = torch.load(path, map_location="cpu")'),
    "load_model": (
        "It fails while weights are loaded: in 16 bits they take half, and device_map puts the rest in host memory.",
        "失败发生在加载权重时：16 位只占一半，device_map 把放不下的放到主机内存。",
        'from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto")'),
    "generate": (
        "The KV cache grows with every sequence and every token: generate fewer sequences at a time, or shorter ones.",
        "KV 缓存随序列数和 token 数增长：减少同时生成的序列，或缩短长度。",
        "model.generate(**inputs, max_new_tokens=256, num_beams=1)"),
    "backward": (
        "It fails in the backward pass, where all activations are still live: keep fewer, and compute the rest again.",
        "失败发生在反向传播，此时所有激活都还存活：少保存一些，其余重算。",
        "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"),
    "backward_model": (
        "It fails in the backward pass, where all activations are still live: keep fewer, and compute the rest again.",
        "失败发生在反向传播，此时所有激活都还存活：少保存一些，其余重算。",
        "model.gradient_checkpointing_enable()"),
    "evaluation": (
        "It fails in evaluation, which needs no activations: keep none.",
        "失败发生在评估，评估不需要激活：不保存。",
        "with torch.no_grad(): evaluate()"),
    "capture": (
        "It fails while a CUDA graph is captured, and graphs keep a pool of their own: capture fewer sizes, or none.",
        "失败发生在捕获 CUDA 图时，图有自己的内存池：不用图，或减少尺寸。",
        "model = torch.compile(model, mode='default')"),
    "process_group": (
        "It fails while the ranks connect. Each takes a context and buffers: first check that no two use one card.",
        "失败发生在各 rank 建立通信时：每个都要上下文和缓冲区，先确认没有两个用同一张卡。",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'),
    "move": (
        "The weights alone do not fit: in 16 bits they take half.",
        "仅权重就放不下：16 位只占一半。",
        "model = model.to(torch.bfloat16).to(device)"),
    "decode": (
        "It fails while the image is decoded: decode it by tiles.",
        "失败发生在图像解码时：分块解码。",
        "pipe.vae.enable_tiling()"),

    # By the program.
    "vllm_lower": (
        "Leave room beside vLLM's reservation: take a smaller share of the card, and serve fewer requests at a time.",
        "在 vLLM 的预留之外留出空间：减小份额和同时处理的请求数。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --max-num-seqs 64"),
    "vllm_graphs": (
        "Much of this process lies outside PyTorch (CUDA graphs, workspaces): take a smaller share, and fewer graphs or none.",
        "本进程有许多内存在 PyTorch 之外（CUDA 图、工作区）：减小份额，不用或少用图。",
        "vllm serve MODEL --gpu-memory-utilization 0.85 --enforce-eager"),
    "vllm_sampler": (
        "Serve fewer requests at a time (the sampler makes logits for {requests} of them), or take a smaller share of the card.",
        "减少同时处理的请求：采样器要为 {requests} 个请求生成 logits；或减小份额。",
        "vllm serve MODEL --max-num-seqs {fewer} --gpu-memory-utilization 0.85"),
    "vllm_start": (
        "Ask for no more than is free at the start, or free the card first.",
        "启动时不要申请超过空闲的量，或先腾出显卡。",
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
        "Raise the static share (this failure wants it higher): above {above}; or split the weights over two cards.",
        "提高静态份额（这种失败要求更高）：高于 {above}；或把权重分到两张卡。",
        "python -m sglang.launch_server --mem-fraction-static {raised}"),
    "sglang_split": (
        "The weights leave almost nothing: quantise them, or split them over two cards.",
        "权重几乎占满：量化，或分到两张卡。",
        "python -m sglang.launch_server --tp 2"),
    "sglang_lower": (
        "Lower the static share (this failure wants it lower), and prefill in smaller chunks.",
        "降低静态份额（这种失败要求更低），并减小预填充的分块。",
        "python -m sglang.launch_server --mem-fraction-static 0.75 --chunked-prefill-size 2048"),
    "sglang_graphs": (
        "Capture graphs for smaller batches only, or lower the static share.",
        "只为较小的批捕获图，或降低静态份额。",
        "python -m sglang.launch_server --cuda-graph-max-bs 16 --mem-fraction-static 0.8"),
    "sglang_requests": (
        "Serve fewer requests at a time, or give the pool a larger static share.",
        "减少同时处理的请求，或提高静态份额。",
        "python -m sglang.launch_server --max-running-requests 64"),
    "sglang_retract": (
        "Once a minute is harmless. If it is more often, let requests in more slowly, or give the pool a larger share.",
        "每分钟一次无妨。更频繁时，放慢接收请求，或给 token 池更大的份额。",
        "python -m sglang.launch_server --schedule-conservativeness 1.3"),
    "vllm_retract": (
        "Now and then is harmless. If it is often, serve fewer requests at a time, or give vLLM a larger share.",
        "偶尔发生无妨。频繁时，减少同时处理的请求，或给 vLLM 更大的份额。",
        "vllm serve MODEL --max-num-seqs 64 --gpu-memory-utilization 0.95"),
    "vllm_swap": (
        "Ask for less swap space: it is host memory, for each card.",
        "减小交换空间：它是主机内存，每张卡各一份。",
        "vllm serve MODEL --swap-space 1"),
    "sglang_pages": (
        "Every sequence needs a page of its own, and no page is free: take pages of one token, or serve fewer requests at a time.",
        "每个序列都要自己的页，而已没有空页：改用单 token 的页，或减少同时处理的请求。",
        "python -m sglang.launch_server --page-size 1"),
    "tgi_tokens": (
        "Lower what the warm-up tries; if small values fail, too, the weights alone fill the card: quantise or shard.",
        "降低预热所用的 token 数；若很小也失败，则仅权重就占满显卡：量化或分片。",
        "text-generation-launcher --model-id MODEL {flag} {fewer}"),
    "tgi_lower": (
        "Fewer tokens at a time.", "减少同时处理的 token。",
        "text-generation-launcher --model-id MODEL --max-batch-total-tokens 8192"),
    "trtllm_lower": (
        "Give the KV cache a smaller share of what the weights leave, and plan for fewer tokens at a time.",
        "减小 KV 缓存在权重之外所占的份额，并减少同时处理的 token。",
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
        "Shorten the context, or keep the cache in 8 bits: its size is the context times the slots.",
        "缩短上下文，或用 8 位缓存：其大小等于上下文乘以槽数。",
        "llama-server -m MODEL.gguf -c 8192 -fa on -ctk q8_0 -ctv q8_0"),
    "llama_buffers": (
        "Smaller micro-batches and flash attention shrink the compute buffers; fewer layers on the card do not.",
        "减小微批并用 flash attention 能缩小计算缓冲区；少放几层到卡上则不能。",
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
    "ollama_host": (
        "Take a smaller model or one of fewer bits, or free host memory: the part that is not on the card lies there.",
        "换更小或位数更少的模型，或腾出主机内存：不在卡上的部分放在那里。",
        "free -h && ollama ps"),
    "ollama_killed": (
        "See whether the kernel did it; then a smaller model, a shorter context, or more of the model on the card.",
        "查看是否由内核所为；再换更小的模型、缩短上下文，或把更多层放到卡上。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "llama_host": (
        "The layers that are not on the card lie in host memory: take a smaller model, fewer bits, or more layers on the card.",
        "不在卡上的层放在主机内存：换更小或位数更少的模型，或多放几层到卡上。",
        "free -h"),
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
        "Free the card first: an earlier model in this process or notebook is the usual reason; else a smaller model.",
        "先腾出显卡：常见原因是本进程或笔记本里还有之前的模型；否则换更小的模型。",
        "import gc; del model; gc.collect()"),
    "nvml": (
        "Treat it as CUDA out of memory, and print the figures yourself. (NVML is often missing with MIG, on Jetson, in WSL.)",
        "当作 CUDA out of memory 处理，并自己打印数字。（MIG、Jetson、WSL 常常没有 NVML。）",
        "print([n / 2**30 for n in torch.cuda.mem_get_info()])"),
    "xgboost": (
        "See who holds the card (nvidia-smi); then quantise the data, with fewer bins.",
        "先用 nvidia-smi 查看谁占用显卡；再量化数据并减少分箱。",
        "dtrain = xgboost.QuantileDMatrix(X, y, max_bin=64)"),
    "catboost": (
        "Fewer borders, simpler categories, and those in host memory; and no gpu_ram_part below its default of 0.95.",
        "减少分界数和类别组合，把类别特征放在主机内存；gpu_ram_part 不要低于默认的 0.95。",
        'border_count=64, max_ctr_complexity=1, gpu_cat_features_storage="CpuPinnedMemory"'),
    "julia": (
        "A smaller batch: CUDA.reclaim() cannot give {asked}.", "减小批量：CUDA.reclaim() 给不出 {asked}。",
        "CUDA.memory_status()"),
    "faiss": (
        "Search in smaller batches, and bound the temporary memory.", "分成更小的批检索，并限制临时内存。",
        "resources.setTempMemory(256 * 1024 * 1024)"),
    "half_model": ("Take weights of 16 bits, or a smaller model.", "使用 16 位权重，或更小的模型。", "model = model.half()"),
    "blender": (
        "Simplify the scene: limit textures and subdivisions.", "简化场景：限制纹理和细分。",
        "bpy.context.scene.render.use_simplify = True"),
    "unified": (
        "Card and host share one memory here, and the page cache fills it: drop it, and load again.",
        "这里显卡与主机共用内存，页缓存占满了它：清掉后重新加载。",
        "sync; echo 3 | sudo tee /proc/sys/vm/drop_caches"),

    # Host memory.
    "container": (
        "See what the container may have and what it took; raise its limit, or let loaders hold less.",
        "查看容器的上限和峰值；提高上限，或让数据加载少占一些。",
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak"),
    "shared_memory": (
        "Give the container more shared memory.", "给容器更多共享内存。", "docker run --shm-size=8g IMAGE"),
    "killed": (
        "See whether the kernel did it, and which process was the largest; then a smaller model or fewer workers.",
        "查看是否由内核所为、哪个进程最大；再减小模型或减少加载进程。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "addresses": ("Lift the limit on addresses.", "取消地址空间的限制。", "ulimit -v unlimited"),
    "page_file": (
        "Start no loader processes: each commits memory for the CUDA libraries again. Or make the page file larger.",
        "不要启动加载进程（每个都会再次提交 CUDA 库）；或加大页面文件。",
        "DataLoader(dataset, num_workers=0)"),
    "compiler": ("Compile fewer files at a time.", "减少同时编译的文件数。", "export MAX_JOBS=2 CMAKE_BUILD_PARALLEL_LEVEL=2"),
    "node": (
        "Fewer tasks or actors on the node, or more host memory: what is offloaded lies there, too.",
        "减少节点上的任务或 actor，或增加主机内存：卸载的内容也在那里。",
        "ray.init(num_cpus=4)"),
    "evicted": (
        "Ask for the host memory that it needs, so that it gets a node with as much; or use less of it.",
        "为它申请所需的主机内存，使它被调度到足够的节点；或减少用量。",
        "kubectl set resources deployment/NAME --requests=memory=64Gi --limits=memory=64Gi"),
    "object_store": (
        "Let go of results that are not needed (`del ref`), or give the store more.",
        "释放不再需要的结果（`del ref`），或给对象存储更多内存。",
        "ray.init(object_store_memory=32 * 2**30)"),
    "loader": (
        "Fewer loader workers, and less of them ahead.", "减少加载进程及其预取。",
        "DataLoader(dataset, num_workers=2, prefetch_factor=1, pin_memory=False)"),
    "mapped": ("Read it as it is needed: map the file.", "按需读取：映射文件。", 'numpy.load(path, mmap_mode="r")'),
    "host": (
        "See what the host has left, and load less of the data or the model at a time.",
        "查看主机还剩多少，并减少一次加载的数据或模型。",
        "free -h"),
    "locked": ("Lift the limit on locked pages, or pin less.", "取消锁页的限制，或少锁页。", "ulimit -l unlimited"),
}
