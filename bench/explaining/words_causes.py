"""The causes that bench/explain names, in a sentence: English, Chinese. A name in braces is a figure of the message."""

CAUSES = {
    "why_too_big": (
        "{asked} in one request is more than the whole card has, {capacity}. Freeing memory will not help.",
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
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. It must use {percent} % less in all. {allocated} of {capacity} are live tensors.",
        "申请 {asked}；空闲 {free}，已缓存 {cached}：还差 {short}，总用量要减少 {percent} %。{capacity} 中有 {allocated} 是存活张量。"),
    "why_live_arrays": (
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. It must use {percent} % less in all. {allocated} of {capacity} are arrays, those that are dead and not yet collected included.",
        "申请 {asked}；空闲 {free}，已缓存 {cached}：还差 {short}，总用量要减少 {percent} %。{capacity} 中有 {allocated} 是数组，包括尚未回收的。"),
    "why_live_last": (
        "{asked} were asked for, {free} are free and {cached} cached: {short} are missing. {allocated} of {capacity} are live tensors, so this small request is only the last straw, and says little of what is still to come.",
        "申请 {asked}；空闲 {free}，已缓存 {cached}：还差 {short}。{capacity} 中有 {allocated} 是存活张量，这次小申请只是压垮它的最后一次，看不出之后还要多少。"),
    "why_live_card": (
        "{allocated} of {capacity} are live tensors, and {asked} more are above what the card has.",
        "{capacity} 中有 {allocated} 是存活张量，再要 {asked} 就超过整张卡。"),
    "why_live_sum": (
        "{short} missing = {asked} asked - {free} free - {cached} cached. The request that failed is only the last one.",
        "还差 {short} = 申请 {asked} - 空闲 {free} - 缓存 {cached}。失败的申请只是最后一个。"),
    "why_live_free": (
        "{allocated} are allocated and {free} free, and {asked} were asked for: {short} are missing. It must use {percent} % less in all.",
        "已分配 {allocated}，空闲 {free}，申请 {asked}：还差 {short}，总用量要减少 {percent} %。"),
    "why_live_paddle": (
        "PaddlePaddle holds {allocated}, its cache included; {free} are free, and {asked} were asked for: {short} are missing. It must use {percent} % less in all. How much of that is tensors is not printed; whether others use the card, nvidia-smi tells.",
        "PaddlePaddle 占用 {allocated}（含缓存），空闲 {free}，申请 {asked}：还差 {short}，总用量要减少 {percent} %。其中多少是张量，报错没有给出；有没有别的进程，用 nvidia-smi 查看。"),
    "why_impossible": (
        "{asked} in one request is more than any machine has: the size was computed wrongly (overflow, a negative or swapped dimension).",
        "一次申请 {asked}，任何机器都没有这么多：大小算错了（溢出、负的或颠倒的维度）。"),
    "why_live_pieces": (
        "{allocated} of {capacity} are live tensors. {free} free and {cached} cached would be enough for {asked}, but they are "
        "in pieces, and so little (less than 1/200 of the card) that joining them would help only for a moment.",
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
        "Others hold {others} of the card's {capacity}. Without them it would fit: {allocated} allocated + {asked} asked = {needed}.",
        "其他进程占用了 {capacity} 中的 {others}。若没有这些占用就放得下：已分配 {allocated} + 申请 {asked} = {needed}。"),
    "why_others_outside": (
        "{outside} of the card's {capacity} are held outside the framework, more than a CUDA context takes. Without them it would fit: {allocated} allocated + {asked} asked = {needed}.",
        "{capacity} 中有 {outside} 在框架之外，超过一个 CUDA 上下文所需。若没有这些占用就放得下：已分配 {allocated} + 申请 {asked} = {needed}。"),
    "why_others_start": (
        "Of {capacity} only {free} were free when the engine started: {used} were already in use. It needs {asked}.",
        "引擎启动时 {capacity} 中只有 {free} 空闲：{used} 已被占用。引擎需要 {asked}。"),
    "why_others_any": (
        "What is free on the card changed while it looked, or was taken by something else: another process uses it.",
        "在它查看期间显卡的空闲量变了，或被别的东西占用：另一个进程在使用这张卡。"),
    "why_limit": (
        "{held} held + {asked} asked is above the limit of {limit}, by {short}.",
        "已占用 {held} + 申请 {asked} 超过上限 {limit}，超出 {short}。"),
    "why_limit_free": (
        "{held} held + {asked} asked is above the limit of {limit}, by {short}, while {free} of the card are free.",
        "已占用 {held} + 申请 {asked} 超过上限 {limit}，超出 {short}，而显卡还有 {free} 空闲。"),
    "why_limit_alone": ("{asked} in one request is above the limit of {limit}.", "一次申请 {asked}，超过上限 {limit}。"),
    "why_limit_mps": (
        "Of the {limit} that PyTorch may take here it holds {allocated}; {other_allocations} more are held beside its allocator, and {asked} do not fit.",
        "PyTorch 在这里最多可用 {limit}，已占 {allocated}，分配器之外还占 {other_allocations}，再要 {asked} 放不下。"),
    "why_limit_asked": ("{asked} were asked for, and a limit refused them, not the card.", "申请了 {asked}；拒绝它的是一个上限，而不是显卡。"),
    "why_limit_any": ("A limit refused it, not the card.", "拒绝它的是一个上限，而不是显卡。"),
    "why_cgroup": (
        "The memory limit of the container or job was reached, and the kernel killed the process. This is host memory; the "
        "card had no part in it.",
        "容器或作业的内存上限已到，内核终止了进程。这是主机内存，与显卡无关。"),
    "why_host": (
        "The host's memory ran out.",
        "主机内存已耗尽。"),
    "why_host_asked": (
        "The host's memory ran out: {asked} were asked for in one piece.",
        "主机内存已耗尽：一次申请了 {asked}。"),
    "why_host_within": (
        "The host's memory is too small for it: {asked} are needed, and {within} are available.",
        "主机内存不够：需要 {asked}，可用 {within}。"),
    "why_host_killed": (
        "The process was killed because the host's memory had run out.",
        "进程因主机内存耗尽而被终止。"),
    "why_host_victim": (
        "Process {victim} held {resident} when it was killed because the host's memory had run out.",
        "进程 {victim} 被终止时占 {resident}：主机内存已耗尽。"),
    "why_worker_gone": (
        "A DataLoader worker was killed from outside, or ended without an error. Usually that is the kernel's OOM killer, when the host or the container ran out of memory (dmesg tells); the message does not prove it.",
        "DataLoader 进程被外部终止，或没有报错就结束。通常是主机或容器内存耗尽时内核的 OOM killer（用 dmesg 确认）；仅凭报错不能证明。"),
    "why_pinned": (
        "Pinned host memory was asked for: pages of the host that the driver locks for copies, and it could lock no more.",
        "申请的是锁页主机内存，即驱动为拷贝而锁定的主机页，而驱动无法再锁定。"),
    "why_pinned_llama": (
        "The host's pages could not be pinned. That is a warning of llama.cpp, and not fatal: it goes on with ordinary memory, from which copies are slower.",
        "无法锁定主机页。这只是 llama.cpp 的警告，并不致命：它改用普通内存继续运行，只是拷贝慢些。"),
    "why_shared": (
        "Shared memory (/dev/shm) is full. DataLoader workers and NCCL pass data through it; a Docker container has 64 MiB of it by default.",
        "共享内存（/dev/shm）已满。DataLoader 进程和 NCCL 通过它传递数据；Docker 容器默认只有 64 MiB。"),
    "why_addresses": (
        "It was addresses that ran out, not memory: something limits them (`ulimit -v`), and expandable segments reserve many.",
        "耗尽的是地址空间，而不是内存：它受到限制（`ulimit -v`），而 expandable segments（可扩展内存段）会保留大量地址。"),
    "why_killed": (
        "The process was killed from outside. Usually that is the kernel's OOM killer, when the host or the container ran out of memory; the message does not prove it.",
        "进程是被外部终止的。通常是主机或容器内存耗尽时内核的 OOM killer；仅凭报错不能证明。"),
    "why_killed_on_card": (
        "The process was killed from outside. Usually that is the kernel's OOM killer, when the host or the container ran out of memory; the message does not prove it, and {on_card} of the model's {model_size} were on the card.",
        "进程是被外部终止的。通常是主机或容器内存耗尽时内核的 OOM killer；仅凭报错不能证明，而且模型的 {model_size} 中有 {on_card} 在卡上。"),
    "why_cache": (
        "The engine reserves a KV cache before it serves anything, and what is left beside the weights is too little for "
        "it.",
        "推理引擎在服务之前先预留 KV 缓存，而权重之外剩下的内存不够。"),
    "why_cache_size": (
        "The KV cache alone asks for {asked} in one piece. It grows with the context (llama-server's -c, which all its slots share): the context is set too long.",
        "仅 KV 缓存就要一整块 {asked}。它随上下文增长（llama-server 的 -c，由各槽共用）：上下文设得太长。"),
    "why_cache_tokens": (
        "One sequence may have {tokens_wanted} tokens, and the cache holds {tokens_held}.",
        "一个序列最多可有 {tokens_wanted} 个 token，而缓存只容纳 {tokens_held} 个。"),
    "why_pool_took_all": (
        "The framework's pool has taken nearly the whole card, and the driver finds no memory for a CUDA graph outside it.",
        "框架的内存池几乎占用整张卡，驱动在池外找不到放 CUDA 图的内存。"),
    "why_start": (
        "The engine reserves its whole share at the start, {asked}, and {free} of {capacity} were free: {short} are missing.",
        "引擎在启动时预留全部份额 {asked}，而 {capacity} 中只有 {free} 空闲：还差 {short}。"),
    "why_enough_free": (
        "{free} were free, and {asked} were asked for: these figures do not explain the failure. Something else changed in "
        "between, or refused it.",
        "空闲 {free}，申请 {asked}：这些数字不能解释失败。其间有别的变化，或拒绝另有原因。"),
    "why_contradicts": (
        "The figures contradict each other, so no cause is derived from them.",
        "数字互相矛盾，因此不据此推断原因。"),
    "why_some": (
        "{asked} were asked for. The message says neither how large the card is nor how much of it was in use.",
        "申请了 {asked}。报错没有给出显卡的容量和已用量。"),
    "why_program_size": (
        "The compiled program needs {program} in all: arguments {arguments}, outputs {outputs}, temporaries {temporaries}. {asked} of it failed.",
        "编译后的程序共需 {program}：参数 {arguments}、输出 {outputs}、临时 {temporaries}。失败的是其中的 {asked}。"),
    "why_card": (
        "{asked} were asked for, on a card of {capacity}. What filled it is not printed, or not in a form to rely on.",
        "申请了 {asked}，显卡容量为 {capacity}。报错没有给出是什么占满了它，或给出的形式不可靠。"),
    "why_pool": (
        "{asked} were asked for in one piece by the framework's pool, which by default takes most of the card at the start. It tries again with less: if no error follows, this line does not matter.",
        "框架的内存池一次要 {asked}，它默认在启动时占用大部分显存。失败后它会减少再试：若其后没有错误，这一行可以忽略。"),
    "why_none": (
        "The message gives no figures: neither what was asked for nor what was in use.",
        "报错没有数字：既没有申请量，也没有已用量。"),
    "why_perhaps": (
        "This library often fails like this when it finds no memory for its own workspace, but the message does not say so: a "
        "driver that does not fit, or an earlier error, looks the same.",
        "这个库在没有内存放自己的工作区时常常这样失败，但报错没有说明：驱动不匹配或更早的错误看起来也一样。"),
    "why_same_device": (
        "Several ranks of this job (at least {ranks}) use GPU {device}, and fill it together: the processes that are listed are mostly its own ranks.",
        "这个作业的多个 rank（至少 {ranks}）都在用 GPU {device}，一起占满了它：列出的进程多半是它自己的 rank。"),
    "why_unbalanced": (
        "Some of the cards have less free memory than the others: another process uses them.",
        "有的卡空闲显存少于其他卡：另有进程在使用。"),
    "why_free": (
        "{asked} were asked for, and {free} were free: {short} are missing.",
        "申请 {asked}，空闲 {free}：还差 {short}。"),
    "why_printed": (
        "What it prints does not say what filled the card.", "它打印的数字没有说明是什么占满了显卡。"),
    "why_unread": (
        "It has sizes, but not as the framework prints them, so none is relied on.",
        "报错里有大小，但不是原样的形式，因此不采用。"),
    "why_nvml": (
        "PyTorch was about to report an out-of-memory error, and the call to NVML failed: that is why there are no figures.",
        "PyTorch 正要报告显存不足，而 NVML 调用失败：因此没有数字。"),
    "why_dispatched": (
        "Less was free than the weights need, so some of them were put on the CPU or the disk, where this quantised model cannot run.",
        "空闲显存少于权重所需，部分权重被放到 CPU 或磁盘，而这个量化模型不能那样运行。"),
    "why_unified": (
        "Card and host share one memory on this machine, and it ran out.", "这台机器的显卡与主机共用内存，已经耗尽。"),
    "why_compute_buffer": (
        "{asked} of compute buffers were asked for in one piece: working memory of a batch, not weights.",
        "计算缓冲区一次申请 {asked}：那是一批的工作内存，不是权重。"),
    "why_whole_model": (
        "Model, cache and buffers are projected to need {asked}, and {free} are free.",
        "模型、缓存和缓冲区预计需要 {asked}，而空闲 {free}。"),
    "why_page_file": (
        "Windows cannot commit more memory: what programs have committed fills the host's memory and the page file.",
        "Windows 无法再提交内存：各程序已提交的占满了主机内存和页面文件。"),
    "why_compiler": (
        "The kernel killed a compiler: too many of them ran at once for the host's memory.",
        "内核终止了编译器：同时运行的编译太多，主机内存不够。"),
    "why_evicted": (
        "The node was short of host memory, and Kubernetes ended the container that was the furthest above its request.",
        "节点的主机内存不足，Kubernetes 终止了超出申请量最多的容器。"),
    "why_swap": (
        "{asked} of swap space for the KV cache were asked for, and the host has {within}.",
        "为 KV 缓存申请了 {asked} 的交换空间，而主机只有 {within}。"),
    "why_whose": (
        "It does not say whose memory ran out, the card's or the host's.", "报错没有说耗尽的是显存还是主机内存。"),
    "why_object_store": (
        "Ray's object store is full: the part of the node's host memory in which tasks leave their results.",
        "Ray 的对象存储已满：那是节点主机内存中任务存放结果的部分。"),
    "why_retracted": (
        "The server's pool of KV-cache tokens was full, so running requests ({requests}) went back into its queue. It goes on: this is a warning, "
        "and costs time.",
        "服务的 KV 缓存 token 池已满，正在运行的请求（{requests} 个）退回队列。服务继续运行：这是警告，代价是时间。"),
    "why_node": (
        "The node's host memory was nearly full, and Ray killed a task or an actor. The card had no part in it.",
        "节点的主机内存几乎用尽，Ray 终止了任务或 actor。与显卡无关。"),
    "why_prefill": (
        "The warm-up with {tokens:,} tokens does not fit beside the weights.",
        "预热用的 {tokens:,} 个 token 在权重之外放不下。"),
    "why_token_pool": (
        "The server's pool of tokens is full: {tokens_wanted} were asked for, and {tokens_held} are left. The card had no part in it.",
        "服务的 token 池已满：需要 {tokens_wanted} 个，只剩 {tokens_held} 个。与显卡无关。"),
    "why_pages": (
        "{tokens_held} tokens of the KV pool are free, in whole pages (of {page} tokens, for instance: {pages} pages), and each of {tokens_wanted} sequences may need a new page in this step: too few pages.",
        "KV 池空闲 {tokens_held} 个 token，都是整页（例如页长 {page} 时为 {pages} 页），而这一步 {tokens_wanted} 个序列可能各要一个新页：页数不够。"),
    "why_pages_prefill": (
        "{tokens_held} tokens of the KV pool are free, in whole pages, and {tokens_wanted} were asked for: each sequence begins pages of its own, and there are too few pages.",
        "KV 池空闲 {tokens_held} 个 token，都是整页，而需要 {tokens_wanted} 个：每个序列各用自己的页，页数不够。"),
    "why_cells": (
        "The KV cache that was reserved at the start is full: cells of it are missing, not bytes of the card.",
        "启动时预留的 KV 缓存已满：缺的是缓存单元，而不是显存。"),
    "why_workspace": (
        "FlashInfer's workspace has {within} left, and {asked} were asked for: a buffer of fixed size is full, not the card.",
        "FlashInfer 的工作区还剩 {within}，而申请 {asked}：满的是固定大小的缓冲区，而不是显卡。"),
    "why_weights_and_buffer": (
        "Weights ({weights}) and buffers ({temporaries}) are more than the share of the card that it may use, {within}.",
        "权重（{weights}）加缓冲区（{temporaries}）超过它可用的份额 {within}。"),
    "why_component": (
        "The weights take {weights} and the rest {rest}: {free} of {capacity} are left. The {component}, which takes a share of that, could not be made.",
        "权重占 {weights}，其余占 {rest}：{capacity} 中还剩 {free}。{component}按份额使用剩余部分，未能建立。"),
    "why_component_free": (
        "{free} of {capacity} are left: less than the {component} asks for.",
        "{capacity} 中还剩 {free}：少于 {component} 所需。"),
    "why_cache_within": (
        "{asked} of cache are needed, and {within} are left for it beside the weights.", "缓存需要 {asked}，而权重之外只剩 {within}。"),
    "why_warm_up": (
        "Weights and KV cache are reserved already, and leave too little for the warm-up.",
        "权重和 KV 缓存已经预留，剩下的不够预热。"),
}
