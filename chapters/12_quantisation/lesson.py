# python3 lesson.py: INT8 weights, with a scale for each row. No public operator of PyTorch multiplies INT8 by FP32, so
# 16 rows at a time become FP32 for the product. lesson.cu's kernel needs no such copy.
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

torch.manual_seed(0)
w = (torch.rand(1024, 1024, device="cpu") - 0.5) / 8  # on the host, as in a file
x = 2 * torch.rand(1024) - 1

def in_int8(few):
    q, scale = torch.empty(1024, 1024, dtype=torch.int8), torch.empty(1024, 1)
    rows = 1024
    if few:
        rows = 16  # THE MITIGATION: FP32 for 16 rows at a time only
    for first in range(0, 1024, rows):
        piece = w[first:first + rows].to(x.device, copy=True)
        scale[first:first + rows] = piece.abs().amax(1, keepdim=True) / 127  # abs(): one FP32 piece more than lesson.cu
        q[first:first + rows] = piece.div_(scale[first:first + rows]).round_()
    return q, scale, torch.cat([s[:, 0] * (part.float() @ x) for part, s in zip(q.split(16), scale.split(16))])

y, peak = measure(lambda: w.to(x.device, copy=True) @ x)
print(f"FP32               peak {peak / 1024:5.0f} KiB")
for few, what in (False, "INT8, all at once"), (True, "INT8, 16 rows    "):
    (q, scale, result), other = measure(lambda: in_int8(few))
    error, off = ((w.to(x.device) - scale * q) / scale).abs().max(), (result - y).norm() / y.norm()
    print(f"{what}  peak {other / 1024:5.0f} KiB, a weight is off by {error:.3f} of its scale, y by {100 * off:.2f} %")
    assert 3 * other < peak if few else other > peak, "a third at most, with no FP32 matrix at any time; or all of it"
    assert 0.4 < error < 0.501 and off < 0.01, "half a scale, and 1 % of the result"
print("PASS")
