"""Pictures of chapter 16: the ladder, and the frontier of all combinations of levers."""
import math

from .svg import WIDTH, Picture, Plot

PLAN = "16_bert_large"
COLOURS = {"baseline": "activations", "bit-equal": "parameters", "the same within rounding": "parameters"}
AGREEMENT = {"baseline": "基线", "bit-equal": "逐位相同", "the same within rounding": "在舍入误差内相同", "weights of 16 bits": "16 位权重",
             "moments of 8 bits": "8 位的矩"}  # the program's words in Chinese


def rungs(results):
    """Name, GB and numbers of each row."""
    return [(row["row"], row["peak"] / 1e9, row["numbers"]) for row in results.plan_table(PLAN, "ladder")]


def model_of(results):
    config = results.plan(PLAN)["config"]
    return config["model"], config["batch"], config["seq"]


def ladder(results):
    rows = rungs(results)
    model, batch, seq = model_of(results)
    picture = Picture(f"The ladder: {model}, {batch} x {seq}", 88 + 40 * len(rows))
    y = picture.legend(54, [("textbook", "activations"), ("same numbers", "parameters"), ("other numbers, by design", "optimizer")])
    scale = (WIDTH - 32) / max(gb for _, gb, _ in rows)
    for name, gb, numbers in rows:
        y = picture.bar(y - 2, name, [(COLOURS.get(numbers, "optimizer"), gb)], scale, end=f"{gb:.2f} GB", height=10)
    picture.desc = f"A bar for each row: peak of a training step of {model} with {batch} sequences of {seq}. " + "; ".join(f"{name}: {gb:.2f} GB, {numbers}" for name, gb, numbers in rows) + "."
    picture.in_chinese(f"阶梯：{model}，{batch} x {seq}", f"每行一条：{model} 训练一步的峰值，{batch} 条长 {seq} 的序列。"
                       + "；".join(f"{name}：{gb:.2f} GB，{AGREEMENT[numbers]}" for name, gb, numbers in rows) + "。")
    return picture


def frontier(results):
    (all_of_them,) = results.plan_table(PLAN, "combinations")
    count, card = all_of_them["combinations"], all_of_them["card"]
    curves = [(title, colour, [(row["peak"] / 1e9, row["least time"]) for row in results.plan_table(PLAN, name)])
              for name, title, colour in (("frontier_same", "the same numbers within rounding", "parameters"),
                                          ("frontier_adamw", "AdamW, some of it in 16 or 8 bits", "optimizer"), ("frontier_any", "any optimizer", "gradients"))]
    elsewhere = [(row["peak"] / 1e9, row["time of a sequence"], row["whose"]) for row in results.plan_table(PLAN, "published")]
    team = [gb for gb, ms, _ in elsewhere if ms is None]
    others = [(gb, ms, words) for gb, ms, words in elsewhere if ms is not None]
    picture = Picture("What memory costs in time, all levers", 566)
    y = picture.legend(54, [("AdamW in FP32, the same numbers", "parameters"), ("AdamW, some of it in 16 or 8 bits", "optimizer"), ("any optimizer", "gradients"),
                            ("Hugging Face, V100, measured", "activations")])
    lowest = math.floor(math.log2(min(gb for *_, points in curves for gb, _ in points)))
    plot = Plot(picture, (72, y + 18, 446, y + 330), (2.5, 300), (2**lowest, 28), log_x=True, log_y=True)
    plot.ticks_y([2**power for power in range(lowest, 5)], lambda gb: f"{gb:g} GB")
    plot.ticks_x((3, 10, 30, 100, 300), lambda ms: f"{ms} ms", "time per sequence, at least")
    for gb in team:
        plot.line([(2.5, gb), (300, gb)], "budget", dashed=True, wide=1.5)
        picture.text(plot.X(9), plot.Y(gb) - 6, f"an article: {gb:.0f} GB", "budget")
    for title, colour, points in curves:
        steps = [(points[0][1], 28)]
        for (gb, ms), (_, until) in zip(points, points[1:] + [(0, 300)]):
            steps += [(ms, gb), (until, gb)]
        plot.line(steps, colour)
        for gb, ms in points:
            plot.dot(ms, gb, colour, f"{gb:.2f} GB, {ms:.1f} ms")
    for gb, ms, words in others:
        plot.dot(ms, gb, "activations", f"{words}: {gb:.2f} GB, {ms:.0f} ms")
    y = y + 396
    for words in (f"{count} combinations; ours: exact bytes, and times that", f"no step on an {card} can undercut. Theirs: times",
                  "measured, bytes with context and cache."):
        picture.text(16, y, words, "faint")
        y += 20
    model, batch, seq = model_of(results)
    said = [f"{title}: from {points[0][0]:.2f} GB at {points[0][1]:.1f} ms to {points[-1][0]:.2f} GB at {points[-1][1]:.1f} ms" for title, _, points in curves]
    picture.desc = (f"Peak against the least time per sequence on an {card}, of {count} combinations of levers for {model}, {batch} x {seq}. " + "; ".join(said) +
                    f". Dashed: an article's team, from {team[0]:.0f} GB to {team[1]:.0f} GB, without a batch or a time. Dots: Hugging Face's measured rows on a V100, "
                    f"from {max(o[0] for o in others):.1f} GB to {min(o[0] for o in others):.1f} GB.")
    names = ("结果在舍入误差内相同", "AdamW，其中一部分用 16 位或 8 位", "任何优化器")
    said = [f"{name}：从 {points[0][0]:.2f} GB、{points[0][1]:.1f} ms 到 {points[-1][0]:.2f} GB、{points[-1][1]:.1f} ms"
            for name, (_, _, points) in zip(names, curves, strict=True)]
    picture.in_chinese("省显存要花多少时间，所有手段", f"{count} 种手段的组合，{model}，{batch} x {seq}：峰值与 {card} 上每条序列的最短时间。" + "；".join(said)
                       + f"。虚线：一篇文章说的某团队，从 {team[0]:.0f} GB 降到 {team[1]:.0f} GB，没给 batch 和时间。圆点：Hugging Face 在 V100 上测得的各行，"
                       f"从 {max(o[0] for o in others):.1f} GB 到 {min(o[0] for o in others):.1f} GB。")
    return picture
