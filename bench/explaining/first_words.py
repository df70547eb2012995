"""What to do first, in English and Chinese, with the line to paste, the same in both: for bench/explain. A name in braces is a value
of the message, or one that first.py computes from it."""

FIRST = {
    # By the diagnosis alone.
    "smaller_batch": (
        "If you train, split the batch and add up the gradients: they stay the same (mean loss, no BatchNorm), and activations shrink to about an eighth. If you only run the model: a smaller batch, under torch.inference_mode().",
        "训练时把批拆开并累加梯度：梯度不变（取均值的损失、没有 BatchNorm），激活约为八分之一。推理时减小批量，并用 torch.inference_mode()。",
        "for x, y in zip(xs.chunk(8), ys.chunk(8)): (loss(model(x), y) * len(x) / len(xs)).backward()"),
    "slightly_smaller": (
        "Make the batch or the sequence a tenth smaller: this request is only just too large.",
        "把批量或序列减小十分之一：这次申请只差一点。",
        "batch_size = batch_size * 9 // 10"),
    "halve_batch": (
        "Halve the batch, or what is computed at a time, until it fits.",
        "把批量（或一次计算的量）减半，直到放得下。",
        "batch_size = batch_size // 2"),
    "halve_tensorflow": (
        "Halve the batch until it fits. TensorFlow prints what fills the card above this line, from 'Stats:' on: paste that, too.",
        "把批量减半，直到放得下。TensorFlow 在这一行上面打印了占满显存的内容（从 Stats: 起）：请一并粘贴。",
        "batch_size = batch_size // 2"),
    "rank_contexts": (
        "Set each rank's device before its first CUDA call, and load with map_location: {contexts} processes of {context_size} each look like contexts of this job's other ranks.",
        "在第一次 CUDA 调用之前设定每个 rank 的设备，加载时用 map_location：{contexts} 个各占 {context_size} 的进程像是本作业其他 rank 的上下文。",
        'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))'),
    "shapes": (
        "Look at the shapes just before the line that fails: a wrong dimension, a broadcast to an outer product, attention scores (length times length), or a whole data set in one call.",
        "在失败的那一行之前查看形状：维度写错、广播成了外积、注意力分数（长度乘长度），或一次送入整个数据集。",
        "print({{k: tuple(v.shape) for k, v in locals().items() if hasattr(v, 'shape')}})"),
    "whole_program": (
        "Compute each layer again in the backward pass (not the whole loss at once, which saves nothing), or take a smaller batch, or more chips.",
        "对每一层用重计算（remat），而不是对整个 loss（那样省不下）；或减小批量，或用更多芯片。",
        "layer = jax.checkpoint(layer)  # each layer, not the whole loss"),
    "segments": (
        "Set this before the program starts: the allocator then maps its free pieces side by side.",
        "在程序启动之前设置：分配器会把零散的空闲页并排映射。",
        "export {variable}=expandable_segments:True"),
    "keep_large": (
        "Keep large blocks whole; or better, update: PyTorch 2.1 and newer have expandable segments.",
        "让大块不被拆分；更好的是升级：PyTorch 2.1 起有 expandable segments（可扩展内存段）。",
        "export {variable}=max_split_size_mb:{split}"),
    "keep_large_update": (
        "Update PyTorch: 2.1 and newer have expandable segments. This setting keeps large blocks whole; versions before about 1.10 ignore it.",
        "升级 PyTorch：2.1 起有 expandable segments（可扩展内存段）。下面的设置使大块不被拆分；约 1.10 之前的版本会忽略它。",
        "export {variable}=max_split_size_mb:{split}"),
    "keep_large_rocm": (
        "Keep large blocks whole: on ROCm, PyTorch before about 2.11 ignores expandable segments, also where its message names them.",
        "让大块不被拆分：约 2.11 之前的 PyTorch 在 ROCm 上会忽略 expandable segments，即使报错建议用它。",
        "export {variable}=garbage_collection_threshold:0.8,max_split_size_mb:{split}"),
    "pool_async": (
        "Take the driver's pool, which moves memory between sizes.",
        "使用驱动的内存池，它能在不同大小之间移动内存。",
        "export TF_GPU_ALLOCATOR=cuda_malloc_async"),
    "planned": (
        "Take the allocator that maps free pages side by side.",
        "使用把空闲页并排映射的分配器。",
        ""),
    "holders": (
        "See who holds the card, and stop what is yours: a notebook kernel, or a run that never exited.",
        "查看谁占用显卡，结束自己的：Jupyter 内核、没有退出的程序。",
        "{holders}"),
    "own_device": (
        "Give each rank its own device.", "让每个 rank 使用自己的设备。",
        'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))'),
    "own_device_serving": (
        "See which cards each rank sees, and correct what starts the ranks: the engine takes the device from the rank.",
        "查看每个 rank 看到哪些卡，并改正启动方式：引擎按 rank 选择设备。",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L"),
    "own_device_trtllm": (
        "See which cards each rank sees, and tell the engine how many GPUs a node has: it takes the device from the rank.",
        "查看每个 rank 看到哪些卡，并告诉引擎每个节点有几张卡：它按 rank 选择设备。",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L; trtllm-serve MODEL --gpus_per_node 8"),
    "fraction": (
        "Raise or remove the limit.",
        "提高或取消上限。",
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
        "Look with {tool} whether another process fills the card. If none does, print MiB free, in all and held by PyTorch just before the call that fails: what is in none of them is held outside PyTorch.",
        "用 {tool} 查看显卡是否被别的进程占满。若没有，在失败的调用之前打印空闲、总量和 PyTorch 占用的 MiB：其余的在 PyTorch 之外。",
        "print(*(n >> 20 for n in (*torch.{module}.mem_get_info(), torch.{module}.memory_reserved())))"),
    "look_fresh": (
        "Ask for the same amount in a fresh process, for the card reported room. If that works, something held the card for a moment; if not, the driver refuses (where card and host share memory, see free -h).",
        "在新的进程里申请同样的量，因为显卡报告有空闲。若成功，是别的程序一时占用了显卡；若失败，是驱动拒绝（显卡与主机共用内存时看 free -h）。",
        "python -c \"import torch; torch.empty({bytes}, dtype=torch.uint8, device='{module}')\""),
    "look_build": (
        "Try a small tensor in a fresh process: the card has room, so a build too old for this card or driver, or a limit on addresses (ulimit -v), is likelier than full memory.",
        "在新的进程里试一个小张量：显卡有空闲，更可能是这个版本太旧、不支持这张卡或驱动，或地址空间受限（ulimit -v）。",
        "python -c \"import torch; torch.zeros(2**22, device='{module}')\""),
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
        "JAX takes 75 % of the card by default: give it more, and stop whatever else uses the card.",
        "JAX 默认占用显卡的 75 %：给它更多，并结束占用显卡的其他程序。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.95"),
    "xla_outputs": (
        "Return less from the compiled function: outputs take {outputs} of {program}. On a card larger than that, let JAX have more of it than its 75 %.",
        "让编译的函数少返回一些：输出占 {program} 中的 {outputs}。显卡大于这一数值时，让 JAX 占用超过默认的 75 %。",
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
        "Compute the loss in chunks (pip install cut-cross-entropy), or shorten the sequence: what failed is a copy of the logits over the whole vocabulary, and there are several.",
        "分块计算损失（pip install cut-cross-entropy），或缩短序列：失败的是整个词表 logits 的一份拷贝，而且不止一份。",
        "loss = cut_cross_entropy.linear_cross_entropy(hidden, lm_head.weight, labels, shift=1)"),
    "loss_trainer": (
        "Take one sequence at a time (gradient_accumulation_steps keeps the batch) or a shorter max_seq_length; then a fused loss (pip install liger-kernel, for the models it knows). What failed is a copy of the logits over the whole vocabulary.",
        "每次一个序列（用 gradient_accumulation_steps 保持批量），或减小 max_seq_length；再用融合损失（pip install liger-kernel，只支持部分模型）。失败的是整个词表 logits 的一份拷贝。",
        "TrainingArguments(..., per_device_train_batch_size=1, use_liger_kernel=True)"),
    "pinned": (
        "Do not pin: pin_memory asks for page-locked host memory, which the system limits; the card need not be full.",
        "不要锁页：pin_memory 申请的是主机锁页内存，系统对其有限制；显卡未必已满。",
        "DataLoader(dataset, num_workers=2, pin_memory=False)"),
    "pinned_deepspeed": (
        "Do not pin what is offloaded (ds_config.json, under zero_optimization): that is page-locked host memory, which WSL limits; the card need not be full.",
        "卸载时不要锁页（ds_config.json 的 zero_optimization 里）：那是主机锁页内存，受 WSL 的上限限制；显卡未必已满。",
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

    # Host memory.
    "container": (
        "See what the container may have and what it took; raise its limit, or let loaders hold less.",
        "查看容器的上限和峰值；提高上限，或让数据加载少占一些。",
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak"),
    "shared_memory": (
        "Give /dev/shm more room: in Docker as below, in Kubernetes by an emptyDir with medium: Memory; on bare metal delete old nccl-* files there.",
        "给 /dev/shm 更多空间：Docker 见下，Kubernetes 用 medium: Memory 的 emptyDir；在物理机上删除其中残留的 nccl-* 文件。",
        "df -h /dev/shm; docker run --shm-size=8g IMAGE"),
    "killed": (
        "See whether the kernel did it, and which process was the largest; then a smaller model or fewer workers.",
        "查看是否被内核终止、哪个进程最大；再减小模型或减少加载进程。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "addresses": ("Lift the limit on addresses.", "取消地址空间的限制。", "ulimit -v unlimited"),
    "page_file": (
        "Start no DataLoader workers: each commits memory for the CUDA libraries again. Or make the page file larger.",
        "不要启动 DataLoader 进程：每个都会再加载一次 CUDA 库并占用提交内存。或加大页面文件。",
        "DataLoader(dataset, num_workers=0)"),
    "compiler": (
        "Compile fewer files at a time: a -j on the command line is what counts.",
        "减少同时编译的文件数：以命令行上的 -j 为准。",
        "cmake --build build -j 2  # with pip: MAX_JOBS=2 pip install ..."),
    "node": (
        "Fewer tasks or actors at a time: ask for more CPUs for each; or more host memory. Weights and optimizer states that are offloaded to the CPU count as host memory, too.",
        "减少同时运行的任务或 actor：为每个多要 CPU；或增加主机内存。卸载到 CPU 的权重和优化器状态也占主机内存。",
        "@ray.remote(num_cpus=4)"),
    "evicted": (
        "Ask for the host memory that it needs, so that it gets a node with as much; or use less of it.",
        "为它申请所需的主机内存，使它被调度到足够的节点；或减少用量。",
        "kubectl set resources deployment/NAME --requests=memory=64Gi --limits=memory=64Gi"),
    "object_store": (
        "Let go of results that are not needed (`del ref`), or give the store more.",
        "释放不再需要的结果（`del ref`），或给对象存储更多内存。",
        "ray.init(object_store_memory=32 * 2**30)"),
    "loader": (
        "Use fewer DataLoader workers, and let each prefetch less.",
        "减少 DataLoader 进程及其预取。",
        "DataLoader(dataset, num_workers=2, prefetch_factor=1, pin_memory=False)"),
    "mapped": ("Read it as it is needed: map the file.", "按需读取：映射文件。", 'numpy.load(path, mmap_mode="r")'),
    "host": (
        "Watch the host while it runs, and load less of the data or the model at a time.",
        "在运行时查看主机内存，每次少加载一些数据或模型。",
        "watch -n 1 free -h"),
    "locked": (
        "See what the host (the container, the job) has left, or pin less.",
        "查看主机（容器、作业）还剩多少内存，或少锁页。",
        "free -h; cat /sys/fs/cgroup/memory.max"),
}
