"""The messages of memory that is not the card's: the host's allocators, the killer, shared memory. For bench/explain."""

import re

from .figures import NUMBER, read_size
from .libraries import cuda
from .refusals import of_line
from .text import SIZE, Text, message, rule


@rule("cpu", "cpuallocator", r"defaultcpuallocator: ")
@rule("cpu", "you tried to", r"you tried to (?:allocate|mmap) [\d.,]+")
def cpu(before, after):
    if not (before.has(r"memory\W*$") or after.has(r"memory|bytes")):
        return None
    return message("cpu", "PyTorch, on the CPU", after.loose, "host_memory", facts={"windows"} if before.has(r"\\c10\\core") else (),
                   asked=after.whole(rf"you\s+tried\s+to\s+(?:allocate|mmap)\s+({NUMBER})\s+bytes")
                   or after.size(rf"you\s+tried\s+to\s+(?:allocate|mmap)\s+{SIZE}"))


@rule("mmap", "mmap", r"unable to mmap [\d]+ bytes")
@rule("mmap", "shared memory", r"unable to (?:allocate|open) shared memory")
@rule("mmap", "write to", r"unable to write to file </?torch")
@rule("mmap", "running low", r"node running low on memory")
@rule("mmap", "memory pressure", r"killed due to memory pressure \(oom\)")
@rule("mmap", "objectstorefull", r"objectstorefullerror")
@rule("mmap", "unable to allocate", r"unable to allocate [\d.]+~[kmgt]ib for an array")
@rule("mmap", "cannot allocate memory", r"\[errno 12\] cannot allocate memory", rank=2)
@rule("mmap", "cannot allocate memory", r"(?:mmap failed|fork|mmap|malloc|mlock|os ?error)\b[^\n]{0,40}: cannot allocate memory", rank=2)
@rule("mmap", "os error 12", r"cannot allocate memory \(os error 12\)", rank=2)
@rule("mmap", "memory allocation of", r"memory allocation of \d+ bytes failed", rank=2)
@rule("mmap", "malloc failed", r"out of memory, malloc failed", rank=2)
@rule("mmap", "runtime:", r"runtime: out of memory", rank=2)
@rule("mmap", "outofmemoryerror()", r"outofmemoryerror\(\)", rank=2)
@rule("mmap", "vector of size", r"cannot allocate vector of size", rank=2)
@rule("mmap", "help memory", r'out of memory\. type "?help memory', rank=2)
@rule("mmap", "insufficient memory", r"\(-4:insufficient memory\) failed to allocate \d+ bytes", rank=2)
@rule("mmap", "memory context", r"failed on request of size \d+ in memory context", rank=2, back=80)
@rule("mmap", "restart server", r"out of memory; restart server", rank=2)
@rule("mmap", "session crashed", r"session crashed after using all available ram", rank=2)
@rule("mmap", "more memory than", r"notebook tried to allocate more memory than is available", rank=2)
@rule("mmap", "cpu memory", r"cpu memory allocation failed", rank=2)
@rule("mmap", "bad_alloc", r"std::bad_alloc", rank=3)
@rule("mmap", "memoryerror", r"\bmemoryerror\b", rank=3)
def host(before, after):
    text = Text(after.lines[0])
    if text.has(r"Too\s+many\s+open\s+files"):
        return None
    if text.has(r"bad_alloc") and after.has(r"CUDA error|cudaError|out_of_memory"):
        return cuda(before, after)
    if text.has(r"node\s+running\s+low|memory\s+pressure|ObjectStoreFull"):
        used = after.first(rf"was\s+running\s+was\s+({NUMBER})\s?GB\s?/\s?({NUMBER})\s?GB")
        resident, limit = (read_size(figure, "GB") for figure in used) if used else (None, None)
        return message("ray", "Ray", text.loose, "host_memory", facts={"object_store" if text.has(r"ObjectStoreFull") else "node"}, resident=resident,
                       limit=limit)
    return message("host", "the host's allocator", text.loose, "host_memory",
                   facts={"shared_memory"} if text.has(r"shared\s+memory|file\s+</?torch") else (),
                   asked=text.whole(r"(?:unable\s+to\s+mmap|memory\s+allocation\s+of|tried\s+to\s+allocate|failed\s+to\s+allocate)\s+(\d+)\s+bytes")
                   or text.whole(r"memory\s+allocation\s+failed\s+n=(\d+)\b")
                   or text.size(rf"vector\s+of\s+size\s+{SIZE}")
                   or text.size(rf"Unable\s+to\s+allocate\s+{SIZE}\s+for\s+an\s+array"))


@rule("loader", "dataloader worker", r"dataloader worker \(pid(?:\(s\))? [^)]{1,2000}\) (?:is killed by signal|exited "
                                     r"unexpectedly)")
@rule("loader", "bus error", r"unexpected bus error encountered in worker")
def loader(before, after):
    killed = after.has(r"signal:\s+(?:Killed|Bus)|Bus\s+error") or after.has(r"exited\s+unexpectedly")
    shared = after.has(r"Bus\s+error|shared\s+memory|\bshm\b")
    other = after.first(r"killed\s+by\s+signal:\s+(?!Killed|Bus)(\w+)")
    return None if other or not killed else message(
        "loader", "PyTorch's DataLoader", after.loose, "host_memory", facts={"shared_memory", "bus"} if shared else ())


@rule("page_file", "1455", r"(?:winerror|os error) 1455\b")
@rule("page_file", "paging file", r"the paging file is too small")
@rule("page_file", "memory resources", r"not enough memory resources are available to (?:process|complete)")
def page_file(before, after):
    weights = after.has(r"os\s+error\s+1455")  # safetensors' way to say it
    workers = before.far.has(r"\bspawn_main\b|DataLoader")
    return message("page_file", "Windows", after.lines[0], "host_memory",
                   facts={"page_file", *({"page_file_load"} if weights else {"page_file_workers"} if workers else ())})


@rule("compiler", "killed signal", r"killed signal terminated program \w+")
@rule("compiler", "compiler error", r"internal compiler error: killed")
@rule("compiler", "died due to", r"died due to signal 9")
@rule("compiler", "llvm error", r"llvm error: out of memory")
@rule("compiler", "memory exhausted", r"virtual memory exhausted: cannot allocate memory")
@rule("compiler", "ptxas", r"ptxas (?:fatal|error)~: memory allocation failure")
def compiler(before, after):
    line = Text(after.lines[0])
    killed = line.has(r"killed|signal\s+9")
    return message("compiler", "a compiler", line.loose, "host_memory", facts={"compiler"} if killed else {"compiler", "compiler_refused"})


@rule("evicted", "low on resource", r"the node was low on resource: memory")
def evicted(before, after):
    used = after.first(r"was\s+using\s+(?:memory\s+)?(\d+)Ki\b")
    return message("evicted", "Kubernetes", after.lines[0], "host_memory", facts={"evicted"}, resident=read_size(used[0], "KiB") if used else None)


# A scheduler that ends what has had its time, or was called off: no memory.
TIME_IS_UP = re.compile(r"DUE TO TIME LIMIT|CANCELLED AT \d|walltime \d\S* exceeded|TERM_RUNLIMIT")
# A launcher that ends what is left after a failure.
SENT = re.compile(r"\b(?:sent|send\w{0,3}|via|(?<!died )with|using|escalat\w{1,6}|forcefully\w{0,8}|issu\w{1,3})\W[^\n]{0,60}$", re.I)
# A process that ended by the signal.
RECEIVED = re.compile(r"\b(?:exited|terminated|ended|died)\b[^\n;,.]{0,24}$|Negsignal\.$", re.I)
# What stands before "Killed" where a shell, a launcher, or a runtime says it: a script's line, a job's or a process's number.
SHELL = re.compile(r"(?:^|[:\]=\"(])\s{0,3}[+-]?\s{0,3}(?:\d{1,10}\s{0,4})?$|signal:?\s?$")


def not_killed(head, tail):
    """Whether the words say that nothing was killed for memory, or are no report of it."""
    if re.match(r"oomkilled", tail, re.I):
        if re.match(r"oomkilled\"?\s?[:=]\s?\"?(?:false|no\b|0\b)", tail, re.I):
            return True
        return not re.search(r"reason\W{1,6}$|status\W{1,6}$|^\W{0,3}$|\d/\d\s{0,4}$|killed\W{0,3}$|terminat\w{1,4}\W{1,3}$", head, re.I) \
            and not re.match(r"oomkilled\"?\s?[:=(]\s?\"?(?:true|yes|1\b|exit)|oomkilled\W{0,3}(?:$|exit|\d|137)", tail, re.I)
    if re.match(r"(?:sigkill|exit\w{0,2}(?: code| status)?[:= ]{0,2}137)\W{0,3}(?:cannot|can't|is\b|means)", tail, re.I):
        return True
    return bool(re.match(r"killed\b", tail, re.I)) and not SHELL.search(head)


# Managers that count a job's memory and end it themselves, without the system's killer, and how they say so.
MANAGERS = ((r"\bPBS\b|exceeded limit \d", "PBS"), (r"TERM_MEMLIMIT", "LSF"), (r"by YARN", "YARN"))


def limit_of_job(line):
    """How more host memory is asked for where a scheduler or a runtime ended the job: the command. None where nothing says which it was."""
    job = re.search(r"\b(?:StepId=|step )(\d{1,12})", line)
    ways = ((r"slurmstepd|\bsrun:|StepId=|exceeded (?:job|step) memory", f"sacct -j {job[1] if job else 'JOBID'} --format=JobID,ReqMem,MaxRSS; sbatch --mem=64G job.sh"),
            (r"\bPBS\b|exceeded limit \d", "qsub -l select=1:mem=64gb job.sh"),
            (r"TERM_MEMLIMIT", "bsub -M 64GB < job.sh"),
            (r"by YARN", "spark-submit --conf spark.executor.memoryOverhead=8g JOB"),
            (r'OOMKilled"\s?:', "docker run -m 64g IMAGE"),
            (r"OOMKilled", "kubectl set resources deployment/NAME --requests=memory=64Gi --limits=memory=64Gi"))
    return next((command for words, command in ways if re.search(words, line, re.I)), None)


@rule("killer", "memory", r"out of memory: kill(?:ed)? process \d+")
@rule("killer", "oom", r"oom(?:[-_]| )kill(?:er\b|:|'| event)")
@rule("killer", "due to memory used", r"killed \S+ due to memory used")
@rule("killer", "badness", r"sending sig(?:term|kill) to process \d+ [^\n]{0,80}badness")
@rule("killer", "by yarn", r"container killed by yarn for exceeding [^\n]{0,20}memory limits")
@rule("killer", "srun", r"srun: error: [^\n]{1,80}: out of memory")
@rule("killer", "oomkilled", r"oomkilled")
@rule("killer", "total-vm", r"killed process \d+ \([^)]{0,64}\),?(?: uid:?~\d+,)? total-vm", back=200)
@rule("killer", "exceeded", r"exceeded (?:job|step) memory limit", rank=2)
@rule("killer", "exceeded limit", r"job killed: v?mem \d+(?:kb)? exceeded limit", rank=2)
@rule("killer", "memlimit", r"term_memlimit: job killed", rank=2)
@rule("killer", "137", r"exit(?:ed)?(?: with)?(?: code| status)?[:=]?~137\b", rank=3)
@rule("killer", "-9", r"exit~code~: -9\b", rank=3)
@rule("killer", "sigkill", r"\bsigkill\b", rank=3)
@rule("killer", "signal", r"signal: killed", rank=3)
@rule("killer", "signal 9", r"signal 9\b", rank=3)
@rule("killer", "killed", r"(?m:^|\s)killed(?::? 9|\s{2,200}|\s{0,200}(?m:$))", rank=3)
def killer(before, after):
    head, tail = (text.lstrip() for text in of_line(before, after))
    if (re.match(r"sigkill", tail, re.I) and SENT.search(head) and not RECEIVED.search(head)) or not_killed(head, tail):
        return None
    near = Text("\n".join(before.lines[-40:]))
    text = Text("\n".join(after.lines[:12]))
    if TIME_IS_UP.search(near.raw + text.raw) and not text.has(r"out\s+of\s+memory|oom|memory\s+limit"):
        return None
    group = text.has(r"memory\s+cgroup|CONSTRAINT_MEMCG|OOMKilled|oom[-_]kill\s+event|srun:|memory\s+limit|memlimit|mem\s+\d+(?:kb)?\s+exceeded|by\s+YARN") \
        or near.has(r"memory\s+cgroup|CONSTRAINT_MEMCG|Memory\s+limit\s+reached|memory:\s+usage\s+\d+kB,\s+limit")
    m = message("killer", "Ollama" if Text("\n".join((head, tail))).has(r"llama\s+runner") else "the operating system", text.loose, "host_memory",
                facts={"cgroup"} if group else (), resident=text.size(r"anon-rss:\s*(\d+)(kB)\b"),
                limit=near.size(r"memory:\s+usage\s+\d+kB,\s+limit\s+(\d+)(kB)\b") if group else None)
    if re.search(r"ninja: build|g?make(?:\[\d+\])?: \*\*\*|\bcc1plus\b|\brustc\b|FAILED: \S+\.o\b", near.raw[-2000:] + text.raw):
        m.facts.add("compiler")
    request = limit_of_job(head + tail)
    if group and request:
        m.facts.add("limit_of_job")
        m.values["request"] = request
        manager = next((name for words, name in MANAGERS if re.search(words, head + tail, re.I)), None)
        if manager:
            m.facts.add("manager")
            m.values["manager"] = manager
    if re.search(r"\bof\s+this\s+unit\b|result\s+'oom-kill'", head + tail, re.I):
        m.facts.add("unit")  # systemd's words, also for a unit's own limit
    if text.has(r"^\W{0,3}killed:\s9"):
        m.facts.add("mac")  # whose shells add the number
    victim = text.first(r"Killed\s+process\s+(\d+)\s+\(([^)]{1,64})\)")
    if victim:
        m.values.update(victim=victim[1], victim_id=victim[0])
    elif text.has(r"^.{0,80}invoked\s+oom-killer") or before.has(r"invoked\s*$"):
        m.facts.add("invoked")
    if not text.has(r"out\s+of\s+memory|oom|total-vm|memory\s+limit|memlimit|exceeded\s+limit|memory\s+used|badness"):
        m.facts.add("only_killed")
    runner = text.first(r'runner\.size="([\d.]{1,8}\s[KMGT]iB)"\s+runner\.vram="([\d.]{1,8}\s[KMGT]iB)"')
    if runner:
        m.facts.add("killed_on_card")
        m.values.update(model_size=runner[0], on_card=runner[1])
    return m
