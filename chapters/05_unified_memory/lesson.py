# python3 lesson.py: the state of 8 layers waits on the host, and takes turns in two buffers of the device. A CPU has no
# second memory: only what work() allocates counts there. Nothing here is managed memory, and no copy overlaps.
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

start = (torch.arange(8 * 2 * 2**18, device="cpu") % 1000 * 0.001).view(8, 2, 2**18)  # of each layer weights, momentum
host = torch.empty_like(start, pin_memory=torch.cuda.is_available())
def update(w, momentum):  # SGD; the loss is |w - 1|^2 / 2
    w.sub_(momentum.mul_(0.9).add_(w).sub_(1), alpha=0.1)

def on_device():
    layers = torch.empty(8, 2, 2**18).copy_(start)
    for i in range(3 * 8):
        update(*layers[i % 8])
    return layers

def streamed(count=8):
    host.copy_(start)
    count = 2  # THE MITIGATION: two buffers take turns, as in lesson.cu. Copies wait here, so even one would do
    buffers = torch.empty(count, 2, 2**18)
    for i in range(3 * 8):
        buffers[i % count].copy_(host[i % 8])
        update(*buffers[i % count])
        host[i % 8].copy_(buffers[i % count])  # home again, before another layer has the buffer

(expected, peak), (_, less) = measure(on_device), measure(streamed)
print(f"every layer on the device    peak {peak >> 20:2} MiB\nstreamed through two buffers peak {less >> 20:2} MiB")
assert torch.equal(expected.cpu(), host) and peak > 3.9 * less, "the same state, and two layers instead of eight"
print("PASS")
