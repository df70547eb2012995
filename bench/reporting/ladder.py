"""Across chapters, for bench/report: what each chapter's mitigation makes of the figure that it is about, and two machines side by side."""
from shared.results_files import compared, format_bytes, pair

from .pictures import axis, escape, percent


def speed(before, after):
    return after.rate[1] / before.rate[1] if before.rate and after.rate and before.rate[1] else None


def shares(_):
    return [(n, f"{n} %") for n in (0, 25, 50, 75, 100)]


def ladder(sides):
    """Bars, the baseline's figure being 100 %, and below them the same as a table."""
    chapters = [c for c in sorted({c for side in sides for c in side.results}) if any(c in side.results and pair(side.results[c]) for side in sides)]
    if not chapters:
        return ""
    rows, cells = [], []
    for chapter in chapters:
        for side in sides:
            both = pair(side.results[chapter]) if chapter in side.results else None
            if not both:
                continue
            before, after, by = both
            a, b = before.figure(by), after.figure(by)
            words = compared(before, after, by)
            where = f"<small>{escape(side.name)}</small>" if len(sides) > 1 else ""
            ratio = speed(before, after)
            quick = " (--quick)" if side.results[chapter].config.get("quick") else ""
            said = (f"{words.what} " if by != "allocated" else "") + f"{words.before} → {words.after}" + (f": {words.less} less" if words.less else "")
            budget = ""
            if by != "refused" and before.budget and before.budget <= a:
                budget = f'<div class="budget" style="left:{percent(before.budget, a)}" title="budget {escape(format_bytes(before.budget))}"></div>'
            rows.append(f'<div class="name"><a href="#{escape(chapter)}">{escape(chapter.replace("_", " "))}</a>{where}</div>'
                        f'<div role="img" aria-label="{escape(chapter)}: {escape(said)}"><div class="plot" title="{escape(before.name)}: {escape(words.before)}">'
                        f'<div class="kept" style="width:{percent(min(a, b), a)}" title="{escape(after.name)}: {escape(words.after)}"></div>{budget}</div>'
                        f'<div class="figure">{escape(said)}{f", speed x {ratio:.2f}" if ratio else ""}</div></div>')
            cells.append((chapter + quick, *([side.name] if len(sides) > 1 else []), before.name, after.name, words.what, words.before, words.after,
                          words.less or "-", f"x {ratio:.2f}" if ratio else "-"))
    head = ("chapter", *(["on"] if len(sides) > 1 else []), "from", "to", "figure", "before", "after", "saved", "speed")
    return ('<h2 id="ladder">The ladder: what each chapter brings</h2><p class="soft">Of a chapter\'s figure before its mitigation (the whole bar) the green part is left with it: the peak allocated, in chapter 06 the '
            'peak reserved, and in chapter 15 the requests that are refused; '
            'dashed: the budget. Models and budgets differ from chapter to chapter, so compare shares, not bytes.</p>'
            f'<div class="rows two ladder">{"".join(rows)}<div class="blank"></div>{axis(100, shares)}</div>'
            f'<details><summary>The same as a table</summary>{grid(head, cells)}</details>')


def grid(head, rows):
    return (f'<div class="scroll"><table><thead><tr>{"".join(f"<th>{escape(h)}</th>" for h in head)}</tr></thead><tbody>'
            + "".join(f'<tr>{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>' for row in rows) + "</tbody></table></div>")


def machines(sides):
    """A table: of the variants that the first machine and another both measured, how many peaks are equal, and how fast the first variant is."""
    if len(sides) < 2:
        return ""
    letters = [chr(ord("A") + i) if i < 26 else f"#{i}" for i in range(len(sides))]
    first, rows = sides[0], []
    for chapter, mine in sorted(first.results.items()):
        for letter, other in zip(letters[1:], sides[1:]):
            theirs = other.results.get(chapter)
            if not theirs:
                continue
            peers = {v.name: v for v in theirs.variants}
            both = [(v, peers[v.name]) for v in mine.variants if v.name in peers and v.peak is not None and peers[v.name].peak is not None]
            equal = sum(a.peak == b.peak for a, b in both)
            a, b = mine.variants[0], peers.get(mine.variants[0].name)
            rates = (f"{a.rate[1]:,.1f}", f"{b.rate[1]:,.1f}", f"x {b.rate[1] / a.rate[1]:.2f}" if a.rate[1] else "-") if b and a.rate and b.rate else ("-",) * 3
            rows.append((chapter, letter, f"{equal} of {len(both)}", *rates))
    if not rows:
        return ""
    named = "; ".join(f"{letter}: {side.name}" for letter, side in zip(letters, sides))
    return (f'<h2 id="machines">Side by side</h2><p>{escape(named)}.</p><p class="soft">For the same workload peaks are equal to the byte on every device. '
            f"Speed is the first variant's, in samples/s.</p>{grid(('chapter', 'A and', 'equal peaks', 'speed of A', 'of the other', 'ratio'), rows)}")
