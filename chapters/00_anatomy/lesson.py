# python3 lesson.py: the layer of lesson.cu, Linear(8192, 8192) with AdamW, and a request that is refused. The bytes are
# those of tensors. The CUDA context and cuBLAS are outside of PyTorch's count: see torch.cuda.mem_get_info().
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

def inference():
    torch.manual_seed(0)
    with torch.no_grad():
        return torch.nn.Linear(8192, 8192, bias=False)(torch.rand(64, 8192))

def training():
    layer = torch.nn.Linear(8192, 8192, bias=False)
    optimizer = torch.optim.AdamW(layer.parameters(), fused=True)  # not fused, it takes temporary copies
    y = layer(torch.rand(64, 8192))
    y.backward(y.detach())  # the loss is |y|^2 / 2, whose gradient is y
    optimizer.step()  # makes the moments. The input is gone by then: 2 MiB less than in lesson.cu

(before, small), (_, large) = measure(inference), measure(training)
print(f"together, for inference:  peak {small / 2**20:8.1f} MiB")
print(f"together, for training:   peak {large / 2**20:8.1f} MiB")
assert small // 8192**2 == 4 and large // 8192**2 == 16, "4 bytes per weight for inference, 16 for training"
refused = False
try:
    torch.empty(2**50)
except RuntimeError:  # torch.OutOfMemoryError is one
    refused = True  # THE MITIGATION: go on below. PyTorch clears CUDA's error; the exception keeps tensors alive here
print(f"4 PiB more refused: {refused}; the output after it is bit-equal: {torch.equal(inference(), before)}")
assert refused and torch.equal(inference(), before), "the same output after a refused request"
print("PASS")
