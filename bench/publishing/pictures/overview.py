"""The pictures of the front README and of docs/architecture.md."""
import importlib.util

from publishing import mitigations
from shared.results_files import CATEGORIES

from . import timeline
from .reading import MIB
from .svg import WIDTH, Picture, size


def front(results):
    """What fills the card when it fails, and what each chapter's mitigation makes of the figure that the chapter is about."""
    refused = results.variants("00_anatomy")["adamw"]
    rows = timeline.read(results.folder / "plan/00_timeline.csv", "under the budget")
    _, live, asked = rows[-1]
    budget = refused["budget_bytes"]
    assert asked == refused["oom"]["requested_bytes"] and sum(live.values()) == refused["oom"]["live_bytes"]
    chapters = mitigations.rows(results.folder / "host")
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
    said = {}
    for chapter, before, after, figure, unit, a, b, saved in chapters:
        number, words = chapter.split("_", 1)
        said[chapter] = f"{figure}: {a} → {b}" if not unit else f"{saved} less" + (" reserved" if figure == "peak reserved" else "")
        picture.text(16, y + 15, f"{number} {words.replace('_', ' ')}")
        picture.text(WIDTH - 16, y + 15, said[chapter], anchor="end")
        picture.rect(16, y + 20, WIDTH - 32, 9, "grid", says=f"{before}: {figure} {a} {unit}".rstrip())
        picture.rect(16, y + 20, (WIDTH - 32) * float(b) / float(a), 9, "good", says=f"{after}: {figure} {b} {unit}".rstrip())
        y += 36
    picture.legend(y + 22, [("before", "grid"), ("with the chapter's mitigation", "good")])
    picture.desc = (f"A bar of what is live when a training step fails: {', '.join(f'{c} {size(b)}' for c, b in live.items() if b > MIB)}, and {size(asked)} asked for, above the budget of "
                    f"{size(budget)}. Below it, how much less each chapter's mitigation needs at its peak: " + ", ".join(f"{chapter} {words}" for chapter, words in said.items()) + ".")
    chinese = {row.chapter: f"被拒绝的申请 {row.was} → {row.now}" if not row.unit else f"少 {row.saved.replace('%', ' %')}" + ("（已保留）" if row.figure == "peak reserved" else "")
               for row in chapters}
    names = {"parameters": "参数", "gradients": "梯度", "optimizer": "优化器", "activations": "激活", "workspace": "工作区", "data": "数据"}
    picture.in_chinese("失败时，什么占满了显卡？", f"一条：训练一步失败时存活的字节，{'，'.join(f'{names[c]} {size(b)}' for c, b in live.items() if b > MIB)}，再申请 {size(asked)}，"
                       f"超过 {size(budget)} 的预算。下面：每一章的办法使峰值少多少：" + "，".join(f"{chapter} {words}" for chapter, words in chinese.items()) + "。")
    return picture


def rooms(results):
    """Rooms and arrows, as tests/docs/rooms_test.py reads them from the #includes."""
    spec = importlib.util.spec_from_file_location("rooms_test", results.root / "tests/docs/rooms_test.py")
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)

    root, top = results.root, max(house.FLOOR.values())
    arrows = sorted({(house.room_of(root, file), house.room_of(root, other))
                     for file in house.files_of(root) for other in house.included(root, file)})
    floor = {**house.FLOOR, "chapters": top + 1, "bench": top + 2}
    arrows = [(a, b) for a, b in arrows if a != b and a in floor and b in floor]

    def leads(a, b):
        return any(x == a and (y == b or leads(y, b)) for x, y in arrows)

    floors, step = sorted(set(floor.values()), reverse=True), 68
    picture = Picture("Who includes whom", 52 + step * len(floors))
    place = {}
    for down, level in enumerate(floors):
        names = sorted((name for name in floor if floor[name] == level))
        for i, name in enumerate(names):
            place[name] = (WIDTH * (i + 0.5) / len(names), 50 + step * down)
    for a, b in arrows:
        if not any(x == a and y != b and leads(y, b) for x, y in arrows):
            (x0, y0), (x1, y1) = place[a], place[b]
            picture.arrow((x0 + (x1 - x0) * 0.15, y0 + 36), (x1 - (x1 - x0) * 0.15, y1))
    for name, (x, y) in place.items():
        picture.rect(x - 62, y, 124, 36, "grid", says=f"common/{name}/" if name in house.FLOOR else f"{name}/")
        picture.text(x, y + 23, name, anchor="middle", bold=True)
    below = {name: [b for a, b in arrows if a == name] for name in sorted(floor, key=floor.get, reverse=True)}
    picture.desc = "Boxes for rooms, the highest first, with arrows down to what each includes. " + \
        " ".join(f"{name}: {', '.join(names) or 'nothing'}." for name, names in below.items())
    picture.table = [("room", "includes")] + [(f"`{name}`", ", ".join(f"`{n}`" for n in names) or "nothing of these") for name, names in below.items()]
    return picture
