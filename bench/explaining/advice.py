"""What to do about each diagnosis, in English and Chinese. For bench/explain."""

# What to do first, second, third: (English, Chinese), chapters, price (English, Chinese).
_SMALLER = (("Take a smaller batch; accumulate gradients over several to keep the gradient of the large one.",
      "减小 batch；用梯度累积保持大 batch 的梯度。"), ("01", "02"),
     ("more, smaller steps; batch norm sees the small batch", "步数更多、更小；批归一化只看到小 batch"))
_FEWER = (("Keep fewer activations: in evaluation none (`torch.no_grad()`); in training 16-bit ones (`torch.autocast`; BF16 from "
      "compute capability 8.0 on, before it FP16 with a `GradScaler`), checkpoints, and attention and loss without their large "
      "tensors.",
      "少保存激活：评估时完全不存（`torch.no_grad()`）；训练时用 16 位激活（`torch.autocast`；计算能力 8.0 起用 BF16，更旧的卡用 FP16 加 "
      "`GradScaler`）、检查点，以及不产生大张量的注意力和 loss。"), ("03", "04", "08", "11"),
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
      "在失败的调用之前打印空闲和总量，并查看谁占用显存。"), ("00",),
     ("none", "无"))

ADVICE = {
    "too_big_for_the_card": (
        (("Look at the shape first: a wrong dimension, or a broadcast that made an outer product, is the usual reason.",
          "先看形状：常见原因是维度写错，或广播成了外积。"), ("00",),
         ("none", "无")),
        (("Do not make the tensor whole: attention and loss by tiles, smaller inputs or tiles of them.",
          "不要生成整个张量：注意力和 loss 分块，输入更小或分块。"), ("08", "09"),
         ("more, smaller kernels", "更多、更小的核函数")),
        (("Split it over several GPUs, or keep it in host memory and stream it.",
          "拆到多个 GPU，或放在主机内存中流式读取。"), ("07", "05"),
         ("communication, or copies over the bus", "通信或总线拷贝"))),
    "live_tensors_fill_it": (_SMALLER, _FEWER, _STATE),
    "fragmentation": (
        (("Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (on ROCm PYTORCH_HIP_ALLOC_CONF) before the first allocation. "
          "Windows, and PyTorch before about 2.11 on ROCm, do not have it: PyTorch then warns that it is not supported.",
          "在第一次分配之前设置 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True（ROCm 上为 PYTORCH_HIP_ALLOC_CONF）。Windows 和约 2.11 之前的 ROCm 版 PyTorch 没有"
          "它：PyTorch 会警告不支持。"), ("06",),
         ("a driver call for each page while the run finds its shape; PyTorch 2.1 or newer", "运行稳定之前每页一次驱动调用；需要 PyTorch 2.1 或更新")),
        (("Let sizes repeat: pad lengths to a few values, and run the largest batch first.",
          "让大小重复：把长度补齐到少数几种，并先运行最大的 batch。"), ("06",),
         ("work on padding", "补齐部分的计算")),
        (("Where that is not supported: max_split_size_mb, which keeps large blocks whole. (`empty_cache()` does not help here: "
          "before it failed, PyTorch gave back all that could be given back, and tried again.)",
          "不支持时：max_split_size_mb，使大块不被拆分。（`empty_cache()` 在此无用：失败之前 PyTorch 已归还所有能归还的，并重试过。）"), ("06",),
         ("large requests ask the driver more often, and wait for the device each time", "大申请更常向驱动申请，每次都等待设备"))),
    "other_process": (
        (("See who holds the card (`nvidia-smi`). A notebook's kernel or a run of yours that has not ended? End it. "
          "Somebody else's? Ask.",
          "查看谁占用显存（`nvidia-smi`）。是自己未结束的笔记本内核或程序？结束它。是别人的？去问。"), ("15",),
         ("none", "无")),
        (("Take another card: CUDA_VISIBLE_DEVICES.",
          "换一张卡：CUDA_VISIBLE_DEVICES。"), ("15",),
         ("none", "无")),
        (("Fit beside them: a smaller batch, and a limit of your own so that both know their share.",
          "与它们共存：减小 batch，并给自己设上限，让双方各有份额。"), ("15", "01", "02"),
         ("more, smaller steps", "步数更多、更小"))),
    "limit_set_by_user": (
        (("Raise or remove the limit, if the machine has the memory.",
          "若机器有足够内存，提高或取消上限。"), ("00",),
         ("less for the others that it protects", "它所保护的其他程序得到的更少")),
        _SMALLER, _FEWER),
    "host_memory": (
        (("Fewer loader workers, a smaller prefetch_factor, and no pinned memory where it is not needed.",
          "减少 DataLoader 工作进程和 prefetch_factor，不需要时不用锁页内存。"), ("05",),
         ("the GPU may wait for data", "GPU 可能等待数据")),
        (("Read data as it is needed instead of all at once: memory-mapped files, streaming.",
          "按需读取数据，而不是一次全部：内存映射文件、流式读取。"), ("05",),
         ("reads from the disk", "磁盘读取")),
        (("Give it more: the container's memory limit, `--shm-size`, the job's request.",
          "给它更多：容器内存上限、`--shm-size`、作业的申请量。"), (),
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
        (("Set TF_GPU_ALLOCATOR=cuda_malloc_async: CUDA's asynchronous allocator, which can give freed memory to requests of any size.",
          "设置 TF_GPU_ALLOCATOR=cuda_malloc_async：CUDA 的异步分配器，释放的内存可以给任何大小的申请。"), ("06",),
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
        (("Use the caching allocator that joins free pages into one block, or plan the step so that every tensor has its "
          "place.",
          "使用把空闲页映射到连续地址的缓存分配器，或规划整个步骤，使每个张量有固定位置。"), ("06",),
         ("driver calls until the run has found its shape", "运行稳定之前的驱动调用")), _REPEAT, _SMALLER),
}

ADVICE_OF["fragmentation", "xla"] = ADVICE_OF["fragmentation", "tensorflow"]  # the same allocator, and the same variable

# The same of programs that serve: their flags, and the direction that a failure wants.
ADVICE_OF["serving"] = (
    _CACHE_LENGTH,
    (("Move the share of the card that the engine reserves: down where something beside the reservation fails (warm-up, sampler, graphs, "
      "serving), up where nothing is left for the cache at the start.",
      "调整引擎预留的显存份额：预留之外的部分失败（预热、采样器、图、服务中）就调低；启动时没有给缓存剩下的就调高。"), (),
     ("a smaller cache serves fewer requests at a time", "缓存小则同时服务的请求少")),
    ADVICE["kv_cache_or_pool_reservation"][2])
ADVICE_OF["host_memory", "compiler"] = (
    (("Compile fewer files at a time (`make -j2`, `MAX_JOBS=2`, `ninja -j2`).", "减少同时编译的文件（`make -j2`、`MAX_JOBS=2`、`ninja -j2`）。"), (),
     ("a longer build", "编译更久")),
    (("Compile for your own card only (`CMAKE_CUDA_ARCHITECTURES=native`, `TORCH_CUDA_ARCH_LIST`).",
      "只为自己的卡编译（`CMAKE_CUDA_ARCHITECTURES=native`、`TORCH_CUDA_ARCH_LIST`）。"), (),
     ("it runs on that card only", "只能在这种卡上运行")),
    (("Add swap, or install what is built already (a wheel, a container).", "增加交换空间，或安装已编译好的（wheel、容器）。"), (),
     ("reads and writes of the disk", "磁盘读写")))


def advice(diagnosis, rule, serving=False):
    """What to do first, second, third; `serving` where the program serves, and what failed is its card's memory."""
    if serving and diagnosis not in ("host_memory", "other_process", "fragmentation"):
        return ADVICE_OF["serving"]
    return ADVICE_OF.get((diagnosis, rule.split("_")[0]), ADVICE[diagnosis])
