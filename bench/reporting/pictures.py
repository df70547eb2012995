"""What bench/report draws: axes with units, stacked columns for the phases of a step, memory over time. Each is an SVG inside the page,
with a text alternative, and a value that shows where it is pointed at."""
import html
import math

from shared.results_files import CATEGORIES, LARGEST_NUMBER, BadFile, format_bytes, read_json
from shared.terminal import as_text

WIDTH, LEFT, RIGHT, TOP = 480, 78, 470, 56
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def escape(text):
    return html.escape(as_text(str(text)), quote=True)


def percent(part, whole):
    return f"{100 * part / whole:.3f}%" if whole else "0"


def steps(most, about=4):
    """Round values from 0 to at most `most`, some `about` of them."""
    rough = most / about
    ten = 10 ** math.floor(math.log10(rough)) if rough > 0 else 1
    step = next(step for n in (1, 2, 2.5, 5, 10) if (step := n * ten) >= rough * 0.999)
    return [i * step for i in range(int(most / step + 1e-9) + 1)]


def ticks(most):
    """The values of an axis of bytes with their words: [(0, "0"), (52428800, "50 MiB")]."""
    power = min(max(int(math.log(max(most, 1), 1024)), 0), len(UNITS) - 1)
    return [(value * 1024**power, f"{value:g} {UNITS[power]}" if value else "0") for value in steps(most / 1024**power)]


def rates_per_second(most):
    """The same of an axis of samples per second."""
    return [(value, f"{value:,.10g}/s" if value else "0") for value in steps(most, 3)]


def axis(most, marked=ticks):
    """The scale below bars that are `most` wide."""
    marks = "".join(f'<span{" class=last" if value > 0.85 * most else ""} style="left:{percent(value, most)}">{words}</span>' for value, words in marked(most))
    return f'<div class="axis" aria-hidden="true">{marks}</div>'


def legend(with_rates=False, with_bars=True, with_reserved=False):
    items = [f'<li><i style="background:var(--{c})"></i>{c}</li>' for c in CATEGORIES]
    items.append('<li><i style="width:0;border-left:2px dashed var(--bad);height:1em"></i>budget</li>')
    if with_reserved:
        items.append('<li><i style="border:2px solid var(--ink)"></i>reserved by the allocator</li>')
    if with_bars:
        items.append('<li><span class="oom">OOM</span> did not fit; measured without the budget (pale)</li>')
    if with_rates:
        items.append('<li><i style="background:var(--rate)"></i>samples/s, median, and [p10, p90]</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def shortened(words, wide):
    """Words that fit into `wide` units."""
    room = max(int(wide / 8), 1)
    return words if len(words) <= room else words[:max(room - 1, 1)] + "…"


def split_words(split):
    return ", ".join(f"{c} {format_bytes(split[c])}" for c in CATEGORIES if split.get(c))


def value(x, width, bottom, first, split):
    """A part of the picture that shows its figures when it is pointed at: its name and total, and its two largest categories."""
    total = sum(split.values())
    largest = sorted((c for c in CATEGORIES if split.get(c)), key=lambda c: -split[c])[:2]
    second = ", ".join(f"{c} {format_bytes(split[c])}" for c in largest) + (", …" if sum(1 for c in CATEGORIES if split.get(c)) > 2 else "")
    said = f"{first}: {format_bytes(total)}"
    return (f'<g class="hit"><title>{escape(said)} = {escape(split_words(split))}</title><rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{bottom - TOP:.1f}"/>'
            f'<text x="10" y="20">{escape(shortened(first, 290))}: {escape(format_bytes(total))}</text><text x="10" y="40" class="faint">{escape(shortened(second, 470))}</text></g>')


def frame(most, bottom, budget):
    """Grid, the y-axis with its units, and the budget's line: (what lies below the data, what lies above it, where a value lies)."""
    def y(amount):
        return bottom - amount / most * (bottom - TOP)

    below = "".join(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
                    f'<text class="faint" x="{LEFT - 6}" y="{y(v) + 5:.1f}" text-anchor="end">{words}</text>' for v, words in ticks(most))
    above = f'<line class="edge" x1="{LEFT}" x2="{RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    if budget:
        above += f'<line class="limit" x1="{LEFT}" x2="{RIGHT}" y1="{y(budget):.1f}" y2="{y(budget):.1f}"/>'
    return below, above, y


def heading(words, budget):
    """What stands above a picture until a value is pointed at."""
    limit = f'<text class="rest over" x="10" y="40">- - budget {escape(format_bytes(budget))}</text>' if budget else ""
    return f'<text class="rest" x="10" y="20">{escape(shortened(words, 470))}</text>{limit}'


def svg(height, said, body):
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(said)}">{body}</svg>'


def columns(variant, most, caption):
    """The peak of each phase of a step, by category, on a scale that ends at `most` bytes."""
    bottom, slot = 246, (RIGHT - LEFT) / len(variant.phases)
    below, above, y = frame(most, bottom, variant.budget)
    body, hits, most_lines = [], [], max(len(wrapped(name, slot)) for name, _ in variant.phases)
    for i, (name, split) in enumerate(variant.phases):
        x, base = LEFT + i * slot, 0
        for c in CATEGORIES:
            if split[c]:
                body.append(f'<rect x="{x + slot * 0.15:.1f}" y="{y(base + split[c]):.1f}" width="{slot * 0.7:.1f}" '
                            f'height="{y(base) - y(base + split[c]):.1f}" style="fill:var(--{c})"/>')
                base += split[c]
        lines = wrapped(name, slot)
        body += [f'<text class="faint" x="{x + slot / 2:.1f}" y="{bottom + 18 + 16 * n}" text-anchor="middle">{escape(line)}</text>' for n, line in enumerate(lines)]
        hits.append(value(x, slot, bottom, name, split))
    said = (f"Peak of each phase of a step, {caption}: " + "; ".join(f"{name} {format_bytes(sum(s.values()))} ({split_words(s)})" for name, s in variant.phases)
            + (f"; budget {format_bytes(variant.budget)}" if variant.budget else ""))
    return (f'<figure><figcaption>{escape(caption)}</figcaption>'
            + svg(bottom + 14 + 16 * most_lines, said, below + heading("peak of each phase of a step", variant.budget) + "".join(body) + above + "".join(hits)) + "</figure>")


def wrapped(words, wide, most_lines=3):
    """Lines of at most `wide` units."""
    lines = []
    for word in words.split():
        if lines and len(lines[-1]) + len(word) + 1 <= wide / 8:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [shortened(line, wide) for line in lines[:most_lines]]


def read_trace(trace):
    """What a Chrome trace has of the first device: (title, samples [(phase, bytes by category)], the samples at which a request was refused)."""
    events = read_json(trace)["traceEvents"]
    title = next(e["args"]["name"] for e in events if e.get("name") == "process_name")
    phases = [(float(e["ts"]), float(e["ts"]) + float(e["dur"]), str(e["name"])) for e in events if e.get("ph") == "X" and e.get("tid") == 1]
    samples, refused, device = [], [], None
    for e in events:
        if e.get("ph") == "i" and str(e.get("name", "")).startswith("out of memory"):
            refused.append((len(samples), str(e["name"]), int(e["args"]["requested"])))
        if e.get("ph") != "C" or not e["name"].endswith("by category") or device not in (None, e["name"]):
            continue
        device, now = e["name"], float(e["ts"])
        inside = [p for p in phases if p[0] <= now <= p[1]]  # of phases in each other, the inner one
        name = min(inside, key=lambda p: p[1] - p[0])[2] if inside else ""
        split = {c: int(e["args"][c]) for c in CATEGORIES}
        if not all(0 <= count <= LARGEST_NUMBER for count in split.values()):
            raise ValueError("impossible bytes")
        samples.append((name, split))
    return str(title), samples, refused


def thinned(samples, most=240):
    """(place, phase, bytes by category), at most `most` of them: of those that share a place, the fullest."""
    buckets = {}
    for i, (phase, split) in enumerate(samples):
        place = i * most // len(samples) if len(samples) > most else i
        if place not in buckets or sum(split.values()) > sum(buckets[place][2].values()):
            buckets[place] = (i, phase, split)
    return [buckets[place] for place in sorted(buckets)]


def timeline(trace, result):
    """The allocated bytes after every allocation and release, by category, with phases and budget. Returns the drawing, and what is wrong."""
    try:
        title, samples, refused = read_trace(trace)
    except (BadFile, ArithmeticError, ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
        return f'<p class="problem">{escape(trace)}: no timeline: {escape(type(error).__name__)}</p>', str(trace)
    if len(samples) < 2:
        return "", None
    variant = next((v for v in result.variants if title in (v.name, f"{result.chapter} {v.name}")), None)
    budget = variant.budget if variant else None
    points = thinned(samples)
    fullest = max(sum(split.values()) for _, _, split in points)
    bottom, most = 306, max(fullest, budget or 0) * 1.04 or 1
    below, above, y = frame(most, bottom, budget)

    def x(i):
        return LEFT + i / (len(samples) - 1) * (RIGHT - LEFT)

    body, base = [], [0] * len(points)
    for c in CATEGORIES:
        top = [b + split[c] for b, (_, _, split) in zip(base, points)]
        line = [f"{x(i):.1f},{y(v):.1f}" for (i, _, _), v in zip(points, top)]
        back = [f"{x(i):.1f},{y(v):.1f}" for (i, _, _), v in reversed(list(zip(points, base)))]
        body.append(f'<polygon points="{" ".join(line + back)}" style="fill:var(--{c})"/>')
        base = top
    # The phases: a mark where one begins, and its name where there is room, the longest first.
    runs = []
    for i, (phase, _) in enumerate(samples):
        if runs and runs[-1][0] == phase:
            runs[-1][2] = i
        else:
            runs.append([phase, i, i])
    taken = [[], []]
    for phase, first, last in sorted((run for run in runs if run[0]), key=lambda run: run[1] - run[2]):
        body.append(f'<line class="edge" x1="{x(first):.1f}" x2="{x(first):.1f}" y1="{bottom}" y2="{bottom + 6}"/>')
        half = 4 * len(phase) + 4
        place = min(max((x(first) + x(last)) / 2, LEFT + half), RIGHT - half)
        row = next((row for row in (0, 1) if all(abs(place - other) >= half + width for other, width in taken[row])), None)
        if row is not None and (x(last) - x(first) >= 12 or len(runs) <= 12):
            taken[row].append((place, half))
            body.append(f'<text class="faint" x="{place:.1f}" y="{bottom + 20 + 18 * row}" text-anchor="middle">{escape(phase)}</text>')
    for i, what, _ in refused:
        body.append(f'<line class="limit" x1="{x(min(i, len(samples) - 1)):.1f}" x2="{x(min(i, len(samples) - 1)):.1f}" y1="{TOP}" y2="{bottom}"><title>{escape(what)}</title></line>')
    hits = []
    for n, (i, phase, split) in enumerate(points):
        left = LEFT if n == 0 else (x(points[n - 1][0]) + x(i)) / 2
        right = RIGHT if n + 1 == len(points) else (x(i) + x(points[n + 1][0])) / 2
        hits.append(value(left, right - left, bottom, f"{i + 1:,}" + (f", {phase}" if phase else ""), split))
    order = list(dict.fromkeys(phase for phase, _ in samples if phase))
    most_of = {name: max(sum(s.values()) for phase, s in samples if phase == name) for name in order}
    said = (f"Allocated bytes by category over {len(samples):,} allocations and releases of {title}: {format_bytes(fullest)} at most"
            + "".join(f"; {name} at most {format_bytes(n)}" for name, n in most_of.items()) + (f"; budget {format_bytes(budget)}" if budget else "")
            + "".join(f"; refused after {i:,}: {what}, asked for {format_bytes(asked)}" for i, what, asked in refused))
    words = f"{len(samples):,} allocations and releases; {format_bytes(fullest)} at most"
    upright = f" The upright line: {escape(refused[0][1])}, asked for {escape(format_bytes(refused[0][2]))}; after it, again without the budget." if refused else ""
    return (f'<figure><figcaption>Memory, allocation by allocation: {escape(title)}, in the program\'s order.{upright}</figcaption>'
            + svg(354, said, below + heading(words, budget) + "".join(body) + above + "".join(hits)) + "</figure>"), None
