# python3 lesson.py: the gradient of a batch, a few rows at a time. backward() adds to .grad, as lesson.cu's products do
# with beta = 1. The batch itself stays outside of what is measured, as in a data loader. Padding rows do not count.
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

inputs = torch.rand(4096, 256)
counts = torch.arange(4096) % 8 <= torch.arange(4096) // 512

def gradient(rows, own_divisor):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
    batches = [(inputs, counts)]
    if rows < 4096:
        batches = zip(inputs.split(rows), counts.split(rows))  # THE MITIGATION: few rows at a time, so few activations
    for x, counted in batches:
        divisor = counted.sum() * 4096 / rows if own_divisor else counts.sum()  # own: a mean of means, WRONG
        loss = (model(x).square().sum(1) * counted).sum() / 2
        (loss / divisor).backward()
    return model[0].weight.grad

whole, peak = measure(lambda: gradient(4096, False))
print(f"4096 rows at a time, the whole batch       peak {peak / 2**20:4.1f} MiB")
for own, what in (False, "one divisor for all "), (True, "each its own divisor"):
    micro, less = measure(lambda: gradient(512, own))
    off = float((micro - whole).norm() / whole.norm())
    print(f" 512 rows at a time, {what}  peak {less / 2**20:4.1f} MiB  gradient off by {off:.0e}")
    assert peak - less >= 3 * 4 * 256 * (4096 - 512), "three arrays at least without the other rows"
    assert off > 1e-3 if own else off < 1e-5, "the same gradient, unless each micro-batch has its own divisor"
print("PASS")
