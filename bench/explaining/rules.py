"""All wordings that bench/explain knows, and the README's table of them.

They were read in the frameworks' sources; tests/explain/check_wordings.py looks them up in installed libraries.
"""

from . import host, learners, libraries, others, pytorch, servers
from .text import RULES

__all__ = ["RULES", "PATHS", "TABLE", "TABLE_ZH", "host", "learners", "libraries", "others", "pytorch", "servers"]

# The wordings in the README's table, in the order of it: what to look for, a message of that kind, and the diagnosis that
# follows from it. tests/explain checks that each example is diagnosed as its row says.
_HEAD = "CUDA out of memory. Tried to allocate"
TABLE = (
    ("`Tried to allocate X` with X above the `total capacity`",
     f"{_HEAD} 28.00 GiB (GPU 0; 23.70 GiB total capacity; 1.10 GiB already allocated; 21.00 GiB free; 1.20 GiB reserved in total by PyTorch)"),
    ("`allocated by PyTorch` (older: `already allocated`) is nearly the `total capacity`",
     f"{_HEAD} 512.00 MiB (GPU 0; 23.70 GiB total capacity; 22.40 GiB already allocated; 201.69 MiB free; 22.52 GiB reserved in total by PyTorch)"),
    ("`reserved by PyTorch but unallocated` (older: `reserved` less `allocated`) is more than it tried to allocate, and more than 1/200 of the `total capacity`",
     f"{_HEAD} 870.00 MiB (GPU 2; 23.70 GiB total capacity; 19.18 GiB already allocated; 323.81 MiB free; 21.70 GiB reserved in total by PyTorch)"),
    ("`Process N has ... memory in use`, or capacity less `free` less `reserved` leaves gigabytes",
     f"{_HEAD} 372.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 212.00 MiB is free. Process 1775240 has 15.31 GiB memory in use. Including non-PyTorch memory, this process has 8.03 GiB memory in use. Of the allocated memory 7.58 GiB is allocated by PyTorch, and 44.11 MiB is reserved by PyTorch but unallocated."),
    ("`GiB allowed`, `limit set to`, `per_process_memory_fraction`",
     f"{_HEAD} 22.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 20.02 GiB is free. 1.04 GiB allowed; Of the allocated memory 1001.01 MiB is allocated by PyTorch, and 58.99 MiB is reserved by PyTorch but unallocated."),
    ("`KV cache`, `cache blocks`, `max seq len`, `GPU memory utilization`",
     "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine."),
    ("`DataLoader worker ... killed`, `pinned`, `on host`, `DefaultCPUAllocator`, `/dev/shm`, `Killed process`",
     "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."),
    ("`CUDA error: out of memory`, `CUBLAS_STATUS_ALLOC_FAILED`, `RESOURCE_EXHAUSTED`: no figures",
     "RuntimeError: CUDA error: out of memory"),
)
# The same wordings in the Chinese README's table: what a message says stays English.
TABLE_ZH = (
    "`Tried to allocate X` 中的 X 大于 `total capacity`",
    "`allocated by PyTorch`（旧版 `already allocated`）接近 `total capacity`",
    "`reserved by PyTorch but unallocated`（旧版：`reserved` 减 `allocated`）大于所申请的，并超过 `total capacity` 的 1/200",
    "`Process N has ... memory in use`，或总容量减 `free` 减 `reserved` 还差好几 GiB",
    "`GiB allowed`、`limit set to`、`per_process_memory_fraction`",
    "`KV cache`、`cache blocks`、`max seq len`、`GPU memory utilization`",
    "`DataLoader worker ... killed`、`pinned`、`on host`、`DefaultCPUAllocator`、`/dev/shm`、`Killed process`",
    "`CUDA error: out of memory`、`CUBLAS_STATUS_ALLOC_FAILED`、`RESOURCE_EXHAUSTED`：没有数字",
)
# What to read for each row, in this order: a chapter, and what it is for. Each is a chapter of the row's diagnosis.
PATHS = (
    (("00", "which tensor it is", "是哪个张量"), ("08", "if it is scores or logits", "若是注意力分数或 logits"), ("09", "if it is an image", "若是图像")),
    (("02", "micro-batches, the same gradient", "微批，梯度不变"), ("04", "recompute activations", "重算激活"), ("13", "shrink the optimizer's state", "缩小优化器状态")),
    (("06", "", ""),),
    (("15", "who has the rest", "其余在谁手里"), ("02", "fit into what is left", "放进剩下的显存")),
    (("00", "raise the limit, or see what fills it", "提高上限，或看是什么占满它"), ("02", "micro-batches", "微批"), ("04", "recompute activations", "重算激活")),
    (("11", "the cache", "缓存"), ("12", "smaller weights leave it room", "更小的权重给它腾地方")),
    (("05", "", ""),),
    (("00", "what fills the card", "是什么占满显存"), ("02", "micro-batches", "微批")),
)
