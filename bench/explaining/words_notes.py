"""What bench/explain says beside a cause, in English and Chinese: what holds only sometimes, and what a message leaves out."""

NOTES = {
    # Notes that hold only sometimes.
    "note_notebook": (
        "In a notebook, the failed cell's traceback keeps its tensors alive. Run a cell that fails, such as 1/0 (its traceback replaces that one), then `gc.collect()`; or restart the kernel.",
        "在 Notebook 里，出错单元格的 traceback 让张量无法释放。运行一个会报错的单元格，如 1/0（新的 traceback 会替换旧的），再执行 `gc.collect()`；或重启内核。"),
    "note_retry": (
        "It failed again while the first error was handled. Inside `except` the exception keeps the failed call's frame, "
        "and all its tensors, alive. Leave the block first, then try again: set a flag in `except`, and retry after it.",
        "处理第一个错误时又失败了。在 `except` 块内，异常使失败调用的栈帧及其全部张量继续存活。先离开该块再重试：在 "
        "`except` 里设标志，之后再试。"),
    "note_again": (
        "It failed more than once here. If the program tries again inside `except`, the exception keeps the failed call's "
        "tensors alive: leave the block first, then try again.",
        "此处失败不止一次。若程序在 `except` 块内重试，异常会使失败调用的张量继续存活：先离开该块再重试。"),
    "note_recovered": (
        "The program went on afterwards: it took less, tried again, and no error follows. So this one was not fatal.",
        "程序之后继续运行：减少用量后重试，其后没有错误。所以这一条并不致命。"),
    "note_recovered_pipeline": (
        "The program went on afterwards, without pipeline parallelism, and no error follows. So this one was not fatal.",
        "程序关闭流水线并行后继续运行，其后没有错误。所以这一条并不致命。"),
    "note_went_on": (
        "The log goes on after this message: the program, or another of its processes, did not end here.",
        "这一报错之后日志仍在继续：程序或它的另一个进程没有在此结束。"),
    "note_ranks": (
        "At least ranks {ranks} fail the same way: one cause, one fix.",
        "至少 rank {ranks} 报同样的错：原因只有一个。"),
    "note_ranks_of": (
        "At least ranks {ranks} fail the same way: one cause, one fix. (The figures are rank {rank}'s.)",
        "至少 rank {ranks} 报同样的错：原因只有一个。数字取自 rank {rank}。"),
    "note_repeated": (
        "{repeated} more workers say the same: one cause, one fix.",
        "另有 {repeated} 个工作进程报同样的错：原因只有一个。"),
    "note_listed_is_this": (
        "Process {pid}, the only one listed, is this one: if it were another, its {listed} and the {reserved} reserved here would be more than the {used} in use.",
        "列出的唯一进程 {pid} 就是本进程：若是别的进程，它的 {listed} 加上这里保留的 {reserved} 会超过显存已用的 {used}。"),
    "note_own_outside": (
        "This process holds {own_outside} outside the framework: CUDA context, graphs, communication, workspaces.",
        "本进程另有 {own_outside} 不由框架分配：CUDA 上下文、CUDA 图、通信缓冲区、各库的工作区。"),
    "note_outside_much": (
        "{outside} are held outside PyTorch: by this process's context and libraries, or by another process.",
        "另有 {outside} 不由框架分配：属于本进程的 CUDA 上下文和各个库，或别的进程。"),
    "note_outside_ours": (
        "{outside} are held outside this program: by its CUDA context and libraries, or by another process.",
        "另有 {outside} 不由本程序分配：属于 CUDA 上下文和各个库，或别的进程。"),
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
        "框架之外包括本进程的 CUDA 上下文和各库的内存（几百 MiB），以及所有其他进程。报错没有把它们分开。"),
    "note_others_would_do": (
        "Other processes hold {others}, more than is missing. Without them this request would fit; the next one perhaps not.",
        "其他进程占用 {others}，超过还差的量：没有它们，这次申请放得下，下一次就不一定了。"),
    "note_limit_reached": (
        "The limit of {limit} is above what the card has, so it decided nothing.",
        "上限 {limit} 高于显存容量，因此不起作用。"),
    "note_ours": (
        "The report itself goes on: its lines say which tensors and categories are the largest, and how many bytes each "
        "chapter would save here.",
        "报告本身还有下文：它列出最大的张量和类别，以及各章在这里能省多少字节。"),
    "note_program": (
        "Its \"fragmentation\" is a gap in the compiler's plan, not in the card's memory.",
        "其中的 fragmentation 是编译器计划内的空隙，而不是显存中的碎片。"),
    "note_shape": ("The size was computed from the shape and the type in the message.", "大小由报错中的形状和类型算出。"),

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
        "权重占多少、给缓存剩多少：看引擎自己日志的前几行（`model loading`、`buffer size`、`available KV cache memory`）。"),
    "ask_xla": (
        "What else is on the device: `jax.profiler.save_device_memory_profile()`, in TensorFlow "
        "`tf.config.experimental.get_memory_info('GPU:0')`.",
        "设备上还有什么：`jax.profiler.save_device_memory_profile()`，TensorFlow 中为 "
        "`tf.config.experimental.get_memory_info('GPU:0')`。"),
}
