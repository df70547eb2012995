"""What to do first where it is the host's memory; see first_words.py."""

HOST = {
    "container": (
        "See the memory limit of the container or job, and what it took; raise the limit, or use fewer DataLoader workers.",
        "查看容器或作业的内存上限和峰值；提高上限，或减少 DataLoader 工作进程。",
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak"),
    "more_memory": (
        "Give it a higher limit of host memory, or let it take less: fewer DataLoader workers, data that is read in parts.",
        "提高它的主机内存上限，或减少用量，例如减少 DataLoader 工作进程、分批读取数据。",
        "{request}"),
    "shared_memory": (
        "Give /dev/shm more room: in Docker as below, in Kubernetes by an emptyDir with medium: Memory; on bare metal delete old nccl-* files there.",
        "给 /dev/shm 更多空间。Docker 见下，Kubernetes 用 medium: Memory 的 emptyDir；在物理机上删除其中残留的 nccl-* 文件。",
        "df -h /dev/shm; docker run --shm-size=8g IMAGE"),
    "killed": (
        "See whether Linux's OOM killer did it, and which process was the largest; then use a smaller model or fewer workers.",
        "查看是否被 Linux 的 OOM killer 终止、哪个进程最大；再换更小的模型，或减少工作进程。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "killed_mac": (
        "See whether macOS ended it for memory (also under Memory Pressure in Activity Monitor); then use a smaller model or fewer workers.",
        "查看是否因内存不足被 macOS 终止（也可看“活动监视器”的内存压力）；再换更小的模型，或减少工作进程。",
        "log show --last 10m --predicate 'eventMessage contains \"memorystatus\"'"),
    "addresses": ("Lift the limit on address space.", "取消地址空间的上限。", "ulimit -v unlimited"),
    "page_file": (
        "Start no DataLoader workers, for each commits memory for the CUDA libraries again; or make the page file larger.",
        "不要启动 DataLoader 工作进程（每个都会再加载一次 CUDA 库，占用提交内存），或加大页面文件。",
        "DataLoader(dataset, num_workers=0)"),
    "page_file_either": (
        "Make the page file larger. Where DataLoader workers start, also use num_workers=0: each commits memory for the CUDA libraries again.",
        "加大页面文件。若用了 DataLoader 工作进程，再设 num_workers=0。每个都会再加载一次 CUDA 库，占用提交内存。",
        "SystemPropertiesPerformance.exe"),
    "page_file_larger": (
        "Make the page file larger, or close other programs: while it loads, a model's file may count in full.",
        "加大页面文件，或关闭其他程序。加载期间，模型文件可能全部计入。",
        "SystemPropertiesPerformance.exe"),
    "compiler": (
        "Compile fewer files at a time. With pip: MAX_JOBS=2 pip install ... (Where -j N is given already, change that N: it wins over CMAKE_BUILD_PARALLEL_LEVEL.)",
        "减少同时编译的文件数。用 pip 时 MAX_JOBS=2 pip install ...（命令行上已有 -j 时改那个数，它优先于 CMAKE_BUILD_PARALLEL_LEVEL。）",
        "cmake --build build -j 2"),
    "node": (
        "Run fewer tasks or actors at a time (ask for more CPUs for each), or add host memory. Weights and optimizer states that are offloaded to the CPU count as host memory, too.",
        "减少同时运行的任务或 actor（给每个多申请几个 CPU），或增加主机内存。卸载到 CPU 的权重和优化器状态也占主机内存。",
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
        "减少 DataLoader 工作进程数和预取量。",
        "DataLoader(dataset, num_workers=2, prefetch_factor=1, pin_memory=False)"),
    "array": (
        "Check whether that shape is meant. If it is, take a smaller type (float32 is half of float64), compute it by blocks, or keep it sparse. "
        "(If it comes from a .npy file: numpy.load(path, mmap_mode=\"r\").)",
        "确认这个形状是否有误。若无误，换更小的类型（float32 是 float64 的一半）、分块计算，或用稀疏矩阵。（若来自 .npy 文件：numpy.load(path, mmap_mode=\"r\")。）",
        "x = numpy.zeros(shape, dtype=numpy.float32)"),
    "host": (
        "Watch the host while it runs, and load data or the model in parts.",
        "在运行时查看主机内存，分批加载数据，或分段加载模型。",
        "watch -n 1 free -h"),
    "host_windows": (
        "Watch Task Manager while it runs (Performance, Memory: \"Committed\"); load data or the model in parts, or make the page file larger.",
        "在运行时查看任务管理器（“性能”中“内存”的“已提交”）；分批加载数据，或分段加载模型，或加大页面文件。",
        "SystemPropertiesPerformance.exe"),
    "host_tensorflow": (
        "See what the host has left. If that is enough, raise the limit of TensorFlow's pinned memory, which is 64 GiB by default.",
        "查看主机还剩多少内存。若足够，提高 TensorFlow 锁页内存的上限（默认 64 GiB）。",
        "free -h; export TF_GPU_HOST_MEM_LIMIT_IN_MB=131072"),
    "locked": (
        "See what the host (the container, the job) has left, or keep less memory pinned: fewer or smaller transfers at a time.",
        "查看主机（容器、作业）还剩多少内存，或少用锁页内存，例如减少同时进行的传输、每次少传一些。",
        "free -h; cat /sys/fs/cgroup/memory.max"),
}
