"""A finding as one page: the timeline, drawn as SVG, and tables. No script, no style from elsewhere: it needs no network."""
import html

from explaining.layout import columns
from explaining.snapshot_categories import NAMES
from explaining.snapshot_text import Text, percent
from explaining.snapshot_words import say, shown

POINTS = 600  # columns of the picture
WIDTH, HEIGHT, LEFT, BOTTOM, KEYS = 1000, 320, 80, 24, 20
COLOURS = {"parameters": "#4477aa", "gradients": "#66ccee", "optimizer": "#228833", "activations": "#ccbb44", "cache": "#ee6677",
           "temporaries": "#aa3377", "workspace": "#999999", "data": "#dd8844", "older": "#335566", "unknown": "#bbbbbb"}
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:left;border-bottom:1px solid #ddd}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
h1,h2,p{overflow-wrap:anywhere}pre{background:#f4f4f4;padding:1em;overflow:auto}.wide{overflow-x:auto}svg{width:100%;min-width:700px;height:auto}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#242424}td,th{border-color:#444}}"""


def columns_of(finding, points):
    """Live bytes by category at the fullest event of each of at most `points` stretches: ([event], {category: [bytes]})."""
    recording, curve = finding.recording, finding.curve
    count = min(points, recording.events) or 1
    edges = [recording.events * k // count for k in range(count + 1)]
    events = [max(range(first, max(first + 1, past)), key=lambda k: curve[min(k + 1, recording.events)]) for first, past in zip(edges, edges[1:])]
    place = {}
    column = 0
    # The column after whose event a block is live: those with start <= event < end.
    first_column = [0] * (recording.events + 2)
    for event in range(recording.events + 2):
        while column < len(events) and events[column] < event:
            column += 1
        first_column[event] = column
    for i in range(len(recording.start)):
        first, past = first_column[max(0, recording.start[i])], first_column[min(recording.end[i], recording.events + 1)]
        if first < past:
            row = place.setdefault(finding.categories.of[i], [0] * (len(events) + 1))
            row[first] += recording.size[i]
            row[past] -= recording.size[i]
    result = {}
    for which, row in place.items():
        live, figures = 0, []
        for difference in row[:-1]:
            live += difference
            figures.append(live)
        result[NAMES[which]] = figures
    return events, result


def picture(finding, language, points=POINTS):
    """An SVG image that can stand alone."""
    events, layers = columns_of(finding, points)
    held = [size for _, size in finding.reserved]
    top = max([finding.peak, *held, 1])
    last = max(1, finding.recording.events)

    def x(event):
        return LEFT + (WIDTH - LEFT - 10) * event / last

    def y(size):
        return 10 + (HEIGHT - BOTTOM - 10) * (1 - size / top)

    keys = places([say(name, language) for name in NAMES if name in layers])
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {max([down for _, down in keys], default=HEIGHT) + KEYS}" font-family="sans-serif" role="img" '
             f'aria-label="{html.escape(say("page_timeline", language))}">'
             "<style>text{fill:#444}@media(prefers-color-scheme:dark){text{fill:#ccc}}</style>"]
    for k in range(5):
        size = top * k // 4
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(size):.1f}" y2="{y(size):.1f}" stroke="#8884"/>'
                     f'<text x="{LEFT - 6}" y="{y(size) + 4:.1f}" font-size="12" text-anchor="end">{shown(size, language)}</text>')
    below = [0] * len(events)
    for name in [name for name in NAMES if name in layers]:
        above = [low + size for low, size in zip(below, layers[name])]
        points = [f"{x(e):.1f},{y(s):.1f}" for e, s in zip(events, above)] + [f"{x(e):.1f},{y(s):.1f}" for e, s in zip(events[::-1], below[::-1])]
        title = html.escape(f"{say(name, language)}: {shown(max(layers[name]), language)}")
        parts.append(f'<polygon points="{" ".join(points)}" fill="{COLOURS[name]}"><title>{title}</title></polygon>')
        below = above
    if finding.reserved:
        steps, before = [], None
        for event, size in thinned(finding.reserved):
            if before is not None:
                steps.append(f"{x(max(0, event)):.1f},{y(before):.1f}")
            steps.append(f"{x(max(0, event)):.1f},{y(size):.1f}")
            before = size
        steps.append(f"{x(last):.1f},{y(before):.1f}")
        parts.append(f'<polyline points="{" ".join(steps)}" fill="none" stroke="#c33" stroke-dasharray="4 3">'
                     f'<title>{html.escape(say("page_held", language))}</title></polyline>')
    for event, asked, _, _, _ in finding.recording.refusals[-20:]:
        title = html.escape(f"{say('page_refused', language)}: {shown(asked, language)}")
        parts.append(f'<line x1="{x(event):.1f}" x2="{x(event):.1f}" y1="10" y2="{HEIGHT - BOTTOM}" stroke="#c33" stroke-width="2">'
                     f"<title>{title}</title></line>")
    for name, (place, down) in zip((name for name in NAMES if name in layers), keys):
        parts.append(f'<rect x="{place}" y="{down}" width="12" height="12" fill="{COLOURS[name]}"/>'
                     f'<text x="{place + 16}" y="{down + 11}" font-size="13">{html.escape(say(name, language))}</text>')
    parts.append("</svg>")
    return "".join(parts)


def places(texts):
    """Where the keys of the colours stand, side by side: (x, y) of each, in a further row where there is no room left."""
    result, place, down = [], LEFT, HEIGHT
    for text in texts:
        width = 36 + 7 * columns(text)
        if place > LEFT and place + width > WIDTH:
            place, down = LEFT, down + KEYS
        result.append((place, down))
        place += width
    return result


def thinned(moves):
    """At most a few points a column of the picture."""
    step = max(1, len(moves) // (4 * POINTS))
    return moves[::step] if step == 1 else [max(moves[k:k + step], key=lambda move: move[1]) for k in range(0, len(moves), step)]


def rows_of(rows, heads):
    head = "".join(f'<th{" class=n" if number else ""}>{html.escape(text)}</th>' for text, number in heads)
    body = "".join("<tr>" + "".join(f'<td{" class=n" if number else ""}>{html.escape(cell)}</td>' for cell, (_, number) in zip(row, heads)) + "</tr>"
                   for row in rows)
    return wide(f"<table><tr>{head}</tr>{body}</table>")


def wide(what):
    """Scrolls by itself where the window is narrower than it."""
    return f"<div class=wide>{what}</div>"


def page(findings, language, name):
    title = html.escape(f"{say('page_title', language)}: {name}")
    parts = [f'<!doctype html><html lang="{"zh-CN" if language == "zh" else "en"}"><meta charset="utf-8"><title>{title}</title>'
             f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{title}</h1>']
    for finding in findings:
        text = Text(finding, language, name)
        parts.append(f"<h2>{html.escape(text.head())}</h2><p><b>{html.escape(say('answer', language, sentence=text.sentence()))}</b></p>"
                     f"<p>{html.escape(say('do', language, what=text.first()))}</p><h3>{html.escape(say('page_timeline', language))}</h3>")
        parts.append(wide(picture(finding, language)))
        kind, size, share, line, blocks = ((say("page_" + key, language), number) for key, number in
                                           (("kind", False), ("bytes", True), ("share", True), ("line", False), ("blocks", True)))
        parts.append(rows_of([(say(which, language), shown(bytes_, language), percent(bytes_, finding.live) + " %")
                              for which, bytes_ in finding.by_category], (kind, size, share)))
        parts.append(rows_of([(text.place(place), shown(bytes_, language), percent(bytes_, finding.live) + " %", f"{count:,}", say(which, language))
                              for place, bytes_, count, which, _ in finding.lines[:50]], (line, size, share, blocks, kind)))
        parts.append(f"<pre>{html.escape(text.text(True))}</pre>")
    return "".join(parts) + "</html>\n"
