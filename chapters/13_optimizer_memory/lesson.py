# python3 lesson.py: Adam's moments in a byte each, a scale for 256, and codes that are cubes: dense near 0. PyTorch has
# no such optimizer (torchao has). One of 16 layers at a time is FP32 here, none in lesson.cu. The target isn't counted.
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

def store(x):
    scale = x.abs().amax(1, keepdim=True) + 1e-30
    return (127 * x.sign() * (x / scale).abs() ** (1 / 3)).round_().to(torch.int8), scale

def load(stored):
    return (stored[0] / 127) ** 3 * stored[1]

def train(store, load):  # FP32: functions that return what they get
    w, m, v = torch.zeros(16, 64, 256), 16 * [store(torch.zeros(64, 256))], 16 * [store(torch.zeros(64, 256))]
    for t in range(1, 31):
        for i in range(16):
            g = w[i] - target[i]  # the loss is |w - target|^2 / 2
            new_m, new_v = load(m[i]).lerp(g, 0.1), load(v[i]).lerp(g * g, 0.001)
            w[i] -= 0.01 * new_m / (1 - 0.9**t) / ((new_v / (1 - 0.999**t)).sqrt() + 1e-8)
            m[i], v[i] = store(new_m), store(new_v)  # THE MITIGATION: only these bytes stay until the next step
    return w

torch.manual_seed(0)
target = (torch.rand(16, 64, 256) - 0.5) / 4
(whole, peak), (light, less) = measure(lambda: train(lambda x: x, lambda x: x)), measure(lambda: train(store, load))
off, near = [float((w - target).norm() / target.norm()) for w in (whole, light)]
print(f"FP32    peak {peak / 1024:5.0f} KiB, off by {off:.4f}\n8 bits  peak {less / 1024:5.0f} KiB, off by {near:.4f}")
assert less < 0.6 * peak and near < off + 0.02, "a quarter of the moments' bytes, weights as near to the target"
print("PASS")
