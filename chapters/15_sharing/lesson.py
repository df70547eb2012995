# python3 lesson.py: two processes on one device. PyTorch on a CPU has no such thing. Both are simulated in one, with a
# device of 256 MiB and a list of what the neighbour's allocator keeps. It shows the sum only: what one caches, another
# lacks. On a GPU a cache is memory_reserved() - memory_allocated(), and torch.cuda.mem_get_info() shows the device.
import torch
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")

def measure(work):  # what work() returns, and its peak in bytes; these lines are the same in every lesson.py
    if torch.cuda.is_available():
        work()  # once before, because cuBLAS keeps the workspace that its first call takes
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return work(), torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(profile_memory=True) as record:  # + allocated, - freed: what is live is their sum
        result = work()
    memory = [(e.start_ns(), e.nbytes()) for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    return result, torch.tensor([0] + [size for _, size in sorted(memory)]).cumsum(0).max().item()

total = 256 * 2**20
cache = []  # freed by the neighbour, and not given back

def job():
    if total // 2 > total - sum(block.nbytes for block in cache):
        return None  # out of memory: nobody else can take a cached byte
    return torch.full((total // 8,), 2.0).sum().item()  # half of the device: 4 bytes a number

def run():
    result, peak = measure(job)
    return result, (peak + sum(block.nbytes for block in cache)) / 2**20

alone, peak = run()
print(f"we are alone: peak of the device       {peak:8.0f} MiB")
cache.append(torch.ones(total // 10 * 6 // 4))  # the neighbour has worked, with six tenths
refused, peak = run()
print(f"our job, 128 MiB: {'out of memory' if refused is None else 'done'}, peak  {peak:8.0f} MiB")
cache.clear()  # THE MITIGATION: torch.cuda.empty_cache(), in the neighbour's process
done, peak = run()
print(f"our job, 128 MiB: {'out of memory' if done is None else 'done'}, peak           {peak:8.0f} MiB")
assert alone is not None and refused is None, "out of memory beside the cache, and only there"
assert done == alone, "the same result, once the cache is given back"
print("PASS")
