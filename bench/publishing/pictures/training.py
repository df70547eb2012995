"""Pictures of chapters whose subject is a step of training: 00 to 04, and 07."""

from shared.results_files import CATEGORIES

from . import timeline
from .reading import MIB, by_category, power_of_two
from .svg import WIDTH, Picture, Plot, size


def stacked(plot, rows):
    """Areas of the categories, one upon the other; the rows stand at 0, 1, 2, ..."""
    below = [0] * len(rows)
    for category in ("workspace", "data", "parameters", "gradients", "optimizer", "activations"):
        above = [b + live[category] for b, (_, live, _) in zip(below, rows)]
        if any(a > b for a, b in zip(above, below)):
            edge = [(plot.X(i), plot.Y(b)) for i, b in enumerate(below)] + [(plot.X(i), plot.Y(a)) for i, a in reversed(list(enumerate(above)))]
            plot.picture.area(edge, category)
        below = above


def anatomy(results):
    name = "plan/00_timeline.csv"
    refused = timeline.read(results.folder / name, "under the budget")[-1]
    rows = timeline.read(results.folder / name, "again, without the budget")
    budget = results.chapter("00_anatomy")["config"]["budget_bytes"]
    totals = [sum(live.values()) for _, live, _ in rows]
    picture = Picture("A training step's memory, byte by byte", 392)
    bottom = picture.legend(54, [(c, c) for c in CATEGORIES if c != "data"])
    plot = Plot(picture, (76, bottom + 24, 464, 322), (0, len(rows) - 1), (0, 800 * MIB))
    plot.ticks_y([n * 200 * MIB for n in range(5)])
    stacked(plot, rows)
    plot.budget(budget, f"budget {size(budget)}", left=True)
    stop = next(i for i, t in enumerate(totals) if t > sum(refused[1].values()))
    plot.line([(stop, 0), (stop, 760 * MIB)], "ink", dashed=True, wide=1.5)
    picture.text(plot.X(stop) - 6, plot.Y(740 * MIB), "out of memory", anchor="end")
    phases, begin = [], 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i][0] != rows[begin][0]:
            phases.append((rows[begin][0], max(totals[begin:i]), {c: max(r[1][c] for r in rows[begin:i]) for c in CATEGORIES}))
            if i < len(rows):
                plot.line([(i, 0), (i, 800 * MIB)], "grid", wide=1)
            begin = i
    changes = [0] + [i for i in range(1, len(rows)) if rows[i][0] != rows[i - 1][0]] + [len(rows) - 1]
    for number, (a, b) in enumerate(zip(changes, changes[1:])):
        picture.text(plot.X((a + b) / 2), 340 if number != 1 else 358, rows[a][0], "faint", "middle")
    picture.text(plot.left, 380, "allocations and releases, in the program's order", "faint")
    live = sum(refused[1].values())
    picture.desc = (f"Memory over time, stacked by category. Setup fills the budget of {size(budget)}: with {size(live)} live, the optimizer's "
                    f"state asks for {size(refused[2])} and is refused. Measured without the budget, the step peaks at {size(max(totals))} in its "
                    f"backward pass; its activations are at most {size(max(r[1]['activations'] for r in rows))}.")
    picture.in_chinese("训练一步的显存，逐字节", f"显存随时间的变化，按类别堆叠。初始化时就占满了 {size(budget)} 的预算：{size(live)} 存活时，优化器状态申请 {size(refused[2])}，被拒绝。"
                       f"没有预算时测得，这一步在反向传播时达到峰值 {size(max(totals))}；激活最多 {size(max(r[1]['activations'] for r in rows))}。")
    return picture


def batch(results):
    data = results.chapter("01_batch_reduction")
    budget, found = data["config"]["budget_bytes"], data["findings"]
    picture = Picture("peak = fixed + slope x batch", 372)
    picture.legend(54, [("mlp-activations", "activations"), ("mlp-weights", "parameters")], name=True)
    plot = Plot(picture, (76, 84, 464, 310), (0, 540), (0, 110 * MIB))
    plot.ticks_y([n * 20 * MIB for n in range(6)])
    plot.ticks_x([0, 64, 128, 256, 512], label="batch (samples per step)")
    said, chinese = [], []
    for model, colour in (("mlp-activations", "activations"), ("mlp-weights", "parameters")):
        key = model.replace("-", "_") + "_fit_"
        fixed, slope = found[key + "fixed_bytes"], found[key + "slope_bytes_a_sample"]
        plot.line([(0, fixed), (540, fixed + slope * 540)], colour)
        for variant in data["variants"]:
            if variant["name"].startswith(model + ","):
                plot.dot(variant["batch"], variant["peak_allocated_bytes"], colour, f"batch {variant['batch']}: {size(variant['peak_allocated_bytes'])}")
        picture.text(plot.X(0) + 8, plot.Y(fixed) - 16 if fixed > budget else plot.Y(2 * MIB), f"fixed: {size(fixed)}", "ink")
        said.append(f"{model}: {size(fixed)} fixed and {size(slope)} per sample")
        chinese.append(f"{model}：固定 {size(fixed)}，每个样本 {size(slope)}")
    plot.budget(budget, f"budget {size(budget)}")
    largest = found["mlp_activations_largest_batch_found"]
    plot.line([(largest, 0), (largest, budget)], "ink", dashed=True, wide=1.5)
    picture.text(plot.X(largest) + 6, plot.Y(26 * MIB), f"largest fit: {largest}")
    picture.desc = f"Two straight lines, peak against batch, under a budget of {size(budget)}. " + "; ".join(said) + \
        f". The first crosses the budget at batch {largest}; the second starts above it, so no batch fits."
    picture.in_chinese("峰值 = 固定部分 + 斜率 x batch", f"两条直线：峰值与 batch，预算 {size(budget)}。" + "；".join(chinese)
                       + f"。第一条在 batch {largest} 处越过预算；第二条从预算之上开始，所以任何 batch 都放不下。")
    return picture


def accumulation(results):
    full = timeline.read(results.folder / "plan/02_timeline_full.csv", "under the budget")
    micro = timeline.read(results.folder / "plan/02_timeline_micro.csv", "under the budget")
    data = results.chapter("02_gradient_accumulation")
    budget, config = data["config"]["budget_bytes"], data["config"]
    picture = Picture("One large batch, or micro-batches in turn", 572)
    y = picture.legend(54, [(c, c) for c in CATEGORIES if c != "data"])
    many = sum(1 for a, b in zip(micro, micro[1:]) if a[0] != "batch" and b[0] == "batch")
    last = full[-1]
    for rows, words in ((full[:-1], f"batch {config['batch']} at once"), (micro, f"{many} micro-batches of {config['micro_batch']}, one after the other")):
        plot = Plot(picture, (76, y + 30, 464, y + 184), (0, len(rows) - 1), (0, 110 * MIB))
        picture.text(16, y + 12, words, bold=True)
        plot.ticks_y([n * 40 * MIB for n in range(3)])
        stacked(plot, rows)
        plot.budget(budget, f"budget {size(budget)}")
        if rows is micro:
            starts = [i for i in range(1, len(rows)) if rows[i][0] == "batch" and rows[i - 1][0] != "batch"] + [len(rows) - 1]
            for n, (a, b) in enumerate(zip(starts, starts[1:])):
                picture.text(plot.X((a + b) / 2), y + 202, str(n + 1), "faint", "middle")
        else:
            picture.text(464, y + 202, f"out of memory: asked for {size(last[2])}, had {size(budget - sum(last[1].values()))}", "budget", "end")
        y += 224
    picture.text(16, y + 14, "allocations and releases, in the program's order", "faint")
    peak = max(sum(live.values()) for _, live, _ in micro)
    picture.desc = (f"Memory over time against a budget of {size(budget)}. The batch of {config['batch']} fills it in its forward pass. In {many} "
                    f"micro-batches of {config['micro_batch']} the activations come and go {many} times, and the peak is {size(peak)}.")
    picture.in_chinese("一个大 batch，还是依次几个微批", f"显存随时间的变化，预算 {size(budget)}。batch {config['batch']} 在前向传播时就占满了它。分成 {many} 个大小为 {config['micro_batch']} 的微批，"
                       f"激活出现又释放 {many} 次，峰值是 {size(peak)}。")
    return picture


def precision(results):
    lost = {row["precision"]: row["become zero or lose bits"] for row in results.table("03_mixed_precision", "gradients")}
    scale = int(results.table("03_mixed_precision", "loss_scale")[0]["scale after it"])
    shift = scale.bit_length() - 1
    picture = Picture("What each format can hold", 372)
    left, right, low, high = 28, 452, -150, 130
    X = lambda power: left + (power - low) / (high - low) * (right - left)
    bands = (("FP32", -149, -126, 128, "24 significant bits"), ("BF16", -133, -126, 128, "8 significant bits"), ("FP16", -24, -14, 16, "11 significant bits"),
             (f"FP16, gradients x {scale}", -24 - shift, -14 - shift, 16 - shift, "the same, moved"))
    y = 50 + 56 * len(bands)
    for power in (-149, -100, -50, -14, 16, 128):
        picture.path([(X(power), 68), (X(power), y - 6)], "grid", wide=1)
        picture.text(X(power), y + 12, power_of_two(power), "faint", "middle")
    y = 50
    for name, smallest, normal, largest, bits in bands:
        picture.text(16, y + 12, name, bold=True, name=" " not in name)
        picture.text(WIDTH - 16, y + 12, bits, "faint", "end")
        picture.rect(X(smallest), y + 20, X(normal) - X(smallest), 18, "activations", says=f"bits are lost below {power_of_two(normal)}")
        picture.rect(X(normal), y + 20, X(largest) - X(normal), 18, "parameters", says=f"all bits from {power_of_two(normal)} to {power_of_two(largest)}")
        y += 56
    y = picture.legend(y + 40, [("all bits", "parameters"), ("fewer bits; below it, zero", "activations")])
    percent = lambda share: f"{100 * share:.2g} %"
    words = [f"FP16 as it is: {percent(lost['fp16 pure'])} of the gradients lose bits or become zero",
             f"FP16, loss x {scale}: {percent(lost['fp16'])}.   BF16: {percent(lost['bf16'])}"]
    picture.text(16, y + 4, words[0])
    picture.text(16, y + 25, words[1])
    picture.desc = (f"Number lines of powers of two. FP32 and BF16 reach from 2⁻¹²⁶ to 2¹²⁸, FP16 from 2⁻¹⁴ to 2¹⁶, with fewer bits down to 2⁻²⁴; a loss scale of {scale} "
                    f"moves its window {shift} powers down. {words[0]}; with the scale {percent(lost['fp16'])}, and in BF16 {percent(lost['bf16'])}.")
    picture.table = [("format", "all bits", "fewer bits, down to", "first gradients that lose bits or become zero"),
                     ("FP32", "2⁻¹²⁶ to 2¹²⁸", "2⁻¹⁴⁹", "-"), ("BF16", "2⁻¹²⁶ to 2¹²⁸", "2⁻¹³³", percent(lost["bf16"])),
                     ("FP16", "2⁻¹⁴ to 2¹⁶", "2⁻²⁴", percent(lost["fp16 pure"])),
                     (f"FP16, loss x {scale}", f"{power_of_two(-14 - shift)} to {power_of_two(16 - shift)}", f"{power_of_two(-24 - shift)}", percent(lost["fp16"]))]
    picture.in_chinese(
        "每种格式能表示什么",
        f"以 2 的幂为刻度的数轴。FP32 和 BF16 从 2⁻¹²⁶ 到 2¹²⁸，FP16 从 2⁻¹⁴ 到 2¹⁶，有效位减少时可到 2⁻²⁴；损失缩放取 {scale}，它能表示的范围就下移到原来的 {power_of_two(-shift)}。"
        f"不用损失缩放的 FP16：{percent(lost['fp16 pure'])} 的梯度损失有效位或变成零；有损失缩放时 {percent(lost['fp16'])}，用 BF16 时 {percent(lost['bf16'])}。",
        {**dict(zip(picture.table[0], ("格式", "有效位完整的范围", "有效位变少，可小到", "第一步的梯度中，损失有效位或变成零的"))), "2⁻¹²⁶ to 2¹²⁸": "2⁻¹²⁶ 到 2¹²⁸", "2⁻¹⁴ to 2¹⁶": "2⁻¹⁴ 到 2¹⁶",
         picture.table[4][0]: f"FP16，loss x {scale}", picture.table[4][1]: picture.table[4][1].replace("to", "到")})
    return picture


def checkpointing(results):
    frontier = [(row["peak"], row["recomputed"], row["schedule"]) for row in results.table("04_checkpointing", "frontier")]
    budget = results.chapter("04_checkpointing")["config"]["budget_bytes"]
    solved = results.variants("04_checkpointing")["solved"]["peak_allocated_bytes"]
    kinds = (("kept", "parameters"), ("without norms+GELU", "optimizer"), ("without norms+GELU+probabilities", "gradients"), ("recomputed", "activations"))
    picture = Picture("What each layer keeps, and what it costs", 622)
    y = picture.legend(54, kinds)
    layers = sum(int(part.split()[0]) for part in frontier[-1][2].split(", "))
    picture.text(16, y + 6, "peak", "faint")
    picture.text(110, y + 6, f"the {layers} layers", "faint")
    picture.text(WIDTH - 16, y + 6, "computed again", "faint", "end")
    y += 16
    for peak, percent, schedule in frontier:
        picture.text(16, y + 16, size(peak))
        x = 110
        for part in schedule.split(", "):
            count, kind = part.split(" ", 1)
            for _ in range(int(count)):
                picture.rect(x, y + 2, 26, 18, dict(kinds)[kind], says=kind)
                x += 30
        picture.text(WIDTH - 16, y + 16, f"{percent:.1f} %", anchor="end")
        y += 26
    plot = Plot(picture, (60, y + 40, 464, y + 210), (40 * MIB, 130 * MIB), (0, 25))
    plot.ticks_y((0, 5, 10, 15, 20, 25), lambda v: f"{v} %")
    plot.ticks_x([n * MIB for n in (50, 75, 100, 125)], size, "peak allocated")
    picture.text(16, y + 26, "operations computed again, against the peak", "faint")
    plot.line([(p, c) for p, c, _ in frontier], "ink", wide=1.5)
    for peak, percent, schedule in frontier:
        plot.dot(peak, percent, "activations", f"{size(peak)}: {percent:.1f} %, {schedule}")
    plot.line([(budget, 0), (budget, 25)], "budget", dashed=True)
    picture.text(plot.X(budget) + 6, plot.Y(22), f"budget {size(budget)}; solved: {size(solved)}", "budget")
    picture.desc = (f"Each row is a schedule of {layers} layers, found by the solver: what is kept and what is computed again. From {size(frontier[-1][0])} with all kept to "
                    f"{size(frontier[0][0])} with {frontier[0][1]:.1f} % of the operations computed again. Under the budget of {size(budget)} the solver takes {size(solved)}.")
    picture.in_chinese("每层保留什么，代价是什么", f"每行是求解器找到的一种 {layers} 层的方案：保留什么，重算什么。从全部保留时的 {size(frontier[-1][0])}，"
                       f"降到重算 {frontier[0][1]:.1f} % 运算时的 {size(frontier[0][0])}。预算 {size(budget)} 之下，求解器用了 {size(solved)}。")
    return picture


def ranks(results):
    rows = results.variants("07_multi_gpu")
    budget = results.chapter("07_multi_gpu")["config"]["budget_bytes"]
    names = ("one device", "DDP x 8", "ZeRO-1 x 8", "ZeRO-2 x 8", "ZeRO-3 x 8", "pipeline x 8, GPipe", "pipeline x 8, 1F1B")
    picture = Picture("What the fullest device holds", 452)
    y = picture.legend(54, [(c, c) for c in CATEGORIES if c != "data"])
    scale, top = (WIDTH - 32) / max(rows[n]["peak_allocated_bytes"] for n in names), y + 14
    y = top + 6
    for name in names:
        y = picture.bar(y, name, by_category(rows[name]), scale, size(rows[name]["peak_allocated_bytes"]))
    picture.limit(16 + budget * scale, top, y - 4, f"budget {size(budget)}", "middle")
    picture.desc = f"Stacked bars against a budget of {size(budget)}. " + "; ".join(f"{n}: {size(rows[n]['peak_allocated_bytes'])}" for n in names) + \
        ". ZeRO-1 splits the optimizer's state over 8 devices, ZeRO-2 the gradients, too, ZeRO-3 the parameters, too."
    picture.table = [("variant", *CATEGORIES[:4], "peak")] + [(n, *(size(b) for _, b in by_category(rows[n])[:4]), size(rows[n]["peak_allocated_bytes"])) for n in names]
    picture.in_chinese("最满的设备上有什么", f"按类别堆叠的条，预算 {size(budget)}。" + "；".join(f"{n}：{size(rows[n]['peak_allocated_bytes'])}" for n in names)
                       + "。ZeRO-1 把优化器状态分摊到 8 个设备，ZeRO-2 再分摊梯度，ZeRO-3 再分摊参数。",
                       zip(picture.table[0], ("方案", "参数", "梯度", "优化器", "激活", "峰值")))
    return picture


def pipelined(stages, micro_batches, one_forward_one_backward):
    """(stage, micro-batch, is it a backward pass, begin, end) of a step; a backward pass takes twice as long as a forward pass."""
    orders = []
    for stage in range(stages):
        warm_up = min(stages - stage, micro_batches) if one_forward_one_backward else micro_batches
        order = [(n, False) for n in range(warm_up)]
        for n in range(micro_batches):
            order.append((n, True))
            if warm_up + n < micro_batches:
                order.append((warm_up + n, False))
        orders.append(order)
    done, free, schedule = {}, [0] * stages, []
    while any(orders):
        for stage, order in enumerate(orders):
            while order:
                n, backward = order[0]
                needs = [(stage, n, False)] if backward else []
                if backward and stage + 1 < stages or not backward and stage > 0:
                    needs.append((stage + (1 if backward else -1), n, backward))
                if not all(need in done for need in needs):
                    break
                begin = max([free[stage]] + [done[need] for need in needs])
                free[stage] = done[stage, n, backward] = begin + (2 if backward else 1)
                schedule.append((stage, n, backward, begin, free[stage]))
                order.pop(0)
    return schedule


def pipelines(results):
    rows, config = results.variants("07_multi_gpu"), results.chapter("07_multi_gpu")["config"]
    micro_batches = config["batch"] // config["micro_batch"]
    picture = Picture("Two schedules of one pipeline", 502)
    y, said = picture.legend(54, [("forward", "parameters"), ("backward", "gradients"), ("idle", "grid")]), []
    chinese = []
    picture.table = [("stage", "GPipe: held at most", "peak", "1F1B: held at most", "peak")]
    columns = []
    for name, words in (("pipeline x 8, GPipe", "GPipe: all forward passes first"), ("pipeline x 8, 1F1B", "1F1B: one forward, one backward")):
        ranks = rows[name]["ranks"]
        schedule = pipelined(len(ranks), micro_batches, "1F1B" in name)
        end = max(row[-1] for row in schedule)
        unit = (WIDTH - 32 - 96) / end
        picture.text(16, y + 14, words, bold=True)
        picture.text(WIDTH - 16, y + 14, "held", "faint", "end")
        y += 24
        for stage, rank in enumerate(ranks):
            picture.rect(16, y, end * unit, 15, "grid")
            live = most = 0
            for _, n, backward, begin, until in sorted((r for r in schedule if r[0] == stage), key=lambda r: r[3]):
                picture.rect(16 + begin * unit, y, (until - begin) * unit - 0.6, 15, "gradients" if backward else "parameters", says=f"stage {stage}, micro-batch {n}")
                live += -1 if backward else 1
                most = max(most, live)
            if most != rank["most_in_flight"]:
                raise ValueError(f"stage {stage} of {name} held {rank['most_in_flight']} micro-batches, and the picture {most}")
            picture.text(WIDTH - 16, y + 13, f"{most}: {size(rank['peak_allocated_bytes'])}", anchor="end")
            y += 19
        columns.append([(str(rank["most_in_flight"]), size(rank["peak_allocated_bytes"])) for rank in ranks])
        chinese.append(f"{name[14:]} 在第 0 到第 {len(ranks) - 1} 个阶段上保留 {'、'.join(str(rank['most_in_flight']) for rank in ranks)} 个微批")
        said.append(f"{name[14:]} holds {', '.join(str(rank['most_in_flight']) for rank in ranks)} micro-batches on stages 0 to {len(ranks) - 1}")
        y += 14
    picture.text(16, y + 10, f"rows: stages; {micro_batches} micro-batches; a backward pass", "faint")
    picture.text(16, y + 30, "drawn twice as long as a forward pass, no times", "faint")
    picture.desc = f"Schedules of {len(columns[0])} stages and {micro_batches} micro-batches, as order, not as times. " + "; ".join(said) + ". Both are idle equally long."
    picture.table += [(str(stage), *a, *b) for stage, (a, b) in enumerate(zip(*columns))]
    picture.in_chinese("同一条流水线的两种调度", f"{len(columns[0])} 个阶段、{micro_batches} 个微批的调度，只画先后，不表示时间。" + "；".join(chinese) + "。两者空闲的时间一样长。",
                       zip(picture.table[0], ("阶段", "GPipe：最多保留的微批", "峰值", "1F1B：最多保留的微批", "峰值")))
    return picture
