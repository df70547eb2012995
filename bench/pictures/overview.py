"""The picture of the front README."""
import re

from results_files import CATEGORIES

from . import timeline
from .reading import MIB
from .svg import WIDTH, Picture, size


def front(results):
    """What fills the card when it fails, and what each chapter's mitigation makes of its peak."""
    refused = results.variants("00_anatomy")["adamw"]
    rows = timeline.read(results.folder / "plan/00_timeline.csv", "under the budget")
    _, live, asked = rows[-1]
    budget = refused["budget_bytes"]
    assert asked == refused["oom"]["requested_bytes"] and sum(live.values()) == refused["oom"]["live_bytes"]
    chapters = [(line[:25].strip(), line[26:52].strip(), line[53:79].strip(), *re.match(r" *(\S+) -> +(\S+) +(\S+)", line[80:]).groups())
                for line in results.text("host/map.txt").splitlines()[1:]]
    picture = Picture("What fills the card when it fails?", 178 + 36 * len(chapters) + 40)
    y = picture.legend(54, [(c, c) for c in ("parameters", "gradients", "optimizer")] + [("asked for", "budget")])
    scale = (WIDTH - 32) / (sum(live.values()) + asked)
    x = 16
    for category in CATEGORIES:
        picture.rect(x, y, live[category] * scale, 26, category, says=f"{category} {size(live[category])}")
        x += live[category] * scale
    picture.rect(x, y, asked * scale, 26, "budget", faint=True, says=f"asked for {size(asked)}")
    picture.rect(x, y + 1, asked * scale - 1, 24, "budget", outline=True)
    picture.path([(16 + budget * scale, y - 6), (16 + budget * scale, y + 32)], "budget", dashed=True)
    picture.text(16, y + 46, f"{size(sum(live.values()))} live + {size(asked)} asked for > budget of {size(budget)}")
    y += 78
    picture.text(16, y, "How much less each chapter needs at its peak", bold=True, height=17)
    y += 10
    for chapter, before, after, a, b, saved in chapters:
        number, words = chapter.split("_", 1)
        picture.text(16, y + 15, f"{number} {words.replace('_', ' ')}")
        picture.text(WIDTH - 16, y + 15, f"{saved} less", anchor="end")
        picture.rect(16, y + 20, WIDTH - 32, 9, "grid", says=f"{before}: {a} MiB")
        picture.rect(16, y + 20, (WIDTH - 32) * float(b) / float(a), 9, "good", says=f"{after}: {b} MiB")
        y += 36
    picture.legend(y + 22, [("peak before", "grid"), ("with the chapter's mitigation", "good")])
    picture.desc = (f"A bar of what is live when a training step fails: {', '.join(f'{c} {size(b)}' for c, b in live.items() if b > MIB)}, and {size(asked)} asked for, above the budget of "
                    f"{size(budget)}. Below it, how much less of its peak each chapter's mitigation needs: " + ", ".join(f"{c[0]} {c[5]}" for c in chapters) + ".")
    return picture
