"""What to do first where it is the host's memory; see first_words.py."""

HOST = {
    "container": (
        "See what the container may have and what it took; raise its limit, or let loaders hold less.",
        "查看容器的上限和峰值；提高上限，或让数据加载少占一些。",
        "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory.peak"),
    "shared_memory": (
        "Give /dev/shm more room: in Docker as below, in Kubernetes by an emptyDir with medium: Memory; on bare metal delete old nccl-* files there.",
        "给 /dev/shm 更多空间：Docker 见下，Kubernetes 用 medium: Memory 的 emptyDir；在物理机上删除其中残留的 nccl-* 文件。",
        "df -h /dev/shm; docker run --shm-size=8g IMAGE"),
    "killed": (
        "See whether the kernel did it, and which process was the largest; then a smaller model or fewer workers.",
        "查看是否被内核终止、哪个进程最大；再减小模型或减少加载进程。",
        "sudo dmesg -T | grep -iE 'killed process|out of memory'"),
    "addresses": ("Lift the limit on addresses.", "取消地址空间的限制。", "ulimit -v unlimited"),
    "page_file": (
        "Start no DataLoader workers: each commits memory for the CUDA libraries again. Or make the page file larger.",
        "不要启动 DataLoader 进程：每个都会再加载一次 CUDA 库并占用提交内存。或加大页面文件。",
        "DataLoader(dataset, num_workers=0)"),
    "page_file_larger": (
        "Make the page file larger, or close other programs: while it loads, a model's file may count in full.",
        "加大页面文件，或关闭其他程序：加载期间，模型文件可能全部计入。",
        "SystemPropertiesPerformance.exe"),
    "compiler": (
        "Compile fewer files at a time: a -j on the command line is what counts.",
        "减少同时编译的文件数：以命令行上的 -j 为准。",
        "cmake --build build -j 2  # with pip: MAX_JOBS=2 pip install ..."),
    "node": (
        "Fewer tasks or actors at a time: ask for more CPUs for each; or more host memory. Weights and optimizer states that are offloaded to the CPU count as host memory, too.",
        "减少同时运行的任务或 actor：为每个多要 CPU；或增加主机内存。卸载到 CPU 的权重和优化器状态也占主机内存。",
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
        "减少 DataLoader 进程及其预取。",
        "DataLoader(dataset, num_workers=2, prefetch_factor=1, pin_memory=False)"),
    "mapped": ("Read it as it is needed: map the file.", "按需读取：映射文件。", 'numpy.load(path, mmap_mode="r")'),
    "host": (
        "Watch the host while it runs, and load less of the data or the model at a time.",
        "在运行时查看主机内存，每次少加载一些数据或模型。",
        "watch -n 1 free -h"),
    "locked": (
        "See what the host (the container, the job) has left, or pin less.",
        "查看主机（容器、作业）还剩多少内存，或少锁页。",
        "free -h; cat /sys/fs/cgroup/memory.max"),
}
