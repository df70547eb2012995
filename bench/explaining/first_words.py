"""What to do first, in English and Chinese, with the line to paste, the same in both: for bench/explain. A name in braces is a value
of the message, or one that first.py computes from it. Here by the diagnosis and by the call that failed."""

from .first_words_host import HOST
from .first_words_programs import PROGRAMS

FIRST = {
    **PROGRAMS,
    **HOST,
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
}
