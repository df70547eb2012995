# python3 lesson.py: three levers, one after the other. A layer is two products with biases and a ReLU between them, and
# has no residual sum: not the bytes of lesson.cu. The momentum is stored in BF16, and computed with in FP32.
import torch
from torch.nn import Linear, ReLU, Sequential
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

def train(levers, steps, segments=1, rows=1024):  # the last segment is kept, so 1 is no checkpoint
    torch.manual_seed(0)
    model = Sequential(*[Sequential(Linear(64, 256), ReLU(), Linear(256, 64)) for _ in range(8)])
    m = 32 * [torch.zeros(1)]
    segments = 8 if levers > 0 else 1  # THE MITIGATION: checkpoints
    rows = 128 if levers > 1 else 1024  # THE MITIGATION: micro-batches
    for _ in range(steps):
        for x in torch.rand(1024, 64).split(rows):
            y = torch.utils.checkpoint.checkpoint_sequential(model, segments, x, use_reentrant=False)
            y.backward(y.detach())
        for k, w in enumerate(model.parameters()):
            total = 0.9 * m[k].float() + w.grad
            m[k] = total.to(torch.bfloat16 if levers > 2 else torch.float32)  # THE MITIGATION: momentum in 16 bits
            w.detach().sub_(2e-5 * total)
        model.zero_grad()
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()

start, runs = train(0, 0), [measure(lambda: train(levers, 6)) for levers in range(4)]
for what, (w, peak) in zip(("textbook", "+ checkpoints", "+ micro-batches", "+ 16-bit momentum"), runs):
    off = float((w - runs[0][0]).norm() / (runs[0][0] - start).norm())
    print(f"{what:17}  peak {peak / 2**20:5.2f} MiB  weights off by {off:.1e} of the way they moved")
    assert off < {"+ micro-batches": 1e-4, "+ 16-bit momentum": 0.01}.get(what, 1e-30), "the same, or nearly"
assert all(runs[k][1] > 1.1 * runs[k + 1][1] for k in range(3)), "each lever saves"
print("PASS")
