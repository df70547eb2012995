# python3 lesson.py: FP16 with FP32 master weights and a loss scale, by hand, as in lesson.cu. torch.autocast with
# GradScaler is another design: weights stay FP32, and the model computes with 16-bit copies of them.
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

inputs, start = 2 * torch.rand(4096, 128) - 1, 0.004 * torch.rand(128, 128) - 0.002

def train(dtype):
    x, w = inputs.to(dtype, copy=True), start.to(dtype, copy=True).requires_grad_()
    master, scale, done = w.detach(), 1.0, 0  # in FP32 w is its own master
    if dtype == torch.float16:
        master, scale = start.clone(), 2.0**36  # THE MITIGATION: FP32 masters, and a loss scale
    while done < 12:
        y = x @ w
        (gradient,) = torch.autograd.grad(y, w, y.detach() * (scale / y.numel()))  # dL/dy, a third array beside x and y
        if gradient.isfinite().all():  # the host waits for the answer; in lesson.cu the device decides
            w.detach().copy_(master.sub_(0.05 * gradient.float() / scale))
            done += 1
        else:
            scale /= 2  # it was too large, and the step is skipped
    return master - start

fp32, peak = measure(lambda: train(torch.float32))
fp16, half = measure(lambda: train(torch.float16))
off = float((fp16 - fp32).norm() / fp32.norm())
print(f"FP32  peak {peak / 2**20:5.3f} MiB\nFP16  peak {half / 2**20:5.3f} MiB, weights {100 * off:.2f} % off")
assert half + 2 * 2 * inputs.numel() < peak, "2 bytes less for each activation"
assert off < 0.01, "masters and scale keep the training as it is in FP32"
print("PASS")
