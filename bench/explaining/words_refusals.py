"""Why a text is refused, in English and Chinese: what the thing is in one sentence, and what to do. Where the text has figures of its
own, NAME_figures is said instead, with them as they are printed there. For bench/explain."""

REFUSALS = {
    "refused": (
        "no out-of-memory message in it.",
        "这段文字里没有内存不足的报错。"),
    "looked_for": (
        "Paste the whole traceback, or the last 50 lines of the log. Looked for those of PyTorch, TensorFlow, JAX, PaddlePaddle, llama.cpp, "
        "Ollama, vLLM, SGLang, TGI, TensorRT-LLM, CuPy, CUDA, cuBLAS, cuDNN, NCCL, XGBoost, CatBoost, Ray, the operating system's killer, and "
        "OOM Lab's report.",
        "请粘贴完整的 traceback，或日志的最后 50 行。查找过 PyTorch、TensorFlow、JAX、PaddlePaddle、llama.cpp、Ollama、vLLM、SGLang、TGI、"
        "TensorRT-LLM、CuPy、CUDA、cuBLAS、cuDNN、NCCL、XGBoost、CatBoost、Ray、操作系统的 OOM killer 以及 OOM Lab 自己的报告。"),
    "not_killed": (
        "OOMKilled is false, which speaks against a kill for memory: read what the container printed last (docker logs, kubectl logs --previous).",
        "OOMKilled 为 false，不像是因内存不足被终止：查看容器最后的输出（docker logs、kubectl logs --previous）。"),
    "not_killed_figures": (
        "OOMKilled is false and the exit code is {code}, which speaks against a kill for memory: read what the container printed last (docker "
        "logs, kubectl logs --previous).",
        "OOMKilled 为 false，退出码为 {code}，不像是因内存不足被终止：查看容器最后的输出（docker logs、kubectl logs --previous）。"),
    "not_killed_signal": (
        "OOMKilled is false, and the exit code {code} is a SIGKILL that somebody else sent (docker stop, a liveness probe, a node's own killer): "
        "read the events (kubectl describe pod) and the host's dmesg.",
        "OOMKilled 为 false，退出码 {code} 表示收到了别处发出的 SIGKILL（docker stop、存活探针、节点自己的 OOM killer）：查看事件（kubectl describe pod）和主机的 dmesg。"),
    "not_a_kill": (
        "The SIGKILL in it is the launcher's own, which it sends after any failure: read the first traceback above it.",
        "其中的 SIGKILL 由启动器发出，任何失败之后都会有：请看上面的第一个 traceback。"),
    "not_a_kill_figures": (
        "The SIGKILL in it is the launcher's own, which it sends after any failure, and the program had ended by itself with exit code {code}: read "
        "the first traceback above it.",
        "其中的 SIGKILL 由启动器发出，任何失败之后都会有，程序已自行以退出码 {code} 结束：请看上面的第一个 traceback。"),
    "not_the_cards": (
        "Shared memory here is the on-chip memory of one multiprocessor, at most 227 KiB for a block and less on most cards: take smaller "
        "blocks, or fewer stages (num_stages), in the kernel; where the kernel is a library's, update that or choose another of its backends.",
        "这里的 shared memory 是一个 SM 的片上内存，每个线程块最多 227 KiB，多数显卡更少：减小核函数的分块或流水级数（num_stages）；若是库里的"
        "核函数，升级该库或换用它的其他后端。"),
    "not_the_cards_figures": (
        "Shared memory here is the on-chip memory of one multiprocessor, of which a block asks for {asked} bytes and may have {limit} on this card: "
        "take smaller blocks, or fewer stages (num_stages), in the kernel; where the kernel is a library's, update that or choose another of its "
        "backends.",
        "这里的 shared memory 是一个 SM 的片上内存，线程块要 {asked} 字节，这张卡上限为 {limit}：减小核函数的分块或流水级数（num_stages）；若是库里的"
        "核函数，升级该库或换用它的其他后端。"),
    "not_registers": (
        "A kernel's registers or threads are too many for a multiprocessor, and no memory is full: take fewer threads for a block, or compile with "
        "__launch_bounds__ or -maxrregcount.",
        "核函数的寄存器或线程数超过一个 SM 的上限，内存并没有耗尽：减少每块的线程，或用 __launch_bounds__、-maxrregcount 编译。"),
    "not_registers_figures": (
        "A kernel's {what} are too many for a multiprocessor ({asked} asked for, at most {limit}), and no memory is full: take smaller blocks, or "
        "fewer warps (num_warps), in the kernel.",
        "核函数所需的资源（{what}）超过一个 SM 的上限（需要 {asked}，最多 {limit}），内存并没有耗尽：减小核函数的分块或 warp 数（num_warps）。"),
    "not_tensor_memory": (
        "Tensor memory is where a multiprocessor of a Blackwell card holds sums of matrix products, and the kernel asks for too many columns of "
        "it: take smaller blocks, or fewer accumulators, in the kernel.",
        "tensor memory 是 Blackwell 显卡的 SM 中存放矩阵乘累加结果的片上内存，核函数申请的列数过多：减小分块或累加器的数量。"),
    "not_tensor_memory_figures": (
        "Tensor memory is where a multiprocessor of a Blackwell card holds sums of matrix products, and the kernel asks for {asked} columns of "
        "{limit}: take smaller blocks, or fewer accumulators, in the kernel.",
        "tensor memory 是 Blackwell 显卡的 SM 中存放矩阵乘累加结果的片上内存，核函数申请 {asked} 列，共有 {limit} 列：减小分块或累加器的数量。"),
    "not_a_tactic": (
        "TensorRT's builder skips one of its algorithms (a tactic) that needs more memory than is free, and goes on with others; the engine may be "
        "slower: free the card while it builds.",
        "TensorRT 构建时跳过了一个需要更多内存的算法（tactic），并继续用其他算法，引擎可能慢一些：构建时先释放显存。"),
    "not_a_tactic_figures": (
        "TensorRT's builder skips one of its algorithms (a tactic) that needs {asked} where {limit} are free, and goes on with others; the engine "
        "may be slower: free the card while it builds.",
        "TensorRT 构建时跳过了一个需要 {asked} 的算法（tactic），当时空闲 {limit}，并继续用其他算法，引擎可能慢一些：构建时先释放显存。"),
    "not_a_size": (
        "A tensor's size was computed wrongly, and is no number of bytes: print the shapes just before the line that failed.",
        "张量的大小算错了，不是合法的字节数：在失败的那一行之前打印形状。"),
    "not_a_size_figures": (
        "The sizes [{sizes}] multiply to more bytes than a number of 64 bits can hold, so one of them is wrong: print the shapes just before the "
        "line that failed.",
        "大小 [{sizes}] 相乘超过 64 位整数能表示的字节数，其中必有错误：在失败的那一行之前打印形状。"),
    "not_the_time": (
        "The job's time was up, not its memory: ask for more (--time), or write checkpoints and go on from them.",
        "用完的是作业的时间，而不是内存：申请更长时间（--time），或保存检查点后续跑。"),
    "not_the_time_figures": (
        "The job's time was up at {when}, not its memory: ask for more (--time), or write checkpoints and go on from them.",
        "作业的时间在 {when} 用完，而不是内存：申请更长时间（--time），或保存检查点后续跑。"),
    "not_the_chips": (
        "It is a TPU core's vector memory (VMEM) that is full, some 16 to 128 MiB, not the chip's: take smaller blocks in the kernel.",
        "满的是 TPU 核心的向量内存（VMEM，约 16 到 128 MiB），而不是芯片的内存：减小核函数的分块。"),
    "not_the_chips_figures": (
        "It is a TPU core's vector memory (VMEM) that is full, by {over} too much, not the chip's: take smaller blocks in the kernel.",
        "满的是 TPU 核心的向量内存（VMEM），超出 {over}，而不是芯片的内存：减小核函数的分块。"),
    "not_an_encoder": (
        "A video encoder (NVENC) refused a session: cards for desktops limit their number, and memory is seldom what ran out. Close other encoders "
        "(recording, streaming), or encode fewer streams at a time.",
        "视频编码器（NVENC）拒绝了会话：桌面显卡限制会话数，耗尽的很少是显存。关闭其他编码（录屏、直播），或减少同时编码的路数。"),
    "not_a_heap": (
        "It is the heap of a virtual machine (JavaScript, Java) that is full: raise its limit (--max-old-space-size, -Xmx).",
        "满的是虚拟机（JavaScript、Java）的堆：提高其上限（--max-old-space-size、-Xmx）。"),
    "not_a_heap_figures": (
        "It is the heap of a virtual machine (JavaScript, Java) that is full, with {used} MB in use: raise its limit (--max-old-space-size, -Xmx).",
        "满的是虚拟机（JavaScript、Java）的堆，已用 {used} MB：提高其上限（--max-old-space-size、-Xmx）。"),
    "not_an_attribute": (
        "A name is missing in this PyTorch, where torch.cuda.OutOfMemoryError is there since 1.13 and torch.OutOfMemoryError since 2.5: update, or "
        "catch RuntimeError, from which both derive.",
        "这个 PyTorch 里没有该名称，torch.cuda.OutOfMemoryError 自 1.13 起，torch.OutOfMemoryError 自 2.5 起才有：升级，或捕获二者的基类 RuntimeError。"),
    "not_a_segfault": (
        "A segmentation fault (exit code 139) is an access to an invalid address: a core dump, or python -X faulthandler, says where.",
        "段错误（退出码 139）是访问了无效地址：用 core dump 或 python -X faulthandler 查看位置。"),
    "not_a_disk": (
        "The disk is full: see df -h, and delete old checkpoints, or move the cache (HF_HOME).",
        "满的是磁盘：用 df -h 查看，删除旧的检查点，或移动缓存目录（HF_HOME）。"),
    "not_a_disk_figures": (
        "The disk is too full for a file of {asked}, where {limit} are free: see df -h, and delete old checkpoints, or move the cache (HF_HOME).",
        "磁盘放不下 {asked} 的文件，只剩 {limit}：用 df -h 查看，删除旧的检查点，或移动缓存目录（HF_HOME）。"),
    "not_a_disk_file": (
        "The disk is full, where {file} was to be written: see df -h, and delete old checkpoints, or move the cache (HF_HOME).",
        "写入 {file} 时磁盘已满：用 df -h 查看，删除旧的检查点，或移动缓存目录（HF_HOME）。"),
    "not_a_file": (
        "It ran out of file descriptors: raise their number (ulimit -n 65536); with DataLoader workers also "
        "torch.multiprocessing.set_sharing_strategy('file_system').",
        "耗尽的是文件描述符：提高上限（ulimit -n 65536）；使用 DataLoader 进程时也可用 torch.multiprocessing.set_sharing_strategy('file_system')。"),
    "not_an_address": (
        "An illegal memory access is an address that is wrong, not memory that is missing: compute-sanitizer finds it, and CUDA_LAUNCH_BLOCKING=1 "
        "names the call.",
        "非法内存访问是地址错误，而不是内存不足：用 compute-sanitizer 查找，CUDA_LAUNCH_BLOCKING=1 能指出是哪个调用。"),
    "not_a_failure": (
        "TensorFlow's warning says itself that it is no failure: it went on with another algorithm, and nothing has to be done.",
        "TensorFlow 的警告自己说明这不是失败：它换了算法继续运行，不必处理。"),
    "not_a_failure_figures": (
        "TensorFlow's warning about {asked} says itself that it is no failure: it went on with another algorithm, and nothing has to be done.",
        "TensorFlow 关于 {asked} 的警告自己说明这不是失败：它换了算法继续运行，不必处理。"),
    "not_a_message": (
        "gRPC's limit for one message was reached: raise grpc.max_receive_message_length on both sides, or send less at a time.",
        "达到的是 gRPC 单条消息的上限：在两端提高 grpc.max_receive_message_length，或每次少发一些。"),
    "not_a_message_figures": (
        "gRPC's limit for one message was reached ({asked} bytes, at most {limit}): raise grpc.max_receive_message_length on both sides, or send "
        "less at a time.",
        "达到的是 gRPC 单条消息的上限（{asked} 字节，上限 {limit}）：在两端提高 grpc.max_receive_message_length，或每次少发一些。"),
    "not_a_quota": (
        "A quota of a service was reached, and no memory is full: send fewer requests, wait, or ask for a higher quota.",
        "达到的是服务的配额，内存并没有耗尽：减少请求、等待，或申请更高的配额。"),
    "not_a_store": (
        "Redis has reached its own limit (maxmemory) and takes nothing more: raise it, or set maxmemory-policy so that old keys go.",
        "Redis 达到了自己的上限（maxmemory），不再接收数据：提高上限，或设置 maxmemory-policy 以淘汰旧键。"),
    "not_a_device": (
        "The program finds no GPU, or not the one that it names, and no memory is full: see nvidia-smi and CUDA_VISIBLE_DEVICES; \"busy\" "
        "means exclusive mode, or a card that was left in a bad state.",
        "程序找不到 GPU，或找不到它指定的那张，内存并没有耗尽：查看 nvidia-smi 和 CUDA_VISIBLE_DEVICES；“busy” 表示独占模式，或显卡状态异常。"),
    "not_the_cause": (
        "The line says only that a process of vLLM ended: the cause stands further up, in the first error of EngineCore or a worker; paste that.",
        "这一行只说明 vLLM 的一个进程已结束：原因在更上面，即 EngineCore 或工作进程的第一个错误；请粘贴那一段。"),
}
