"""The causes that bench/explain names, in a sentence: English, Chinese. A name in braces is a figure of the message."""

CAUSES = {
    "why_too_big": (
        "{asked} in one request is more than the whole card has, {capacity}. Freeing memory will not help.",
        "一次申请 {asked}，超过整张卡的 {capacity}。释放什么都无济于事。"),
    "why_too_big_limit": (
        "{asked} were asked for in one buffer, and one may have {limit}.",
        "一次申请 {asked}，而单个缓冲区最多 {limit}。"),
    "why_buffer_mps": (
        "{asked} were asked for in one Metal buffer.",
        "一个 Metal 缓冲区就申请了 {asked}。"),
    "why_too_big_program": (
        "The compiled program needs {asked}, and the chip has {capacity}. This is known before it runs.",
        "编译后的程序需要 {asked}，而芯片只有 {capacity}。运行之前就已确定。"),
    "why_too_big_any": (
        "This request is larger than anything that the device can give. A size that was computed wrongly often looks like this.",
        "这次申请比设备能提供的显存还大，多半是大小算错了。"),
    "why_live": (
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. In all, the program must use at least {percent} % less. {allocated} of {capacity} are live tensors.",
        "申请 {asked}；空闲 {free}，缓存未用 {cached}：还差 {short}，总用量至少要减少 {percent} %。{capacity} 中有 {allocated} 是存活张量。"),
    "why_live_arrays": (
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. In all, the program must use at least {percent} % less. {allocated} of {capacity} are arrays, including dead ones not yet collected.",
        "申请 {asked}；空闲 {free}，缓存未用 {cached}：还差 {short}，总用量至少要减少 {percent} %。{capacity} 中有 {allocated} 是数组，其中包括已不再使用、但还没有回收的。"),
    "why_live_last": (
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. {allocated} of {capacity} are live tensors, so this small request is only the last straw, and says little of what is still to come.",
        "申请 {asked}；空闲 {free}，缓存未用 {cached}：还差 {short}。{capacity} 中有 {allocated} 是存活张量。这次申请很小，只是最后一根稻草；后面还需要多少，从这里看不出来。"),
    "why_one_request": (
        "{asked} are asked for at once, on a card of {capacity} of which {free} are free and {allocated} are live tensors.",
        "一次申请 {asked}，而 {capacity} 中空闲 {free}，存活张量占 {allocated}。"),
    "why_live_card": (
        "{allocated} of {capacity} are live tensors, and {asked} more would exceed what the card has.",
        "{capacity} 中有 {allocated} 是存活张量，再要 {asked} 就超过整张卡的容量。"),
    "why_live_sum": (
        "{short} missing = {asked} asked - {free} free - {cached} cached. The request that failed is only the last one.",
        "还差 {short} = 申请 {asked} - 空闲 {free} - 缓存 {cached}。失败的申请只是最后一次。"),
    "why_live_free": (
        "{allocated} are allocated and {free} free, and {asked} were asked for: {short} are missing. In all, the program must use at least {percent} % less.",
        "已分配 {allocated}，空闲 {free}，申请 {asked}：还差 {short}，总用量至少要减少 {percent} %。"),
    "why_live_paddle": (
        "PaddlePaddle holds {allocated}, its cache included; {free} are free, and {asked} were asked for: {short} are missing. In all, the program must use at least {percent} % less. How much of that is tensors is not printed; nvidia-smi shows whether others use the card.",
        "PaddlePaddle 占用 {allocated}（含缓存），空闲 {free}，申请 {asked}：还差 {short}，总用量至少要减少 {percent} %。其中多少是张量，报错没有给出；有没有别的进程，用 nvidia-smi 查看。"),
    "why_impossible": (
        "{asked} in one request is more than any machine has: the size was computed wrongly (overflow, a negative or swapped dimension).",
        "一次申请 {asked}，任何机器都没有这么多：大小算错了（溢出、维度为负或写反）。"),
    "why_live_pieces": (
        "{allocated} of {capacity} are live tensors. {free} are free, and {cached} more are cached in pieces. Together that would do for {asked}, but the cache is under 0.5 % of the card: joining its pieces would only delay the failure.",
        "{capacity} 中有 {allocated} 是存活张量。空闲 {free}，另有 {cached} 缓存未用，是零散的碎块。合计够放 {asked}，但缓存不到显存的 0.5 %，拼起来也撑不了多久。"),
    "why_spilled": (
        "{allocated} are allocated, more than the {capacity} that the card has: the driver (on Windows, WSL) has put the "
        "rest into host memory, and now refuses.",
        "已分配 {allocated}，超过整张卡的 {capacity}：驱动（Windows、WSL）把其余部分放进了主机内存，现在拒绝继续。"),
    "why_live_pool": (
        "The framework's pool has {limit}. {allocated} of it are live, and {asked} more do not fit.",
        "框架的内存池有 {limit}，其中 {allocated} 是存活张量，放不下再申请的 {asked}。"),
    "why_live_any": (
        "{asked} were asked for, and {free} are free. Arrays and programs of this process hold the rest of the chip's memory.",
        "申请 {asked}，空闲 {free}。芯片其余的内存由本进程的数组和程序占据。"),
    "why_live_alone": (
        "Less is free than was asked for, and live tensors hold the rest.",
        "空闲少于申请，其余由存活张量占据。"),
    "why_fragments": (
        "{cached} are cached and not in use, {free} are free, and yet there is no contiguous block of {asked}.",
        "缓存未用 {cached}，空闲 {free}，却没有一块 {asked} 的连续空间。"),
    "why_fragments_full": (
        "{cached} are cached and not in use, {free} are free, and yet there is no contiguous block of {asked}. But {allocated} of {capacity} are live tensors: joining the pieces helps only for a moment, and a smaller batch for longer.",
        "缓存未用 {cached}，空闲 {free}，却没有一块 {asked} 的连续空间。但 {capacity} 中有 {allocated} 是存活张量：把碎块拼起来撑不了多久，减小 batch 更有用。"),
    "why_fragments_any": (
        "Enough is free in total, but in pieces, and {asked} were asked for in one block.",
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
        "Others hold {others} of the card's {capacity}. Without them it would fit: {allocated} allocated + {asked} asked = {needed}.",
        "{capacity} 中有 {others} 被它们占用。若没有这些占用就放得下：已分配 {allocated} + 申请 {asked} = {needed}。"),
    "why_others_outside": (
        "{outside} of the card's {capacity} are held outside the framework, more than a CUDA context takes: by another process, or a second framework in this one. Without that it would fit: {allocated} allocated + {asked} asked = {needed}.",
        "{capacity} 中有 {outside} 不由这个框架分配，超过一个 CUDA 上下文所需：属于别的进程，或本进程里的另一个框架。若没有这些占用就放得下：已分配 {allocated} + 申请 {asked} = {needed}。"),
    "why_others_start": (
        "Of {capacity} only {free} were free when the engine started: {used} were already in use. It needs {asked}.",
        "引擎启动时 {capacity} 中只有 {free} 空闲：{used} 已被占用。引擎需要 {asked}。"),
    "why_others_any": (
        "What is free on the card changed while the program looked, or was taken by something else: another process uses it.",
        "程序查看期间显存的空闲量变了，或被别的东西占用：另一个进程在使用这张卡。"),
    "why_limit": (
        "{held} held + {asked} asked exceeds the limit of {limit}, by {short}.",
        "已占用 {held} + 申请 {asked}，超过上限（{limit}），超出 {short}。"),
    "why_limit_free": (
        "{held} held + {asked} asked exceeds the limit of {limit}, by {short}, while {free} of the card are free.",
        "已占用 {held} + 申请 {asked}，超过上限（{limit}），超出 {short}，而显存还有 {free} 空闲。"),
    "why_limit_alone": (
        "{asked} in one request exceeds the limit of {limit}.",
        "一次申请 {asked}，超过上限（{limit}）。"),
    "why_limit_mps": (
        "PyTorch may use {limit} here. It holds {allocated}, and {other_allocations} more are Metal memory outside its allocator: {asked} more do not fit.",
        "PyTorch 在这里最多可用 {limit}，已占 {allocated}，分配器之外还有 {other_allocations} 的 Metal 内存，放不下再申请的 {asked}。"),
    "why_limit_asked": (
        "{asked} were asked for, and a limit refused them; the card need not be full.",
        "申请 {asked}，因超过设定的上限被拒；显存未必已满。"),
    "why_limit_within": (
        "{asked} were asked for, and {within} are left under a limit; the card need not be full.",
        "申请 {asked}，而上限之下只剩 {within}；显存未必已满。"),
    "why_limit_adaptor": (
        "{asked} were asked for, and RMM's LimitingResourceAdaptor refused them; the card need not be full.",
        "申请 {asked}，被 RMM 的 LimitingResourceAdaptor 拒绝；显存未必已满。"),
    "why_limit_segment": (
        "An expandable segment has addresses for {reserve} here (expandable_segments_reserve), and a request must fit into one segment: {asked} were asked for. The card need not be full.",
        "这里一个可扩展段只预留了 {reserve} 的地址（expandable_segments_reserve），而一次申请必须放进一个段：申请的是 {asked}。显存未必已满。"),
    "why_limit_any": (
        "A limit refused it; the card need not be full.",
        "因超过设定的上限被拒；显存未必已满。"),
    "why_cgroup": (
        "The memory limit of the container or job was reached, and Linux's OOM killer ended the process.",
        "容器或作业的内存上限已到，进程被 Linux 的 OOM killer 终止。"),
    "why_limit_of_job": (
        "The memory limit of the job or container was reached, and {manager} ended the process.",
        "作业或容器的内存上限已到，进程被 {manager} 终止。"),
    "why_host": (
        "The host's memory ran out.",
        "主机内存已耗尽。"),
    "why_host_asked": (
        "The host's memory ran out: {asked} were asked for.",
        "主机内存已耗尽：申请了 {asked}。"),
    "why_host_pool": (
        "The host's memory ran out, or TensorFlow's pool of pinned host memory reached its own limit: {asked} were asked for.",
        "主机内存已耗尽，或 TensorFlow 的锁页内存池达到了自己的上限：申请了 {asked}。"),
    "why_host_within": (
        "The host's memory is too small for it: {asked} are needed, and {within} are available.",
        "主机内存不够：需要 {asked}，可用 {within}。"),
    "why_host_killed": (
        "The process was killed because the host's memory had run out.",
        "进程因主机内存耗尽而被终止。"),
    "why_host_killed_unit": (
        "The process was killed because the host's memory had run out, or because the unit reached its own limit (MemoryMax).",
        "进程被终止，原因是主机内存耗尽，或该 unit 达到了自己的上限（MemoryMax）。"),
    "why_host_victim": (
        "Process {victim} (PID {victim_id}) held {resident} when it was killed because the host's memory had run out.",
        "进程 {victim}（PID {victim_id}）被终止时占用 {resident}：主机内存已耗尽。"),
    "why_invoked": (
        "The process that is named asked for memory when the host's had run out. Which one was ended for it stands below, in the line 'Killed process'.",
        "这里的进程在申请内存时，主机内存已耗尽。被终止的是哪个进程，见下面 Killed process 那一行。"),
    "why_worker_gone": (
        "A DataLoader worker was killed from outside, or ended without an error. Usually that is Linux's OOM killer, when the host or the container ran out of memory (dmesg will show it); the message does not prove it.",
        "DataLoader 工作进程被外部终止，或没有报错就结束。通常是主机或容器内存耗尽，被 Linux 的 OOM killer 终止（用 dmesg 确认）；但仅凭报错不能确定。"),
    "why_pinned": (
        "Pinned host memory was asked for: pages of the host that the driver locks for copies, and it could lock no more.",
        "申请的是锁页内存（驱动为了拷贝而锁定的主机内存），驱动已无法锁定更多。"),
    "why_pinned_llama": (
        "The host's pages could not be pinned. That is a warning of llama.cpp, and not fatal: it goes on with ordinary memory, from which copies are slower.",
        "无法锁定主机内存页。这只是 llama.cpp 的警告，并不致命：它改用普通内存继续运行，只是拷贝慢些。"),
    "why_shared": (
        "Shared memory (/dev/shm) is full. DataLoader workers and NCCL pass data through it; a Docker container has 64 MiB of it by default.",
        "共享内存（/dev/shm）已满。DataLoader 工作进程和 NCCL 通过它传递数据；Docker 容器默认只有 64 MiB。"),
    "why_shared_bus": (
        "A DataLoader worker ended by a bus error. Usually shared memory (/dev/shm) is full, through which workers pass their data; a Docker container has 64 MiB of it by default.",
        "DataLoader 工作进程因总线错误终止。通常是共享内存（/dev/shm）已满，工作进程通过它传递数据；Docker 容器默认只有 64 MiB。"),
    "why_addresses": (
        "`ulimit -v` is too low: expandable segments reserve many addresses.",
        "`ulimit -v` 设得太低，而可扩展段要预留大量地址。"),
    "why_killed": (
        "The process was killed from outside. Usually that is Linux's OOM killer, when the host or the container ran out of memory; the message does not prove it.",
        "进程是被外部终止的。通常是主机或容器内存耗尽，被 Linux 的 OOM killer 终止；但仅凭报错不能确定。"),
    "why_killed_mac": (
        "The process was killed from outside. Usually macOS does that when memory runs out; the message does not prove it.",
        "进程是被外部终止的。通常是内存耗尽，被 macOS 终止；但仅凭报错不能确定。"),
    "why_killed_on_card": (
        "The process was killed from outside. Usually that is Linux's OOM killer, when the host or the container ran out of memory; the message does not prove it. What speaks against it: {on_card} of the model's {model_size} were on the card, and only the rest in host memory.",
        "进程是被外部终止的。通常是主机或容器内存耗尽，被 Linux 的 OOM killer 终止；但仅凭报错不能确定。况且模型的 {model_size} 中有 {on_card} 在显卡上，占主机内存的不多。"),
    "why_cache": (
        "The engine reserves a KV cache before it serves anything, and what is left beside the weights is too little for it.",
        "推理引擎在服务之前先预留 KV 缓存，而除去权重，剩下的显存不够。"),
    "why_cache_size": (
        "The KV cache alone asks for {asked} in one block. It grows with the context (llama-server's -c, which all its slots share): that is too long for what is free.",
        "仅 KV 缓存就要一整块 {asked}。它随上下文增长（llama-server 的 -c，由各槽共用），而空闲显存放不下这么长的上下文。"),
    "why_cache_size_ollama": (
        "The KV cache alone asks for {asked} in one block. It grows with the context, which is too long for what is free.",
        "仅 KV 缓存就要一整块 {asked}。它随上下文增长，而空闲显存放不下这么长的上下文。"),
    "why_cache_tokens": (
        "One sequence may have {tokens_wanted} tokens, and the cache holds {tokens_held}.",
        "一个序列最多可有 {tokens_wanted} 个 token，而缓存只容纳 {tokens_held} 个。"),
    "why_pool_took_all": (
        "The framework's pool has taken nearly the whole card, and the driver finds no memory for a CUDA graph outside it.",
        "框架的内存池几乎占用整张卡，驱动在池外找不到放 CUDA 图的显存。"),
    "why_start": (
        "The engine reserves its whole share at the start, {asked}, and {free} of {capacity} were free: {short} are missing.",
        "引擎在启动时预留全部份额 {asked}，而 {capacity} 中只有 {free} 空闲：还差 {short}。"),
    "why_enough_free": (
        "{free} were free, and {asked} were asked for: these figures do not explain the failure. Memory was freed between the failed request and this message, or the driver refused for another reason.",
        "空闲 {free}，申请 {asked}：这些数字不能解释失败。可能在申请失败之后、报错之前有显存被释放，也可能是驱动因别的原因拒绝了申请。"),
    "why_contradicts": (
        "The figures contradict each other, so no cause is derived from them.",
        "数字互相矛盾，因此不据此推断原因。"),
    "why_some": (
        "{asked} were asked for. The message says neither how large the card is nor how much of it was in use.",
        "申请了 {asked}，容量和已用量不明。"),
    "why_cut_off": (
        "Only the beginning of the message is here: its next words say what the card has, what is free, and what is allocated.",
        "报错不完整：它后面的文字会给出容量、空闲和已分配。"),
    "why_cut_off_asked": (
        "{asked} were asked for. The rest of the message is not here: its next words say what the card has, what is free, and what is allocated.",
        "申请了 {asked}。报错不完整：它后面的文字会给出容量、空闲和已分配。"),
    "why_program_size": (
        "The compiled program needs {program} in all: arguments {arguments}, outputs {outputs}, temporaries {temporaries}. {asked} of it did not fit.",
        "编译后的程序共需 {program}：输入 {arguments}、输出 {outputs}、临时缓冲区 {temporaries}。其中 {asked} 放不下。"),
    "why_program_size_temporaries": (
        "The compiled program needs {program} in all: arguments {arguments}, outputs {outputs}, temporaries {temporaries}. The buffer for temporaries did not fit beside the rest.",
        "编译后的程序共需 {program}：输入 {arguments}、输出 {outputs}、临时缓冲区 {temporaries}。放不下的是临时缓冲区。"),
    "why_program_parts": (
        "The compiled program needs {program} in all, of it arguments {arguments} and temporaries {temporaries}. {asked} of it did not fit.",
        "编译后的程序共需 {program}，其中输入 {arguments}、临时缓冲区 {temporaries}。其中 {asked} 放不下。"),
    "why_program_parts_temporaries": (
        "The compiled program needs {program} in all, of it arguments {arguments} and temporaries {temporaries}. The buffer for temporaries did not fit beside the rest.",
        "编译后的程序共需 {program}，其中输入 {arguments}、临时缓冲区 {temporaries}。放不下的是临时缓冲区。"),
    "why_program_free": (
        "{asked} were to be reserved for the program, and {free} of the chip's memory are free: {short} are missing.",
        "要为程序预留 {asked}，而芯片内存空闲 {free}：还差 {short}。"),
    "why_cupy": (
        "CuPy holds {allocated}, and {asked} more were asked for. How large the card is, and what else is on it, is not printed.",
        "CuPy 已分配 {allocated}，又申请 {asked}；报错没有给出显存容量，也没有给出其他占用。"),
    "why_card": (
        "{asked} were asked for, on a card of {capacity}. What filled it is not printed, or not in a form to rely on.",
        "申请了 {asked}，显存容量为 {capacity}。显存被什么占用，报错没有给出，或数字的写法不可靠。"),
    "why_card_free": (
        "{asked} were asked for, and {free} of {capacity} were free: {short} are missing.",
        "申请 {asked}，而 {capacity} 中空闲 {free}：还差 {short}。"),
    "why_card_mapping": (
        "{asked} were to be mapped, and {free} of {capacity} were free. This is a warning: the allocator frees its cache and tries again. If no error follows, it does not matter.",
        "要映射 {asked}，而 {capacity} 中空闲 {free}。这是警告：分配器会释放缓存后重试。若其后没有错误，可以忽略。"),
    "why_pool": (
        "{asked} were asked for in one block by the framework's pool, which by default takes most of the card at the start. It tries again with less: if no error follows, this line does not matter.",
        "框架的内存池一次要 {asked}，它默认在启动时占用大部分显存。失败后它会减小申请量再试：若其后没有错误，这一行可以忽略。"),
    "why_none": (
        "The message gives no figures: neither what was asked for nor what was in use.",
        "报错没有数字：既没有申请量，也没有已用量。"),
    "why_perhaps": (
        "A library often fails like this when memory runs out, but the message does not say so: an incompatible driver, or an earlier error, looks the same.",
        "显存耗尽时，库常常报这个错；但驱动不兼容、或前面已经出错，也会报同样的错，单看报错分不清。"),
    "why_copy": (
        "A copy to the GPU found no memory there: that is what TensorFlow says with these words. How much was asked for is not printed.",
        "向 GPU 拷贝时显存不够：TensorFlow 的这句话就是这个意思。申请了多少，报错没有给出。"),
    "why_builder": (
        "TensorRT found no GPU memory, for a workspace or for an engine's buffers. How much was asked for is not in this line.",
        "TensorRT 没有找到显存来放工作区或引擎的缓冲区。申请了多少，这一行没有给出。"),
    "why_same_device": (
        "Several ranks of this job (at least {ranks}) use GPU {device}, and fill it together: the processes that are listed are mostly its own ranks.",
        "这个作业的多个 rank（至少 {ranks}）都在用 GPU {device}，一起占满了显存：列出的进程多半是本作业的 rank。"),
    "why_unbalanced": (
        "Some of the cards have less free memory than the others, as if another process used them.",
        "有的卡空闲显存少于其他卡，像是另有进程在使用。"),
    "why_free": (
        "{asked} were asked for, and {free} were free: {short} are missing.",
        "申请 {asked}，空闲 {free}：还差 {short}。"),
    "why_printed": (
        "What it prints does not say what filled the card.",
        "它打印的数字没有说明显存被什么占满。"),
    "why_unread": (
        "It has sizes, but not as the framework prints them, so none is relied on.",
        "报错里有大小，但不是原样的形式，因此不采用。"),
    "why_nvml": (
        "PyTorch was about to report an out-of-memory error, and the call to NVML failed: that is why there are no figures.",
        "PyTorch 正要报告显存不足，而 NVML 调用失败：因此没有数字。"),
    "why_dispatched": (
        "Less was free than the weights need, so some of them were put on the CPU or the disk, where this quantised model does not run unless you allow it.",
        "空闲显存少于权重所需，部分权重被放到 CPU 或磁盘；这个量化模型默认不能那样运行。"),
    "why_unified": (
        "Card and host share one memory on this machine, and it ran out.",
        "这台机器的显卡与主机共用内存，内存已经耗尽。"),
    "why_compute_buffer": (
        "{asked} of compute buffers were asked for in one block: working memory of a batch, not weights.",
        "计算缓冲区一次申请 {asked}：那是处理一个批所需的临时显存，不是权重。"),
    "why_compute_unsaid": (
        "The compute buffers did not fit: the working memory of a batch. How large they are is not printed.",
        "计算缓冲区放不下：那是处理一个批所需的临时显存。它有多大，报错没有给出。"),
    "why_weights_buffer": (
        "The weights for this card are one buffer of {asked}, and it does not fit into what is free.",
        "要放到这张卡上的权重是一整块 {asked}，空闲显存放不下。"),
    "why_buffer": (
        "One buffer of {asked} does not fit into what is free: the weights for this card, or a cache.",
        "一整块 {asked} 的缓冲区放不下：是要放到这张卡上的权重，或缓存。"),
    "why_whole_model": (
        "Model, cache and buffers are projected to need {asked}, and {free} are free.",
        "模型、缓存和缓冲区预计需要 {asked}，而空闲 {free}。"),
    "why_page_file": (
        "Windows cannot commit more memory: what programs have committed fills the host's memory and the page file.",
        "Windows 无法再提交内存：各程序已提交的占满了主机内存和页面文件。"),
    "why_compiler": (
        "Linux's OOM killer ended a compiler: the host had too little memory for what was compiled at once.",
        "编译器被 Linux 的 OOM killer 终止：主机内存不够同时进行的编译。"),
    "why_compiler_refused": (
        "A compiler asked for host memory and got none: too many files are compiled at once, or one file needs too much.",
        "编译器申请不到主机内存：同时编译的文件太多，或单个文件需要的内存太大。"),
    "why_evicted": (
        "The node was short of host memory, and Kubernetes evicted this pod: those that use more than they requested go first.",
        "节点的主机内存不足，Kubernetes 驱逐了这个 Pod：用量超过申请量的最先被驱逐。"),
    "why_swap": (
        "{asked} of swap space for the KV cache were asked for, and the host has {within}.",
        "为 KV 缓存申请了 {asked} 的交换空间，而主机只有 {within}。"),
    "why_whose": (
        "It does not say whose memory ran out, the card's or the host's.", "报错没有说耗尽的是显存还是主机内存。"),
    "why_object_store": (
        "Ray's object store is full: the part of the node's host memory in which tasks leave their results.",
        "Ray 的对象存储已满：那是节点主机内存中任务存放结果的部分。"),
    "why_retracted": (
        "The server's pool of KV-cache tokens was full, so it put running requests back into its queue ({requests} this time). It goes on: this is a "
        "warning, and costs time.",
        "服务的 KV 缓存 token 池已满，正在运行的请求退回了队列（这次 {requests} 个）。服务继续运行：这只是警告，但会变慢。"),
    "why_node": (
        "The node's host memory was nearly full, and Ray killed a task or an actor.",
        "节点的主机内存几乎用尽，Ray 终止了任务或 actor。"),
    "why_prefill": (
        "The warm-up with {tokens:,} tokens does not fit beside the weights.",
        "除去权重，剩下的显存放不下预热用的 {tokens:,} 个 token。"),
    "why_token_pool": (
        "The server's pool of tokens is full: {tokens_wanted} were asked for, and {tokens_held} are left. The card itself need not be full.",
        "服务的 token 池已满：需要 {tokens_wanted} 个，只剩 {tokens_held} 个。满的是预留的 token 池，显存未必已满。"),
    "why_pages": (
        "{tokens_held} tokens of the KV pool are free, but only in whole pages: {pages} pages, if a page has {page} tokens (see --page-size). Each of {tokens_wanted} sequences may need a new page in this step, and there are too few.",
        "KV 池还能放 {tokens_held} 个 token，但只能按整页分配：若页长为 {page}（见 --page-size），只有 {pages} 页，而这一步 {tokens_wanted} 个序列可能各要一个新页，页数不够。"),
    "why_pages_prefill": (
        "{tokens_held} tokens of the KV pool are free, but only in whole pages, and {tokens_wanted} were asked for: each sequence begins pages of its own, and there are too few.",
        "KV 池还能放 {tokens_held} 个 token，但只能按整页分配，而需要 {tokens_wanted} 个：每个序列各用自己的页，页数不够。"),
    "why_cells": (
        "The KV cache that was reserved at the start has run out of cells, one for each token; the card has not run out of memory.",
        "启动时预留的 KV 缓存已满：缺的是缓存单元（每个 token 一个），而不是显存。"),
    "why_workspace": (
        "FlashInfer's workspace has {within} left, and {asked} were asked for. The card itself need not be full.",
        "FlashInfer 的工作区还剩 {within}，而申请 {asked}。显存未必已满。"),
    "why_weights_and_buffer": (
        "Weights ({weights}) and buffers ({temporaries}) are more than the share of the card that it may use, {within}.",
        "权重（{weights}）加缓冲区（{temporaries}）超过它可用的份额 {within}。"),
    "why_component": (
        "The weights take {weights} and the rest {rest}: {free} of {capacity} are left. The {component}, which takes a share of that, could not be made.",
        "权重占 {weights}，其余占 {rest}：{capacity} 中还剩 {free}。{component}要占剩余显存的一定比例，未能创建。"),
    "why_component_free": (
        "{free} of {capacity} are left: less than the {component} asks for.",
        "{capacity} 中还剩 {free}：少于 {component} 所需。"),
    "why_component_unsaid": (
        "The engine ran out of GPU memory while it was set up. Which part of it did not fit is not in this text: the lines below the message name it, so paste those, too.",
        "引擎在创建时显存不够。是哪个部分放不下，这段文字没有给出：报错下面几行会写明，请一并粘贴。"),
    "why_cache_within": (
        "{asked} of cache are needed, and {within} are left for it beside the weights.",
        "缓存需要 {asked}，而除去权重只剩 {within}。"),
    "why_warm_up": (
        "Weights and KV cache are reserved already, and leave too little for the warm-up.",
        "权重和 KV 缓存已经预留，剩下的不够预热。"),
}
