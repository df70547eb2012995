"""Pictures of chapters whose subject is whose memory it is: the optimizer's (13), what adapters leave of it (14), another process' (15)."""
import json
import math

from .reading import MIB
from .svg import WIDTH, Picture, Plot, size


def optimizer(results):
    variants = results.chapter("13_optimizer_memory")["variants"]
    parameters = variants[0]["by_category_bytes"]["parameters"] / 4  # the first variant's weights are FP32
    kept = ("parameters", "gradients", "optimizer")
    picture = Picture("Bytes per parameter at the peak", 84 + 40 * len(variants))
    y = picture.legend(54, [("weights", "parameters"), ("gradients", "gradients"), ("optimizer's state", "optimizer")])
    each = [(v["name"], [(c, v["by_category_bytes"][c] / parameters) for c in kept]) for v in variants]
    scale = (WIDTH - 32) / max(sum(n for _, n in parts) for _, parts in each)
    picture.table = [("variant", "weights", "gradients", "optimizer's state", "together")]
    for name, parts in each:
        total = sum(n for _, n in parts)
        y = picture.bar(y - 2, name, parts, scale, end=f"{total:.1f}", height=10)
        picture.table.append((f"`{name}`", *(f"{n:.2f}" for _, n in parts), f"{total:.2f}"))
    said = [f"{name}: {' + '.join(f'{n:.1f}' for _, n in parts)}" for name, parts in each]
    picture.desc = "A bar for each optimizer: bytes of weights, gradients and state per parameter of a small GPT, without activations. " + "; ".join(said) + "."
    chinese = [f"{name}：{' + '.join(f'{n:.1f}' for _, n in parts)}" for name, parts in each]
    picture.in_chinese("峰值时每个参数的字节", "每个优化器一条：小 GPT 每个参数的权重、梯度和状态字节，不含激活。" + "；".join(chinese) + "。",
                       zip(picture.table[0], ("方案", "权重", "梯度", "优化器状态", "合计")))
    return picture


def adapters(results):
    """Where the peak's bytes are, of what is trained in full and beside frozen weights."""
    parts = [("weights", "parameters"), ("gradients", "gradients"), ("optimizer", "optimizer"), ("activations", "activations")]
    rows = results.table("14_adapters", "state")
    picture = Picture("Bytes at the peak of fine-tuning", 84 + 40 * len(rows))
    y = picture.legend(54, parts)
    scale = (WIDTH - 32) / max(sum(row[c] for c, _ in parts) for row in rows)
    for row in rows:
        total = sum(row[c] for c, _ in parts)
        y = picture.bar(y - 2, row["variant"], [(colour, row[c]) for c, colour in parts], scale, end=size(total), height=10)
    said = [f"{row['variant']}: {' + '.join(size(row[c]) for c, _ in parts)}" for row in rows]
    picture.desc = "A bar for each variant: weights, gradients, optimizer and activations at the peak. " + "; ".join(said) + "."
    chinese = [f"{row['variant']}：{' + '.join(size(row[c]) for c, _ in parts)}" for row in rows]
    picture.in_chinese("微调峰值时的字节", "每种方案一条：峰值时的权重、梯度、优化器和激活。" + "；".join(chinese) + "。")
    return picture


def learning(results):
    """What the ways of fine-tuning have learned after equally many steps, beside the bytes that they take."""
    plan = json.loads((results.folder / "plan/14_learning.json").read_text())
    (table,) = [t for t in plan["tables"] if t["name"] == "losses"]
    steps = plan["config"]["learn"]
    columns = [c["name"] for c in table["columns"]]
    rows = [dict(zip(columns, row, strict=True)) for row in table["rows"]]
    last = columns[-1]
    picture = Picture(f"What {steps} steps teach, and for how many bytes", 432)
    y = picture.legend(54, [("in full", "activations"), ("LoRA", "parameters"), ("QLoRA", "optimizer")])
    bits = [row[last] for row in rows]
    low, high = math.floor(min(bits) * 5) / 5, math.ceil(max(bits) * 5) / 5
    most = math.ceil(max(row["peak"] for row in rows) / MIB)
    plot = Plot(picture, (84, y + 26, 440, y + 280), (2 * MIB, most * MIB), (low, high))
    ticks = round((high - low) * 5)
    plot.ticks_y([low + n / 5 for n in range(ticks + 1)], lambda b: f"{b:.1f} bits")
    plot.ticks_x([n * MIB for n in range(2, most + 1)], size, "peak of a step")
    for row in rows:
        name = row["fine-tuned"]
        colour = "optimizer" if name.startswith("qlora") else "parameters" if name.startswith("lora") else "activations"
        plot.dot(row["peak"], row[last], colour, f"{name}: {size(row['peak'])}, {row[last]:.3f} bits")
        below = name.startswith("qlora")
        picture.text(plot.X(row["peak"]), plot.Y(row[last]) + (20 if below else -10), name.replace("lora", "LoRA").replace("qLoRA", "QLoRA"),
                     anchor="middle")
    picture.text(16, y + 340, "Bits: the loss for a byte on which nothing was trained.", "faint")
    said = [f"{row['fine-tuned']}: {size(row['peak'])}, {row[last]:.3f} bits" for row in rows]
    picture.desc = (f"A dot for each way of fine-tuning: to the right the peak of a step, upwards the loss after {steps} steps. "
                    + "; ".join(said) + ".")
    chinese = [f"{row['fine-tuned']}：{size(row['peak'])}，{row[last]:.3f} 位" for row in rows]
    picture.in_chinese(f"{steps} 步学到多少，用了多少字节", f"每种微调方式一个点：向右是一步的峰值，向上是 {steps} 步之后的 loss。" + "；".join(chinese) + "。")
    return picture


def sharing(results):
    """Who has what before we come, and while we run."""
    budget = results.chapter("15_sharing")["config"]["budget_bytes"]
    each = [tuple(row[c] for c in ("variant", "neighbour", "beside us", "ours", "together")) for row in results.table("15_sharing", "shares")]
    picture = Picture("Two processes on one device, over time", 100 + 62 * len(each))
    y = picture.legend(54, [("the neighbour", "optimizer"), ("we", "parameters")]) + 14
    scale = (WIDTH - 96) / max(together for *_, together in each)
    top = y - 4
    for name, most, beside, ours, together in each:
        picture.text(16, y + 12, name, bold=True, name=True)
        for line, (when, parts) in enumerate((("before", [("optimizer", most)]), ("then", [("optimizer", beside), ("parameters", ours)]))):
            picture.text(16, y + 29 + 16 * line, when, "faint")
            x = 72
            for colour, amount in parts:
                picture.rect(x, y + 19 + 16 * line, amount * scale, 12, colour, says=size(amount))
                x += amount * scale
        y += 62
    picture.limit(72 + budget * scale, top, y - 8, f"budget {size(budget)}", "middle")
    said = [f"{name}: the neighbour {size(most)}, then it {size(beside)} and we {size(ours)}{', which is too much' if beside + ours > budget else ''}"
            for name, most, beside, ours, _ in each]
    picture.desc = f"For each variant a bar of what the neighbour has before we come, and one of what both have while we run, under a budget of {size(budget)}. " + "; ".join(said) + "."
    chinese = [f"{name}：邻居 {size(most)}，之后邻居 {size(beside)}、我们 {size(ours)}{'，超过了预算' if beside + ours > budget else ''}"
               for name, most, beside, ours, _ in each]
    picture.in_chinese("两个进程共用一个设备，先后", f"每种方案两条：我们来之前邻居占多少，我们运行时双方各占多少，预算 {size(budget)}。" + "；".join(chinese) + "。")
    return picture
