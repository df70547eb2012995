#!/usr/bin/env python3
"""Makes the fixtures beside it: what PyTorch computes for small models. Run by hand; nothing needs it to build.

  pip install torch numpy && tests/parity/generate.py [NAME...]     default: all of
  gpt bert llama llama-own-head bf16 images features networks packed

gpt.json, bert.json, llama.json, llama-own-head.json: parameters, tokens, labels; logits, loss, all gradients and ten
AdamW losses in FP32. llama: 3 heads over 1, tied; own head: 4 heads over 2, biases at Q, K and V, scaled frequencies.

bf16.json: in BF16 with FP32 master weights, how far logits, gradients and ten losses are from FP64 (relative L2), for 20
models of two shapes and both styles. Their values are a hash that parity_test.cpp computes, too; FP64's losses say whether
both began with the same.

images.json: convolutions, batch norm, pooling and a small residual network, forward and backward in FP32, in the layout
of nn/ops/convolution.h: images channels last, weights [out, kernel, kernel, in / groups].

features.json: in the same layout, what lighter networks have beside these: bilinear upsampling, squeeze and excitation,
batch norm in front of a hard swish, and the hard activations themselves.

networks.json: small models of nn/models/network.h in FP64: loss, all gradients and the running statistics of a step, ten AdamW
losses, and logits in inference. Their values are the hash of bf16.json's.

packed.json: attention of sequences of unequal lengths, each by itself through scaled_dot_product_attention, forward and
backward in FP32, one behind the other. The inputs are the same hash.
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
    # Only llama has others than these; tensors() and rotate() say what they mean.
    kv_heads: int = 0
    mlp: int = 0
    tied: bool = True
    qkv_bias: bool = True
    epsilon: float = 1e-5
    theta: float = 1e4
    factor: float = 1
    original_positions: int = 0


SHAPES = [Shape(style, *sizes) for style in ("gpt", "bert") for sizes in ((2, 2, 12, 29, 16, 3, 7), (3, 3, 33, 257, 64, 2, 37))]


# theta is small, so that slow pairs turn within 16 positions, and each kind of frequency occurs: kept, scaled, in between.
LLAMAS = {"llama": Shape("llama", 2, 3, 36, 29, 16, 3, 7, 1, 22, True, False),
          "llama-own-head": Shape("llama", 2, 4, 24, 29, 16, 2, 13, 2, 18, False, True, 1e-6, 100.0, 4.0, 64)}


def llama_tensors(s):
    depth, all_ = s.width // s.heads, [("token embedding", (s.vocabulary, s.width))]
    qkv = (s.heads + 2 * s.kv_heads) * depth
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        all_ += [(name + "norm 1 gamma", (s.width,)), (name + "qkv weight", (qkv, s.width))]
        all_ += [(name + "qkv bias", (qkv,))] if s.qkv_bias else []
        all_ += [(name + "projection weight", (s.width, s.width)), (name + "norm 2 gamma", (s.width,)),
                 (name + "gate and up weight", (2 * s.mlp, s.width)), (name + "contract weight", (s.width, s.mlp))]
    all_ += [("final norm gamma", (s.width,))]
    return all_ if s.tied else all_ + [("head weight", (s.vocabulary, s.width))]


def tensors(s):
    """Names and shapes in the order of nn::tensors_of()."""
    if s.style == "llama":
        return llama_tensors(s)

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


def rms_norm(p, s, name, x):
    return F.rms_norm(x, x.shape[-1:], p[name + " gamma"], s.epsilon)


def rotate(s, x):
    """x [sequences, heads, seq, depth] at positions 0, 1, ...: value i turns with value i + depth / 2."""
    half = x.shape[-1] // 2
    frequency = 1.0 / s.theta ** (torch.arange(half, dtype=x.dtype) / half)
    if s.factor != 1:  # Llama 3.1's scaling, with its factors of 1 and 4
        turns = s.original_positions * frequency / (2 * math.pi)
        kept = ((turns - 1) / 3).clamp(0, 1)
        frequency = kept * frequency + (1 - kept) * frequency / s.factor
    angle = torch.arange(s.seq, dtype=x.dtype)[:, None] * frequency
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def llama_logits(p, s, tokens):
    depth = s.width // s.heads
    x = F.embedding(tokens, p["token embedding"])
    for layer in range(1, s.layers + 1):
        name = f"layer {layer} "
        qkv = F.linear(rms_norm(p, s, name + "norm 1", x), p[name + "qkv weight"], p.get(name + "qkv bias"))
        q, k, v = (t.view(s.sequences, s.seq, -1, depth).transpose(1, 2)
                   for t in qkv.split([s.width, s.kv_heads * depth, s.kv_heads * depth], -1))
        k, v = (t.repeat_interleave(s.heads // s.kv_heads, 1) for t in (rotate(s, k), v))
        out = F.scaled_dot_product_attention(rotate(s, q), k, v, is_causal=True)
        x = x + F.linear(out.transpose(1, 2).reshape(s.sequences, s.seq, s.width), p[name + "projection weight"])
        gate, up = F.linear(rms_norm(p, s, name + "norm 2", x), p[name + "gate and up weight"]).chunk(2, -1)
        x = x + F.linear(F.silu(gate) * up, p[name + "contract weight"])
    return F.linear(rms_norm(p, s, "final norm", x), p["token embedding" if s.tied else "head weight"])


def logits(p, s, tokens):
    if s.style == "llama":
        return llama_logits(p, s, tokens)
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


def shown(s):
    return {k: v for k, v in s._asdict().items() if s.style == "llama" or k not in Shape._field_defaults}


def fp32_fixture(s, name=None):
    torch.manual_seed(1)
    initial = {}
    for tensor, shape in tensors(s):
        noise = torch.randn(shape) * (0.3 if len(shape) == 2 else 0.1)
        noise = noise + 1 if tensor.endswith("gamma") else noise
        initial[tensor] = noise if s.style != "llama" else noise.mul(1000).round().div(1000)  # which take less room
    tokens = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels = torch.randint(s.vocabulary, (s.sequences, s.seq))
    labels[torch.rand(s.sequences, s.seq) < 0.25] = -1
    out, loss, gradients, losses = run(initial, s, tokens, labels, torch.float32)
    write(f"{name or s.style}.json", {
        **shown(s), "adamw": ADAMW, "tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(),
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
    """"resnet:2-6": plan/model/resnet.h."""

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


# batch, height, width, channels, factor
UPSAMPLINGS = [(2, 3, 5, 3, 2), (1, 5, 3, 2, 3), (1, 3, 2, 4, 4), (1, 1, 7, 1, 2)]
HARD = {"hard sigmoid": F.hardsigmoid, "hard swish": F.hardswish}


def upsampling_fixture(batch, height, width, channels, factor):
    x = short((batch, channels, height, width)).requires_grad_()
    y = F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)
    dy = short(y.shape)
    y.backward(dy)
    return {"shape": [batch, height, width, channels, factor], "x": last(x), "y": last(y), "dy": last(dy), "dx": last(x.grad)}


def excitation_fixture(batch, height, width, channels, squeezed):
    """Squeeze and excitation: every channel is scaled by what two linear layers make of the means of all."""
    x = short((batch, channels, height, width), 1, 0.5).requires_grad_()
    w1, b1 = short((squeezed, channels)).requires_grad_(), short(squeezed).requires_grad_()
    w2, b2 = short((channels, squeezed), 2).requires_grad_(), short(channels).requires_grad_()
    factors = F.hardsigmoid(F.linear(F.relu(F.linear(x.mean((2, 3)), w1, b1)), w2, b2))
    y = x * factors[:, :, None, None]
    dy = short(y.shape)
    y.backward(dy)
    all_ = {"w1": w1, "b1": b1, "w2": w2, "b2": b2}
    return {"shape": [batch, height * width, channels, squeezed], "x": last(x), "y": last(y), "dy": last(dy), "dx": last(x.grad),
            "factors": last(factors), **{name: last(t) for name, t in all_.items()}, **{"d" + name: last(t.grad) for name, t in all_.items()}}


def norm_swish_fixture(batch, height, width, channels):
    norm_ = torch.nn.BatchNorm2d(channels)
    norm_.weight.data, norm_.bias.data = short(channels, 1, 3), short(channels)
    x = short((batch, channels, height, width), 2, 1).requires_grad_()
    y = F.hardswish(norm_(x))
    dy = short(y.shape)
    y.backward(dy)
    return {"rows": batch * height * width, "channels": channels, "x": last(x), "gamma": last(norm_.weight), "beta": last(norm_.bias),
            "y": last(y), "dy": last(dy), "dx": last(x.grad), "dgamma": last(norm_.weight.grad), "dbeta": last(norm_.bias.grad)}


def hard_fixture(name):
    x = torch.cat([torch.tensor([-3.0, 3.0, -2.999, 2.999, -3.001, 3.001, 0.0, -1.5]), short(40, 3)]).requires_grad_()
    y, dy = HARD[name](x), short(48)
    y.backward(dy)
    return {"name": name, "x": last(x), "y": last(y), "dy": last(dy), "dx": last(x.grad)}


def features_fixture():
    torch.manual_seed(1)
    write("features.json", {"upsamplings": [upsampling_fixture(*u) for u in UPSAMPLINGS],
                            "excitations": [excitation_fixture(2, 3, 5, 6, 3), excitation_fixture(3, 1, 7, 8, 4)],
                            "norms": [norm_swish_fixture(3, 5, 3, 5), norm_swish_fixture(2, 3, 3, 8)],
                            "activations": [hard_fixture(name) for name in HARD]})


# ---- networks: nn/models/network.h, written from what it says and from the papers that it names


class Net(torch.nn.Module):
    """A function of (net, x). Its modules appear when it is first called, in that order, with the names that ours have."""

    def __init__(self, body):
        super().__init__()
        self.body, self.parts = body, torch.nn.ModuleDict()

    def part(self, name, make):
        if name not in self.parts:
            self.parts[name] = make()
        return self.parts[name]

    def unit(self, name, x, out, kernel=3, stride=1, groups=1, shares=None):
        """A convolution, perhaps with another one's weight, and its own batch norm."""
        shape = (out, x.shape[1] // groups, kernel, kernel)
        part = self.part(name, lambda: torch.nn.ParameterDict({} if shares else {"weight": torch.zeros(shape)}))
        norm_ = self.part(name + " norm", lambda: torch.nn.BatchNorm2d(out, eps=1e-5, momentum=0.1))
        weight = (self.parts[shares] if shares else part)["weight"]
        assert weight.shape == shape
        return norm_(F.conv2d(x, weight, stride=stride, padding=kernel // 2, groups=groups))

    def linear(self, name, x, out):
        """Of each image's channels, or of each pixel's."""
        part = self.part(name, lambda: torch.nn.Linear(x.shape[1], out))
        return part(x) if x.dim() == 2 else part(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def depthwise(self, name, x, kernel=3, stride=1):
        return self.unit(name + " depthwise", x, x.shape[1], kernel, stride, groups=x.shape[1])

    def separable(self, name, x, out, stride=1):
        return self.unit(name + " pointwise", F.relu(self.depthwise(name, x, 3, stride)), out, 1)

    def squeeze_excite(self, name, x, squeeze):
        hidden = F.relu(self.linear(name + " squeeze", F.adaptive_avg_pool2d(x, 1).flatten(1), squeeze))
        return x * F.hardsigmoid(self.linear(name + " excite", hidden, x.shape[1]))[:, :, None, None]

    def forward(self, x):
        return self.body(self, x)

    def tensors(self):
        """Names and parameters in the order of Network::parameters()."""
        calls = {"norm weight": "gamma", "norm bias": "beta"}
        for part, module in self.parts.items():
            for name, t in module.named_parameters():
                words = f"{part} {name}".rsplit(" ", 2)
                yield " ".join([words[0], calls.get(" ".join(words[1:]), " ".join(words[1:]))]), t

    def statistics(self):
        """In the order of Network::statistics()."""
        for part, module in self.parts.items():
            if isinstance(module, torch.nn.BatchNorm2d):
                unit = part.removesuffix(" norm")
                yield from ((unit + " running mean", module.running_mean), (unit + " running variance", module.running_var))


def mobilenet(net, x, width):
    x = F.relu(net.unit("stem", x, width))
    for block, (times, stride) in enumerate(((2, 2), (2, 1), (4, 2), (4, 1)), 1):
        x = F.relu(net.separable(f"block {block}", x, times * width, stride))
    return net.linear("head", x.mean((2, 3)), 10)


def bilinear(x, factor):
    return F.interpolate(x, scale_factor=factor, mode="bilinear", align_corners=False)


def unet(net, x, depth, width):
    def two(name, x, out):
        return F.relu(net.unit(name + " conv 2", F.relu(net.unit(name + " conv 1", x, out)), out))

    skipped = []
    for level in range(1, depth + 1):
        skipped.append(two(f"down {level}", x, width * 2**(level - 1)))
        x = F.max_pool2d(skipped[-1], 2)
    x = two("bottom", x, width * 2**depth)
    for level in range(depth, 0, -1):
        x = two(f"up {level}", torch.cat([bilinear(x, 2), skipped.pop()], 1), width * 2**(level - 1))
    return net.linear("head", x, 11)


def two_branch(net, x, width):
    x = F.relu(net.unit("stem", x, width, stride=2))
    detail = context = F.relu(net.separable("down", x, 2 * width, stride=2))
    for number, stride in ((1, 2), (2, 2), (3, 1)):
        context = F.relu(net.separable(f"context {number}", context, 4 * width, stride))
    context = bilinear(net.unit("context 4", context, 4 * width, 1), 4)
    x = F.relu(net.unit("fuse", detail, 4 * width, 1) + context)
    x = F.relu(net.separable("last", x, 4 * width))
    return bilinear(net.linear("head", x, 11), 4)


def residual(net, x, stages, width, percent=100, separable=False, shared=False):
    """resnet:STAGES-WIDTH and its lighter forms."""
    def of_width(channels):
        return max(1, math.floor(channels * percent / 100 + 0.5))

    def convolution(name, x, out, stride=1):
        if separable:
            return net.separable(name, x, out, stride)
        sizes = (name.split(" block")[0], x.shape[1], out)
        first = firsts.setdefault(sizes, name)
        return net.unit(name, x, out, 3, stride, shares=first if shared and first != name else None)

    firsts = {}
    x = F.relu(net.unit("stem", x, of_width(width)))
    for stage in range(1, stages + 1):
        out = of_width(width * 2**(stage - 1))
        for block in (1, 2):
            name, stride = f"stage {stage} block {block} ", 2 if stage > 1 and block == 1 else 1
            y = F.relu(convolution(name + "conv 1", x, out, stride))
            shortcut = net.unit(name + "projection", x, out, 1, stride) if x.shape[1] != out or stride != 1 else x
            x = F.relu(convolution(name + "conv 2", y, out) + shortcut)
    return net.linear("head", x.mean((2, 3)), 10)


def inverted_residuals(net, x):
    """A small MobileNetV3: its blocks are those of Howard et al., 2019."""
    def block(name, x, expanded, kernel, out, squeeze, activation, stride):
        y = x if expanded == x.shape[1] else activation(net.unit(name + " expand", x, expanded, 1))
        y = activation(net.depthwise(name, y, kernel, stride))
        if squeeze:
            y = net.squeeze_excite(name, y, squeeze)
        y = net.unit(name + " project", y, out, 1)
        return y + x if y.shape == x.shape else y

    x = F.hardswish(net.unit("stem", x, 6))
    x = block("block 1", x, 6, 3, 6, 0, F.relu, 1)
    x = block("block 2", x, 12, 5, 8, 4, F.relu, 2)
    x = block("block 3", x, 20, 5, 8, 6, F.hardswish, 1)
    x = F.hardswish(net.unit("last", x, 16, 1))
    return net.linear("head", F.hardswish(net.linear("classifier", x.mean((2, 3)), 14)), 5)


class NetworkCase(typing.NamedTuple):
    name: str
    body: typing.Callable
    height: int
    width: int
    seed: int
    every: int = 1  # of inference's logits, one in so many is in the file
    batch: int = 3


NETWORKS = [
    NetworkCase("mobilenet:5", lambda net, x: mobilenet(net, x, 5), 12, 10, 1),
    NetworkCase("unet:2-3", lambda net, x: unet(net, x, 2, 3), 8, 12, 1, every=7),
    NetworkCase("two-branch:4", lambda net, x: two_branch(net, x, 4), 32, 48, 5, every=101),
    NetworkCase("resnet:2-6 at 75 % width", lambda net, x: residual(net, x, 2, 6, percent=75), 9, 7, 1),
    NetworkCase("resnet:2-6, separable", lambda net, x: residual(net, x, 2, 6, separable=True), 9, 7, 3),
    NetworkCase("resnet:2-6, shared", lambda net, x: residual(net, x, 2, 6, shared=True), 9, 7, 1),
    NetworkCase("inverted residuals", inverted_residuals, 12, 10, 3),
]
# A beta whose only readers are 1 × 1 convolutions with a norm changes nothing. Its gradient is nothing but rounding, which
# an eps of 1e-8 would turn into whole steps.
NETWORK_ADAMW = {"lr": 3e-3, "betas": (0.9, 0.999), "eps": 1e-3, "weight_decay": 0.01}


def ours(t):
    """As we have it: images and weights channels last, a depthwise weight [kernel, kernel, channels]."""
    if t.dim() != 4:
        return t
    return t.permute(2, 3, 1, 0) if t.shape[1] == 1 else t.permute(0, 2, 3, 1)


def bound_of(name):
    """Of a tensor's first values. Hard sigmoid and hard swish shall see values beyond ±3, too."""
    if name.endswith("excite weight") or name.endswith("classifier weight"):
        return 4.0
    return 0.5 if name.endswith("weight") else 0.25


def network_run(case, dtype, noise=0):
    """Loss, gradients and running statistics of a step, ten losses, then logits; all by name. Ours begins with the same."""
    def hashed(stream, shape, bound, about=0.0):
        return uniform(case.seed, stream, shape, bound, about)

    def logits():
        return net(x).permute(0, 2, 3, 1).reshape(-1, classes) if per_pixel else net(x)

    x = hashed(0, (case.batch, case.height, case.width, 3), 2.0).permute(0, 3, 1, 2)
    net = Net(case.body)
    shape = net(x).shape
    per_pixel, classes = len(shape) == 4, shape[1]
    rows = math.prod(shape) // classes
    labels = torch.from_numpy((hashes(case.seed, 1, rows) % numpy.uint64(classes)).astype(numpy.int64))
    for stream, (name, t) in enumerate(net.tensors(), 2):
        ours(t.data).copy_(hashed(stream, ours(t).shape, bound_of(name), 1.0 if name.endswith("gamma") else 0.0))
    for module in net.parts.values():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.reset_running_stats()
    net, x = net.to(dtype), x.to(dtype) * (1 + noise * torch.randn(x.shape, dtype=dtype))
    optimizer = torch.optim.AdamW(net.parameters(), **NETWORK_ADAMW)
    losses, first = [], None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(logits(), labels)
        loss.backward()
        losses.append(loss.item())
        if not first:
            first = [{name: ours(t.grad).double().flatten().clone() for name, t in net.tensors()},
                     {name: t.double().clone() for name, t in net.statistics()}]
        optimizer.step()
    net.eval()
    return {"gradients": first[0], "statistics": first[1],
            "others": {"losses": torch.tensor(losses).double(), "inference": logits().detach().double().flatten()}}


def network_fixture(case):
    """What FP64 computes. A network that FP32 computes otherwise, perhaps for an input that differs in its last bits, has a
    value at the kink of a ReLU, or as a maximum that is no other's by little: it needs another seed."""
    expected = network_run(case, torch.float64)
    gradients = expected["gradients"]
    for t in gradients.values():
        if t.abs().max() < 1e-12:
            t.zero_()
    for noise in (0, 3e-7, 3e-7, 3e-7, 3e-7):
        found = network_run(case, torch.float32, noise)
        for kind, all_ in expected.items():
            for name, t in all_.items():
                scale = t if t.any() else gradients[name.replace("beta", "gamma")]
                far = ((found[kind][name] - t).abs().max() / scale.abs().max()).item()
                assert far < 2e-5, f"{case.name}: {name} of FP32 is off by {far:.1e} of the largest value"

    def rounded(t):
        return [float(f"{v:.8g}") for v in t.tolist()]

    def named(kind):
        return [{"name": name, "values": rounded(t)} for name, t in expected[kind].items()]

    others = expected["others"]
    return {**{k: v for k, v in case._asdict().items() if k != "body"}, "gradients": named("gradients"),
            "statistics": named("statistics"), "losses": rounded(others["losses"]),
            "inference": rounded(others["inference"][::case.every])}


def networks_fixture():
    torch.manual_seed(1)
    write("networks.json", {"adamw": NETWORK_ADAMW, "networks": [network_fixture(case) for case in NETWORKS]})


def bf16_fixture():
    write("bf16.json", {"adamw": ADAMW, "shapes": [
        {**shown(s), "seeds": [bf16_errors(s, seed) for seed in range(1, SEEDS + 1)]} for s in SHAPES]})


# lengths, heads, heads of K and V, depth, causal
PACKED = [((1, 7, 4, 12), 2, 1, 4, True), ((5, 9, 2), 4, 2, 6, True), ((6, 1, 11), 3, 3, 5, False)]


def packed_attention(lengths, heads, kv_heads, depth, causal):
    """Rows as ours: of each token all heads of Q, then of K, then of V."""
    rows, width = sum(lengths), (heads + 2 * kv_heads) * depth
    qkv = uniform(1, 0, (rows, width), 2.0, 0.0).requires_grad_()
    d = uniform(1, 1, (rows, heads * depth), 1.0, 0.0)
    out = []
    for sequence in qkv.split(list(lengths)):
        q, k, v = (t.view(1, len(sequence), -1, depth).transpose(1, 2)
                   for t in sequence.split([heads * depth, kv_heads * depth, kv_heads * depth], -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)
        out.append(y.transpose(1, 2).reshape(len(sequence), heads * depth))
    attended = torch.cat(out)
    attended.backward(d)
    return {"lengths": lengths, "heads": heads, "kv_heads": kv_heads, "depth": depth, "causal": causal,
            "attended": numbers(attended), "d_qkv": numbers(qkv.grad)}


def packed_fixture():
    write("packed.json", {"attention": [packed_attention(*case) for case in PACKED]})


def main():
    fixtures = {**{name: lambda name=name: fp32_fixture(LLAMAS[name], name) for name in LLAMAS},
                **{style: lambda style=style: fp32_fixture(next(s for s in SHAPES if s.style == style)) for style in ("gpt", "bert")},
                "bf16": bf16_fixture, "images": images_fixture, "features": features_fixture, "networks": networks_fixture,
                "packed": packed_fixture}
    for name in sys.argv[1:] or fixtures:
        fixtures[name]()


if __name__ == "__main__":
    main()
