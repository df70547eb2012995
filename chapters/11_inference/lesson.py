# python3 lesson.py: layers h = x W, y = x + silu(h), with the graph that a backward pass needs and without it. What an
# operation returns is a new tensor, so inference has three buffers at a time here. lesson.cu has two. Outputs that pile
# up on the device are in lesson.cu only, as a CPU has no second memory for them.
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

def forward(layers, training):
    torch.manual_seed(0)
    torch.set_grad_enabled(True)
    weights = [torch.randn(64, 64).mul_(0.05).requires_grad_() for _ in range(layers)]
    if not training:
        torch.set_grad_enabled(False)  # THE MITIGATION: as with torch.no_grad() nobody keeps x or h
    x = torch.rand(1024, 64)
    for w in weights:
        x = x + torch.nn.functional.silu(x @ w)
    return x.detach()

for layers in 16, 32, 64:
    kept, peak = measure(lambda: forward(layers, True))
    freed, less = measure(lambda: forward(layers, False))
    print(f"training, peak {peak / 2**20:5.2f} MiB  inference, peak {less / 2**20:5.2f} MiB  ({layers} layers)")
    x, weights = 4 * 1024 * 64, 4 * 64 * 64 * layers  # bytes
    assert torch.equal(kept, freed), "the same outputs, bit-equal"
    assert peak - weights >= (2 * layers + 1) * x, "x and h of each layer, and the output"
    assert less - weights == 3 * x, "three buffers in inference, whatever the depth"
print("PASS")
