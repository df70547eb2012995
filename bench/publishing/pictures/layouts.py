"""Pictures of where things lie, and of what a form of them needs: chapters 05, 06 and 08 to 12."""
from .reading import MIB, key
from .svg import WIDTH, Picture, Plot, size, width_of


def turns(layers, buffers):
    """(layer, what, begin, end) when `buffers` take turns: a stream for each, an engine for copies each way and one for kernels;
    each of the three takes one unit of time, and a buffer is free when its layer is back, as in the lesson."""
    free, engine, schedule = [0] * buffers, dict.fromkeys(("to the device", "kernel", "to the host"), 0), []
    for layer in range(layers):
        now = free[layer % buffers]
        for what in engine:
            begin = max(now, engine[what])
            now = engine[what] = begin + 1
            schedule.append((layer, what, begin, now))
        free[layer % buffers] = now
    return schedule


def places(results):
    data, rows = results.chapter("05_unified_memory"), results.variants("05_unified_memory")
    budget = data["config"]["budget_bytes"]
    names = ("device memory", "moments streamed", "streamed", "managed, on demand", "managed, prefetch", "managed, advice")
    layers, each, buffers = 8, 2, 2  # the lesson's; `each` in MiB
    results.lesson_prints("05_unified_memory", f"{layers} layers of {each} MiB, 3 passes; peaks on the device:",
                          f"  streamed through two buffers cudaMalloc {each * buffers:2} MiB, in use {each * buffers:2} MiB")
    picture = Picture("Layers take turns; where the state is", 656)
    picture.text(16, 54, f"The lesson: {layers} layers of {each} MiB stream through {buffers} buffers", bold=True)
    schedule, lanes = turns(layers, buffers), ("to the device", "kernel", "to the host")
    unit = (WIDTH - 116 - 16) / max(end for *_, end in schedule)
    for lane, what in enumerate(lanes):
        picture.text(16, 84 + 30 * lane, what)
        for layer, _, begin, end in (row for row in schedule if row[1] == what):
            colour = ("parameters", "gradients", "optimizer")[layer % buffers % 3]
            picture.rect(116 + begin * unit, 68 + 30 * lane, (end - begin) * unit - 1, 22, colour, says=f"layer {layer + 1}, buffer {layer % buffers + 1}: {what}")
            picture.text(116 + (begin + end) / 2 * unit, 84 + 30 * lane, str(layer + 1), "paper", "middle", bold=True)
    picture.text(16, 178, "number: layer; colour: buffer. The order only, no times.", "faint")
    picture.text(16, 212, "The experiment, bytes", bold=True)
    y = picture.legend(238, [("allocated on the device", "parameters"), ("managed, or in host memory", "grid"), ("moved to the device in a step", "activations")])
    scale, top = (WIDTH - 32) / (200 * MIB), y + 14
    y = top + 8
    picture.table = [("variant", "allocated on the device", "managed, or in host memory", "moved to the device in a step")]
    for name in names:
        device, found = rows[name]["peak_allocated_bytes"], data["findings"]
        outside, moved = found.get(f"{key(name)}_outside_bytes", 0), found.get(f"{key(name)}_bytes_to_device")
        picture.text(16, y + 12, name, bold=True, name=True)
        picture.text(WIDTH - 16, y + 12, f"{size(device)} + {size(outside)}" if outside else size(device), anchor="end")
        picture.rect(16, y + 18, device * scale, 16, "parameters")
        picture.rect(16 + device * scale, y + 18, outside * scale, 16, "grid")
        if moved is not None:
            picture.rect(16, y + 37, moved * scale, 8, "activations", says=f"{size(moved)} moved to the device")
        picture.table.append((name, size(device), size(outside), "-" if moved is None else size(moved)))
        y += 62 if moved is not None else 54
    picture.limit(16 + budget * scale, top, y - 8, f"budget {size(budget)}", "middle")
    both = next(n for n, (_, what, begin, _) in enumerate(schedule) if what == "kernel" and any(b == begin and w == "to the device" for _, w, b, _ in schedule))
    picture.desc = (f"Above, {layers} layers pass through {buffers} buffers: while layer {schedule[both][0] + 1} is computed in one, the next is copied into the other (the order, where copies and kernels run side by side; no times). "
                    "Below, bars for each way to hold a state larger than the device: " +
                    "; ".join(f"{n}: {d} on the device, {o} managed or in host memory, {m} moved to the device in a step" for n, d, o, m in picture.table[1:]).replace(", - moved to the device in a step", "") + ".")
    picture.in_chinese(
        "各层轮流使用缓冲区；状态放在哪里",
        f"上：{layers} 层经过 {buffers} 个缓冲区。第 {schedule[both][0] + 1} 层在其中一个里计算时，下一层正拷进另一个（只画先后，假定拷贝与核函数可以同时进行；不表示时间）。"
        "下：装下比设备还大的状态，每种做法一条：" + "；".join(f"{n}：设备上 {d}，托管或在主机内存 {o}" + ("" if m == "-" else f"，一步中搬到设备 {m}")
                                             for n, d, o, m in picture.table[1:]) + "。",
        zip(picture.table[0], ("方案", "设备上已分配", "托管，或在主机内存", "一步中搬到设备")))
    return picture


def pages(results):
    """The lesson's address map: it has the figures, and the rule (the first free page goes) is the lesson's find()."""
    tensors, per, need, page = 8, 2, 6, 2  # the lesson's: small tensors, pages of each and of the one that is wanted, MiB of a page
    each, wanted, end = per * page, need * page, tensors * per
    places_now = [None if i // per % 2 else "parameters" for i in range(end)]  # tensors 1, 3, 5, ... are freed
    free, largest, new, moved = places_now.count(None) * page, each, (end + need) * page, end * page
    results.lesson_prints("06_caching_allocator", f"{tensors} tensors of {each} MiB, every other one freed; then one of {wanted} MiB",
                          f"  new pages from the device      {free} MiB free, {largest} MiB in one piece; then peak reserved {new} MiB",
                          f"  free pages mapped side by side {free} MiB free, {largest} MiB in one piece; then peak reserved {moved} MiB")
    picture = Picture("Free memory in pieces, and in one piece", 366)
    y = picture.legend(54, [("live tensor", "parameters"), ("free page", "grid"), (f"the tensor of {wanted} MiB", "activations")])
    cell = (WIDTH - 32) / (end + need)
    gone = [i for i, place in enumerate(places_now) if place is None][:need]
    for words, reserved, last in (("before", tensors * each, 0), ("new pages from the device", new, 1), ("free pages mapped side by side", moved, 2)):
        picture.text(16, y + 12, words, bold=True)
        picture.text(WIDTH - 16, y + 12, f"reserved {reserved} MiB", "faint", "end")
        for i in range(end + need):
            x = 16 + i * cell
            if i >= end and not last or last == 2 and i in gone:
                picture.rect(x + 1, y + 20, cell - 2, 30, "faint", outline=True, says="an address with no memory")
            else:
                picture.rect(x + 1, y + 20, cell - 2, 30, "activations" if i >= end else places_now[i] or "grid", says=f"page {i} of {page} MiB")
        if last == 2:
            for n, i in enumerate(gone):
                a, b = 16 + (i + 0.5) * cell, 16 + (end + n + 0.5) * cell
                picture.path([(a, y + 50), (a, y + 58 + 4 * n), (b, y + 58 + 4 * n), (b, y + 52)], "faint", wide=1.2)
        y += 76
    picture.text(16, y + 30, "addresses, left to right; dashed: no memory behind it", "faint")
    picture.desc = (f"An address map in three rows. Before: {tensors} tensors of {each} MiB, every other one freed, so {free} MiB are free, {largest} MiB in one piece. A tensor of {wanted} MiB "
                    f"either takes new pages, and {new} MiB are reserved, or the free pages are mapped at addresses side by side, and it stays at {moved} MiB.")
    picture.table = [("", "reserved", "free", "largest piece"), ("before", f"{tensors * each} MiB", f"{free} MiB", f"{largest} MiB"),
                     ("new pages from the device", f"{new} MiB", f"{free} MiB", f"{largest} MiB"), ("free pages mapped side by side", f"{moved} MiB", f"{free - wanted} MiB", f"{free - wanted} MiB")]
    picture.in_chinese(
        "空闲显存：碎块，还是一整块",
        f"地址图，三行。之前：{tensors} 个 {each} MiB 的张量，隔一个释放一个，所以空闲 {free} MiB，一块最大 {largest} MiB。一个 {wanted} MiB 的张量要么占用新的页，"
        f"这时保留 {new} MiB；要么把空闲页映射到相邻的地址，这时保留仍为 {moved} MiB。",
        {"reserved": "已保留", "free": "空闲", "largest piece": "最大的一块", "before": "之前", "new pages from the device": "向设备要新的页",
         "free pages mapped side by side": "把空闲页映射到相邻地址"})
    return picture


def attention(results):
    rows = [(n, peaks) for n, *peaks in (row.values() for row in results.table("08_attention_and_loss", "lengths"))]
    picture = Picture("Peak against the sequence's length", 386)
    names = (("textbook", "data"), ("tiled", "gradients"), ("+ chunked loss", "optimizer"), ("lean", "parameters"))
    y = picture.legend(54, names)
    plot = Plot(picture, (76, y + 6, 464, 326), (100, 180000), (2**30, 8 * 2**40), True, True)
    plot.ticks_y([2**30, 8 * 2**30, 64 * 2**30, 512 * 2**30, 4 * 2**40])
    plot.ticks_x([n for n, _ in rows], lambda n: f"{n:,}" if n < 100000 else "131k", "tokens; both axes in powers")
    for i, (name, colour) in enumerate(names):
        plot.line([(n, peaks[i]) for n, peaks in rows], colour)
        for n, peaks in rows:
            plot.dot(n, peaks[i], colour, f"{name}, {n} tokens: {size(peaks[i])}")
    for i in (0, 3):
        picture.text(plot.X(rows[-1][0]), plot.Y(rows[-1][1][i]) + (50 if i else -10), size(rows[-1][1][i]), anchor="end")
    picture.desc = "Peak memory of one sequence of gpt2 in bf16, both axes logarithmic. " + \
        " ".join(f"At {n:,} tokens: " + ", ".join(f"{name} {size(p)}" for (name, _), p in zip(names, peaks)) + "." for n, peaks in (rows[2], rows[-1]))
    chinese = ("教科书式", "分块", "加上分块 loss", "lean")
    picture.in_chinese("峰值与序列长度", "gpt2 的一条序列在 bf16 下的峰值显存，两轴都是对数。" + "".join(
        f"{n:,} 个 token：" + "，".join(f"{name} {size(p)}" for name, p in zip(chinese, peaks, strict=True)) + "。" for n, peaks in (rows[2], rows[-1])))
    return picture


def lesson_convolution(side, rows):
    """MiB of the image's rows, the column matrix, the result and the peak, when the lesson convolves that many rows at a time."""
    halo = 0 if rows == side else 2
    counts = [3 * (rows + halo) * side, 3 * 3 * 3 * rows * side, 16 * rows * side]
    return *(4 * n / MIB for n in counts), 4 * (sum(counts) + 16 * 3 * 3 * 3) / MIB


def tiles(results):
    rows = results.variants("09_input_size")
    side, strip = 512, 32  # the lesson's: 3 channels become 16, by filters of 3 x 3
    whole, strips = lesson_convolution(side, side), lesson_convolution(side, strip)
    results.lesson_prints("09_input_size", *(f"  {side} x {side}, {n:3} rows at a time{image:8.2f}{columns:9.2f}{result:8.2f}{peak:9.2f} MiB"
                                             for n, (image, columns, result, peak) in ((side, whole), (strip, strips))))
    picture = Picture("An image in strips, each with its halo", 490)
    y = 50
    for i in range(side // strip):
        picture.rect(16, y + i * 15, 150, 14, "gradients" if i == 5 else "parameters", says=f"rows {i * strip} to {(i + 1) * strip - 1}")
    picture.text(16, y + side // strip * 15 + 18, f"{side} rows, {side // strip} strips")
    picture.path([(166, y + 75), (206, y + 8)], "faint", wide=1)
    picture.path([(166, y + 89), (206, y + 148)], "faint", wide=1)
    for top, high, colour in ((8, 24, "activations"), (32, 92, "gradients"), (124, 24, "activations")):
        picture.rect(206, y + top, 110, high, colour)
    picture.text(326, y + 26, "1 row above: halo")
    picture.text(326, y + 72, f"{strip} rows are")
    picture.text(326, y + 92, "computed")
    picture.text(326, y + 142, "1 row below: halo")
    picture.text(206, y + 180, f"so a strip sees {strip + 2} rows of the image,")
    picture.text(206, y + 200, "and its result is that of the whole.")
    y += side // strip * 15 + 52
    y = picture.legend(y, [("image", "parameters"), ("columns", "gradients"), ("result", "optimizer")])
    scale = (WIDTH - 32) / (whole[3] * MIB)
    picture.table = [("", "image", "columns", "result", "peak")]
    for n, row in ((side, whole), (strip, strips)):
        parts = [(c, mib * MIB) for c, mib in zip(("parameters", "gradients", "optimizer"), row)]
        y = picture.bar(y, "", parts, scale, f"{row[3]:.2f} MiB", says=f"{side} x {side}, {n} rows at a time")
        picture.table.append((f"{side} x {side}, {n} rows at a time", *(f"{mib:.2f} MiB" for mib in row)))
    one, many = (rows[n]["peak_allocated_bytes"] for n in ("inference at 256, whole", "inference at 256, 4 x 4 tiles"))
    picture.text(16, y + 20, f"A whole network, 4 x 4 tiles: {size(one)} become {size(many)}.")
    picture.desc = (f"An image of {side} rows is convolved in {side // strip} strips of {strip} rows. A 3 x 3 filter needs one row more above and below, the halo. "
                    f"The peak falls from {whole[3]:.2f} MiB to {strips[3]:.2f} MiB. A whole network in 4 x 4 tiles: from {size(one)} to {size(many)}.")
    picture.in_chinese(
        "把图像切成条，每条带边缘区",
        f"一张 {side} 行的图像分成 {side // strip} 条做卷积，每条 {strip} 行。3 x 3 的滤波器上下各多要一行，这就是边缘区。"
        f"峰值从 {whole[3]:.2f} MiB 降到 {strips[3]:.2f} MiB。整个网络分成 4 x 4 块：从 {size(one)} 到 {size(many)}。",
        {"image": "图像", "columns": "列矩阵", "result": "结果", "peak": "峰值",
         **{f"{side} x {side}, {n} rows at a time": f"{side} x {side}，每次 {n} 行" for n in (side, strip)}})
    return picture


def lighter(results):
    """Rows of a model's name, millions of parameters, and MiB of state and of activations at its peak."""
    plan, rows = results.plan("10_resnet50"), []
    for variant in plan["variants"]:
        parameters, live = plan["findings"].get(key(variant["name"]) + "_parameters"), variant["by_category_bytes"]
        if parameters is not None:
            state = sum(live[category] for category in ("parameters", "gradients", "optimizer"))
            rows.append((variant["name"], parameters / 1e6, state / MIB, live["activations"] / MIB))
    rows = [row for row in rows if row[0] not in ("ReLU in a buffer of its own", "unet:4-64", "two-branch:32")]
    picture = Picture("Millions of parameters, and bytes at the peak", 448)
    y = picture.legend(54, [("parameters, gradients, momentum", "parameters"), ("activations", "activations")])
    scale = (WIDTH - 32) / (max(s + a for _, _, s, a in rows) * MIB)
    base = (rows[0][2] + rows[0][3]) * MIB
    top = y + 10
    y = top + 6
    for name, parameters, state, activations in rows:
        picture.text(28 + width_of(name, 14), y + 12, f"{parameters:.1f} million", "faint")
        y = picture.bar(y, name, [("parameters", state * MIB), ("activations", activations * MIB)], scale, height=14)
    picture.path([(16 + base * scale, top), (16 + base * scale, y - 8)], "ink", dashed=True, wide=1.5)
    picture.desc = "Bars of what is live at the peak, batch 32 at 224 x 224, dashed at resnet50's. " + \
        "; ".join(f"{n}: {p:.1f} million parameters, state {size(s * MIB)}, activations {size(a * MIB)}" for n, p, s, a in rows) + "."
    picture.in_chinese("参数与峰值字节", "每条是峰值时存活的字节，batch 32，224 x 224；虚线是 resnet50 的。" + "；".join(
        f"{n}：{round(p, 1) * 100:.0f} 万参数，模型状态 {size(s * MIB)}，激活 {size(a * MIB)}" for n, p, s, a in rows) + "。")
    return picture


def cache(results):
    plan = results.plan("11_llama_8b")
    asked, longest, found = plan["config"]["requests"], plan["config"]["longest"], plan["findings"]
    names = ("cache, contiguous", "cache, paged", "cache, 8 bits")
    rows = {name: [found[f"{key(name)}_{what}"] for what in ("most_requests", "mean_requests", "waste_percent")] for name in names}
    picture = Picture("Of 100 places in the KV cache", 388)
    y = picture.legend(54, [("holds a token", "parameters"), ("reserved, empty", "grid")])
    for name in names:
        most, mean, waste = rows[name]
        full = round(100 - waste)
        picture.text(16, y + 10, name, bold=True, name=True)
        for i in range(100):
            picture.rect(16 + i % 25 * 9.6, y + 18 + i // 25 * 14, 8, 11, "parameters" if i < full else "grid")
        picture.text(272, y + 28, f"{waste:.1f} % empty")
        picture.text(272, y + 48, f"{mean:.1f} requests at a time,")
        picture.text(272, y + 68, f"at most {most:.0f}")
        y += 98
    picture.text(16, y + 8, f"llama-3.1-8b, {asked} requests of up to {longest} tokens, 20 GiB", "faint")
    picture.desc = f"Squares for 100 reserved places of the KV cache, {asked} requests of up to {longest} tokens to llama-3.1-8b. " + \
        "; ".join(f"{name}: {waste:.1f} % hold no token, {mean:.1f} requests are served at a time on average" for name, (_, mean, waste) in rows.items()) + "."
    picture.in_chinese("KV 缓存的 100 个位置", f"小方格是 KV 缓存中保留的 100 个位置，llama-3.1-8b，{asked} 个请求，每个最多 {longest} 个 token。" + "；".join(
        f"{name}：{waste:.1f} % 没有 token，平均同时服务 {mean:.1f} 个请求" for name, (_, mean, waste) in rows.items()) + "。")
    return picture


def quantisation(results):
    rows = [(row["format"], row["a weight"], row["error"]) for row in results.table("12_quantisation", "formats")]
    picture = Picture("Error of a weight against its bits", 372)
    y = picture.legend(54, [("INT8", "parameters"), ("INT4 in groups", "activations"), ("NF4", "optimizer")])
    plot = Plot(picture, (64, y + 8, 464, 316), (3.5, 9.5), (0, 12))
    plot.ticks_y((0, 2, 4, 6, 8, 10, 12), lambda v: f"{v} %")
    plot.ticks_x((4, 5, 6, 7, 8, 9), str, "bits of a weight, with its share of the scales")
    colour = {"int8": "parameters", "int4": "activations", "nf4,": "optimizer"}
    plot.line([(b, e) for n, b, e in rows if n.startswith("int4")], "activations", wide=1.5)
    for name, bits, error in rows:
        plot.dot(bits, error, colour[name[:4]], f"{name}: {bits:.3f} bits, {error:.2f} %")
        if name in ("int4, groups of 16", "int4, groups of 256"):
            picture.text(plot.X(bits) + 9, plot.Y(error) + 4, name.split(", ")[1])
        elif name.startswith("int8"):
            picture.text(plot.X(bits) + (9 if "row" in name else -9), plot.Y(error) + 4, name[5:], anchor="start" if "row" in name else "end")
    picture.desc = "Error of a round trip, as a share of the root mean square, against bits of a weight. " + "; ".join(f"{n}: {b:.3f} bits, {e:.2f} %" for n, b, e in rows) + "."
    picture.in_chinese("权重的误差与位数", "量化再还原的误差（占均方根的比例）与每个权重的位数。" + "；".join(f"{n}：{b:.3f} 位，{e:.2f} %" for n, b, e in rows) + "。")
    return picture
