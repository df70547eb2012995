# python3 lesson.py: the largest batch under a budget, found by trying. PyTorch can limit a process on a GPU
# (set_per_process_memory_fraction), not on a CPU: here a step whose peak is above the budget counts as out of memory.
# At its peak only two of four gradients exist: less than in lesson.cu. No ReLU, and no step that fails halfway here.
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

def step(batch):
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256, bias=False) for _ in range(4)])
    y = model(torch.rand(batch, 256))
    y.backward(y.detach())  # the loss is |y|^2 / 2, whose gradient is y
    return model[0].weight.grad

budget, recipe = 11 * 2**20, 2048
before, peak = measure(lambda: step(recipe))
print(f"batch {recipe}, without the budget     peak {peak / 2**20:5.1f} MiB")
good, bad = 1, recipe
for _ in range(11):  # bisects 2^11 batches; lesson.cu doubles first
    batch = (good + bad) // 2
    if measure(lambda: step(batch))[1] > budget:
        bad = batch
    else:
        good = batch  # THE MITIGATION: what fits is found by trying
fitting, too_large = measure(lambda: step(good))[1], measure(lambda: step(good + 1))[1]
print(f"batch {good}, the largest that fits  peak {fitting / 2**20:5.1f} MiB")
assert fitting <= budget < too_large, "one sample more is out of memory"
assert torch.equal(step(recipe), before), "the recipe's gradient before and after is bit-equal"
print("PASS")
