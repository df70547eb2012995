# python3 lesson.py: three models make an image of a word: all resident, or one at a time. In decode() PyTorch's
# convolutions take scratch memory. So the other two are larger than lesson.cu's: matrices, for each pixel by itself.
import torch
torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
noise = torch.rand(256, 4) - 0.5  # 16 x 16 pixels, 4 channels

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
def denoise(vector, first, middle, last, x=noise):
    for _ in range(4):
        x = x - ((x @ first + vector).relu() @ middle).relu() @ last / 4
    return x.T.reshape(1, 4, 16, 16)
def decode(x, *weights):
    for w, side in zip(weights, (16, 32, 64, 128, 128)):
        x = torch.conv2d(torch.nn.functional.interpolate(x, side), w, padding=1).relu_()
    return x
shapes = {lambda word, table, matrix: table[word] @ matrix: [(512, 768), (768, 768)],  # the text encoder
          denoise: [(4, 768), (768, 768), (768, 4)],
          decode: [(64, 4, 3, 3), (32, 64, 3, 3), (16, 32, 3, 3), (16, 16, 3, 3), (3, 16, 3, 3)]}
models = {stage: [torch.rand(s, device="cpu") / 5 - 0.1 for s in shapes[stage]] for stage in shapes}
def generate(one_at_a_time):
    x, there = 320, []
    for stage, weights in models.items():
        there.append([w.to(noise.device, copy=True) for w in weights])
        x = stage(x, *there[-1])
        if one_at_a_time:
            there.clear()  # THE MITIGATION: the next model gets its memory
    return x
(together, top), (alone, low) = measure(lambda: generate(False)), measure(lambda: generate(True))
print(f"all resident: peak {top / 1024:.1f} KiB\none model at a time: peak {low / 1024:.1f} KiB")
assert torch.equal(together, alone) and low < 0.6 * top, "the same image in less memory"
print("PASS")
