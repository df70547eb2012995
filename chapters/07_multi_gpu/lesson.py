# python3 lesson.py: eight ranks, simulated in one process: a row of each tensor is one rank's memory. On GPUs each is a
# process, and the two steps are dist.reduce_scatter_tensor() and dist.all_gather_into_tensor(), as in ZeRO, stage 1.
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

P, samples = 2**18, torch.rand(8, 2**18)  # parameters; and what each rank has of the data
def train(sliced):
    w, g = torch.zeros(8, P), torch.zeros(8, P)
    owned = 8 * [slice(0, P)]
    if sliced:
        owned = [slice(r * P // 8, (r + 1) * P // 8) for r in range(8)]  # THE MITIGATION: each rank updates one slice
    parts = [torch.nn.Parameter(w[r, own]) for r, own in enumerate(owned)]  # these share w's memory
    optimizer = torch.optim.AdamW(parts, lr=1e-2, fused=True)  # its moments are as long as the parts
    for r, own in enumerate(owned):
        parts[r].grad = g[r, own]
    for _ in range(3):
        torch.sub(w, samples, out=g)  # the loss is |w - sample|^2 / 2
        g.copy_(g.sum(0))  # all-reduce; the sum is 1 MiB more, 1/8 MiB a rank. A slice for each is a reduce-scatter
        optimizer.step()
        for r, own in enumerate(owned):
            w[:, own] = w[r, own]  # all-gather; without slices all ranks have the same already
    return w

(whole, peak), (sliced, less) = measure(lambda: train(False)), measure(lambda: train(True))
print(f"all-reduce, update everything           peak {peak / 8 / 2**20:.2f} MiB")
print(f"reduce-scatter, update 1/N, all-gather  peak {less / 8 / 2**20:.2f} MiB")
assert torch.allclose(torch.cat([whole, sliced]), whole[0], atol=1e-6), "equal weights on all ranks"
assert (peak - less) // 8 == 8 * P - 8 * P // 8, "1/N of the moments on each rank"
print("PASS")
