"""What bench/puzzle says, in English and in Chinese: verdicts as a teacher would give them."""
import collections

from shared.chinese import LANGUAGES, said
from shared.results_files import format_bytes

# Errors of usage and of files, beside those that all commands have (shared/chinese.py): the English line, as an expression, and the Chinese with its groups.
ENDS = (
    (r"--list lists all puzzles, without a name beside it", r"--list 列出所有题目，后面不能再写名字"),
    (r"--json goes with --class DIR", r"--json 要和 --class DIR 一起用"),
    (r"--seed is a number from 0 to (\d+)", r"--seed 是 0 到 \1 的整数"),
    (r"there is no mode '(.*)'; there are: (.*)", r"没有 '\1' 这个模式；有：\2"),
    (r"on the GPU runs what has passed on the host: --modes fast,gpu", r"先在主机上通过，才在 GPU 上运行：--modes fast,gpu"),
    (r"which puzzle\? bench/puzzle lists them", r"哪一题？bench/puzzle 列出各题"),
    (r"there is no puzzle '(.*)'; there are: (.*)", r"没有 '\1' 这道题；有：\2"),
    (r"(.*): is no file that can be read", r"\1：不是可以读取的文件"),
    (r"(.*): is no folder", r"\1：不是文件夹"),
    (r"nvcc is missing: it comes with the CUDA toolkit", r"缺少 nvcc：它随 CUDA 工具包安装"),
    (r"(\S+) is missing; bench/run --no-install says which packages are", r"缺少 \1；bench/run --no-install 列出缺哪些软件包"),
    (r"(.*) failed:\n(.*)", r"\1 失败：\n\2"),
)
# What judges call their hidden cases, between commas: the English, as an expression, and the Chinese.
CASES = (
    (r"(\d+) parameters", r"\1 个参数"), (r"(\d+) steps", r"\1 步"), (r"(\d+) rows", r"\1 行"), (r"(\d+) hidden units", r"\1 个隐藏单元"), (r"at most (\d+)", r"最多 \1"),
    (r"(\d+) samples in micro-batches of (\d+)", r"\1 个样本，每个微批 \2 个"), (r"(\d+) gradients", r"\1 个梯度"), (r"(\d+) layers of (\d+)", r"\1 层，每层 \2"),
    (r"arena of (\d+) bytes", r"一整块 \1 字节"), (r"round (\d+)", r"第 \1 轮"), (r"(\d+) tensors", r"\1 个张量"), (r"(\d+) ranks", r"\1 个 rank"),
    (r"(\d+) elements", r"\1 个元素"), (r"(\d+) weights", r"\1 个权重"), (r"(\d+) keys of (\d+)", r"\1 个键，每个长 \2"), (r"(\d+) x (\d+)", r"\1 x \2"),
    (r"radius (\d+)", r"半径 \1"), (r"(\d+) of (\d+) channels", r"\2 个通道中的 \1 个"), (r"length (\d+)", r"长 \1"), (r"(\d+) blocks", r"\1 块"),
    (r"(\d+) answers to a question of (\d+) tokens", r"对 \2 个 token 的问题给出 \1 个回答"), (r"(\d+) tokens", r"\1 个 token"), (r"window (\d+)", r"窗口 \1"),
    (r"(\d+) rows of (\d+)", r"\1 行，每行 \2 个"), (r"batch (\d+)", r"batch \1"), (r"(\d+) to (\d+)", r"\1 到 \2"), (r"rank (\d+)", r"秩 \1"),
    (r"a card of ([\d.]+) MiB", r"\1 MiB 的卡"), (r"(\d+) KiB of it the neighbour's", r"邻居占 \1 KiB"), (r"(\d+) levers", r"\1 种手段"), (r"a budget of (\d+) KiB", r"预算 \1 KiB"),
)
STEP = 512   # bytes in which a device counts (counted() in judge.h)
LARGEST = 5  # live allocations that a report lists

# kind: (English, Chinese). Fields are those of the verdict; {at} is the line, where there is one.
VERDICTS = {
    "passed": ("Passed.", "通过。"),
    "no_gpu": ("Not judged on a GPU: none answers (cudaGetDeviceCount: {what}).", "没有在 GPU 上评判：没有可用的 GPU（cudaGetDeviceCount：{what}）。"),
    "over_budget": ("{oom}", "{oom}"),
    "unread": ("{at}{call} failed, and the function did not pass that on: whoever called it takes the result for right. Every call of the CUDA runtime "
               "returns a cudaError_t; CHECK(...) reads it, and throws.",
               "{at}{call} 失败了，而函数没有把失败告诉调用者：调用者会以为结果是对的。CUDA 运行时的每个调用都返回 cudaError_t；CHECK(...) 读取它并抛出异常。"),
    "threw": ("The program gave up: {what}{by}.{launch}", "程序中止了：{what}{by}。{launch}"),
    "kernel_heap": ("{at}a kernel takes memory with new, a container or an exception. On a GPU, new takes it from a heap of the device's, once for each thread, and no "
                    "budget counts it; containers and exceptions do not exist in kernels.",
                    "{at}核函数用 new、容器或异常取得内存。在 GPU 上，new 从设备自己的堆里取，每个线程一份，任何预算都不计入；核函数里没有容器，也没有异常。"),
    "differs": ("{what} of {count} is {got}, and {wanted} is right.", "{what}（共 {count} 个）是 {got}，正确的是 {wanted}。"),
    "unwritten": ("{what} of {count} was never written.", "{what}（共 {count} 个）从未被写入。"),
    "input_changed": ("{name} has other values than before. It is const: the caller still needs it.", "{name} 的值变了。它是 const：调用者之后还要用。"),
    "few_threads": ("A kernel was started with {count} threads a block, and at least {allowed} are asked for: a block of so few leaves most of a GPU idle.",
                    "有核函数启动时每块只有 {count} 个线程，而至少要 {allowed} 个：线程这么少的块会让 GPU 的大部分闲着。"),
    "overrun": ("{name} was written behind its end: it has {bytes}.", "{name} 的末尾之后被写入了：它只有 {bytes}。"),
    "leak": ("Memory leaked: the function returned, and this is still allocated:\n{live}", "显存泄漏：函数已经返回，下面这些还没有释放：\n{live}"),
    "host_bytes": ("{bytes} of the host's memory are in use for it, and {allowed} are allowed. The data belongs on the device: in the host's memory it "
                   "is not saved, only moved.",
                   "用掉了 {bytes} 主机内存，而只允许 {allowed}。数据应当放在设备上：挪到主机内存里并不是节省，只是换了地方。"),
    "static_bytes": ("{bytes} are in static or __device__ arrays, and {allowed} are allowed. On a GPU a __device__ array is taken from the device's memory when "
                     "the program is loaded, whatever the budget.",
                     "静态数组或 __device__ 数组共 {bytes}，只允许 {allowed}。在 GPU 上，__device__ 数组在程序加载时就占用显存，不管预算多少。"),
    "host_arrays": ("{at}a function's own variables are too large ({allowed} are allowed), or an array's size is not a constant. A thread's own arrays are in the "
                    "device's memory, too, once for each thread that it can run at a time; on the host's stack the data is not saved, only moved.",
                    "{at}函数自己的变量太大（允许 {allowed}），或者数组大小不是常量。线程自己的数组也在显存里，GPU 上能同时运行多少线程就占多少份；放到主机栈上也不是节省，只是换了地方。"),
    "pinned_bytes": ("{at}cudaMallocHost: {bytes} of pinned memory, and {allowed} are allowed here.",
                     "{at}cudaMallocHost：{bytes} 锁页内存，这里只允许 {allowed}。"),
    "largest": ("{at}{name} is {bytes} in one allocation, and {allowed} are allowed: no rank may hold more than its share.",
                "{at}{name} 一次分配了 {bytes}，只允许 {allowed}：没有哪个 rank 可以超过自己的一份。"),
    "no_kernel": ("No kernel was started: nothing was computed on the device.", "没有启动任何核函数：设备上什么也没有算。"),
    "launches": ("{count} kernels were started, and {allowed} are allowed: the bytes fit, and the time does not.",
                 "启动了 {count} 个核函数，只允许 {allowed} 个：字节够了，时间却不够。"),
    "synchronisations": ("The host waited {count} times (synchronisations and cudaMemcpy), and {allowed} are allowed: nothing overlaps that way.",
                         "主机等待了 {count} 次（同步与 cudaMemcpy），只允许 {allowed} 次：这样什么也重叠不了。"),
    "rule": ("{en}", "{zh}"),
    "touched": ("{at}code of the host touches {name}, which is in the device's memory. On a GPU that crashes: cudaMemcpy carries data across.",
                "{at}主机代码直接访问了显存里的 {name}。在 GPU 上这会崩溃：要用 cudaMemcpy 搬运数据。"),
    "crashed": ("{at}the program crashed: it touched memory that is nobody's (a null pointer, one that was freed, or one past the end).",
                "{at}程序崩溃了：它访问了不属于任何人的内存（空指针、已释放的指针或越界）。"),
    "not_yours": ("{at}{name} was freed, and the judge, which gave it to the function, still needs it.", "{at}释放了 {name}；它是评判程序交给函数的，之后还要用。"),
    "ended_early": ("The program ended (exit) before the judge had seen all of its results.", "评判程序还没看到全部结果，程序就退出了（exit）。"),
    "ended": ("The program ended with code {code}, and had no result.", "程序以代码 {code} 结束，没有给出结果。"),
    "over_time": ("Stopped: it took more than {cpu_seconds} s of processor time. Is there a loop that does not end?",
                  "已停止：用了超过 {cpu_seconds} 秒处理器时间。是否有不会结束的循环？"),
    "over_wall": ("Stopped: after {wall_seconds} s it had not ended. Is there a loop that does not end?", "已停止：{wall_seconds} 秒后仍未结束。是否有不会结束的循环？"),
    "over_memory": ("Stopped: it took more than {memory} of this machine's memory.", "已停止：占用本机内存超过 {memory}。"),
    "over_output": ("Stopped: it printed more than {output}.", "已停止：输出超过 {output}。"),
    "over_file": ("Stopped: it wrote a file. A puzzle needs none.", "已停止：它在写文件。题目不需要文件。"),
    "over_call": ("Stopped: it asked the operating system for what no puzzle needs: a process, a file to write to, the network.",
                  "已停止：它向操作系统要求题目不需要的东西：进程、可写的文件或网络。"),
    "race": ("Two threads of a kernel use the same memory, one of them writes, and nothing orders them ({where}; check mode, ThreadSanitizer: {what}). "
             "{remedy}",
             "核函数的两个线程使用同一块内存，其中一个在写，而没有任何东西规定先后（{where}；检查模式，ThreadSanitizer：{what}）。"
             "{remedy}"),
    "race_of_blocks": ("Threads of different blocks use the same memory, one of them writes, and nothing orders them ({where}; check mode, ThreadSanitizer: {what}). "
                       "__syncthreads() waits for one block only. An atomic operation helps (atomicAdd), or an element that one thread alone writes.",
                       "不同线程块的线程使用同一块内存，其中一个在写，而没有任何东西规定先后（{where}；检查模式，ThreadSanitizer：{what}）。"
                       "__syncthreads() 只等待本块的线程。可以用原子操作（atomicAdd），或者让每个元素只由一个线程来写。"),
    "out_of_bounds": ("A kernel or the host reads or writes outside an array or a container (behind an iterator that is end(), too), or after it was freed "
                      "({where}; AddressSanitizer: {what}).",
                      "核函数或主机代码读写了数组或容器之外的内存（包括 end() 处的迭代器），或者已释放的内存（{where}；AddressSanitizer：{what}）。"),
    "shared_overrun": ("A kernel reads or writes behind the end of its __shared__ arrays ({where}).", "核函数读写了 __shared__ 数组末尾之后的内存（{where}）。"),
    "not_to_be_read": ("A kernel reads what the task says to leave out ({where}).", "核函数读取了题目要求跳过的内容（{where}）。"),
    "freed": ("Memory is used after it was freed, or by something that no longer points to it ({where}; {what}).",
              "内存释放之后仍被使用，或者指针、引用已失效（{where}；{what}）。"),
    "no_such_name": ("{at}the host runtime, which judges, has no {name}. bench/puzzle --help lists what it has for kernels.",
                     "{at}评判所用的主机运行时没有 {name}。bench/puzzle --help --lang zh 列出核函数可用的名字。"),
    "shared_form": ("{at}this __shared__ is not understood: inside a kernel, as a statement of its own, write __shared__ T name[N]; or extern __shared__ T name[];",
                    "{at}看不懂这个 __shared__：请在核函数内单独写一条语句：__shared__ T name[N]; 或 extern __shared__ T name[];"),
    "not_for_puzzles": ("It calls {what}. Here memory comes from cudaMalloc, cudaMallocAsync or cudaMallocHost, and nothing else: those are counted.",
                        "它调用了 {what}。这里只能用 cudaMalloc、cudaMallocAsync 或 cudaMallocHost 分配内存：只有它们被计数。"),
    "over_compiling": ("Stopped: {what} took more than {seconds} s or {memory} of memory with it.", "已停止：{what} 用了超过 {seconds} 秒或 {memory} 内存。"),
    "does_not_compile": ("It does not compile:\n{text}", "编译不通过：\n{text}"),
    "does_not_link": ("It does not link: {text}", "链接不通过：{text}"),
    "not_defined": ("The judge calls {name}, and your file has no function of that name and with those parameters.",
                    "评判程序要调用 {name}，而你的文件里没有这个名字、这些参数的函数。"),
    "not_allowed": ("{at}{what}: a puzzle needs none of that.", "{at}{what}：题目用不到它。"),
    "includes": ("It includes {what}. Headers of CUDA and C++ are enough.", "它包含了 {what}。CUDA 与 C++ 的头文件就够了。"),
    "behind_the_back": ("It calls {what} past the judge's counter: call it by its plain name, with parentheses behind it.",
                        "它绕过了评判程序的计数来调用 {what}：请直接用名字加括号调用。"),
    "calls": ("It calls {what}: a puzzle needs CUDA, containers, mathematics and printf.", "它调用了 {what}：题目只需要 CUDA、容器、数学函数和 printf。"),
    "defines": ("It defines {what}, in place of a function that the judge relies on.", "它自己定义了 {what}，顶替了评判程序所依赖的函数。"),
    "judge": ("The judge itself failed: {what}. That is a mistake of this repository, not yours.", "评判程序自身失败了：{what}。这是本仓库的错误，不是你的。"),
}

SENTENCES = {
    "line": ("Line {line}: ", "第 {line} 行："),
    "in_case": ("  (hidden case: {case}{deferred}{mode}; --seed {seed} repeats it)", "  （隐藏用例：{case}{deferred}{mode}；--seed {seed} 可重现）"),
    "deferred": (", with streams that put work off", "，流推迟执行"),
    "in_run": ("  ({mode} mode; --seed {seed} repeats it)", "  （{mode} 模式；--seed {seed} 可重现）"),
    "after": ("The hidden data were those of --seed {seed}. --solution shows another way, and says why.{next}",
              "隐藏数据的种子是 --seed {seed}。--solution 给出参考做法并说明理由。{next}"),
    "on_gpu": ("Built with nvcc, it passed on the GPU, too.", "用 nvcc 编译后，在 GPU 上也通过了。"),
    "next": (" The next puzzle: bench/puzzle {id}", "下一题：bench/puzzle {id} --lang zh"),
    "one_of_two": ("Chapter {number} has {n} puzzles: {ids}. This is {id}.", "第 {number} 章有 {n} 题：{ids}。这是 {id}。"),
    "functions": ("In kernels there are, beside C++'s own functions:\n{names}", "核函数里除 C++ 自己的函数外还有：\n{names}"),
    "mode": (", {mode} mode", "，{mode} 模式"),
    "oom": ("CUDA out of memory. {at}tried to allocate {asked}{counted} for {name} under a budget of {budget} of which {free} is free.{live}",
            "CUDA out of memory（显存不足）。{at}要为 {name} 分配 {asked}{counted}，预算 {budget}，还剩 {free}。{live}"),
    "counted": (" (counted as {bytes}: a device hands memory out in steps of 512 bytes)", "（按 {bytes} 计：设备以 512 字节为单位分配）"),
    "live": ("\nLargest live allocations:\n{live}", "\n最大的存活分配：\n{live}"),
    "unread_oom": ("{oom}\nThe call failed, and the function did not pass that on, as CHECK does with an exception. Within this budget no call has to fail.",
                   "{oom}\n调用失败了，而函数没有把失败告诉调用者（CHECK 会抛出异常）。在这个预算之内，没有哪个调用非失败不可。"),
    "launch": (" A launch failed. Blocks: {blocks}; threads of each: {threads}; shared memory of each: {shared}. A block has 1 to 1,024 threads and at most 48 KiB of shared memory.",
               "有一次核函数启动失败。线程块：{blocks}；每块线程：{threads}；每块共享内存：{shared}。每块有 1 到 1,024 个线程，最多 48 KiB 共享内存。"),
    "where_live": (" ({where})", "（{where}）"),
    "given": ("given by the judge", "评判程序给的"),
    "its": ("line {line}", "第 {line} 行"),
    "judges": ("the judge's step", "评判程序的步骤"),
    "others": ("and {n} more", "以及另外 {n} 项"),
    "barrier": ("A barrier is missing between the two: __syncthreads().", "两者之间缺少同步：__syncthreads()。"),
    "one_writer": ("Only one thread should write there, or all of them with an atomic operation (atomicAdd); where it is in a loop, a __syncthreads() between two "
                   "rounds may be missing.",
                   "这里只该由一个线程来写，或者都用原子操作（atomicAdd）；如果在循环里，也可能是两轮之间缺少 __syncthreads()。"),
    "by": (" (line {line})", "（第 {line} 行）"),
    "where_one": ("line {lines}", "第 {lines} 行"),
    "where": ("lines {lines}", "第 {lines} 行"),
    "where_twice": ("line {lines}, in two threads", "第 {lines} 行，两个线程"),
    "nowhere": ("no line known", "行号未知"),
    "peaks": ("  {peak:>12} of {budget:>12}  {case}", "  {peak:>12} / {budget:>12}  {case}"),
    "peaks_head": ("Peak and budget of the hidden cases:", "各隐藏用例的峰值与预算："),
    "printed": ("It printed:\n{text}", "它的输出：\n{text}"),
    "edit": ("Your file: {file}. Save it and run bench/puzzle {id} again (--watch does so by itself); --hint opens a hint.",
             "你的文件：{file}。保存后再运行 bench/puzzle {id} --lang zh（--watch 会自动评判）；--hint 给一条提示。"),
    "made": ("{file} is new: a copy of the puzzle, for you to edit.", "新建了 {file}：题目的副本，供你修改。"),
    "hint": ("Hint {n} of {of}:\n{text}", "提示 {n}/{of}：\n{text}"),
    "no_more": ("There are no more hints, so all of them again. --solution shows the solution.", "没有更多提示了，下面再列一遍。--solution 显示解答。"),
    "solution": ("What belongs in place of the lines from // TODO on; a + marks those that are new, a - those that go:\n\n{part}\n{text}", "把 // TODO 起的那一段换成下面这样，+ 标出新的行，- 标出去掉的行：\n\n{part}\n{text}"),
    "minutes": ("{n} min", "{n} 分钟"),
    "solved": ("solved", "已解决"),
    "changed": ("solved, changed since", "解决后又改过"),
    "begun": ("begun", "已开始"),
    "new": ("", ""),
    "table_head": ("| puzzle; `bench/puzzle NAME` copies it to `puzzles/`, for you to edit, and judges the copy | what it is | minutes |", "| 题目（`bench/puzzle 名字` 会把它复制到 `puzzles/`，改好后由它评判） | 内容 | 分钟 |"),
    "list_foot": ("{solved} of {of} solved. bench/puzzle 04 judges one; bench/puzzle --help says more.",
                  "已解决 {solved}/{of}。bench/puzzle 04 --lang zh 评判一题；bench/puzzle --help --lang zh 有更多说明。"),
    "list_foot_elsewhere": ("They are mended and judged in a clone of the course's repository: bench/puzzle 04.",
                            "题目在本课程仓库的克隆里修改和评判：bench/puzzle 04 --lang zh。"),
    "elsewhere": ("puzzles are mended and judged in a clone of the course's repository, where this is bench/puzzle; here --list lists them",
                  "题目在本课程仓库的克隆里修改和评判，命令是 bench/puzzle；这里用 --list 列出"),
    "building": ("building the host runtime, {mode} mode (once; a minute or two where nothing else runs, more where the machine is busy)",
                 "正在编译主机运行时，{mode} 模式（只此一次；机器空闲时一两分钟，忙时更久）"),
    "building_next": ("In fast mode it is right. Next come races and accesses out of bounds: building the host runtime, {mode} mode (once; a minute or two where "
                      "nothing else runs, more where the machine is busy)",
                      "fast 模式下已经正确。接下来检查竞争与越界：正在编译主机运行时，{mode} 模式（只此一次；机器空闲时一两分钟，忙时更久）"),
    "still_running": ("still running after {seconds} s ({mode} mode); it is stopped after {cpu_seconds} s of processor time, or {wall_seconds} s",
                      "{seconds} 秒后仍在运行（{mode} 模式）；用满 {cpu_seconds} 秒处理器时间或过了 {wall_seconds} 秒就停止"),
    "watching": ("watching {file}; Ctrl-C ends it", "正在监视 {file}；Ctrl-C 结束"),
    "class_none": ("no submissions", "没有提交"),
    "class_passed": ("passed", "通过"),
}

HELP_ZH = """用法：bench/puzzle [题目] [选项]

会显存不足的程序，由读者来改，评判程序几秒钟内给出结论。

  bench/puzzle [--list]     列出各题，以及哪些已解决
  bench/puzzle 04           评判第 04 章的题目（有两题时也可写 04-segments）。第一次会把题目复制到 puzzles/，供你修改
    --hint                  再给一条提示（共三条）
    --solution              显示解答并说明
    --watch                 每次保存后评判
    --lang zh               用中文
    --class DIR             评判一个文件夹里的提交：DIR/姓名/04-segments.cu，给出表格；--json FILE 另存为 JSON
    --file FILE             评判这个文件，而不是 puzzles/ 里的；只写章号时，按文件里有哪一题的函数来选
    --table                 改为输出 chapters/README.md 的表格；写明题目时，输出该章 README 的表格
    --seed N                隐藏数据的种子（默认每次不同）
    --modes fast,check,asan 主机运行时的模式，默认全部。末尾可加 gpu：用 nvcc 编译，在 GPU 上运行；
                            有 nvcc 和 GPU 时自动加上

需要 Python 3.8，以及 bench/run 安装的 g++、cmake 和 ninja。第一次要编译主机运行时，每个模式一次：机器空闲时各一两分钟，忙时更久。在 fast
模式下通过的，再用 check 模式（ThreadSanitizer）和 asan 模式（AddressSanitizer）评判；这两种到那时才编译。有 nvcc 和 GPU 时，全部通过的还要在
GPU 上再评判一次。

退出码：0 通过；1 没有通过；2 这里无法运行；64 用法错误。
"""


def say(sentence, language, /, **fields):
    return SENTENCES[sentence][LANGUAGES.index(language)].format(**fields)


def _size(number, language):
    return format_bytes(number).replace("bytes", ("bytes", "字节")[LANGUAGES.index(language)])


def _live(blocks, language):
    """The largest, those of one line and name together."""
    groups = collections.Counter()
    counts = collections.Counter()
    for block in blocks:
        key = (block["name"], block["line"])
        groups[key] += block["bytes"]
        counts[key] += 1
    lines = []
    for (name, line), size in groups.most_common(LARGEST):
        where = say("given", language) if line == 0 else say("judges", language) if line < 0 else say("its", language, line=line)
        times = f"{counts[name, line]} x " if counts[name, line] > 1 else ""
        lines.append(f"  {_size(size, language):>12}  {times}{name}{say('where_live', language, where=where)}")
    if len(groups) > LARGEST:
        lines.append("  " + say("others", language, n=len(groups) - LARGEST))
    return "\n".join(lines)


def _oom(fields, language):
    counted = -(-fields["asked"] // STEP) * STEP
    return say("oom", language, at=_at(fields, language), asked=_size(fields["asked"], language), name=fields["name"], budget=_size(fields["budget"], language),
               counted=say("counted", language, bytes=_size(counted, language)) if counted != fields["asked"] else "",
               free=_size(max(0, fields["budget"] - fields["live"]), language),
               live=say("live", language, live=_live(fields["blocks"], language)) if fields["blocks"] else "")


def _at(fields, language):
    line = fields.get("line")
    return say("line", language, line=line) if isinstance(line, int) and line > 0 else ""


def _where(lines, language):
    if not lines:
        return say("nowhere", language)
    sentence = "where_one" if len(lines) == 1 else "where" if len(set(lines)) > 1 else "where_twice"
    return say(sentence, language, lines=", ".join(map(str, dict.fromkeys(lines))))


def case_name(name, language):
    """What a judge calls a case."""
    return name if language == "en" else "，".join(said(part, CASES) for part in name.split(", "))


def explain(verdict, language, seed):
    """A verdict in words."""
    fields = dict(verdict)
    fields["at"] = _at(fields, language)
    for key in ("bytes", "memory", "output"):
        if key in fields:
            fields[key] = _size(fields[key], language)
    if verdict["kind"] in ("host_bytes", "pinned_bytes", "largest", "static_bytes", "host_arrays"):
        fields["allowed"] = _size(fields["allowed"], language)
    if "asked" in fields:
        fields["oom"] = _oom(fields, language)
    if isinstance(verdict.get("blocks"), list):
        blocks = verdict["blocks"]
        fields["live"] = _live([b for b in blocks if b["line"]] if verdict["kind"] == "leak" else blocks, language)
    if "lines" in fields:
        fields["where"] = _where(fields["lines"], language)
        fields["remedy"] = say("barrier" if len(set(fields["lines"])) > 1 else "one_writer", language)
    if verdict["kind"] == "threw":
        fields["by"] = say("by", language, line=fields["line"]) if fields.get("line", 0) > 0 else ""
    launch = fields.get("launch")
    fields["launch"] = say("launch", language, **{**launch, "shared": _size(launch["shared"], language)}) if launch else ""
    text = VERDICTS[verdict["kind"]][LANGUAGES.index(language)].format(**fields)
    if verdict["kind"] == "unread" and isinstance(verdict.get("oom"), dict):
        text = say("unread_oom", language, unread=text, oom=_oom(verdict["oom"], language))
    if verdict["kind"] == "passed":
        cases = verdict["cases"]
        if all(c["peak"] == c["budget"] for c in cases):  # the judge's arrays alone are the budget
            return text
        rows = [say("peaks", language, peak=_size(c["peak"], language), budget=_size(c["budget"], language), case=case_name(c["case"], language)) for c in cases]
        return "\n".join([text, say("peaks_head", language), *rows])
    if verdict.get("case"):
        text += "\n" + say("in_case", language, case=case_name(verdict["case"], language), seed=seed, deferred=say("deferred", language) if verdict.get("deferred") else "",
                           mode=say("mode", language, mode=verdict["mode"]) if verdict.get("mode", "fast") != "fast" else "")
    elif verdict.get("mode"):
        text += "\n" + say("in_run", language, mode=verdict["mode"], seed=seed)
    return text
