# python3 lesson.py: torch.utils.checkpoint runs a layer, keeps its input only, and runs it again in the backward pass.
# The layers are lesson.cu's: h = x W1, a = max(h, 0)^2, next x = x + a W2. In the
# backward pass of square() and relu() two tensors of 1 MiB more wait than there, and weights' gradients are stored.
import torch
from torch.utils.checkpoint import checkpoint
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
def layer(x, w1, w2, again):
    if again:
        return checkpoint(layer, x, w1, w2, False, use_reentrant=False)  # THE MITIGATION: only x, w1 and w2 stay
    return x + (x @ w1).relu().square() @ w2

def train(again):
    torch.manual_seed(0)
    weights = [torch.randn(shape).mul_(0.03).requires_grad_() for shape in 8 * [(64, 256), (256, 64)]]
    optimizer = torch.optim.SGD(weights, lr=1e-5)
    for _ in range(3):
        x = torch.rand(1024, 64)
        for w1, w2 in zip(weights[::2], weights[1::2]):
            x = layer(x, w1, w2, again)
        x.backward(x.detach())  # the loss is |x|^2 / 2, whose gradient is x
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([w.detach().flatten() for w in weights])

(kept, peak), (same, less) = measure(lambda: train(False)), measure(lambda: train(True))
print(f"keep every h and a                 peak {peak / 2**20:5.2f} MiB")
print(f"keep x only, compute h and a again peak {less / 2**20:5.2f} MiB")
assert torch.equal(kept, same) and peak - less > 0.98 * 7 * 2**21, "the same weights, 7 layers' h and a less"
print("PASS")
