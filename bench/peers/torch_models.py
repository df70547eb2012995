"""The three shapes of common/plan/model/transformer.h as plain PyTorch modules, written as most people write them.

What matters for bytes: nn.Linear, nn.LayerNorm, F.scaled_dot_product_attention, F.cross_entropy, no dropout; GPT's Q, K and V are
one product that is split (as in nanoGPT), BERT's and Llama's are three (as in Hugging Face's transformers); Llama's RMS norm and
rotary positions are written out with elementary operations, and its K and V are repeated for the heads that share them. Logits are
FP32 before the loss (as in transformers), so that under autocast a CPU does what a GPU does: there autocast itself makes them so.
"""
import re

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

NAMED = {  # style, layers, heads, heads of K and V, width, hidden units, vocabulary, positions, tied, bias at Q, K and V
    "bytes-gpt": ("gpt", 4, 4, 4, 128, 512, 256, 256, True, True),
    "gpt2": ("gpt", 12, 12, 12, 768, 3072, 50257, 1024, True, True),
    "bert-base": ("bert", 12, 12, 12, 768, 3072, 30522, 512, True, True),
    "bert-large": ("bert", 24, 16, 16, 1024, 4096, 30522, 512, True, True),
    "bytes-llama": ("llama", 3, 4, 2, 64, 172, 256, 2048, True, False),
}
FORMS = {"gpt": r"gpt:(\d+)-(\d+)-(\d+)", "bert": r"bert:(\d+)-(\d+)-(\d+)", "llama": r"llama:(\d+)-(\d+)-(\d+)-(\d+)-(\d+)"}


class Shape:
    """What nn::parse_transformer makes of a name."""

    def __init__(self, name):
        name = name.lower()
        if name in NAMED:
            (self.style, self.layers, self.heads, self.keys, self.width, self.hidden, self.vocabulary, self.positions, self.tied,
             self.qkv_bias) = NAMED[name]
            return
        found = next(((style, m) for style, form in FORMS.items() if (m := re.fullmatch(form, name))), None)
        if not found:
            raise ValueError(f"model {name} is unknown; known: {', '.join(NAMED)}, gpt:LAYERS-HEADS-WIDTH, bert:..., "
                             "llama:LAYERS-HEADS-KVHEADS-WIDTH-MLP")
        self.style, match = found
        numbers = [int(n) for n in match.groups()]
        self.layers, self.heads = numbers[:2]
        self.keys, self.width, self.hidden = numbers[2:] if self.style == "llama" else (numbers[1], numbers[2], 4 * numbers[2])
        self.vocabulary, self.tied, self.qkv_bias = 258, True, self.style != "llama"
        self.positions = {"gpt": 1024, "bert": 512, "llama": 2048}[self.style]


class GptBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c, self.heads = shape.width, shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(c), nn.LayerNorm(c)
        self.qkv, self.projection = nn.Linear(c, 3 * c), nn.Linear(c, c)
        self.expand, self.contract = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)

    def forward(self, x):
        b, s, c = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).contiguous().view(b, s, c))
        return x + self.contract(F.gelu(self.expand(self.norm2(x)), approximate="tanh"))


class BertBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c, self.heads = shape.width, shape.heads
        self.query, self.key, self.value = (nn.Linear(c, c) for _ in range(3))
        self.projection, self.norm1 = nn.Linear(c, c), nn.LayerNorm(c)
        self.expand, self.contract, self.norm2 = nn.Linear(c, 4 * c), nn.Linear(4 * c, c), nn.LayerNorm(c)

    def forward(self, x):
        b, s, c = x.shape
        q, k, v = (of(x).view(b, s, self.heads, -1).transpose(1, 2) for of in (self.query, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v)
        x = self.norm1(x + self.projection(y.transpose(1, 2).reshape(b, s, c)))
        return self.norm2(x + self.contract(F.gelu(self.expand(x), approximate="tanh")))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def turned(x, cos, sin):
    """Rotary positions of x [b, heads, s, d]."""
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-other, one), dim=-1) * sin


class LlamaBlock(nn.Module):
    def __init__(self, shape):
        super().__init__()
        c, self.heads, self.keys = shape.width, shape.heads, shape.keys
        kv = shape.keys * (c // shape.heads)
        self.norm1, self.norm2 = RmsNorm(c), RmsNorm(c)
        self.query, self.key, self.value = (nn.Linear(c, n, bias=shape.qkv_bias) for n in (c, kv, kv))
        self.projection = nn.Linear(c, c, bias=False)
        self.gate, self.up = nn.Linear(c, shape.hidden, bias=False), nn.Linear(c, shape.hidden, bias=False)
        self.contract = nn.Linear(shape.hidden, c, bias=False)

    def forward(self, x, cos, sin):
        b, s, c = x.shape
        y = self.norm1(x)
        q, k, v = (of(y).view(b, s, heads, -1).transpose(1, 2)
                   for of, heads in ((self.query, self.heads), (self.key, self.keys), (self.value, self.keys)))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        if self.keys != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.keys, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(b, s, c))
        y = self.norm2(x)
        return x + self.contract(F.silu(self.gate(y)) * self.up(y))


class Transformer(nn.Module):
    """forward() is the mean loss of tokens and targets, both [b, s]."""

    def __init__(self, shape, again=False):
        super().__init__()
        self.shape, self.again = shape, again  # again: checkpointing, each layer's input only is kept
        c = shape.width
        self.token = nn.Embedding(shape.vocabulary, c)
        if shape.style != "llama":
            self.position = nn.Embedding(shape.positions, c)
        block = {"gpt": GptBlock, "bert": BertBlock, "llama": LlamaBlock}[shape.style]
        if shape.style == "bert":
            self.kind, self.embedding_norm = nn.Embedding(2, c), nn.LayerNorm(c)
            self.dense, self.decoder_bias = nn.Linear(c, c), nn.Parameter(torch.zeros(shape.vocabulary))
        self.blocks = nn.ModuleList(block(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(c) if shape.style == "llama" else nn.LayerNorm(c)
        if not shape.tied:
            self.head = nn.Linear(c, shape.vocabulary, bias=False)

    def forward(self, tokens, targets):
        shape, s = self.shape, tokens.shape[1]
        x, more = self.token(tokens), ()
        if shape.style == "llama":
            d = shape.width // shape.heads
            angles = torch.outer(torch.arange(s, device=x.device).float(), 10000.0 ** (-torch.arange(0, d, 2, device=x.device).float() / d))
            angles = torch.cat((angles, angles), dim=-1)
            more = angles.cos(), angles.sin()
        else:
            places = torch.arange(s, device=x.device)
            x = x + self.position(places)
        if shape.style == "bert":
            x = self.embedding_norm(x + self.kind(torch.zeros_like(tokens)))
        for block in self.blocks:
            x = checkpoint(block, x, *more, use_reentrant=False) if self.again else block(x, *more)
        if shape.style == "bert":
            x = F.gelu(self.dense(x), approximate="tanh")
        logits = F.linear(self.norm(x), self.token.weight if shape.tied else self.head.weight,
                          self.decoder_bias if shape.style == "bert" else None)
        return F.cross_entropy(logits.view(-1, shape.vocabulary).float(), targets.view(-1))
