# python3 lesson.py: one layer, trained in full, then with an adapter of rank 8 beside frozen weights (LoRA); no peft.
# Both ways take more than lesson.cu: autograd keeps results of the products, and Adam has temporary tensors.
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

def train(frozen):
    w, a, b = weights.clone().requires_grad_(), lora_a.clone().requires_grad_(), torch.zeros(512, 8).requires_grad_()
    if frozen:
        w.requires_grad_(False)  # THE MITIGATION: no gradient and no moments of w
    trained = [p for p in (w, a, b) if p.requires_grad] if frozen else [w]
    adam = torch.optim.Adam(trained, lr=5e-3 if frozen else 3e-3, foreach=False)
    for step in range(60):
        adam.zero_grad()
        ((x @ w.T + (x @ a.T) @ b.T - target) ** 2).sum().backward()
        adam.step()
    with torch.no_grad():
        return w, x @ w.T + (x @ a.T) @ b.T, x @ (w + b @ a).T

torch.manual_seed(0)
weights = 0.05 * (2 * torch.rand(512, 512) - 1)
lora_a, x = 0.05 * (2 * torch.rand(8, 512) - 1), 2 * torch.rand(64, 512) - 1
target = x @ (weights + 0.1 * (2 * torch.rand(512, 1) - 1) * (2 * torch.rand(512) - 1)).T
(w, y, _), peak = measure(lambda: train(False))
(same, z, merged), less = measure(lambda: train(True))
off, near = [float((v - target).norm() / (x @ weights.T - target).norm()) for v in (y, z)]
print(f"full                peak {peak / 1024:5.0f} KiB, y is off by {off:.4f}")
print(f"adapter of rank 8   peak {less / 1024:5.0f} KiB, y is off by {near:.4f}")
assert less < 0.6 * peak and near < 0.1 and same.equal(weights) and torch.allclose(merged, z, atol=1e-3), "w unchanged"
print("PASS")
