"""Settings of huggingface_training.py, drawn at random."""
import random

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "gpt2", "bert", "vit")


def random_settings(count, seed):
    """`count` settings of small models, each of their parts drawn alone."""
    draw = random.Random(seed)
    made = []
    while len(made) < count:
        family = draw.choice(FAMILIES)
        old = family in ("gpt2", "bert", "vit")
        depth, heads, layers = draw.choice((32, 64, 128)), draw.randint(2, 8), draw.randint(2, 5)
        width = depth * heads
        if not 128 <= width <= 384:
            continue
        setting = {"family": family, "layers": layers, "width": width, "heads": heads, "mlp": draw.randint(width, 4 * width) // 16 * 16}
        if not old:
            setting["kv_heads"] = draw.choice([k for k in range(1, heads + 1) if heads % k == 0])
            if family in ("llama", "mistral", "qwen3", "gemma2", "gemma3") and draw.random() < 0.3:
                setting["head_dim"] = draw.choice((32, 64, 128))
        if family == "vit":
            side = draw.randint(5, 12)
            setting |= {"positions": side * side + 1, "patch": draw.choice((8, 16)), "channels": 3, "labels": draw.randint(10, 1000),
                        "batch": draw.randint(2, 16), "seq": 1}
        else:
            setting |= {"vocabulary": draw.randint(500, 8000), "batch": draw.randint(1, 6), "seq": draw.randint(32, 400)}
        if family in ("gpt2", "bert"):
            setting["positions"] = 1024
            setting["dropout_percent"] = draw.choice((0, 10, 10))
        if not old and not family.startswith("gemma") and draw.random() < 0.5:
            setting["tied"] = draw.randint(0, 1)
        mode = draw.choice(("fp32", "autocast", "pure"))
        if mode == "autocast":
            setting["autocast"] = "bf16"
        if mode == "pure":
            setting["weights"] = "bf16"
        if draw.random() < 0.5:
            setting["checkpoint"] = 1
        if draw.random() < 0.25:
            setting["attention"] = "eager"
        if draw.random() < 0.35:
            setting |= {"lora": draw.choice((4, 8, 16, 64)), "targets": draw.choice(("all", "default"))}
            if draw.random() < 0.5:
                setting["lora_dropout_percent"] = 5
            if mode == "autocast" and draw.random() < 0.5:
                setting["weights"] = "bf16"
        setting["optimizer"] = draw.choice(("adamw_foreach", "adamw_fused", "adafactor", "sgd"))
        if draw.random() < 0.25:
            setting["micro_batches"] = 2
        tokens = setting["batch"] * (setting["positions"] if family == "vit" else setting["seq"])
        scores = tokens * setting["heads"] * (setting["positions"] if family == "vit" else setting["seq"])
        work = tokens * (layers * 12 * width * width + setting.get("vocabulary", 0) * width)
        narrow = mode != "fp32"  # products of 16 bits take a CPU without them fifty times as long
        if 192 <= tokens <= 2048 and scores < 1e7 and work < (1.5e9 if narrow else 8e9):  # what takes seconds
            made.append(setting)
    return made
