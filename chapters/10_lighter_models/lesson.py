# python3 lesson.py: a convolution of 64 channels, and a depthwise and a pointwise one whose products are its weights.
# 64 x 64 pixels, not 40 x 40: on a CPU oneDNN copies weights, some 300 KiB, which at 40 x 40 would hide the difference.
import torch
from torch.nn import functional as F
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

torch.backends.cudnn.allow_tf32 = False
image, depthwise, pointwise = torch.rand(1, 64, 64, 64), torch.rand(64, 1, 3, 3) - 0.5, torch.rand(64, 64, 1, 1) - 0.5

def forward(separable, training):
    layers = [(pointwise * depthwise.transpose(0, 1), 1)]  # [64, 64, 1, 1] * [1, 64, 3, 3], with groups
    if separable:
        layers = [(depthwise.clone(), 64), (pointwise.clone(), 1)]  # THE MITIGATION: depthwise, then pointwise
    x = image.contiguous(memory_format=torch.channels_last)  # a copy, so that it is counted; as lesson.cu has it
    for w, groups in layers:
        w.requires_grad_(training)  # then the graph keeps x for the backward pass
        x = F.conv2d(x, w, padding=w.shape[2] // 2, groups=groups)
    return x.detach()

results, peaks = [], {}
for training, why in (True, "training"), (False, "inference"):
    for separable, what in (False, "convolution"), (True, "separable"):
        result, peaks[what, why] = measure(lambda: forward(separable, training))
        results.append(result)
        print(f"{what + ', ' + why:22}  peak {peaks[what, why] / 1024:8.2f} KiB")
assert all(torch.allclose(result, results[0], atol=1e-4) for result in results), "the same result"
assert peaks["separable", "training"] > peaks["convolution", "training"], "in training one map more, fewer weights"
assert peaks["separable", "inference"] < peaks["convolution", "inference"], "less memory in inference"
print("PASS")
