"""What only looks like an out-of-memory message: words without an error around them, and texts about something else.
For bench/explain."""

import re

# Texts that are about another memory, or about none: (key of the reason in words_refusals.py, what has to be in it, expression). They
# are looked for in the whole log, and named where nothing else was found in it.
LOOKALIKES = tuple((key, needle.encode(), re.compile(pattern.encode())) for key, needle, pattern in (
    ("not_killed", "oomkilled", r"oomkilled\"?\s{0,3}[:=]\s{0,3}\"?(?:false|no\b|0\b)"),
    ("not_a_kill", "sigkill", r"sigkill_handler|(?:send|sending|was sent|via|(?<!died )with|escalat\w{1,6})\W[^\n]{0,60}\bsigkill\b"),
    ("not_tensor_memory", "tensor memory", r"out of resources?: tensor memory"),
    ("not_a_tactic", "tactic", r"insuff?icient to use tactic|skipping tactic \w{1,20} due to insuff?icient memory"),
    ("not_a_store", "maxmemory", r"not allowed when used memory > '?maxmemory"),
    ("not_a_device", "device", r"cuda-capable device\(s\) is/are busy|invalid device ordinal|no cuda-capable device is detected"),
    ("not_a_device", "no cuda gpus", r"no cuda gpus are available"),
    ("not_the_cause", "see root cause above", r"engine core initialization failed\. see root cause above"),
    ("not_the_cards", "shared memory", r"shared memory size limit exceeded|out of resources?: shared memory|uses too much shared data"
                                       r"|shared memory[^\n]{0,40}hardware limit"),
    ("not_registers", "out of resource", r"out of resources?: (?:registers|threads)"),
    ("not_registers", "too many resources", r"too many resources requested for launch"),
    ("not_a_size", "overflow", r"storage size calculation overflowed"),
    ("not_the_time", "time limit", r"due to time limit"),
    ("not_the_chips", "vmem", r"memory space vmem|scoped vmem"),
    ("not_the_cards", "too much shared", r"uses too much shared data"),
    ("not_an_encoder", "encode", r"openencodesession\w{0,4}[^\n]{0,60}out of memory|nvenc[^\n]{0,80}out of memory"),
    ("not_a_heap", "heap", r"javascript heap out of memory|java heap space|reached heap limit|gc overhead limit"),
    ("not_a_heap", "java.lang.outofmemoryerror", r"java\.lang\.outofmemoryerror"),
    ("not_an_attribute", "attribute", r"has no attribute '?\"?(?:outofmemoryerror|is_oom)"),
    ("not_a_segfault", "exitcode", r"\"?exitcode\"?\s{0,3}[:=]\s{0,3}139\b"),
    ("not_a_segfault", "segmentation fault", r"segmentation fault"),
    ("not_a_disk", "free disk space", r"not enough free disk space"),
    ("not_a_disk", "no space left", r"\[errno 28\]|no space left on device"),
    ("not_a_file", "too many open files", r"too many open files"),
    ("not_an_address", "illegal memory access", r"illegal memory access"),
    ("not_a_failure", "not a failure", r"is not a failure"),
    ("not_a_message", "message", r"received message larger than max"),
    ("not_a_quota", "quota", r"(?:resource_exhausted|429)[^\n]{0,80}quota|quota exceeded"),
))

# The figures that a text has for a reason: (key, the text that is said with them, expression). They stand near what was found, and
# are shown as they are printed.
AROUND = (400, 600)  # characters before and after its beginning
FIGURES = tuple((key, text, re.compile(pattern, re.I)) for key, text, pattern in (
    ("not_killed", "not_killed_signal", r"exit\s?code\"?[:=\s]{1,3}(?P<code>137)\b"),
    ("not_killed", "not_killed_figures", r"exit\s?code\"?[:=\s]{1,3}(?P<code>\d{1,3})\b"),
    ("not_a_kill", "not_a_kill_figures", r"(?:return code|exit code|exitcode)\s{0,3}[:=]\s{0,3}(?P<code>[1-9]\d{0,2})\b"),
    ("not_the_cards", "not_the_cards_figures", r"required: (?P<asked>\d{1,12}), hardware limit: (?P<limit>\d{1,12})"),
    ("not_the_cards", "not_the_cards_figures", r"requested (?P<asked>\d{1,12}), available: (?P<limit>\d{1,12})"),
    ("not_the_cards", "not_the_cards_figures", r"shared data \((?P<asked>0x[0-9a-f]{1,9}) bytes, (?P<limit>0x[0-9a-f]{1,9}) max"),
    ("not_registers", "not_registers_figures",
     r"out of resources?: (?P<what>registers|threads), required: (?P<asked>\d{1,12}), hardware limit: (?P<limit>\d{1,12})"),
    ("not_tensor_memory", "not_tensor_memory_figures", r"required: (?P<asked>\d{1,12}), hardware limit: (?P<limit>\d{1,12})"),
    ("not_a_tactic", "not_a_tactic_figures", r"tactic device request: (?P<asked>\d{1,9} ?MB) available: (?P<limit>\d{1,9} ?MB)"),
    ("not_a_size", "not_a_size_figures", r"sizes=\[(?P<sizes>[\d, ]{1,120})\]"),
    ("not_the_time", "not_the_time_figures", r"cancelled at (?P<when>\d{4}-\d\d-\d\dT[\d:]{5,8}) due to time limit"),
    ("not_the_chips", "not_the_chips_figures", r"exceeded scoped vmem limit by (?P<over>[\d.]{1,12}[KMG]?)(?=[.,;\s]|$)"),
    ("not_a_heap", "not_a_heap_figures", r"-> (?P<used>\d{1,7}\.\d) \(\d{1,7}\.\d\) MB"),
    ("not_a_disk", "not_a_disk_figures", r"expected file size is: (?P<asked>[\d.]{1,12} [KMGT]?B)\.[^\n]{0,300}only has (?P<limit>[\d.]{1,12} [KMGT]?B)"),
    ("not_a_disk", "not_a_disk_file", r"no space left on device: ['\"](?P<file>[^'\"\n]{1,120})['\"]"),
    ("not_a_failure", "not_a_failure_figures", r"trying to allocate (?P<asked>[\d.]{1,12}\s?[KMGT]?i?B)"),
    ("not_a_message", "not_a_message_figures", r"larger than max \((?P<asked>\d{1,15}) vs\. (?P<limit>\d{1,15})\)"),
))


def figures_of(key, around):
    """(the text that is said for the reason, its figures as they stand in what is around it)."""
    for of, text, pattern in FIGURES:
        found = pattern.search(around) if of == key else None
        if found:
            return text, found.groupdict()
    return key, {}


# Before the words on their line: they are denied, asked about, or part of a program. After a colon begins an error of its own:
# "could not allocate: out of memory" denies nothing.
DENIED = re.compile(
    r"\b(?:no|not|never|without|avoid\w{0,4}|prevent\w{0,4}|\w{1,6}n't|instead of|rather than|protect\w{0,4} (?:from|against)|in case of|"
    r"(?:if|when|whenever) (?:it|you|we|there)|how (?:to|do|can)|what (?:is|are|does|causes)|why|whether|to (?:fix|solve|catch|handle|debug|reproduce)|"
    r"except|catch(?:es)?|class|import|isinstance|assertRaises|raises|hasattr|issubclass|attribute|handles?|handling|simulat\w{0,4}|tests? for|"
    r"(?:you|it|this|one) (?:may|might)|means|about|free of|fixed|fixes|solved|resolved|used to)\b(?:[^.!?;:\n]|\.(?!\s)){0,60}$|"
    r"^\s{0,40}(?:if|elif|raise|return|assert|print|log(?:ger|ging)?\.\w{1,20}|warnings\.warn)\b[^\n]{0,80}[\"'(][^\"'\n]{0,30}$|没有|避免|防止|如何|怎么|解决[^。\n]{0,20}$|不会|未发生", re.I)
# After them.
DENIED_AFTER = re.compile(
    r"^[^.\n]{0,40}(?:\?|？|\b(?:did|do|does|was|is|has|were|will|would)(?:n't| not)\b|\bnever\b)|^[^.,\n]{0,40}\b(?:false|none|disabled|fixed|solved|resolved|"
    r"prevention|checker|detector|handler|guard|protection|tutorial|course|guide|risk)\b|^[\w \"'-]{0,24}[:=]\s?(?:0|no|off)\b(?! ?\w)|"
    r"^[^.\n]{0,20}(?:没有发生|怎么办|如何)", re.I)
# Somewhere around words that have no figures: what makes an error of them.
ERROR = re.compile(
    r"\.cuh?:\d{1,6}: |error|exception|fail|fatal|panic|abort|terminat|warn|cannot|could not|couldn't|unable|traceback|core dumped|crash|signal|killed|\boom\b|exit|status|"
    r"\b(?:ran|run|runs|running|went|goes|hits?|got|gets?|getting|gives?|throws?|threw|encounter\w{0,4})\b|\bE\d{4}\b|\[E\]|报错|错误|失败|异常|爆", re.I)


# The phrase with nothing around it is what somebody asks who has no more than that.
BARE = {f"{card}out of memory" for card in ("", "cuda ", "cuda error: ", "hip ", "gpu ")}


def is_bare(text):
    return len(text) < 100 and " ".join(text.lower().split()).strip("\"'`.!") in BARE


def of_line(before, after):
    """The text of the line of a trigger, before it and from it on."""
    head = "" if before.ends_line or not before.lines else before.lines[-1]
    head += " " if before.ends_blank else ""
    return head[-300:], (after.lines[0] if after.lines else "")[:300]


def only_words(before, after, rank):
    """Whether the words of a message that has no figures are no message: denied, or, of the rank that is only a sign, without an
    error around them."""
    head, tail = of_line(before, after)
    words = re.match(r"[^\n]{0,60}?(?:memory\w{0,5}|killed)", tail, re.I)
    if DENIED.search(head) or (words and DENIED_AFTER.search(tail[words.end():])):
        return True
    if rank != 3 or is_bare(before.raw + after.raw):
        return False
    # As it stands there: a logger's "[Fatal]" is taken off the lines, and is a word all the same.
    around = " ".join((*before.raw[-700:].splitlines()[-6:], *after.raw[:500].splitlines()[:4]))
    return not ERROR.search(re.sub(r"out ?of ?memory(?:error)?|memoryerror", "", around, flags=re.I)) and not re.search(
        r"(?:outofmemory|memory)(?:error)?\s?[:(]", tail, re.I)
