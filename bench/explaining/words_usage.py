"""Errors of usage and of files in Chinese, beside those that all commands have (shared/chinese.py)."""
import sys

from shared import chinese

# Every entry: what the English line is, as an expression, and the Chinese with its groups.
ENDS = (
    # Usage.
    (r"standard input is closed; give a file or a message, or pipe a log to it", r"标准输入已关闭；请给出文件或报错，或用管道传入日志"),
    (r"give a file or a message, or pipe a log to it", r"请给出文件或报错，或用管道传入日志"),
    (r"the message is empty; give a file or a message", r"报错是空的；请给出文件或报错"),
    (r"give one snapshot, or --compare and two", r"请给出一个快照，或用 --compare 给出两个"),
    (r"--html is for one snapshot", r"--html 只用于一个快照"),

    # Files.
    (r"(.*): is a device, not a log", r"\1：是设备，而不是日志"),
    (r"(.*): cannot be read: (.*)", r"\1：无法读取：\2"),
    (r"(.*): cannot be written: (.*)", r"\1：无法写入：\2"),
    (r"standard output: (.*)", r"标准输出：\1"),

    # Snapshots.
    (r"(.*): has more than 4 GiB", r"\1：大于 4 GiB"),
    (r"(.*): (?:takes|asks for) more memory than a snapshot of its size can need", r"\1：需要的内存超过这么大的快照可能需要的"),
    (r"(.*): is a snapshot without any block or event: was the recording on, and on this device\?", r"\1：快照里没有任何块或事件：记录开启了吗，是在这个设备上吗？"),
    (r"(.*): would run code: it names (.*?)\. A snapshot has plain data only, so nothing of it was read",
     r"\1：会运行代码：它引用了 \2。快照只有纯数据，因此没有读取任何内容"),
    (r"(.*): refers to things outside itself; a snapshot has plain data only, so nothing of it was read",
     r"\1：引用了自身之外的内容；快照只有纯数据，因此没有读取任何内容"),
    (r"(.*): is cut off: its end is missing", r"\1：不完整：缺少结尾"),
    (r"(.*): is not the pickle of a snapshot: (.*)", r"\1：不是快照的 pickle：\2"),
    (r"(.*): is nested too deeply for a snapshot", r"\1：嵌套过深，不像快照"),
    (r"(.*): takes more than (\d+) s of processor time, or more memory than there is: it was given up",
     r"\1：处理器时间超过 \2 秒，或内存不够：已放弃"),
    (r"(.*): ended the process that read it \(signal (\d+)\)", r"\1：使读取它的进程终止（信号 \2）"),
    (r"(.*): is a pickle, but not of a memory snapshot: it has neither segments nor device_traces",
     r"\1：是 pickle，但不是内存快照：既没有 segments，也没有 device_traces"),
    (r"(.*): has more than 4096 devices", r"\1：设备超过 4096 个"),
    (r"(.*): the trace of device (\d+) is no list of events", r"\1：设备 \2 的记录不是事件列表"),
    (r"(.*): the trace of device (\d+): its events repeat themselves", r"\1：设备 \2 的事件重复出现"),
    (r"(.*): its (\w+) are no list", r"\1：其 \2 不是列表"),
    (r"(.*): its segments repeat themselves", r"\1：其段重复出现"),
    (r"(.*): (\S.*?): (\w+) is no count of bytes and no address", r"\1：\2：\3 既不是字节数，也不是地址"),
    (r"(.*): (\S.*?): (\w+) is no address", r"\1：\2：\3 不是地址"),
    (r"(.*): (\S.*?): its blocks are no list", r"\1：\2：其块不是列表"),
    (r"(.*): (\S.*?): its blocks repeat themselves", r"\1：\2：其块重复出现"),
    (r"(.*): (\S.*?): its frames are no list", r"\1：\2：其帧不是列表"),
    (r"(.*): (\S.*?): its frames repeat themselves", r"\1：\2：其帧重复出现"),
    (r"(.*): (\S.*?): a frame is no dictionary", r"\1：\2：有一帧不是字典"),
    (r"(.*): (\S.*?): a frame has no name, file and line", r"\1：\2：有一帧没有名称、文件和行"),
    (r"(.*): (\S.*?) is no dictionary", r"\1：\2 不是字典"),
)


def in_chinese(text):
    """The same error in Chinese; as it is where it has no Chinese."""
    return chinese.said(text, ENDS)


def ending(text, arguments=None):
    """The line in the language that the arguments (those of the command, if they are not given) ask for."""
    return in_chinese(text) if chinese.wanted(sys.argv[1:] if arguments is None else arguments) else text
