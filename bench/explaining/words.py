"""What bench/explain says, in English and in Chinese: causes, advice, and what a message leaves out."""

LANGUAGES = ("en", "zh")

# Every entry: English, Chinese. A name in braces is a figure, or another value of the message.
TEXT = {
    "figures": ("What it says:", "信息中的数字："),
    "figures_device": ("What it says, device {device}:", "信息中的数字，设备 {device}："),
    "printed": ("printed", "原文"),
    "about": ("about {size}", "约 {size}"),
    "cause": ("Cause: {title}. {sentence}", "原因：{title}。{sentence}"),
    "do": ("What to do:", "怎么办："),
    "shown": ("Shown in {chapters}. Price: {price}.", "演示见 {chapters}。代价：{price}。"),
    "price": ("Price: {price}.", "代价：{price}。"),
    "cannot": ("What the message cannot say:", "信息没有说明的："),
    "found": ("Message of {framework}:", "{framework} 的信息："),
    "count": ("The first of {count} of its kind here.", "此处同类信息共 {count} 条，这是第一条。"),
    "also": (
        "There are messages of others, too: {names}. They may follow from this one.",
        "另有其他来源的信息：{names}。它们可能由这一条引起。"),
    "process": ("process {pid}", "进程 {pid}"),

    # Figures.
    "asked": ("asked", "申请"),
    "capacity": ("capacity", "容量"),
    "limit": ("limit", "上限"),
    "free": ("free", "空闲"),
    "allocated": ("allocated", "已分配"),
    "private_pools": ("of it in private pools", "其中私有池"),
    "reserved": ("reserved", "已保留"),
    "cached": ("cached, not in use", "缓存未用"),
    "this_process": ("this process", "本进程"),
    "own_outside": ("this process, outside the framework", "本进程，框架之外"),
    "outside": ("outside the framework", "框架之外"),
    "others": ("other processes", "其他进程"),
    "within": ("available for it", "可供使用"),
    "resident": ("resident in host memory", "驻留主机内存"),
    "program": ("the whole program", "整个程序"),
    "arguments": ("its arguments", "其参数"),
    "temporaries": ("its temporaries", "其临时量"),
    "other_allocations": ("other allocations", "其他分配"),
    "tokens_wanted": ("tokens wanted", "需要的 token 数"),
    "tokens_held": ("tokens that the cache holds", "缓存可容纳的 token 数"),

    # Causes in a word.
    "too_big_for_the_card": ("too big for the card", "单次申请超过整张卡"),
    "live_tensors_fill_it": ("live tensors fill it", "存活张量占满显存"),
    "fragmentation": ("fragmentation", "碎片"),
    "other_process": ("other processes", "其他进程占用"),
    "limit_set_by_user": ("a limit that somebody set", "人为设定的上限"),
    "host_memory": ("host memory, not the card", "主机内存，而非显存"),
    "kv_cache_or_pool_reservation": ("a reservation: the KV cache, or a pool", "预留：KV 缓存或内存池"),
    "not_enough_information": ("the message does not tell", "信息不足以判断"),

    # Causes in a sentence.
    "why_too_big": (
        "{asked} in one request is more than the whole card has, {capacity}. Nothing that is freed can help.",
        "一次申请 {asked}，超过整张卡的 {capacity}。释放什么都无济于事。"),
    "why_too_big_limit": (
        "{asked} in one request is more than the allocator may ever have, {limit}.",
        "一次申请 {asked}，超过分配器所能拥有的全部 {limit}。"),
    "why_too_big_program": (
        "The compiled program needs {asked}, and the chip has {capacity}. This is known before it runs.",
        "编译后的程序需要 {asked}，而芯片只有 {capacity}。运行之前就已确定。"),
    "why_too_big_any": (
        "This request is larger than anything that the device can give. A size that was computed wrongly often looks like "
        "this.",
        "这一申请大于设备能给出的任何内存。算错的大小常常如此。"),
    "why_live": (
        "{allocated} of {capacity} are live tensors, and {short} are missing: {asked} asked - {free} free - {cached} "
        "cached. The request that failed is only the last one.",
        "{capacity} 中有 {allocated} 是存活张量，还差 {short}：申请 {asked} - 空闲 {free} - 缓存 {cached}。失败的申请只是最"
        "后一个。"),
    "why_live_pieces": (
        "{allocated} of {capacity} are live tensors. {free} free and {cached} cached would be enough for {asked}, but what is "
        "cached is in pieces, and so little of the card (less than 1/200) that closing the gaps would not help for long.",
        "{capacity} 中有 {allocated} 是存活张量。空闲 {free} 加缓存 {cached} 够 {asked}，但缓存是零散的，而且太少（不到显存的 1/200），补上空"
        "隙也撑不了多久。"),
    "why_spilled": (
        "{allocated} are allocated, more than the {capacity} that the card has: the driver (on Windows, WSL) has put the "
        "rest into host memory, and now refuses.",
        "已分配 {allocated}，超过整张卡的 {capacity}：驱动（Windows、WSL）把其余部分放进了主机内存，现在拒绝继续。"),
    "why_live_pool": (
        "The framework's pool has {limit}. {allocated} of it are live, and {asked} more do not fit.",
        "框架的内存池有 {limit}，其中 {allocated} 是存活张量，再要 {asked} 放不下。"),
    "why_live_any": (
        "Less is free than was asked for, and live tensors fill the rest. The request that failed is only the last one.",
        "空闲少于申请，其余由存活张量占据。失败的申请只是最后一个。"),
    "why_fragments": (
        "{cached} are cached and not in use, {free} are free, and yet there is no piece of {asked}.",
        "{cached} 已缓存未用，{free} 空闲，却没有一块 {asked} 的连续空间。"),
    "why_fragments_any": (
        "Enough is free in total, but in pieces, and {asked} were asked for in one piece.",
        "空闲总量足够，但分成许多块，而申请要求一整块 {asked}。"),
    "why_fragments_alone": ("Enough is free in total, but in pieces.", "空闲总量足够，但分成许多块。"),
    "why_pieces": (
        "Why {asked} do not come out of {cached}: the cache is in pieces, each in a segment with live tensors, and a "
        "tensor needs one piece; a piece that another stream freed is not given to this one; and pieces of the pool for "
        "small tensors (up to 1 MiB) are not given to large ones. Segments without any live tensor were returned before it "
        "failed.",
        "为什么 {cached} 里取不出 {asked}：缓存是零散的，每块都与存活张量同在一个段里，而张量需要一整块；别的流释放的块不会"
        "给这个流；小张量池（不超过 1 MiB）的块不会给大张量。没有存活张量的段在失败之前已经归还。"),
    "why_others": (
        "Others hold {others} of the card's {capacity}. Without them it would fit: {allocated} allocated + {asked} asked.",
        "其他进程占用了 {capacity} 中的 {others}。没有它们就放得下：已分配 {allocated} + 申请 {asked}。"),
    "why_others_outside": (
        "{outside} of the card's {capacity} are held outside the framework, more than a CUDA context takes. Without them "
        "it would fit: {allocated} allocated + {asked} asked.",
        "{capacity} 中有 {outside} 在框架之外，超过一个 CUDA 上下文所需。没有它们就放得下：已分配 {allocated} + 申请 "
        "{asked}。"),
    "why_others_start": (
        "Of {capacity} only {free} were free when it started: {used} were already in use. It wanted {asked}.",
        "启动时 {capacity} 中只有 {free} 空闲：{used} 已被占用。它想要 {asked}。"),
    "why_others_any": (
        "What is free on the card changed while it looked, or was taken by something else: another process uses it.",
        "在它查看期间显卡的空闲量变了，或被别的东西占用：另一个进程在使用这张卡。"),
    "why_limit": (
        "{held} held + {asked} asked is above the limit of {limit}, by {short}, although the card may have room.",
        "已占用 {held} + 申请 {asked} 超过上限 {limit}，差 {short}，尽管显卡可能还有空间。"),
    "why_limit_alone": ("{asked} in one request is above the limit of {limit}.", "一次申请 {asked}，超过上限 {limit}。"),
    "why_limit_any": ("A limit refused it, not the card.", "拒绝它的是一个上限，而不是显卡。"),
    "why_cgroup": (
        "The memory limit of the container or job was reached, and the kernel killed the process. This is host memory; the "
        "card had no part in it.",
        "容器或作业的内存上限已到，内核终止了进程。这是主机内存，与显卡无关。"),
    "why_host": ("It was the host's memory that ran out. The card had no part in it.", "耗尽的是主机内存，与显卡无关。"),
    "why_pinned": (
        "Pinned host memory was asked for: pages that the driver locks for copies. It was the host that refused, not the "
        "card.",
        "申请的是锁页主机内存，即驱动为拷贝而锁定的页。拒绝它的是主机，而不是显卡。"),
    "why_shared": (
        "Shared memory (/dev/shm) is full. Loader workers and NCCL pass data through it; a container of Docker has 64 MiB "
        "of it by default.",
        "共享内存（/dev/shm）已满。数据加载进程和 NCCL 通过它传递数据；Docker 容器默认只有 64 MiB。"),
    "why_addresses": (
        "It was addresses that ran out, not memory: something limits them (`ulimit -v`), and expandable segments reserve "
        "many.",
        "耗尽的是地址空间，而不是内存：它受到限制（`ulimit -v`），而可扩展段会保留大量地址。"),
    "why_killed": (
        "The process was killed from outside. Mostly that is the kernel's killer, when host memory ran out; the message "
        "does not prove it.",
        "进程是被外部终止的。多半是主机内存耗尽时内核所为；信息本身不能证明。"),
    "why_cache": (
        "The engine reserves a KV cache before it serves anything, and what is left beside the weights is too little for "
        "it.",
        "推理引擎在服务之前先预留 KV 缓存，而权重之外剩下的内存不够。"),
    "why_cache_size": (
        "The KV cache alone asks for {asked} in one piece. Its size is the context length times the sequences: the context "
        "is set too long.",
        "仅 KV 缓存就要一整块 {asked}。它的大小等于上下文长度乘以序列数：上下文设得太长。"),
    "why_cache_tokens": (
        "One sequence may have {tokens_wanted} tokens, and the cache holds {tokens_held}.",
        "一个序列最多可有 {tokens_wanted} 个 token，而缓存只容纳 {tokens_held} 个。"),
    "why_pool_took_all": (
        "The framework's pool has taken nearly the whole card, and the driver finds no memory for a CUDA graph outside it.",
        "框架的内存池几乎占用整张卡，驱动在池外找不到放 CUDA 图的内存。"),
    "why_start": (
        "It reserves its whole share at the start, {asked}, and {free} of {capacity} were free: {short} are missing.",
        "它在启动时预留全部份额 {asked}，而 {capacity} 中只有 {free} 空闲：还差 {short}。"),
    "why_enough_free": (
        "{free} were free, and {asked} were asked for: these figures do not explain the failure. Something else changed in "
        "between, or refused it.",
        "空闲 {free}，申请 {asked}：这些数字不能解释失败。其间有别的变化，或拒绝另有原因。"),
    "why_contradicts": (
        "The figures contradict each other, so no cause is derived from them.",
        "数字互相矛盾，因此不据此推断原因。"),
    "why_some": (
        "{asked} were asked for. What the card has, and what was in use, is not printed.",
        "申请了 {asked}。信息没有给出显卡的容量和已用量。"),
    "why_card": (
        "{asked} were asked for, on a card of {capacity}. What filled it is not printed, or not in a form to rely on.",
        "申请了 {asked}，显卡容量为 {capacity}。信息没有给出是什么占满了它，或给出的形式不可靠。"),
    "why_pool": (
        "{asked} were asked for in one piece by the framework's pool, which by default takes most of the card at the "
        "start. What the card has, and what was in use, is not printed.",
        "框架的内存池一次要 {asked}，它默认在启动时占用大部分显存。信息没有给出显卡的容量和已用量。"),
    "why_none": (
        "It has no figures: not how much was asked for, and not what was in use.",
        "信息没有数字：既没有申请量，也没有已用量。"),
    "why_perhaps": (
        "This library often fails so when it finds no memory for its own workspace, but the message does not say so: a "
        "driver that does not fit, or an earlier error, looks the same.",
        "这个库在没有内存放自己的工作区时常常这样失败，但信息没有说明：驱动不匹配或更早的错误看起来也一样。"),

    # Notes that hold only sometimes.
    "note_notebook": (
        "A notebook: the traceback of the failed cell keeps its tensors alive, so that the next try fails earlier. Run a "
        "cell with 1/0, or `import sys; sys.last_traceback = sys.last_value = sys.last_exc = None`, then `gc.collect()`; "
        "or restart the kernel.",
        "笔记本：失败单元格的回溯使其张量继续存活，下次尝试会更早失败。运行一个只有 1/0 的单元格，或执行 `import sys; "
        "sys.last_traceback = sys.last_value = sys.last_exc = None`，再 `gc.collect()`；或重启内核。"),
    "note_retry": (
        "It failed again while the first error was handled. Inside `except` the exception keeps the failed call's frame, "
        "and all its tensors, alive. Leave the block first, then try again: set a flag in `except`, and retry after it.",
        "处理第一个错误时又失败了。在 `except` 块内，异常使失败调用的栈帧及其全部张量继续存活。先离开该块再重试：在 "
        "`except` 里设标志，之后再试。"),
    "note_again": (
        "It failed more than once here. If the program tries again inside `except`, the exception keeps the failed call's "
        "tensors alive: leave the block first, then try again.",
        "此处失败不止一次。若程序在 `except` 块内重试，异常会使失败调用的张量继续存活：先离开该块再重试。"),
    "note_private_pools": (
        "Memory in private pools belongs to CUDA graphs. It is part of what is allocated, and stays until the graph is "
        "deleted.",
        "私有池中的内存属于 CUDA 图。它已计入已分配量，直到图被删除才释放。"),
    "note_retyped": (
        "PyTorch prints sizes with two decimals, such as 13.90 GiB. One that looks otherwise was retyped or damaged, and is not "
        "used: give the message as it was printed.",
        "PyTorch 打印的大小有两位小数，如 13.90 GiB。形式不同的大小是重新输入或已损坏的，因此不采用：请提供原样的报错。"),
    "note_listed_only": (
        "Processes are listed, but not which of them is this one: in a container their numbers are the host's. So none of "
        "them is counted as another.",
        "列出了进程，但没有说哪个是本进程：容器中的编号是主机的。因此没有把其中任何一个算作其他进程。"),
    "note_outside": (
        "Outside the framework are this process's CUDA context and its libraries' memory (some hundred MiB), and all other "
        "processes. The message does not tell them apart.",
        "框架之外包括本进程的 CUDA 上下文和各库的内存（几百 MiB），以及所有其他进程。信息没有把它们分开。"),
    "note_others_would_do": (
        "Other processes hold {others}, more than is missing. Without them this request would fit; the next one perhaps "
        "not.",
        "其他进程占用 {others}，多于所缺。没有它们这次申请放得下，下一次则未必。"),
    "note_limit_reached": (
        "The limit of {limit} is above what the card has, so it decided nothing.",
        "上限 {limit} 高于显卡容量，因此不起作用。"),
    "note_ours": (
        "The report itself goes on: its lines say which tensors and categories are the largest, and how many bytes each "
        "chapter would save here.",
        "报告本身还有下文：它列出最大的张量和类别，以及各章在这里能省多少字节。"),
    "note_program": (
        "Its \"fragmentation\" is a gap in the compiler's plan, not in the card's memory.",
        "其中的 fragmentation 是编译器计划内的空隙，而不是显存中的碎片。"),
    "note_shape": ("The size was computed from the shape and the type in the message.", "大小由信息中的形状和类型算出。"),

    # What it cannot say, and how to find out.
    "ask_tensors": (
        "Which tensors are live, and which line allocated each: `torch.cuda.memory._record_memory_history()`, "
        "`_dump_snapshot()`, and PyTorch's memory_viz page. Whether they grow: `torch.cuda.memory_allocated()` at the end of "
        "each step. It must not rise after the second one; what makes it rise is shown in chapters/02_gradient_accumulation.",
        "哪些张量存活，各由哪一行分配：`torch.cuda.memory._record_memory_history()`、`_dump_snapshot()` 和 PyTorch 的 memory_viz "
        "页面。是否在增长：每步结束时看 `torch.cuda.memory_allocated()`。第二步之后不应再上升；上升的"
        "原因见 chapters/02_gradient_accumulation。"),
    "ask_ours": (
        "Which tensors are live: the lines below the report, or `--snapshot FILE` and PyTorch's memory_viz page. Whether they "
        "grow: `--memory-steps 20`.",
        "哪些张量存活：报告下面的各行，或 `--snapshot FILE` 和 PyTorch 的 memory_viz 页面。是否在增长：`--memory-steps 20`。"),
    "ask_holders": (
        "Who holds what is outside the framework: `nvidia-smi` (on ROCm `rocm-smi --showpids`), on the host rather than in "
        "the container.",
        "框架之外的内存由谁占用：`nvidia-smi`（ROCm 上为 `rocm-smi --showpids`），在主机上而不是容器里运行。"),
    "ask_pieces": (
        "How large the largest cached piece is: the blocks in `torch.cuda.memory_snapshot()` whose state is \"inactive\". How "
        "much lies in pieces beside live tensors: \"inactive_split_bytes\" in `torch.cuda.memory_stats()`.",
        "最大的缓存块有多大：`torch.cuda.memory_snapshot()` 中状态为 \"inactive\" 的块。与存活张量同段的零散块共有多少："
        "`torch.cuda.memory_stats()` 中的 \"inactive_split_bytes\"。"),
    "ask_card": (
        "How much of the card was in use: `nvidia-smi`, or `cudaMemGetInfo` (in PyTorch `torch.cuda.mem_get_info()`) just before "
        "the call that fails.",
        "显存已用多少：在失败的调用之前运行 `nvidia-smi` 或 `cudaMemGetInfo`（PyTorch 中为 "
        "`torch.cuda.mem_get_info()`）。"),
    "ask_where": (
        "Which call failed: CUDA reports errors late. Run with CUDA_LAUNCH_BLOCKING=1.",
        "哪个调用失败：CUDA 报错滞后。用 CUDA_LAUNCH_BLOCKING=1 运行。"),
    "ask_size": (
        "Where the size comes from: print the shapes and types just before the line that failed.",
        "大小从何而来：在失败的那一行之前打印形状和类型。"),
    "ask_limit": (
        "Who set the limit: look for `set_per_process_memory_fraction`, `memory_limit`, `gpu_mem_limit`, "
        "`CUPY_GPU_MEMORY_LIMIT`, MIG or MPS settings, `--budget`.",
        "谁设了上限：查找 `set_per_process_memory_fraction`、`memory_limit`、`gpu_mem_limit`、`CUPY_GPU_MEMORY_LIMIT`、MIG "
        "或 MPS 设置、`--budget`。"),
    "ask_host": (
        "What used the host's memory: `dmesg -T | grep -i kill`, `free -h`, `df -h /dev/shm`; in a container `memory.max` "
        "and `memory.peak` in /sys/fs/cgroup.",
        "主机内存用在哪里：`dmesg -T | grep -i kill`、`free -h`、`df -h /dev/shm`；容器中为 /sys/fs/cgroup 的 `memory.max` "
        "和 `memory.peak`。"),
    "ask_reserve": (
        "What the weights take and what is left for the cache: the engine's own log, in the lines before (model loading, "
        "buffer size, available KV cache memory).",
        "权重占多少、给缓存剩多少：看引擎自己日志的前几行（model loading、buffer size、available KV cache memory）。"),
    "ask_xla": (
        "What else is on the device: `jax.profiler.save_device_memory_profile()`, in TensorFlow "
        "`tf.config.experimental.get_memory_info('GPU:0')`.",
        "设备上还有什么：`jax.profiler.save_device_memory_profile()`，TensorFlow 中为 "
        "`tf.config.experimental.get_memory_info('GPU:0')`。"),
}

# What to do first, second, third: (English, Chinese), chapters, price (English, Chinese).
_SMALLER = (("Take a smaller batch; accumulate gradients over several to keep the gradient of the large one.",
      "减小批量；用梯度累积保持大批量的梯度。"), ("01", "02"),
     ("more, smaller steps; batch norm sees the small batch", "步数更多、更小；批归一化只看到小批量"))
_FEWER = (("Keep fewer activations: in evaluation none (`torch.no_grad()`); in training 16-bit ones (`torch.autocast`; BF16 from "
      "compute capability 8.0 on, before it FP16 with a `GradScaler`), checkpoints, and attention and loss without their large "
      "tensors.",
      "少保存激活：评估时完全不存（`torch.no_grad()`）；训练时用 16 位激活（`torch.autocast`；计算能力 8.0 起用 BF16，更旧的卡用 FP16 加 "
      "`GradScaler`）、检查点，以及不产生大张量的注意力和损失。"), ("03", "04", "08", "11"),
     ("checkpointing computes the forward pass again, about a third more work", "检查点要重做一次前向，约多三分之一的计算"))
_STATE = (("If parameters, gradients and optimizer are most of it: 8-bit moments, host memory, or several GPUs. Mixed "
      "precision does not make them smaller: with Adam the bytes of a parameter stay 16, and with autocast become 18.",
      "若参数、梯度和优化器占大头：8 位的 Adam 矩、主机内存或多 GPU。混合精度不会让它们变小：用 Adam 时每个参数的字节数仍是 16，用 autocast 则为 "
      "18。"), ("05", "07", "13"),
     ("copies over the bus, or communication", "总线拷贝或通信"))
_CACHE_LENGTH = (("Shorten the context, or serve fewer sequences at a time (`--ctx-size`, `--max-model-len`, `--max-num-seqs`).",
      "缩短上下文，或减少同时服务的序列（`--ctx-size`、`--max-model-len`、`--max-num-seqs`）。"), ("11",),
     ("longer requests are refused, or wait", "更长的请求被拒绝或等待"))
_LOOK = (("Print free and total memory just before the call that fails, and see who holds the card.",
      "在失败的调用之前打印空闲和总量，并查看谁占用显卡。"), ("00",),
     ("none", "无"))

ADVICE = {
    "too_big_for_the_card": (
        (("Look at the shape first: a wrong dimension, or a broadcast that made an outer product, is the usual reason.",
          "先看形状：常见原因是维度写错，或广播成了外积。"), ("00",),
         ("none", "无")),
        (("Do not make the tensor whole: attention and loss by tiles, smaller inputs or tiles of them.",
          "不要生成整个张量：注意力和损失分块，输入更小或分块。"), ("08", "09"),
         ("more, smaller kernels", "更多、更小的核函数")),
        (("Split it over several GPUs, or keep it in host memory and stream it.",
          "拆到多个 GPU，或放在主机内存中流式读取。"), ("07", "05"),
         ("communication, or copies over the bus", "通信或总线拷贝"))),
    "live_tensors_fill_it": (_SMALLER, _FEWER, _STATE),
    "fragmentation": (
        (("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (on ROCm PYTORCH_HIP_ALLOC_CONF) before the first allocation. "
          "Windows, and ROCm before 7, do not have it: PyTorch then warns that it is not supported.",
          "在第一次分配之前设置 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True（ROCm 上为 PYTORCH_HIP_ALLOC_CONF）。Windows 和 7 之前的 ROCm 没有"
          "它：PyTorch 会警告不支持。"), ("06",),
         ("a driver call for each page while the run finds its shape; PyTorch 2.1 or newer", "运行稳定之前每页一次驱动调用；需要 PyTorch 2.1 或更新")),
        (("Let sizes repeat: pad lengths to a few values, and run the largest batch first.",
          "让大小重复：把长度补齐到少数几种，并先运行最大的批。"), ("06",),
         ("work on padding", "填充部分的计算")),
        (("Where that is not supported: max_split_size_mb, which keeps large blocks whole. (`empty_cache()` does not help here: "
          "before it failed, PyTorch gave back all that could be given back, and tried again.)",
          "不支持时：max_split_size_mb，使大块不被拆分。（`empty_cache()` 在此无用：失败之前 PyTorch 已归还所有能归还的，并重试过。）"), ("06",),
         ("large requests ask the driver more often, and wait for the device each time", "大申请更常向驱动申请，每次都等待设备"))),
    "other_process": (
        (("See who holds the card (`nvidia-smi`). A notebook's kernel or a run of yours that has not ended? End it. "
          "Somebody else's? Ask.",
          "查看谁占用显卡（`nvidia-smi`）。是自己未结束的笔记本内核或程序？结束它。是别人的？去问。"), ("15",),
         ("none", "无")),
        (("Take another card: CUDA_VISIBLE_DEVICES.",
          "换一张卡：CUDA_VISIBLE_DEVICES。"), ("15",),
         ("none", "无")),
        (("Fit beside them: a smaller batch, and a limit of your own so that both know their share.",
          "与它们共存：减小批量，并给自己设上限，让双方各有份额。"), ("15", "01", "02"),
         ("more, smaller steps", "步数更多、更小"))),
    "limit_set_by_user": (
        (("Raise or remove the limit, if the machine has the memory.",
          "若机器有足够内存，提高或取消上限。"), ("00",),
         ("less for the others that it protects", "它所保护的其他程序得到的更少")),
        _SMALLER, _FEWER),
    "host_memory": (
        (("Fewer loader workers, a smaller prefetch_factor, and no pinned memory where it is not needed.",
          "减少加载进程和 prefetch_factor，不需要时不用锁页内存。"), ("05",),
         ("the GPU may wait for data", "GPU 可能等待数据")),
        (("Read data as it is needed instead of all at once: memory-mapped files, streaming.",
          "按需读取数据，而不是一次全部：内存映射文件、流式读取。"), ("05",),
         ("reads from the disk", "磁盘读取")),
        (("Give it more: the container's memory limit, `--shm-size`, `ulimit -l`.",
          "给它更多：容器内存上限、`--shm-size`、`ulimit -l`。"), (),
         ("memory that others then lack", "别的程序因此缺少内存"))),
    "kv_cache_or_pool_reservation": (
        _CACHE_LENGTH,
        (("Let it reserve what there is: vLLM's gpu_memory_utilization up to what is free, TF_FORCE_GPU_ALLOW_GROWTH, "
          "XLA_PYTHON_CLIENT_MEM_FRACTION.",
          "让它按实际情况预留：vLLM 的 gpu_memory_utilization 调到空闲量，TF_FORCE_GPU_ALLOW_GROWTH，"
          "XLA_PYTHON_CLIENT_MEM_FRACTION。"), (),
         ("less room for what comes later", "给之后的东西留的空间更少")),
        (("Make the cache or the weights smaller: 8-bit cache, quantised weights, fewer layers on the card.",
          "减小缓存或权重：8 位缓存、量化权重、少放几层到卡上。"), ("12",),
         ("accuracy, to be measured", "精度，需要测量"))),
    "not_enough_information": (_LOOK, _SMALLER,
        (("If others may use the card, free it or take another one.",
          "若有别人使用该卡，释放它或换一张。"), ("00",),
         ("none", "无"))),
}


# The same where another framework needs other advice: by diagnosis and the framework's rule.
_REPEAT = ADVICE["fragmentation"][1]
ADVICE_OF = {
    ("fragmentation", "tensorflow"): (
        (("Set TF_GPU_ALLOCATOR=cuda_malloc_async: the driver's pool, which moves memory between sizes.",
          "设置 TF_GPU_ALLOCATOR=cuda_malloc_async：使用驱动的内存池，它能在不同大小之间移动内存。"), ("06",),
         ("none that is known in general; measure it", "一般而言未知，需测量")), _REPEAT, _SMALLER),
    ("not_enough_information", "llama"): (
        (("Put fewer layers on the card (`--n-gpu-layers`).",
          "少放几层到卡上（`--n-gpu-layers`）。"), (),
         ("slower: the rest runs on the processor", "更慢：其余在处理器上运行")),
        _CACHE_LENGTH,
        (("Take weights of fewer bits.",
          "使用更少位数的权重。"), ("12",),
         ("accuracy, to be measured", "精度，需要测量"))),
    ("fragmentation", "ours"): (
        (("Use the caching allocator that maps free pages side by side, or plan the step so that every tensor has its "
          "place.",
          "使用把空闲页并排映射的缓存分配器，或规划整个步骤，使每个张量有固定位置。"), ("06",),
         ("driver calls until the run has found its shape", "运行稳定之前的驱动调用")), _REPEAT, _SMALLER),
}


def advice(diagnosis, rule):
    """What to do first, second, third."""
    return ADVICE_OF.get((diagnosis, rule.split("_")[0]), ADVICE[diagnosis])


def say(key, language, **values):
    """The text of a key; figures and names filled in."""
    return TEXT[key][LANGUAGES.index(language)].format(**values)
