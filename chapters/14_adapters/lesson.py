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
    w = weights.clone().requires_grad_()
    a, b = lora_a.clone().requires_grad_(frozen), torch.zeros(512, 8).requires_grad_(frozen)
    if frozen:
        w.requires_grad_(False)  # THE MITIGATION: no gradient and no moments of w
    adam = torch.optim.Adam([p for p in (w, a, b) if p.requires_grad], lr=3e-3, foreach=False)  # one rate for both ways
    for step in range(100):
        x = 2 * torch.rand(64, 512) - 1  # in each step others
        adam.zero_grad()
        ((x @ w.T + (x @ a.T) @ b.T - x @ wanted.T) ** 2).sum().backward()
        adam.step()
    with torch.no_grad():
        return w, new @ w.T + (new @ a.T) @ b.T, new @ (w + b @ a).T

torch.manual_seed(0)
weights, lora_a = [0.05 * (2 * torch.rand(n, 512) - 1) for n in (512, 8)]
wanted = weights + 0.1 * (2 * torch.rand(512, 1) - 1) * (2 * torch.rand(512) - 1)  # the change has rank 1
new = 2 * torch.rand(64, 512) - 1  # samples that no step has seen
((_, y, _), peak), ((same, z, merged), less) = measure(lambda: train(False)), measure(lambda: train(True))
off, near = [float((v - new @ wanted.T).norm() / (new @ (weights - wanted).T).norm()) for v in (y, z)]
print(f"full                peak {peak / 1024:5.0f} KiB, new y is off by {off:.4f}")
print(f"adapter of rank 8   peak {less / 1024:5.0f} KiB, new y is off by {near:.4f}")
assert less < 0.6 * peak and near < 0.1 and same.equal(weights) and torch.allclose(merged, z, atol=1e-3), "w unchanged"
print("PASS")
