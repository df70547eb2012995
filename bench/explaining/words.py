"""What bench/explain says, in English and in Chinese: its headings, and the texts of words_causes.py, words_notes.py and words_refusals.py."""
from shared.chinese import LANGUAGES

from .words_causes import CAUSES
from .words_notes import NOTES
from .words_refusals import REFUSALS


HELP_ZH = """解释显存或内存不足的报错：原因，先做什么；再加数字，以及报错没有说明的。

  bench/explain FILE            含有报错的日志
  bench/explain 'CUDA out ...'  报错本身
  command 2>&1 | bench/explain  标准输入；也可写 bench/explain -
    --all                       再加计算过程、其他办法及其代价、报错没有说明的内容
    --lang zh                   中文
    --json                      原因和以字节计的数字，未知为 null
    --table                     改为输出 README 中的报错表
  bench/explain SNAPSHOT.pickle 内存快照（torch.cuda.memory._dump_snapshot）：被什么占满；加 --help 看更多

请原样粘贴报错。不能确定推出的数字不给出；互相矛盾的两个数字都不采用。

退出码：0；1 没有它认识的报错；2 文件无法读取；64 用法错误。
"""

# Every entry: English, Chinese. A name in braces is a figure, or another value of the message.
TEXT = {
    **CAUSES,
    **NOTES,
    **REFUSALS,
    "figures": ("What it says:", "报错中的数字："),
    "figures_device": ("What it says, device {device}:", "报错中的数字，设备 {device}："),
    "printed": ("printed", "原文"),
    "about": ("about {size}", "约 {size}"),
    "cause": ("Cause: {title}. {sentence}", "原因：{title}。{sentence}"),
    "cause_alone": ("Cause: {sentence}", "原因：{sentence}"),
    "first": ("Do first: {what}", "先做：{what}"),
    "see": ("See {chapters}.", "参见{chapters}。"),
    "more": ("More with --all: the figures, what else helps and what it costs, what the message leaves out.",
             "加 --all 查看：计算过程、其他办法及其代价、报错没有说明的内容。"),
    "needless": ("Nothing has to be done. To avoid it: {what}", "不必处理。若想避免：{what}"),
    "unsure": ("not certain", "不能确定"),
    # Causes in a word that say more than the diagnosis.
    "title_unsaid": ("too little is free, and what fills the card is not printed", "空闲显存不够，占用来源不明"),
    "title_likely_host": ("most likely host memory, not the card", "多半是主机内存，而非显存"),
    "title_program": ("the program is larger than the chip's memory", "程序超过芯片的内存"),
    "title_ranks": ("several ranks on one card", "多个 rank 在同一张卡上"),
    "title_outside": ("live tensors, and memory outside PyTorch, fill the card", "存活张量和不由 PyTorch 分配的部分占满显存"),
    "title_one_request": ("one request is too large for what is free", "这次申请太大，空闲显存放不下"),
    "title_chip": ("the chip's memory is full", "芯片的内存已满"),
    "title_buffer": ("larger than one buffer may be", "超过单个缓冲区的上限"),
    "title_program_free": ("the program does not fit into what is free", "空闲显存放不下这个程序"),
    "title_likely_others": ("most likely other processes", "多半是其他进程占用"),
    "title_addresses": ("a limit on address space, not the card", "地址空间的上限，而非显存"),
    "title_mps": ("more than PyTorch may use on this Mac", "超过 PyTorch 在这台 Mac 上的上限"),
    "title_pool": ("no room outside the framework's pool", "框架的内存池之外没有显存"),
    "title_workspace": ("a buffer of fixed size is full", "固定大小的缓冲区已满"),
    "title_weights": ("the weights are too large for the card", "权重太大，显存放不下"),
    "title_arrays": ("arrays fill the card", "数组占满显存"),
    "title_paddle": ("what PaddlePaddle holds fills the card", "PaddlePaddle 占满显存"),
    "do": ("What else helps:", "还有什么办法："),
    "shown": ("Shown in {chapters}. Price: {price}.", "演示见{chapters}。代价：{price}。"),
    "price": ("Price: {price}.", "代价：{price}。"),
    "cannot": ("What the message cannot say:", "报错没有说明的："),
    "found": ("Message of {framework}:", "{framework} 的报错："),
    "count": ("The first of {count} of its kind here.", "此处同类报错共 {count} 条，这是第一条。"),
    "also": (
        "There are messages of others, too: {names}. They may follow from this one.",
        "另有其他来源的报错：{names}。它们可能由这一条引起。"),
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
    "weights": ("weights", "权重"),
    "program": ("the whole program", "整个程序"),
    "arguments": ("its arguments", "其参数"),
    "outputs": ("its outputs", "其输出"),
    "temporaries": ("its temporaries", "其临时量"),
    "other_allocations": ("other allocations", "其他分配"),
    "tokens_wanted": ("tokens wanted", "需要的 token 数"),
    "tokens_held": ("tokens that the cache holds", "缓存可容纳的 token 数"),

    # Causes in a word.
    "too_big_for_the_card": ("too big for the card", "超过整张卡的容量"),
    "live_tensors_fill_it": ("live tensors fill the card", "存活张量占满显存"),
    "fragmentation": ("fragmentation", "显存碎片"),
    "other_process": ("other processes", "其他进程占用"),
    "limit_set_by_user": ("a limit set for this process", "超过了本进程的显存上限"),
    "host_memory": ("host memory, not the card", "主机内存，而非显存"),
    "kv_cache_or_pool_reservation": ("memory reserved in advance (KV cache or pool)", "事先占下的显存不够（KV 缓存或内存池）"),
    "not_enough_information": ("the message does not tell", "报错本身不足以判断"),
}

# Names of frameworks that have words in them.
FRAMEWORKS = (
    ("the operating system", "操作系统"), ("a program that does not say whose memory", "没有说明是哪种内存的程序"), ("a library of the GPU", "GPU 的库"), ("the host's allocator", "主机的分配器"), ("CUDA or its driver", "CUDA 或其驱动"), ("a compiler", "编译器"),
    ("PyTorch's DataLoader", "PyTorch 的 DataLoader"), ("NVIDIA's driver", "NVIDIA 驱动"), ("Intel's", "Intel 的"), ("Apple's", "Apple 的"), (", translated", "（翻译过的）"),
    ("Blender's", "Blender 的"), (", backend cudaMallocAsync", "（后端 cudaMallocAsync）"), (", on the CPU", "（CPU）"), (", on a TPU", "（TPU）"),
    ("PyTorch, ", "PyTorch "), (" or ", " 或 "), (", up to 1.3", "（1.3 及更早）"), (" 或 newer", " 或更新版本"), (" to ", " 到 "), (", ", "，"))


def framework_name(name, language):
    if language == "zh":
        for words, chinese in FRAMEWORKS:
            name = name.replace(words, chinese)
    return name


def say(key, language, **values):
    """The text of a key; figures and names filled in."""
    return TEXT[key][LANGUAGES.index(language)].format(**values)


def refusal(reasons, language):
    """Why a text is none: what looks like a message in it, as log.find() told it."""
    told = [reasons[key] for key in sorted(reasons)] or [("looked_for", {})]
    return (" " if language == "en" else "").join((say("refused", language), *(say(key, language, **figures) for key, figures in told)))
