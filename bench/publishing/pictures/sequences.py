"""The picture of chapter 17: how long a sequence fits, lever after lever."""
from .svg import WIDTH, Picture

PLAN = "17_llama_8b"


def longest(results):
    """The longest sequence on one card of 80 GB, with each lever and all those above it."""
    model = results.plan(PLAN)["config"]["model"]
    rows = [(row["levers"], row["80 GB"] or 0) for row in results.plan_table(PLAN, "longest")]
    picture = Picture(f"The longest sequence of {model} on 80 GB", 52 + 40 * len(rows))
    scale = (WIDTH - 32) / max(tokens for _, tokens in rows)
    y = 44
    for name, tokens in rows:
        y = picture.bar(y - 2, name, [("activations", tokens)], scale, end=f"{tokens:,} tokens" if tokens else "does not fit", height=10)
    said = [f"{name}: {tokens:,}" if tokens else f"{name}: none" for name, tokens in rows]
    picture.desc = "A bar for each lever, with all those above it: tokens of the longest sequence of which a training step fits. " + "; ".join(said) + "."
    chinese = [f"{name}：{tokens:,}" if tokens else f"{name}：放不下" for name, tokens in rows]
    picture.in_chinese(f"{model} 在 80 GB 上的最长序列", "每个手段一条，含它上面的所有手段：训练一步放得下的最长序列有多少 token。" + "；".join(chinese) + "。")
    return picture
