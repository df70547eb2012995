# python3 lesson.py: eight tensors of 4 MiB, every other one freed, then one of 12 MiB. PyTorch cannot map free pages
# side by side. The nearest is a table: a list of pieces that may lie anywhere, as in a paged KV cache (chapter 11).
# Against fragments its own allocator has a setting, for GPUs: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.
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

def run(in_a_table):
    # This list plays an allocator: what is "free" is free in it. To PyTorch all of it is allocated.
    reserved = [torch.full((2**20,), float(i)) for i in range(8)]  # blocks of 4 MiB, which are never given back
    free = reserved[1::2]
    large = []
    if in_a_table:
        large = free[:3]  # THE MITIGATION: three free blocks, wherever they are
    if not large:  # a free block has 4 MiB, too few: a new one
        large = [torch.empty(3 * 2**20)]
    for piece in large:
        piece.fill_(8.0)
    return reserved[0::2], large

for table, what in (False, "a new block of 12 MiB"), (True, "three free blocks, in a table"):
    (live, large), peak = measure(lambda: run(table))
    print(f"peak reserved {peak >> 20} MiB  {what}")
    assert peak == (32 if table else 44) * 2**20, "12 MiB more only where no free block will do"
    assert all(torch.all(block == 2.0 * i) for i, block in enumerate(live)), "live tensors keep their contents"
    assert sum(int((piece == 8.0).sum()) for piece in large) == 3 * 2**20, "the large one has all of its 12 MiB"
print("PASS")
