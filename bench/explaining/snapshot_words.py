"""What is said of a memory snapshot, in English and in Chinese."""

HELP_ZH = """bench/explain SNAPSHOT.pickle：显存被什么占满。快照来自 torch.cuda.memory._dump_snapshot()，或本课程程序的 --snapshot（格式相同）。

  bench/explain FILE              被什么占满；先做什么；存活的内容；什么在增长
    --all                         其余内容：十行、所有办法、各池、按其他设置重放
    --html PAGE                   写出带时间线的网页，不需要网络
    --json                        以字节计的数字
    --lang zh                     中文
  bench/explain --compare A B     B 中存活而 A 中没有的，按行
  bench/explain --snapshot FILE   按快照读取，不论文件叫什么、以什么开头

读取 pickle 的程序只构建纯数据，并在有内存和时间限制的进程中运行。

退出码：0；2 文件无法读取，或不是快照；64 用法错误。
"""

# Every entry: English, Chinese. A name in braces is a value.
TEXT = {
    "head": ("{file}: device {device}, {events} events", "{file}：设备 {device}，{events} 个事件"),
    "head_rounds": ("{rounds} rounds of the loop at {place}", "循环 {place} 共 {rounds} 轮"),
    "no_trace": ("no history was recorded, so this is what was live at the end", "没有记录历史，因此只能看到结束时存活的内容"),
    "and": ("; ", "；"),
    "blank": (" ", ""),
    "pair": ("{name}: {text}", "{name}：{text}"),
    "others": ("Also: {devices} (see --all).", "另有：{devices}（见 --all）。"),
    "other_device": ("device {device}, peak {size}", "设备 {device}，峰值 {size}"),

    # The answer.
    "answer": ("What filled it: {sentence}", "显存被占满的原因：{sentence}"),
    "empty": ("nothing: no block is live in this snapshot.", "并没有占满，此快照中没有存活的块。"),
    "leak": ("it grows by {per_round} a round, most of it made at {place}, and somebody keeps it: {live} of {total} by then.",
             "每轮增长 {per_round}，主要由 {place} 分配，而且一直被引用：此时 {total} 中占 {live}。"),
    "leak_graph": ("it grows by {per_round} a round in {count} lines, the most at {place}: whole graphs are kept, {live} of {total} by then.",
                   "每轮增长 {per_round}，来自 {count} 行，最多的是 {place}：整张计算图被保留，此时 {total} 中占 {live}。"),
    "fragmentation": ("pieces. {asked} were asked for; {cached} were cached and free, {free} were free on the device, and the largest "
                      "piece had {largest}.",
                      "碎片。申请 {asked}；缓存中空闲 {cached}，设备空闲 {free}，而最大的一块只有 {largest}。"),
    "elsewhere": ("a cache that this request may not use: {elsewhere} lie in other streams' pools, private pools or the pool for small "
                  "requests; {asked} were asked for.",
                  "本次申请不能使用的缓存：{elsewhere} 在其他流的池、私有池或小块池中；申请的是 {asked}。"),
    "limit": ("a limit, not the card: {free} were free on the device when {asked} were refused.",
              "上限，而不是显存：拒绝 {asked} 时设备还有 {free} 空闲。"),
    "alone": ("one request of {asked}: more than all that this process held ({reserved}) and what was free ({free}) together.",
              "一次 {asked} 的申请：超过本进程持有的（{reserved}）与空闲的（{free}）之和。"),
    "full": ("{category}, {size} of the {total} that are live ({share} %), {size_line} of it made at {place}.",
             "{category}：存活的 {total} 中占 {size}（{share} %），其中 {size_line} 由 {place} 分配。"),
    "full_all": ("{category}, {size} of the {total} that are live ({share} %), all of it made at {place}.",
                 "{category}：存活的 {total} 中占 {size}（{share} %），全部由 {place} 分配。"),
    "full_plain": ("{category}, {size} of the {total} that are live ({share} %).", "{category}：存活的 {total} 中占 {size}（{share} %）。"),

    # What to do first.
    "do": ("Do first: {what}", "先做：{what}"),
    "saves": ("It saves up to {size} here.", "这里最多省 {size}。"),
    "shown": ("See {chapters}.", "见 {chapters}。"),
    "do_leak": ("find who holds it: gc.get_referrers(tensor). What is kept for a report goes to the host (`.item()`, "
                "`.detach().cpu()`).",
                "找出谁持有它：gc.get_referrers(tensor)。只为打印而留的结果，放到主机上（`.item()`、`.detach().cpu()`）。"),
    "do_leak_graph": ("keep numbers, not tensors with graphs: `total += loss.item()`, `outputs.append(out.detach().cpu())`; evaluate "
                      "under `torch.no_grad()`.",
                      "保留数字，而不是带图的张量：`total += loss.item()`、`outputs.append(out.detach().cpu())`；评估时用 "
                      "`torch.no_grad()`。"),
    "do_fragmentation": ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. By replay of the allocator's rules the same requests {verdict}",
                         "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True。按分配器规则重放，相同的申请{verdict}"),
    "served": ("are served then, with {most} held.", "都能满足，保留 {most}。"),
    "not_served": ("are refused then, too; let sizes repeat, or hold less.", "仍会被拒绝；让大小重复，或减少占用。"),
    "not_judged": ("could not be judged.", "无法判断。"),
    "do_elsewhere": ("use one stream for allocations of this size, and capture graphs into one shared pool; see the pools with --all.",
                     "这种大小的分配只用一个流，并让各个图共用一个池；各池见 --all。"),
    "do_limit": ("raise it: set_per_process_memory_fraction, or the job's own limit.", "提高它：set_per_process_memory_fraction，或作业自己的上限。"),
    "do_alone": ("make the tensor smaller: it is made at {place}.", "让这个张量变小：它由 {place} 分配。"),
    "do_empty": ("record while the program runs: docs/my_program.md.", "在程序运行时记录：docs/my_program.md。"),

    # Levers.
    "checkpoint": ("recompute activations instead of keeping them: `torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`; "
                   "each block's input stays.",
                   "重算激活而不保留：`torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)`；每块的输入仍保留。"),
    "less_loss": ("the loss has most of them: log-probabilities and their gradients, each as large as all logits. Compute it in chunks of tokens, or fused "
                  "with the last product (Liger's `LigerFusedLinearCrossEntropyLoss`).",
                  "其中大部分属于 loss：对数概率及其梯度，每个都与全部 logits 一样大。按 token 分块计算，或与最后的矩阵乘融合（Liger 的 `LigerFusedLinearCrossEntropyLoss`）。"),
    "half_batch": ("half the batch, accumulated over twice as many.", "batch 减半，并累积两倍的次数。"),
    "attention": ("if sequences are long: `scaled_dot_product_attention`, and a loss in chunks.",
                  "若序列较长：`scaled_dot_product_attention`，以及分块计算 loss。"),
    "moments": ("moments in 8 bits: `bitsandbytes.optim.AdamW8bit` (figure for FP32 moments).", "8 位的矩：`bitsandbytes.optim.AdamW8bit`（数字按 FP32 的矩）。"),
    "shard": ("several devices: shard it (FSDP, ZeRO).", "多个设备：切分（FSDP、ZeRO）。"),
    "foreach": ("`AdamW(..., fused=True)` or `foreach=False`: no list of temporaries in the step.", "`AdamW(..., fused=True)` 或 `foreach=False`：更新时不再建整组的临时张量。"),
    "release_gradients": ("update each parameter as soon as its gradient is there (`register_post_accumulate_grad_hook`).",
                  "梯度一到就更新参数（`register_post_accumulate_grad_hook`）。"),
    "half_parameters": ("load them in 16 bits, if they are in FP32: `dtype=torch.bfloat16`.", "若为 FP32，以 16 位加载：`dtype=torch.bfloat16`。"),
    "cache_bits": ("keep the cache in 8 bits.", "缓存用 8 位。"),
    "cache_length": ("a shorter longest sequence, or fewer requests at a time.", "缩短最长序列，或减少并发请求。"),
    "less_workspace": ("`CUBLAS_WORKSPACE_CONFIG=:4096:2`, and `torch.backends.cudnn.benchmark = False`.",
                  "`CUBLAS_WORKSPACE_CONFIG=:4096:2` 和 `torch.backends.cudnn.benchmark = False`。"),
    "late_data": ("move a batch to the device only when it is its turn, and let the last one go.", "轮到时才把批次移到设备上，并释放上一批。"),
    "record_earlier": ("begin the recording before the model is made; then this has names, too.", "在创建模型之前开始记录；这部分就有名字了。"),
    "record_stacks": ("record stacks: `torch.cuda.memory._record_memory_history(stacks=\"python\")`.",
                      "记录调用栈：`torch.cuda.memory._record_memory_history(stacks=\"python\")`。"),
    "levers": ("What takes from it:", "可以减少它的办法："),

    # Categories.
    "parameters": ("parameters", "参数"),
    "gradients": ("gradients", "梯度"),
    "optimizer": ("optimizer state", "优化器状态"),
    "activations": ("activations", "激活"),
    "cache": ("KV cache", "KV 缓存"),
    "temporaries": ("the optimizer's temporaries", "优化器的临时量"),
    "workspace": ("workspace", "工作区"),
    "data": ("data", "数据"),
    "older": ("older than the recording", "早于记录"),
    "unknown": ("unknown, recorded without stacks", "未知（没有记录调用栈）"),

    # Tables.
    "live_peak": ("Live at the peak, {size} (event {event}):", "峰值时存活 {size}（事件 {event}）："),
    "live_refused": ("Live when {asked} were refused, {size} (event {event}):", "拒绝 {asked} 时存活 {size}（事件 {event}）："),
    "lines": ("By the line that made it:", "按代码行统计："),
    "more_line": ("1 more line", "其余 1 行"),
    "more_lines": ("{count} more lines, together", "其余 {count} 行合计"),
    "?older": ("(before the recording)", "（早于记录）"),
    "?thread": ("(no stack: the backward pass's thread, as a rule)", "（没有栈：一般是反向传播的线程）"),
    "?none": ("(recorded without stacks)", "（没有记录栈）"),

    # Growth.
    "grows": ("Grows: {size} a round at {place} ({live} live).", "增长：{place} 每轮 {size}（存活 {live}）。"),
    "grows_not": ("Grows: nothing, in {rounds} rounds.", "增长：{rounds} 轮里没有增长。"),
    "grows_unknown": ("Grows: not judged. It takes five rounds of a loop, and this recording has {rounds}.",
                      "增长：未判断。需要循环的五轮，而此记录有 {rounds} 轮。"),
    "appears": ("Optimizer state: {size} came in the recording, made at {place}: it appears at the first step, and stays.",
                "优化器状态：记录期间出现 {size}，由 {place} 分配：在第一步出现，之后一直保留。"),

    # Out of memory.
    "refused": ("Refused: {asked} at {place}. Held {reserved}, of that cached and free {cached} in {count} usable pieces (largest "
                "{largest}), the rest elsewhere; free on the device {free}.",
                "拒绝：{place} 申请 {asked}。已保留 {reserved}，其中空闲 {cached}，可用的有 {count} 块（最大 {largest}），其余在别处；设备空闲 {free}。"),
    "refused_plain": ("Refused: {asked} at {place}; free on the device {free}.", "拒绝：{place} 申请 {asked}；设备空闲 {free}。"),
    "refused_times": ("It was refused {count} times in this recording; this is the last one.", "此记录中被拒绝 {count} 次；这是最后一次。"),
    "recovered": ("Refused once, {asked} at event {event}; the program went on, and had more later.",
                  "曾被拒绝：事件 {event} 申请 {asked}；程序继续运行，之后占用更多。"),
    "by_replay": ("By replay of its rules under the same budget, {budget}:", "按其规则在相同预算 {budget} 下重放："),
    "rule_default": ("the default", "默认"),
    "rule_expandable": ("expandable_segments:True", "expandable_segments:True"),
    "rule_split": ("max_split_size_mb:{mb}", "max_split_size_mb:{mb}"),
    "rule_served": ("served, at most {most} held", "满足，最多保留 {most}"),
    "rule_refused": ("refused", "拒绝"),
    "replay_differs": ("(The replay does not come to the refusal that was recorded, so it judges nothing here.)",
                       "（重放没有得到所记录的拒绝，因此在此不作判断。）"),
    "replay_part": ("(Where blocks lay before the recording is not known: they are placed first, in order. Other allocators' rules: "
                    "build/host/bin/bench_allocators --trace FILE.)",
                    "（记录之前各块的位置未知：先按顺序放置。其他分配器的规则：build/host/bin/bench_allocators --trace FILE。）"),
    "replay_whole": ("(Other allocators' rules: build/host/bin/bench_allocators --trace FILE.)",
                     "（其他分配器的规则：build/host/bin/bench_allocators --trace FILE。）"),

    # The rest.
    "pool_private": ("Private pools (CUDA graphs): {size} in {count}; only their graphs can use it.", "私有池（CUDA 图）：{count} 个共 {size}；只有它们的图能用。"),
    "pool_streams": ("Pools of {count} other streams: {size}; only these streams can use it.", "其他 {count} 个流的池：{size}；只有这些流能用。"),
    "held": ("Held from the driver: {size} at most.", "从驱动取得：最多 {size}。"),
    "unseen": ("Not in a snapshot: the CUDA context (some hundred MiB), NCCL's and other libraries' own memory, other processes. "
               "nvidia-smi shows them together.",
               "快照里没有：CUDA 上下文（数百 MiB）、NCCL 等库自己的内存、其他进程。nvidia-smi 显示它们的总和。"),
    "more": ("--all: the rest. --html FILE: a page with the timeline.", "--all：其余内容。--html FILE：带时间线的网页。"),

    # Compared.
    "compared": ("{after} holds {size} more than {before}: {second} after {first}.", "{after} 比 {before} 多 {size}：{first} 变为 {second}。"),
    "compared_less": ("{after} holds {size} less than {before}: {second} after {first}.", "{after} 比 {before} 少 {size}：{first} 变为 {second}。"),
    "compared_most": ("Most of what is new: {size} at {place}.", "新增最多：{place}，{size}。"),
    "compared_nothing": ("No line has more.", "没有一行变多。"),
    "compared_lines": ("More in the second, by the line that made it:", "第二份中增多的，按代码行统计："),
    "compared_less_lines": ("Less in the second:", "第二份中减少的："),

    # The page.
    "page_title": ("What filled the device memory", "显存被什么占满"),
    "page_timeline": ("Live bytes over the events of the recording, by what they are", "记录中各事件时的存活字节，按类别"),
    "page_held": ("held from the driver", "从驱动取得"),
    "page_refused": ("refused", "拒绝"),
    "page_bytes": ("bytes", "字节"),
    "page_share": ("share", "占比"),
    "page_blocks": ("blocks", "块"),
    "page_line": ("line", "行"),
    "page_kind": ("kind", "类别"),
}


def say(key, language, **values):
    return TEXT[key][("en", "zh").index(language)].format(**values)


def shown(size, language):
    """Bytes as everything in this course writes them."""
    size = int(size)
    if size < 0:
        return "-" + shown(-size, language)
    if size < 1024:
        return f"{size} {say('page_bytes', language)}"
    value, names = float(size), ("KiB", "MiB", "GiB", "TiB", "PiB")
    for name in names:
        value /= 1024
        if value < 1023.995:
            break
    return f"{value:.2f} {name}"
