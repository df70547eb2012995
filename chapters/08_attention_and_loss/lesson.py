# python3 lesson.py: attention with a running maximum and sum, keys and values a few at a time. In a program one calls
# F.scaled_dot_product_attention, whose kernels do this; below it only checks the result.
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

q, k, v = (4 * torch.rand(3, 1024, 32) - 2)  # outside of what is measured: 0.375 MiB

def attention(tiled):
    pieces = [(k, v)]
    if tiled:
        pieces = zip(k.split(16), v.split(16))  # THE MITIGATION: the scores of 16 keys at a time, never all of them
    largest, total, out = torch.full((1024, 1), -torch.inf), torch.zeros(1024, 1), torch.zeros(1024, 32)
    for keys, values in pieces:
        score = q / 32**0.5 @ keys.T
        now = torch.maximum(largest, score.amax(1, keepdim=True))
        weight = score.sub_(now).exp_()
        shrink = (largest - now).exp()  # what was summed under the old maximum counts less
        total = total * shrink + weight.sum(1, keepdim=True)
        out = out * shrink + weight @ values
        largest = now
    return out / total

expected = torch.nn.functional.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None])[0, 0]
(stored, peak), (tiled, less) = measure(lambda: attention(False)), measure(lambda: attention(True))
print(f"textbook: every score in memory      peak {peak / 2**20:4.2f} MiB")
print(f"tiled: a running maximum and sum     peak {less / 2**20:4.2f} MiB")
assert all((y - expected).abs().max() < 1e-5 * expected.abs().max() for y in (stored, tiled)), "the same output"
assert peak - less == 4 * 1024 * (1024 - 16), "not the scores of all keys"
print("PASS")
