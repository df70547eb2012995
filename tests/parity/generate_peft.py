#!/usr/bin/env python3
"""Makes peft.json and the folder peft-adapter beside it: what peft computes with adapters of small models. Run by hand; nothing needs
it to build.

  pip install torch transformers peft && tests/parity/generate_peft.py

peft.json: for a llama with grouped queries and a gpt2, adapters on all matrices and on fewer; and for a llama whose matrices were
decoded from NF4 codes, which the file has, too: base weights, A and B, tokens; logits, loss, the gradients of A and B, and the
losses of ten AdamW steps, in FP32. The base is checked to be the same, to the bit, after them.

peft-adapter: adapter_config.json and adapter_model.safetensors of the first of these, saved by peft before its first step. With
`check FOLDER` the script loads such a folder of ours into the first model instead, and prints how far logits are from ours, which the
folder has as logits.json.
"""
import json
import pathlib
import sys

import peft
import torch
import transformers

HERE = pathlib.Path(__file__).parent
ADAMW = {"lr": 1e-2, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
LLAMA = {"style": "llama", "layers": 2, "heads": 4, "width": 24, "vocabulary": 29, "positions": 16, "kv_heads": 2, "mlp": 18,
         "epsilon": 1e-5, "theta": 1e4}
GPT = {"style": "gpt", "layers": 2, "heads": 2, "width": 12, "vocabulary": 29, "positions": 16}
CASES = {"llama, all": (LLAMA, "all", False), "llama, q and v": (LLAMA, "qv", False), "gpt2, all": (GPT, "all", False),
         "gpt2, attention": (GPT, "attention", False), "llama, all, nf4": (LLAMA, "all", True)}
TARGETS = {("llama", "all"): ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], ("llama", "qv"): ["q_proj", "v_proj"],
           ("gpt", "all"): ["c_attn", "c_proj", "c_fc"], ("gpt", "attention"): ["c_attn", "attn.c_proj"]}
NF4 = [-1, -.69619280, -.52507305, -.39491749, -.28444138, -.18477343, -.09105004, 0, .07958030, .16093020, .24611230, .33791524, .44070983,
       .56261700, .72295684, 1]


def model_of(s):
    if s["style"] == "llama":
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=s["vocabulary"], hidden_size=s["width"], intermediate_size=s["mlp"], num_hidden_layers=s["layers"],
            num_attention_heads=s["heads"], num_key_value_heads=s["kv_heads"], max_position_embeddings=s["positions"], rms_norm_eps=s["epsilon"],
            tie_word_embeddings=True, attn_implementation="eager"))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=s["vocabulary"], n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"], n_positions=s["positions"], resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, attn_implementation="eager"))


def ours(s, model):
    """Our names to the parameters that they are made of, one below the other. GPT-2's Conv1D has its matrices the other way round."""
    if s["style"] == "gpt":
        t = model.transformer
        yield "token embedding", [t.wte.weight], False
        yield "position embedding", [t.wpe.weight], False
        for i, b in enumerate(t.h):
            for name, m in [("qkv", b.attn.c_attn), ("projection", b.attn.c_proj), ("expand", b.mlp.c_fc), ("contract", b.mlp.c_proj)]:
                yield f"layer {i + 1} {name} weight", [m.weight], True
                yield f"layer {i + 1} {name} bias", [m.bias], False
            for name, n in [("norm 1", b.ln_1), ("norm 2", b.ln_2)]:
                yield f"layer {i + 1} {name} gamma", [n.weight], False
                yield f"layer {i + 1} {name} beta", [n.bias], False
        yield "final norm gamma", [t.ln_f.weight], False
        yield "final norm beta", [t.ln_f.bias], False
        return
    yield "token embedding", [model.model.embed_tokens.weight], False
    for i, b in enumerate(model.model.layers):
        a, m = b.self_attn, b.mlp
        yield f"layer {i + 1} norm 1 gamma", [b.input_layernorm.weight], False
        yield f"layer {i + 1} qkv weight", [a.q_proj.weight, a.k_proj.weight, a.v_proj.weight], False
        yield f"layer {i + 1} projection weight", [a.o_proj.weight], False
        yield f"layer {i + 1} norm 2 gamma", [b.post_attention_layernorm.weight], False
        yield f"layer {i + 1} gate and up weight", [m.gate_proj.weight, m.up_proj.weight], False
        yield f"layer {i + 1} contract weight", [m.down_proj.weight], False
    yield "final norm gamma", [model.model.norm.weight], False


def encoded(weight):
    """Random NF4 parts as plan/quantised/format.h describes them, and the matrix that they decode to."""
    count = weight.numel()
    blocks = -(-count // 64)
    codes = torch.randint(0, 16, (blocks * 64,))
    absmax = torch.randint(-100, 101, (blocks,))
    scales = 1e-3 * (0.5 + torch.rand(-(-blocks // 256)))
    mean = torch.tensor(0.25)
    block = torch.arange(count) // 64
    most = (scales[block // 256] * absmax[block] + mean).clamp(min=0)
    values = most * torch.tensor(NF4)[codes[:count]]
    pairs = codes.view(-1, 2, 32)
    parts = {"codes": (pairs[:, 0] | pairs[:, 1] << 4).flatten().tolist(), "absmax_scale": scales.tolist(), "absmax": absmax.tolist(),
             "absmax_mean": [mean.item()]}
    return values.view(weight.shape), parts


def fixture(s, targets, nf4):
    torch.manual_seed(1)
    model, parts = model_of(s), {}
    with torch.no_grad():
        for name, tensors, transposed in ours(s, model):
            for tensor in tensors:
                tensor.copy_(torch.rand_like(tensor) - 0.5 if not name.endswith("gamma") else 1 + 0.25 * (torch.rand_like(tensor) - 0.5))
            if nf4 and name.startswith("layer") and name.endswith("weight"):
                values, parts[name] = encoded(torch.cat(tensors))
                for tensor, value in zip(tensors, values.split([len(t) for t in tensors])):
                    tensor.copy_(value)
    base = {name: torch.cat([t.T if transposed else t for t in tensors]).detach().clone() for name, tensors, transposed in ours(s, model)}
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS[s["style"], targets], fan_in_fan_out=s["style"] == "gpt", task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, config)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for p in trained.values():
            p.copy_((torch.rand_like(p) - 0.5) / 2)
    adapters = {name.replace(".default", ""): p.detach().clone() for name, p in trained.items()}
    if (s, targets, nf4) == CASES["llama, all"]:
        model.save_pretrained(HERE / "peft-adapter")
        (HERE / "peft-adapter" / "README.md").unlink(missing_ok=True)
    tokens = torch.randint(0, s["vocabulary"], (3, 8))
    labels = torch.randint(0, s["vocabulary"], (3, 8))
    optimizer = torch.optim.AdamW(trained.values(), **ADAMW)
    losses = []
    for step in range(10):
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.view(-1, s["vocabulary"]), labels.view(-1))
        optimizer.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            first = logits.detach().flatten().tolist(), {name.replace(".default", ""): p.grad.clone() for name, p in trained.items()}
        optimizer.step()
    for name, tensors, transposed in ours(s, unwrapped(model)):
        assert torch.equal(torch.cat([t.T if transposed else t for t in tensors]), base[name]), name
    flat = lambda tensors: {name: [float(f"{v:.9g}") for v in t.flatten().tolist()] for name, t in tensors.items()}  # noqa: E731
    return s | {"rank": 4, "alpha": 8, "targets": targets, "sequences": 3, "seq": 8, "tokens": tokens.flatten().tolist(), "labels": labels.flatten().tolist(),
                "parameters": flat(base), "nf4": parts, "adapters": flat(adapters), "logits": first[0], "loss": losses[0], "gradients": flat(first[1]),
                "losses": losses, "adamw": ADAMW}


class Base:
    """A model whose layers peft has replaced, as ours() wants it: a layer's base instead of the layer."""
    def __init__(self, module):
        self.module = module

    def __getattr__(self, name):
        inner = getattr(self.module, name)
        inner = getattr(inner, "base_layer", inner)
        if isinstance(inner, torch.nn.ModuleList):
            return [Base(m) for m in inner]
        return Base(inner) if isinstance(inner, torch.nn.Module) else inner


def unwrapped(model):
    return Base(model.base_model.model)


def check(folder):
    all_ = json.loads((HERE / "peft.json").read_text())["cases"]["llama, all"]
    model = model_of(all_)
    with torch.no_grad():
        for name, tensors, _ in ours(all_, model):
            values = torch.tensor(all_["parameters"][name]).view(-1, *tensors[0].shape[1:])
            for tensor, value in zip(tensors, values.split([len(t) for t in tensors])):
                tensor.copy_(value)
    model = peft.PeftModel.from_pretrained(model, folder)
    logits = model(input_ids=torch.tensor(all_["tokens"]).view(3, 8)).logits.flatten()
    found = torch.tensor(json.loads((pathlib.Path(folder) / "logits.json").read_text()))
    off = float((logits - found).abs().max() / logits.abs().max())
    print(f"peft {peft.__version__} loads it; logits are off by {off:.1e} of the largest")
    sys.exit(off > 1e-5)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"]:
        check(sys.argv[2])
    text = {"peft": peft.__version__, "transformers": transformers.__version__, "torch": torch.__version__.split("+")[0],
            "cases": {name: fixture(*case) for name, case in CASES.items()}}
    (HERE / "peft.json").write_text(json.dumps(text) + "\n")
