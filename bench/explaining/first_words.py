"""What to do first, in English and Chinese, with the line to paste, the same in both: for bench/explain. A name in braces is a value
of the message, or one that first.py computes from it. Here by the diagnosis and by the call that failed."""

from .first_words_host import HOST
from .first_words_programs import PROGRAMS

FIRST = {
    **PROGRAMS,
    **HOST,
    # By the diagnosis alone.
    "smaller_batch": (
        "If you train, split the batch into eight and add up the gradients: they stay the same (if the loss is a mean, and without BatchNorm), and activations shrink to about an eighth. At batch 1: activation checkpointing. If you only run the model: a smaller batch, under torch.inference_mode().",
        "训练时用梯度累积，把一批拆成 8 份。梯度不变（前提：loss 取均值，且没有 BatchNorm），激活降到约八分之一。batch 已是 1 时用激活检查点。推理时减小 batch，并用 torch.inference_mode()。",
        "for x, y in zip(xs.chunk(8), ys.chunk(8)): (loss(model(x), y) * len(x) / len(xs)).backward()"),
    "slightly_smaller": (
        "Make the batch or the sequence a tenth smaller: in all, only {percent} % are missing. If it fails again later, halve it. At batch 1, shorten the sequence, or use activation checkpointing.",
        "把 batch 或序列长度减小约十分之一。总用量只超出 {percent} %。若之后又失败，就减半。batch 已是 1 时，缩短序列或用激活检查点。",
        "batch_size = max(1, batch_size * 9 // 10)"),
    "halve_batch": (
        "Halve the batch, or what is computed at a time, until it fits. At batch 1, make the input smaller.",
        "把 batch（或一次计算的量）减半，直到放得下。batch 已是 1 时，缩小输入。",
        "batch_size = max(1, batch_size // 2)"),
    "halve_tensorflow": (
        "Halve the batch (at 1, the input) until it fits. TensorFlow prints what fills the card above this line, from 'Stats:' on: paste that, too.",
        "把 batch 减半（已是 1 时缩小输入），直到放得下。TensorFlow 在这一行上面打印了占满显存的内容（从 Stats: 起），请一并粘贴。",
        "batch_size = max(1, batch_size // 2)"),
    "halve_tensorflow_below": (
        "Halve the batch (at 1, the input) until it fits. TensorFlow prints what fills the card below this line, from 'Stats:' on: paste that, too.",
        "把 batch 减半（已是 1 时缩小输入），直到放得下。TensorFlow 在这一行下面打印了占满显存的内容（从 Stats: 起），请一并粘贴。",
        "batch_size = max(1, batch_size // 2)"),
    "rank_contexts": (
        "Set each rank's device before its first CUDA call, and load with map_location: {contexts} processes of {context_size} each look like device contexts of this job's other ranks.",
        "在第一次 CUDA 调用之前设定每个 rank 的设备，加载时用 map_location。{contexts} 个各占 {context_size} 的进程像是本作业其他 rank 的设备上下文。",
        'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))'),
    "shapes": (
        "Look at the shapes just before the line that fails: a wrong dimension, a broadcast to an outer product, attention scores (length times length), or a whole data set in one call.",
        "在失败的那一行之前查看形状，看是否维度写错、广播成了外积、注意力分数（长度乘长度），或一次送入整个数据集。",
        "print({{k: v.shape for k, v in [*vars().items()] if isinstance(getattr(v, 'shape', 0), tuple)}})"),
    "whole_program": (
        "If you train, recompute (rematerialise) each layer, not the whole loss at once, which saves nothing. Else take a smaller batch or more chips.",
        "训练时对每一层用激活检查点（remat），而不是对整个 loss（那样省不了显存）；否则减小 batch，或用更多芯片。",
        "layer = jax.checkpoint(layer)"),
    "segments": (
        "Set this before the program starts: the allocator can then join free memory into one block. (On Linux; on Windows set max_split_size_mb:{split} instead.) If it is set already, pad lengths to a few values, so that sizes repeat.",
        "启动程序前设置下面的环境变量，分配器会把零散的空闲页映射到连续的地址。（限 Linux；Windows 上改设 max_split_size_mb:{split}。）若已经设置，把长度补齐到少数几种，让大小重复。",
        "export {variable}=expandable_segments:True"),
    "segments_xpu": (
        "Set this before the program starts (from about PyTorch 2.10 on): the allocator can then join free memory into one block.",
        "启动程序前设置下面的环境变量（约 PyTorch 2.10 起支持），分配器会把零散的空闲页映射到连续的地址。",
        "export {variable}=expandable_segments:True"),
    "keep_large": (
        "Keep large blocks whole; or better, update to PyTorch 2.1 or newer and set expandable_segments:True.",
        "禁止分配器拆分大块；更好的办法是升级到 PyTorch 2.1 或更新，并设 expandable_segments:True（可扩展段）。",
        "export {variable}=max_split_size_mb:{split}"),
    "keep_large_update": (
        "Update to PyTorch 2.1 or newer, and set expandable_segments:True. If you cannot: the line below keeps large blocks whole (from about PyTorch 1.10 on).",
        "升级到 PyTorch 2.1 或更新，并设 expandable_segments:True（可扩展段）。不能升级时，下面的设置禁止拆分大块（约 1.10 起支持）。",
        "export {variable}=max_split_size_mb:{split}"),
    "keep_large_rocm": (
        "Keep large blocks whole (from about PyTorch 1.10 on). On ROCm, PyTorch before about 2.11 ignores expandable segments, also where its message names them.",
        "禁止分配器拆分大块（约 1.10 起支持）。约 2.11 之前的 PyTorch 在 ROCm 上会忽略可扩展段，即使报错建议用它。",
        "export {variable}=max_split_size_mb:{split}"),
    "keep_large_windows": (
        "Keep large blocks whole, before the first import of torch. (Most builds of PyTorch for Windows ignore expandable segments, with a warning.)",
        "在第一次 import torch 之前设置，禁止分配器拆分大块。（Windows 上的 PyTorch 大多会忽略可扩展段，并给出警告。）",
        "export {variable}=max_split_size_mb:{split}"),
    "pool_async": (
        "Use CUDA's asynchronous allocator, which can give freed memory to requests of any size.",
        "改用 CUDA 的异步分配器。释放的内存可以给任何大小的申请。",
        "export TF_GPU_ALLOCATOR=cuda_malloc_async"),
    "planned": (
        'Use the allocator of chapter 06 that joins free pages into one block (its row "ours"), or plan where every tensor goes ("ours, planned").',
        "使用第 06 章中把空闲页映射到连续地址的分配器（表中的 ours），或预先规划每个张量的位置（ours, planned）。",
        ""),
    "holders": (
        "See who holds the card, and stop what is yours: an old notebook kernel, a run that never exited, a desktop or browser.",
        "查看哪些进程占着显存，把属于自己的结束掉，例如残留的 Jupyter 内核、没有退出的程序、桌面或浏览器。",
        "{holders}"),
    "own_device": (
        "Give each rank its own device.", "让每个 rank 使用自己的设备。",
        'torch.{module}.set_device(int(os.environ["LOCAL_RANK"]))'),
    "own_device_serving": (
        "See which cards each rank sees, and correct what starts the ranks: the engine takes the device from the rank.",
        "查看每个 rank 看到哪些卡，并改正启动方式。引擎按 rank 选择设备。",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L"),
    "own_device_trtllm": (
        "See which cards each rank sees, and tell the engine how many GPUs a node has: it takes the device from the rank.",
        "查看每个 rank 看到哪些卡，并告诉引擎每个节点有几张卡。它按 rank 选择设备。",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L; trtllm-serve MODEL --gpus_per_node 8"),
    "fraction": (
        "Raise or remove the limit: look for set_per_process_memory_fraction, or for per_process_memory_fraction in {variable}.",
        "提高或取消上限。查找 set_per_process_memory_fraction，或 {variable} 里的 per_process_memory_fraction。",
        "torch.{module}.set_per_process_memory_fraction(1.0)"),
    "segment_reserve": (
        "Take expandable_segments_reserve and expandable_segments_reserve_by_class out of {variable}, or make them larger than the largest request.",
        "从 {variable} 中去掉 expandable_segments_reserve 和 expandable_segments_reserve_by_class，或把它们设得比最大的一次申请更大。",
        "export {variable}=expandable_segments:True"),
    "fraction_cupy": ("Raise or remove the limit.", "提高或取消上限。", 'export CUPY_GPU_MEMORY_LIMIT="100%"'),
    "fraction_onnx": (
        'Raise gpu_mem_limit. With arena_extend_strategy "kSameAsRequested" the arena grows by no more than is asked.',
        '提高 gpu_mem_limit。把 arena_extend_strategy 设为 "kSameAsRequested"，内存池就只按申请量增长。',
        'providers=[("CUDAExecutionProvider", {{"gpu_mem_limit": 8 * 2**30}})]'),
    "fraction_rmm": (
        "Raise the pool's maximum, or leave it out.", "提高内存池的最大值，或不设。",
        "rmm.reinitialize(pool_allocator=True, maximum_pool_size=None)"),
    "fraction_rmm_limit": (
        "Raise allocation_limit of the LimitingResourceAdaptor, or leave it out.",
        "提高 LimitingResourceAdaptor 的 allocation_limit，或不用它。",
        "rmm.mr.LimitingResourceAdaptor(upstream, allocation_limit=16 * 2**30)"),
    "fraction_mps": (
        "Restart the process: the {other_allocations} are Metal memory of this process outside PyTorch's allocator (caches of MPSGraph, another framework). If they come back, use fewer different shapes. The line below prints all of its Metal memory, and PyTorch's part, in MiB.",
        "重启进程。那 {other_allocations} 是本进程里 PyTorch 分配器之外的 Metal 内存（MPSGraph 的缓存、其他框架）。若再次出现，减少形状的种类。下面一行打印本进程的全部 Metal 内存和其中 PyTorch 的部分（单位 MiB）。",
        "print(torch.mps.driver_allocated_memory() >> 20, torch.mps.current_allocated_memory() >> 20)"),
    "budget": (
        "Give it a larger budget, or use one of the levers that its report names.",
        "加大预算，或用报告里列出的办法。",
        "--budget none"),
    "levers": (
        "Use one of the levers that its report names (the lines below the message).",
        "使用报告里列出的办法（报错下面的各行）。",
        ""),
    "look": (
        "Look with {tool} whether another process fills the card. If none does, and the process gets that far, print in MiB what is free, the total, and what PyTorch holds, just before the call that fails: the total less the other two is held outside PyTorch.",
        "用 {tool} 查看显存是否被别的进程占满。若没有，且程序能运行到那里，在失败的调用之前打印空闲、总量和 PyTorch 占用（单位 MiB）。总量减去另外两项，就是不由 PyTorch 分配的部分。",
        "print(*(n >> 20 for n in (*torch.{module}.mem_get_info(), torch.{module}.memory_reserved())))"),
    "look_library": (
        "Look with {tool} whether the card is full. If it is not, run again as below: an index or a label out of range, or another error in an earlier kernel, fails in the same way, and is then reported where it happens.",
        "用 {tool} 查看显存是否已满。若没有满，用下面的方式重新运行。下标或标签越界、前面的核函数出错，也会报同样的错；这样运行，错误会在真正出错的地方报告。",
        "CUDA_LAUNCH_BLOCKING=1 python train.py"),
    "paste_whole": (
        "Paste the whole message. If there is no more of it, see who holds the card.",
        "粘贴完整的报错。若后面没有更多内容，查看谁占用显存。",
        "{holders}"),
    "look_fresh": (
        "Ask for the same amount in a fresh process, because the card reported room. If that works, something held the card for a moment; if not, the driver refuses (where card and host share memory, see free -h).",
        "在新的进程里申请同样的量，因为报错时显存还有空闲。成功，说明当时有别的东西临时占着显存；失败，说明是驱动拒绝了申请（显卡与主机共用内存时看 free -h）。",
        "python -c \"import torch; torch.empty({bytes}, dtype=torch.uint8, device='{module}')\""),
    "look_build": (
        "Try a small tensor in a fresh process: the card has room, so a build too old for this card or driver, or an address-space limit (ulimit -v), is likelier than full memory.",
        "在新的进程里试一个小张量。显存还有空闲，更可能是 PyTorch 版本太旧，不支持这张卡或驱动；也可能是地址空间受限（ulimit -v）。",
        "python -c \"import torch; torch.zeros(2**22, device='{module}')\""),
    "look_both": (
        "Look at both while it runs, the card and the host.", "在运行时同时查看显卡和主机。", "watch -n 1 'nvidia-smi; free -h'"),
    "look_card": (
        "While it runs, see in a second terminal how much of the card is in use, and by whom.",
        "在它运行时，用另一个终端查看显存已用多少、被谁占用。",
        "{watched}"),
    "metal_full": (
        "Close other programs, or take a smaller model, prompt or batch: card and host share one memory here.",
        "关闭其他程序，或换更小的模型、更短的提示词或更小的 batch。这里显卡与主机共用内存。",
        "top -o mem"),
    "metal_buffer": (
        "Shorten the prompt, shrink the image or the batch, or compute in tiles: Metal gives no larger buffer, whatever is free.",
        "缩短提示词、缩小图像、减小 batch，或分块计算。无论空闲多少，Metal 都不给更大的缓冲区。",
        ""),
    "xla_share": (
        "Give JAX more of the card than its default, 75 % (the newest JAX grows beyond it by itself), and stop whatever else uses the card.",
        "让 JAX 占用超过默认的 75 %（最新版 JAX 会自行扩大），并结束占用显存的其他程序。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.95"),
    "xla_outputs": (
        "If the card is larger than {program}, let JAX have more of it than its default, 75 %. Else return less from the compiled function: outputs take {outputs} of the {program}.",
        "若显存容量大于 {program}，让 JAX 占用超过默认的 75 %。否则让编译的函数少返回一些：{program} 中输出占 {outputs}。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.95"),
    "xla_less": (
        "Leave room outside JAX's pool, for CUDA graphs are made there: take a smaller share than now (the default is .75). Or do without graphs: XLA_FLAGS=--xla_gpu_enable_command_buffer= (with nothing after the last sign).",
        "在 JAX 的内存池之外留出空间，CUDA 图建在那里，份额要小于现在的值（默认 .75）。或不用图：XLA_FLAGS=--xla_gpu_enable_command_buffer= （最后的等号之后为空）。",
        "export XLA_PYTHON_CLIENT_MEM_FRACTION=.60"),
    "tf_grow": (
        "Let TensorFlow take memory as it needs it, and see who else holds the card (nvidia-smi).",
        "让 TensorFlow 按需占用显存，并用 nvidia-smi 查看谁占用显存。",
        "export TF_FORCE_GPU_ALLOW_GROWTH=true"),
    "pool_grow": (
        "Let the pool take memory as it needs it (TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true; JAX: below), and see who else holds the card (nvidia-smi).",
        "让内存池按需占用显存（TensorFlow：TF_FORCE_GPU_ALLOW_GROWTH=true；JAX 见下），并用 nvidia-smi 查看谁占用显存。",
        "export XLA_PYTHON_CLIENT_PREALLOCATE=false"),

    # By the call that failed.
    "loss": (
        "Compute a language model's loss in chunks (pip install cut-cross-entropy), or shorten the sequence: what failed is one of several copies of the logits (tokens times vocabulary). With another model, take a smaller batch.",
        "若是语言模型，分块计算 loss（pip install cut-cross-entropy），或缩短序列。这次是要为 logits（token 数乘词表大小）再存一份副本，而副本不止这一份。若是其他模型，减小 batch。",
        "loss = cut_cross_entropy.linear_cross_entropy(hidden, lm_head.weight, labels, shift=1)"),
    "loss_trainer": (
        "Take one sequence at a time (gradient_accumulation_steps keeps the batch), or shorter ones (max_length; before TRL 0.16 max_seq_length); then a fused loss (pip install liger-kernel, for the models it knows). What failed is a copy of the logits (tokens times vocabulary).",
        "每次一个序列（用 gradient_accumulation_steps 保持 batch），或缩短序列（max_length；TRL 0.16 之前为 max_seq_length）；再用融合的 loss（pip install liger-kernel，只支持部分模型）。这次是要为 logits（token 数乘词表大小）再存一份副本。",
        "TrainingArguments(..., per_device_train_batch_size=1, use_liger_kernel=True)"),
    "pinned": (
        "Do not pin: pin_memory asks for page-locked host memory, which the system limits; the card need not be full.",
        "不要用锁页内存。pin_memory 申请的是主机的锁页内存，系统对它有限制；显存未必已满。",
        "DataLoader(dataset, num_workers=2, pin_memory=False)"),
    "pinned_deepspeed": (
        "Do not pin what is offloaded (ds_config.json, under zero_optimization): that is page-locked host memory, which the system limits (WSL to a part of the host's); the card need not be full.",
        "卸载时不要用锁页内存（ds_config.json 的 zero_optimization 里）。系统对它有限制（WSL 只允许主机内存的一部分）；显存未必已满。",
        '"offload_optimizer": {{"device": "cpu", "pin_memory": false}}'),
    "optimizer_first": (
        "Keep the optimizer's state in 8 bits: it appears at the first step, with Adam two more copies of the parameters.",
        "用 8 位保存优化器状态。它在第一步才出现，用 Adam 时相当于再存两份参数。",
        "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters(), lr=lr)"),
    "optimizer_first_trainer": (
        "Keep the optimizer's state in 8 bits: it appears at the first step, with Adam two more copies of the parameters.",
        "用 8 位保存优化器状态。它在第一步才出现，用 Adam 时相当于再存两份参数。",
        'TrainingArguments(..., optim="adamw_bnb_8bit")'),
    "optimizer": (
        "Use the fused step, which makes no temporaries: the default one makes some as large as the gradients.",
        "用融合的 step，它不生成临时量。默认的 step 会生成与梯度一样大的临时量。",
        "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)"),
    "attention": (
        "Use a fused attention: this one makes the whole matrix of scores, length times length, and a fused one never does.",
        "改用融合注意力。现在的实现生成了整个分数矩阵（长度乘长度），融合注意力不生成。",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"),
    "attention_model": (
        "Use a fused attention: this one makes the whole matrix of scores, length times length, and a fused one never does.",
        "改用融合注意力。现在的实现生成了整个分数矩阵（长度乘长度），融合注意力不生成。",
        'from_pretrained(name, attn_implementation="sdpa")'),
    "fused_attention": (
        "Turn off the fallback that makes all the scores: then attention runs fused, or says why it cannot (a mask, FP32, a head size).",
        "关闭会生成全部分数的后备实现。之后要么用融合注意力，要么说明为什么不能用（掩码、FP32 或头大小）。",
        "torch.backends.cuda.enable_math_sdp(False)"),
    "diffusers_attention": (
        "Compute attention in slices, or make the image smaller: attention over the whole image fills the card.",
        "分片计算注意力，或缩小图像。占满显存的是整幅图像的注意力。",
        "pipe.enable_attention_slicing()"),
    "save": (
        "Gather the checkpoint on the host and on one rank only, or save shards: it fails while the checkpoint is gathered.",
        "只在一个 rank 上把检查点汇集到主机，或按分片保存。失败发生在汇集检查点时。",
        "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"),
    "gathered": (
        "Move the evaluation's outputs to the host every few steps, and keep no logits: it keeps all its outputs on the card.",
        "每隔几步把评估的输出移到主机，并且不保留 logits。评估把所有输出都留在卡上。",
        "TrainingArguments(..., eval_accumulation_steps=8, prediction_loss_only=True)"),
    "load": (
        "Load weights to the host first, so that the card holds them once: it fails while they are loaded.",
        "先把权重加载到主机，使卡上只有一份。失败发生在加载权重时。",
        'state = torch.load(path, map_location="cpu")'),
    "load_model": (
        "Load in 16 bits, which takes half of FP32, and let device_map put the rest in host memory: it fails while weights are loaded. (Before transformers 4.56: torch_dtype.)",
        "用 16 位加载（只占 FP32 的一半），并用 device_map 把放不下的放到主机内存。失败发生在加载权重时。（transformers 4.56 之前为 torch_dtype。）",
        'from_pretrained(name, dtype=torch.bfloat16, device_map="auto")'),
    "generate": (
        "Generate fewer sequences at a time, or shorter ones: the KV cache grows with every sequence and every token.",
        "减少同时生成的序列，或缩短长度。KV 缓存随序列数和 token 数增长。",
        "model.generate(**inputs, max_new_tokens=256, num_beams=1)"),
    "backward": (
        "Keep fewer activations, and compute the rest again: it fails in the backward pass, where all of them are still live.",
        "少保存激活，其余重算。失败发生在反向传播，这时激活都还没有释放。",
        "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)"),
    "backward_model": (
        "Keep fewer activations, and compute the rest again: it fails in the backward pass, where all of them are still live.",
        "少保存激活，其余重算。失败发生在反向传播，这时激活都还没有释放。",
        "model.gradient_checkpointing_enable()"),
    "evaluation": (
        "Keep no activations: it fails in evaluation, which needs none.",
        "不保存激活。失败发生在评估阶段，评估不需要激活。",
        "with torch.no_grad(): evaluate()"),
    "capture": (
        "Capture fewer sizes, or none (the line below, if torch.compile makes the graphs): it fails while a CUDA graph is captured, and graphs keep a pool of their own.",
        "减少捕获的尺寸，或不用图（若图由 torch.compile 捕获，见下面一行）。失败发生在捕获 CUDA 图时，图有自己的内存池。",
        "model = torch.compile(model, mode='default')"),
    "process_group": (
        "Check first that no two ranks use one card: it fails while the ranks connect, and each takes a device context and buffers.",
        "确认没有两个 rank 用同一张卡。失败发生在各 rank 建立通信时，每个 rank 都要占用设备上下文和缓冲区。",
        'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))'),
    "move": (
        "Take the weights in 16 bits, which is half of FP32: it fails while the model is moved to the card.",
        "把权重换成 16 位，只占 FP32 的一半。失败发生在把模型移到卡上时。",
        "model = model.to(torch.bfloat16).to(device)"),
    "decode": (
        "Decode the image, or the video, by tiles: it fails while it is decoded.",
        "分块解码图像（或视频）。失败发生在解码时。",
        "pipe.vae.enable_tiling()"),
}
