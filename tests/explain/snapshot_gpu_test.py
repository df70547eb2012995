"""bench/explain on what PyTorch 2.11 recorded on an H100: snapshot_gpu_test.py ROOT

bench/peers/gpu_all.py --snapshots and bench/peers/snapshots.py wrote the files. The truth is that of the programs: counts of parameters from the
shapes of their models, AdamW's two moments, gradients where they stay, and 32 MiB for cuBLAS in each of the two threads that multiply.
"""
import functools
import lzma
import sys

from snapshot_run import HERE, MIB, ROOT, WORK, all_of, first_lines

sys.path.insert(0, str(ROOT / "bench"))
from explaining.snapshot import findings  # noqa: E402
from explaining.snapshot_text import Text  # noqa: E402


@functools.cache
def finding(name):
    file = WORK / f"{name}.pickle"
    file.write_bytes(lzma.decompress((HERE / f"snapshots/gpu/{name}.pickle.xz").read_bytes()))
    return findings(str(file))[0]


def figures(name):
    return finding(name).json()


def explained(name, everything=False):
    return Text(finding(name), "en", name).text(everything)


def one_line(text):
    return " ".join(text.split())


def matrix(*sides):
    """A linear layer without bias, or an embedding."""
    count = 1
    for side in sides:
        count *= side
    return count


GPT2 = matrix(50257, 768) + matrix(1024, 768) + 4 * (12 * matrix(768, 768) + 13 * 768) + 2 * 768
QWEN2 = matrix(151936, 896) + 6 * (2 * matrix(896, 896) + 2 * matrix(896, 128) + 896 + 2 * 128 + 3 * matrix(896, 4864) + 2 * 896) + 896
LLAMA = 2 * matrix(128256, 4096) + 4 * (2 * matrix(4096, 4096) + 2 * matrix(4096, 1024) + 3 * matrix(4096, 14336) + 2 * 4096) + 4096
LORA = 4 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336))
BERT_BLOCK = 4 * (matrix(256, 256) + 256) + 2 * matrix(256, 1024) + 1024 + 256 + 4 * 256


def of_categories():
    """At least 95 % of the bytes at the peak have the category that they are known to have; parameters and state are known to the percent."""
    for name, truth in (
            ("gpt2", {"parameters": 4 * GPT2, "optimizer": 8 * GPT2, "workspace": 64 * MIB}),
            ("gpt2_refused", {"parameters": 4 * GPT2, "optimizer": 8 * GPT2, "workspace": 64 * MIB}),
            ("qwen2_checkpoints", {"parameters": 4 * QWEN2, "gradients": 4 * QWEN2, "optimizer": 8 * QWEN2, "workspace": 64 * MIB}),
            ("llama_lora", {"parameters": 2 * LLAMA + 4 * LORA, "optimizer": 8 * LORA, "workspace": 64 * MIB}),
            ("bert_refused", {"workspace": 32 * MIB})):
        found = figures(name)
        mine = found["by_category_bytes"]
        for kind in ("parameters", "optimizer"):
            assert kind not in truth or abs(mine[kind] - truth[kind]) <= 0.01 * truth[kind], (name, kind, mine, truth)
        assert mine.get("unknown", 0) == 0, (name, mine)
        if name == "bert_refused":  # in the first forward pass: the rest are parameters and activations
            assert mine["workspace"] == truth["workspace"] and mine["parameters"] > 4 * 4 * BERT_BLOCK, mine
            continue
        truth["activations"] = found["live_bytes"] - sum(truth.values())
        wrong = sum(abs(truth.get(kind, 0) - mine.get(kind, 0)) for kind in {*truth, *mine}) / 2
        assert wrong <= 0.05 * found["live_bytes"], (name, wrong, truth, mine)
        assert not found["growing"] and found["cause"] in ("full", "limit"), found
        assert len(explained(name).splitlines()) <= 32, name


def of_advice():
    """Of what fills it: here the loss, whose tensors have the size of all logits. Checkpoints that are there are not advised again."""
    text = explained("gpt2", True)
    assert "the loss has most of them" in first_lines(text) and "It saves up to 1.15 GiB" in first_lines(text), text  # 3 x 2048 x 50257 x 4 bytes
    assert "recompute activations" in one_line(text), text
    text = explained("qwen2_checkpoints", True)
    assert "It saves up to 3.48 GiB" in first_lines(text) and "recompute activations" not in one_line(text), text  # 3 x 2048 x 151936 x 4
    assert "load them in 16 bits, if they are in FP32" in first_lines(explained("llama_lora"))


def of_refusals():
    """The message's figures: what was asked for, rounded to the 2 MiB that are taken from the driver; what was free; what was held. Live bytes are
    the requests', and the message's those of blocks, so the message has a little less that is free."""
    for name, asked, free, held, cached in (("gpt2_refused", 394, 75.68 * 1024, 2.05 * 1024 + 77.03, 77.03), ("llama_loading_refused", 1002, 75.19 * 1024, 2684, 17.92),
                                            ("bert_refused", 32, 77.71 * 1024, 96.99 + 5.01, 5.01)):
        found = figures(name)
        oom = found["out_of_memory"]
        assert found["cause"] == "limit" and not found["growing"], found
        assert -(-oom["asked_bytes"] // (2 * MIB)) * 2 == asked, (name, oom)
        assert abs(oom["device_free_bytes"] / MIB - free) <= 0.005 * 1024 + 1, (name, oom)
        assert abs(oom["reserved_bytes"] / MIB - held) <= 0.01 * 1024, (name, oom)  # GiB with two decimals
        assert 0 <= oom["cached_bytes"] / MIB - cached + 0.01 <= 0.01 * held, (name, oom)
        assert "a limit, not the card" in first_lines(explained(name)), name


def of_leaks():
    """Programs with a fault that is planted, and two without one. What cuBLAS has does not hide it."""
    for name in ("plain", "sgd"):
        found = figures(name)
        assert found["growth_judged"] and not found["growing"] and found["rounds"] == 6 and found["cause"] == "full", found
    assert figures("plain")["by_category_bytes"]["workspace"] == 64 * MIB
    found = figures("kept_outputs")
    assert found["cause"] == "leak" and "in kept_outputs" in found["growing"][0]["place"] and len(found["growing"]) == 1, found
    assert found["growth_bytes_per_round"] == 128 * 10 * 100 * 4, found
    found = figures("kept_graphs")
    assert found["cause"] == "leak" and "whole graphs are kept" in first_lines(explained("kept_graphs")), found


all_of((of_categories, of_advice, of_refusals, of_leaks))
