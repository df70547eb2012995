#!/usr/bin/env python3
"""Makes the fixtures beside it: what PyTorch computes for small models. Run by hand; nothing needs it to build.

  pip install torch numpy && tests/parity/generate.py [gpt] [bert] [bf16] [images]     default: all of them

gpt.json and bert.json: parameters, tokens, labels; logits, loss, all gradients and ten AdamW losses in FP32.

bf16.json: in BF16 with FP32 master weights, how far logits, gradients and ten losses are from FP64 (relative L2), for 20
models of two shapes and both styles. Their values are a hash that parity_test.cpp computes, too; FP64's losses say whether
both began with the same.

images.json: convolutions, batch norm, pooling and a small residual network, forward and backward in FP32, in the layout
of nn/convolution.h: images channels last, weights [out, kernel, kernel, in / groups].
"""
import copy
import json
import math
import pathlib
import sys
import typing

import numpy
import torch
import torch.nn.functional as F

ADAMW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STEPS, SEEDS = 10, 20


class Shape(typing.NamedTuple):
    style: str
    layers: int
    heads: int
    width: int
    vocabulary: int
    positions: int
    sequences: int
    seq: int


SHAPES = [Shape(style, *sizes) for style in ("gpt", "bert") for sizes in ((2, 2, 12, 29, 16, 3, 7), (3, 3, 33, 257, 64, 2, 37))]


def tensors(s):
    """Names and shapes in the order of nn::tensors_of()."""
    def norm(name):
        return [(f"{name} gamma", (s.width,)), (f"{name} beta", (s.width,))]

    def linear(name, out, width):
        return [(f"{name} weight", (out, width)), (f"{name} bias", (out,))]

    all_ = [("token embedding", (s.vocabulary, s.width)), ("position embedding", (s.positions, s.width))]
    if s.style == "bert":
        all_ += [("type embedding", (2, s.width))] + norm("embedding norm")
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        all_ += linear(name + "qkv", 3 * s.width, s.width) + linear(name + "projection", s.width, s.width) + norm(name + "norm 1")
        all_ += linear(name + "expand", 4 * s.width, s.width) + linear(name + "contract", s.width, 4 * s.width) + norm(name + "norm 2")
    if s.style == "bert":
        return all_ + linear("head dense", s.width, s.width) + norm("head norm") + [("head bias", (s.vocabulary,))]
    return all_ + norm("final norm")


def norm(p, name, x):
    return F.layer_norm(x, x.shape[-1:], p[name + " gamma"], p[name + " beta"], 1e-5)


def linear(p, name, x):
    return F.linear(x, p[name + " weight"], p[name + " bias"])


def gelu(x):
    return F.gelu(x, approximate="tanh")


def attention(p, s, name, x):
    q, k, v = linear(p, name + "qkv", x).split(s.width, dim=-1)
    q, k, v = (t.view(s.sequences, s.seq, s.heads, s.width // s.heads).transpose(1, 2) for t in (q, k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(s.width // s.heads)
    if s.style == "gpt":  # causal
        scores = scores.masked_fill(torch.ones(s.seq, s.seq, dtype=torch.bool).triu(1), -math.inf)
    out = scores.softmax(-1) @ v
    return linear(p, name + "projection", out.transpose(1, 2).reshape(s.sequences, s.seq, s.width))


def mlp(p, name, x):
    return linear(p, name + "contract", gelu(linear(p, name + "expand", x)))


def logits(p, s, tokens):
    x = F.embedding(tokens, p["token embedding"]) + p["position embedding"][:s.seq]
    if s.style == "bert":
        x = norm(p, "embedding norm", x + p["type embedding"][0])
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        if s.style == "bert":
            x = norm(p, name + "norm 1", x + attention(p, s, name, x))
            x = norm(p, name + "norm 2", x + mlp(p, name, x))
        else:
            x = x + attention(p, s, name, norm(p, name + "norm 1", x))
            x = x + mlp(p, name, norm(p, name + "norm 2", x))
    if s.style == "bert":
        x = norm(p, "head norm", gelu(linear(p, "head dense", x)))
        return F.linear(x, p["token embedding"], p["head bias"])
    return F.linear(norm(p, "final norm", x), p["token embedding"])


def loss_of(p, s, tokens, labels):
    out = logits(p, s, tokens)
    wide = out if out.dtype == torch.float64 else out.float()
    return out, F.cross_entropy(wide.view(-1, s.vocabulary), labels.view(-1), ignore_index=-1)


def run(initial, s, tokens, labels, dtype):
    """Logits, loss, gradients of the first step, and the loss of ten steps."""
    master = {name: t.to(torch.float64 if dtype == torch.float64 else torch.float32).clone() for name, t in initial.items()}
    optimizer = torch.optim.AdamW(master.values(), **ADAMW)
    first, losses = None, []
    for _ in range(STEPS):
        p = {name: t.to(dtype).detach().requires_grad_() for name, t in master.items()}
        out, loss = loss_of(p, s, tokens, labels)
        loss.backward()
        losses.append(loss.item())
        if first is None:
            first = out.detach(), loss.item(), {name: t.grad.clone() for name, t in p.items()}
        for name, t in master.items():
            t.grad = p[name].grad.to(t.dtype)
        optimizer.step()
    return *first, losses


def flat(all_):
    return torch.cat([t.double().flatten() for t in all_])


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def numbers(t):
    return [float(f"{v:.9g}") for v in t.double().flatten().tolist()]


def write(name, content):
    path = pathlib.Path(__file__).parent / name
    path.write_text(json.dumps({"made_by": f"tests/parity/generate.py, PyTorch {torch.__version__}", **content},
                               separators=(",", ":")) + "\n")
    print(path, path.stat().st_size)


def fp32_fixture(s):
    torch.manual_seed(1)
    initial = {}
    for name, shape in tensors(s):
        noise = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
        initial[name] = noise + 1 if name.endswith("gamma") else noise
    tokens = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels[torch.rand(s.sequences, s.seq) < 0.25] = -1
    out, loss, gradients, losses = run(initial, s, tokens, labels, torch.float32)
    write(f"{s.style}.json", {
        **s._asdict(), "adamw": ADAMW, "tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(),
        "parameters": {name: numbers(t) for name, t in initial.items()},
        "logits": numbers(out), "loss": loss, "losses": losses,
        "gradients": {name: numbers(t) for name, t in gradients.items()}})


def hashes(seed, stream, count):
    """The upper 24 bits of SplitMix64's finaliser over (seed, stream, index): parity_test.cpp has the same."""
    z = (numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(0x94D049BB133111EB) +
         numpy.uint64((seed * 0x9E3779B97F4A7C15 + stream * 0xBF58476D1CE4E5B9) % 2**64))
    z = (z ^ (z >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return (z ^ (z >> numpy.uint64(31))) >> numpy.uint64(40)


def uniform(seed, stream, shape, bound, about):
    """BF16's values, as floats."""
    u = hashes(seed, stream, math.prod(shape)).astype(numpy.float32) * numpy.float32(2.0**-23) - numpy.float32(1)
    return torch.from_numpy(u * numpy.float32(bound) + numpy.float32(about)).reshape(shape).bfloat16().float()


def bf16_errors(s, seed):
    initial = {name: uniform(seed, i, shape, 0.5 if len(shape) == 2 else 0.25, float(name.endswith("gamma")))
               for i, (name, shape) in enumerate(tensors(s))}
    count, streams = s.sequences * s.seq, len(initial)
    tokens = torch.from_numpy((hashes(seed, streams, count) % numpy.uint64(s.vocabulary)).astype(numpy.int64))
    labels = torch.from_numpy((hashes(seed, streams + 1, count) % numpy.uint64(s.vocabulary)).astype(numpy.int64))
    labels[::4] = -1
    tokens, labels = tokens.reshape(s.sequences, s.seq), labels.reshape(s.sequences, s.seq)
    out64, _, grad64, losses64 = run(initial, s, tokens, labels, torch.float64)
    out16, _, grad16, losses16 = run(initial, s, tokens, labels, torch.bfloat16)
    return {"logits": relative(out16.double(), out64), "gradients": relative(flat(grad16.values()), flat(grad64.values())),
            "losses": relative(torch.tensor(losses16).double(), torch.tensor(losses64).double()), "fp64_losses": losses64}


# ---- images: PyTorch's layout inside (NCHW, OIHW), ours in the file

# batch, height, width, in_channels, out_channels, kernel, stride, padding, groups
CONVOLUTIONS = [(2, 5, 7, 3, 4, 3, 1, 1, 1), (1, 7, 5, 4, 6, 3, 2, 1, 2), (1, 9, 7, 4, 4, 3, 3, 0, 4), (2, 5, 6, 4, 4, 5, 1, 2, 4),
                (1, 7, 5, 3, 5, 5, 2, 3, 1), (1, 8, 5, 6, 4, 5, 3, 3, 2), (2, 5, 3, 5, 4, 1, 1, 0, 1), (1, 7, 9, 4, 6, 1, 2, 0, 2),
                (1, 7, 8, 3, 6, 1, 3, 1, 3), (1, 6, 7, 4, 6, 2, 1, 1, 1), (2, 5, 7, 4, 4, 2, 2, 0, 2), (1, 8, 9, 4, 4, 2, 3, 1, 4),
                (1, 6, 5, 4, 8, 3, 1, 3, 4), (1, 11, 9, 3, 4, 7, 2, 3, 1), (1, 4, 5, 2, 2, 3, 2, 2, 1), (1, 7, 7, 6, 6, 3, 3, 2, 3),
                (1, 3, 5, 16, 8, 3, 1, 1, 1)]
# batch, height, width, channels, kernel, stride, padding
POOLS = [(2, 7, 5, 3, 3, 2, 1), (1, 6, 8, 2, 2, 2, 0), (1, 5, 6, 3, 3, 1, 1)]
IMAGE_ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
STAGES, WIDTH, CLASSES = 2, 6, 10


def short(shape, scale=1.0, about=0.0):
    """Random values of three decimals: they take little room in the file."""
    values = torch.randn(shape, dtype=torch.float64) * scale + about
    return torch.tensor([round(v, 3) for v in values.flatten().tolist()], dtype=torch.float32).reshape(shape)


def last(t):
    """Of an image, or of a convolution's weight, as we have it: channels last. As few digits as FP32 needs."""
    t = t.detach().permute(0, 2, 3, 1) if t.dim() == 4 else t.detach()
    return [float(str(v)) for v in t.flatten().numpy()]


def convolution_fixture(batch, height, width, in_, out, kernel, stride, padding, groups):
    x, w = short((batch, in_, height, width)).requires_grad_(), short((out, in_ // groups, kernel, kernel)).requires_grad_()
    y = F.conv2d(x, w, stride=stride, padding=padding, groups=groups)
    dy = short(y.shape)
    y.backward(dy)
    return {"shape": [batch, height, width, in_, out, kernel, stride, padding, groups],
            "x": last(x), "w": last(w), "dy": last(dy), "y": last(y), "dx": last(x.grad), "dw": last(w.grad)}


def batch_norm_fixture(residual):
    """Two steps of training, of which the second's gradients, then inference; with a residual, a ReLU behind it, too."""
    batch, height, width, channels = 3, 5, 3, 5
    shape = (batch, channels, height, width)
    norm_ = torch.nn.BatchNorm2d(channels)
    norm_.weight.data, norm_.bias.data = short(channels, 0.3, 1), short(channels, 0.3)
    first, x = short(shape, 2, 1), short(shape, 3, -1).requires_grad_()
    r = short(shape).requires_grad_()

    def out(x):
        return F.relu(norm_(x) + r) if residual else norm_(x)

    out(first)
    y = out(x)
    dy = short(shape)
    norm_.zero_grad()
    y.backward(dy)
    running = {"running_mean": last(norm_.running_mean), "running_variance": last(norm_.running_var)}
    norm_.eval()
    return {"rows": batch * height * width, "channels": channels, "first": last(first), "x": last(x), "dy": last(dy),
            "residual": last(r) if residual else [], "gamma": last(norm_.weight), "beta": last(norm_.bias), "y": last(y),
            "dx": last(x.grad), "dresidual": last(r.grad) if residual else [], "dgamma": last(norm_.weight.grad),
            "dbeta": last(norm_.bias.grad), **running, "inference": last(out(first))}


def pool_fixture(batch, height, width, channels, kernel, stride, padding):
    x = torch.randint(-4, 0, (batch, channels, height, width)).float()  # many ties, and less than a padding of zeros
    all_ = {"shape": [batch, height, width, channels, kernel, stride, padding], "x": last(x)}
    for name, pool in (("max", F.max_pool2d(a := x.clone().requires_grad_(), kernel, stride, padding)),
                       ("average", F.avg_pool2d(b := x.clone().requires_grad_(), kernel, stride, padding, count_include_pad=False))):
        dy = short(pool.shape)
        pool.backward(dy)
        all_[name] = {"y": last(pool), "dy": last(dy), "dx": last((a if name == "max" else b).grad)}
    return all_


class Unit(torch.nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, in_, out, kernel, stride):
        super().__init__()
        self.convolution = torch.nn.Conv2d(in_, out, kernel, stride, kernel // 2, bias=False)
        self.norm = torch.nn.BatchNorm2d(out)
        self.convolution.weight.data = short(self.convolution.weight.shape, (2 / (in_ * kernel * kernel))**0.5)
        self.norm.weight.data, self.norm.bias.data = short(out, 0.2, 1), short(out, 0.2)

    def forward(self, x):
        return self.norm(self.convolution(x))


class ResNet(torch.nn.Module):
    """"resnet:2-6": nn/resnet.h."""

    def __init__(self):
        super().__init__()
        self.units = {"stem": Unit(3, WIDTH, 3, 1)}
        in_ = WIDTH
        for stage in range(1, STAGES + 1):
            out = WIDTH * 2**(stage - 1)
            for block in (1, 2):
                name, stride = f"stage {stage} block {block} ", 2 if stage > 1 and block == 1 else 1
                self.units[name + "conv 1"] = Unit(in_, out, 3, stride)
                self.units[name + "conv 2"] = Unit(out, out, 3, 1)
                if in_ != out:
                    self.units[name + "projection"] = Unit(in_, out, 1, stride)
                in_ = out
        self.registered = torch.nn.ModuleList(self.units.values())
        self.head = torch.nn.Linear(in_, CLASSES)
        self.head.weight.data, self.head.bias.data = short((CLASSES, in_), 0.5), short(CLASSES, 0.2)

    def forward(self, x):
        x = F.relu(self.units["stem"](x))
        for stage in range(1, STAGES + 1):
            for block in (1, 2):
                name = f"stage {stage} block {block} "
                shortcut = self.units[name + "projection"](x) if name + "projection" in self.units else x
                x = F.relu(self.units[name + "conv 2"](F.relu(self.units[name + "conv 1"](x))) + shortcut)
        return self.head(x.mean((2, 3)))

    def tensors(self):
        """Names and parameters in the order of ResNet::parameters()."""
        all_ = []
        for name, unit in self.units.items():
            all_ += [(name + " weight", unit.convolution.weight), (name + " gamma", unit.norm.weight), (name + " beta", unit.norm.bias)]
        return all_ + [("head weight", self.head.weight), ("head bias", self.head.bias)]

    def statistics(self):
        """Of every unit: running mean and variance."""
        return [{"name": name, "mean": last(u.norm.running_mean), "variance": last(u.norm.running_var)}
                for name, u in self.units.items()]


def statistics_of(model, x):
    """Of every unit, the mean and variance that it normalises this batch with."""
    found = {}
    hooks = [unit.convolution.register_forward_hook(lambda _, __, z, name=name: found.update({name: z.detach()}))
             for name, unit in model.units.items()]
    model(x)
    for hook in hooks:
        hook.remove()
    return [{"name": name, "mean": last(found[name].mean((0, 2, 3))), "variance": last(found[name].var((0, 2, 3), unbiased=False))}
            for name in model.units]


def resnet_fixture():
    batch, height, width = 5, 9, 7
    model, x = ResNet(), short((batch, 3, height, width))
    labels = torch.randint(CLASSES, (batch,))
    initial = {name: last(t.detach()) for name, t in model.tensors()}
    optimizer = torch.optim.AdamW(model.parameters(), **IMAGE_ADAMW)
    content = {"spec": f"resnet:{STAGES}-{WIDTH}", "batch": batch, "height": height, "width": width, "adamw": IMAGE_ADAMW,
               "input": last(x), "labels": labels.tolist(), "of_batch": statistics_of(copy.deepcopy(model), x)}
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, labels)
        loss.backward()
        losses.append(loss.item())
        if len(losses) == 1:
            gradients = {name: last(t.grad) for name, t in model.tensors()}
            content |= {"logits": last(out), "loss": loss.item(), "running": model.statistics()}
        optimizer.step()
    content["tensors"] = [{"name": name, "value": initial[name], "gradient": gradients[name]} for name in initial]
    model.eval()
    content |= {"losses": losses, "inference": last(model(x))}
    return content


def images_fixture():
    torch.manual_seed(1)
    write("images.json", {"convolutions": [convolution_fixture(*c) for c in CONVOLUTIONS],
                          "batch_norms": [batch_norm_fixture(residual) for residual in (False, True)],
                          "pools": [pool_fixture(*p) for p in POOLS], "resnet": resnet_fixture()})


def bf16_fixture():
    write("bf16.json", {"adamw": ADAMW, "shapes": [
        {**s._asdict(), "seeds": [bf16_errors(s, seed) for seed in range(1, SEEDS + 1)]} for s in SHAPES]})


def main():
    fixtures = {**{style: lambda style=style: fp32_fixture(next(s for s in SHAPES if s.style == style)) for style in ("gpt", "bert")},
                "bf16": bf16_fixture, "images": images_fixture}
    for name in sys.argv[1:] or fixtures:
        fixtures[name]()


main()
