"""The picture of chapter 18: the peak of each stage of a large pipeline, way after way to make an image."""
from .svg import WIDTH, Picture, size

PLAN = "18_sdxl"
STAGES = (("text encoder", "data"), ("denoiser", "parameters"), ("decoder", "activations"))


def stages(results):
    """Of each variant three bars: what the text encoder, the denoiser and the decoder need while they run."""
    config = results.plan(PLAN)["config"]
    rows = results.plan_table(PLAN, "stages")
    picture = Picture(f"What each stage of {config['model']} needs", 96 + 64 * len(rows))
    y = picture.legend(54, STAGES, name=True) + 4
    largest = max(row[stage] for row in rows for stage, _ in STAGES)
    scale = (WIDTH - 32) / largest
    top = y - 8
    for row in rows:
        picture.text(16, y + 12, row["variant"], name=True)
        picture.text(WIDTH - 16, y + 12, size(max(row[stage] for stage, _ in STAGES)), "ink", anchor="end")
        for number, (stage, colour) in enumerate(STAGES):
            picture.rect(16, y + 18 + 11 * number, row[stage] * scale, 9, colour, says=f"{stage} {size(row[stage])}")
        y += 64
    budget = config["budget_bytes"]
    if budget < largest:
        picture.limit(16 + budget * scale, top, y - 8, "")
    picture.desc = f"Three bars for each variant, with a line at the budget of {size(budget)}. " + "; ".join(
        f"{row['variant']}: " + ", ".join(f"{stage} {size(row[stage])}" for stage, _ in STAGES) for row in rows) + "."
    picture.in_chinese(f"{config['model']} 的每个阶段需要多少显存", f"每个变体三条，竖线是 {size(budget)} 的预算。" + "；".join(
        f"{row['variant']}：" + "、".join(f"{stage} {size(row[stage])}" for stage, _ in STAGES) for row in rows) + "。")
    return picture
