"""The picture that is shown where somebody posts a link to the course: docs/card.png, drawn from the files of docs/front.svg.

Chromium makes it a PNG (bench/site --card), which says what it was made of, so that a test sees when it is old.
"""
import hashlib
import html
import struct
import zlib

from publishing import mitigations
from publishing.pictures import timeline
from publishing.pictures.reading import Results
from publishing.pictures.svg import light, size
from shared.results_files import CATEGORIES

WIDTH, HEIGHT, EDGE = 1200, 630, 60
KEPT_IN = b"oomlab-source"  # the name of the PNG's text
TITLE, ENGLISH, CHINESE = "OOM Lab", "CUDA out of memory: what fills the card, and what to do", "显存不足：是什么占满了显卡，该怎么办"


def text(x, y, words, height, colour="ink", anchor="start", bold=False):
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="{height}" fill="{light[colour]}" text-anchor="{anchor}"{" font-weight=" + chr(34) + "700" + chr(34) if bold else ""}>{html.escape(words)}</text>'


def rect(x, y, width, height, colour, more=""):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{light[colour]}" {more}/>'


def drawn(root):
    """The card as SVG."""
    results = Results(root)
    refused = results.variants("00_anatomy")["adamw"]
    _, live, asked = timeline.read(results.folder / "plan/00_timeline.csv", "under the budget")[-1]
    chapters, inside = [row for row in mitigations.rows(results.folder / "host") if row.unit], WIDTH - 2 * EDGE
    scale = inside / (sum(live.values()) + asked)
    parts = [rect(0, 0, WIDTH, HEIGHT, "paper"), text(EDGE, 122, TITLE, 84, bold=True), text(EDGE, 178, ENGLISH, 36, "faint"), text(EDGE, 228, CHINESE, 32, "faint")]
    x = EDGE
    for category in CATEGORIES:
        parts.append(rect(x, 268, live[category] * scale, 60, category))
        x += live[category] * scale
    parts.append(rect(x, 268, asked * scale, 60, "paper", f'stroke="{light["budget"]}" stroke-width="3" stroke-dasharray="10 7"'))
    at = EDGE + refused["budget_bytes"] * scale
    parts.append(f'<path d="M{at:.1f} 256V340" stroke="{light["budget"]}" stroke-width="4"/>')
    parts.append(text(EDGE, 368, f"{size(sum(live.values()))} live + {size(asked)} asked for > budget of {size(refused['budget_bytes'])}", 26))
    one = inside / len(chapters)
    for i, row in enumerate(chapters):
        left = EDGE + i * one
        part = float(row.now) / float(row.was)
        parts += [rect(left, 412, one - 14, 108, "grid"), rect(left, 412 + 108 * (1 - part), one - 14, 108 * part, "good"), text(left + (one - 14) / 2, 546, row.chapter[:2], 20, "faint", "middle")]
    parts.append(text(EDGE, 594, "what each chapter leaves of a peak: predicted, and measured to the byte", 26))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
            f'font-family="Noto Sans, DejaVu Sans, Noto Sans CJK SC, sans-serif">{"".join(parts)}</svg>')


def source(svg):
    return hashlib.sha256(svg.encode()).hexdigest()


def with_source(png, svg):
    """The PNG with a text in it that says of what it was made."""
    said = KEPT_IN + b"\0" + source(svg).encode()
    chunk = struct.pack(">I", len(said)) + b"tEXt" + said + struct.pack(">I", zlib.crc32(b"tEXt" + said))
    return png[:33] + chunk + png[33:]  # behind the header, which has 33 bytes with the signature


def source_in(png):
    """What with_source() put in; None where it did not."""
    at = png.find(b"tEXt" + KEPT_IN + b"\0")
    return png[at + 5 + len(KEPT_IN):][:64].decode() if at > 0 else None
