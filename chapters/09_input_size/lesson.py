# python3 lesson.py: a 3 x 3 convolution by im2col, which PyTorch calls unfold: whole, in strips, and (which lesson.cu
# has not) of a smaller picture. Picture and result wait on the host and are not measured. F.conv2d checks the result.
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

weights = torch.rand(16, 3, 3, 3) - 0.5

def convolve(picture, result, strips):
    side = rows = picture.shape[3] - 2  # around the picture is a border of zeros
    if strips:
        rows = 32  # THE MITIGATION: a strip of rows at a time, and its halo, a row above and one below
    for first in range(0, side, rows):
        strip = picture[:, :, first:first + rows + 2].to(weights.device, copy=True)
        columns = F.unfold(strip, 3)[0]  # 27 numbers for each pixel
        result[:, first:first + rows] = (weights.view(16, 27) @ columns).view(16, rows, side)
        del strip, columns

whole = torch.rand(1, 3, 512, 512, device="cpu")
small = F.interpolate(whole, (224, 224), mode="bilinear", antialias=True)
peaks = []
for image, strips, rows in (whole, False, 512), (whole, True, 32), (small, False, 224):
    picture, result = F.pad(image, (1, 1, 1, 1)), torch.empty(16, *image.shape[2:], device="cpu")
    _, peak = measure(lambda: convolve(picture, result, strips))
    peaks.append(peak)
    print(f"{image.shape[2]} x {image.shape[3]}, {rows:3} rows at a time  peak {peak / 2**20:5.2f} MiB")
    assert torch.allclose(result, F.conv2d(picture, weights.cpu())[0], atol=1e-5), "what conv2d says"
assert peaks[1] < peaks[0] * 34 / 512 and peaks[2] < peaks[0] / 5, "fewer pixels at a time, fewer bytes"
print("PASS")
