"""bench/report: one self-contained page from good, broken and hostile result files."""

import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "bench"))
from shared import results_files  # noqa: E402
HOST = ROOT / "bench/results/host"
folder = pathlib.Path(tempfile.mkdtemp())
VOID = {"meta", "br", "link", "img", "i"}
WITHOUT_END = {"line", "polygon"}


class Page(html.parser.HTMLParser):
    """Tags that are closed as they were opened; ids, and all that could reach out."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.targets, self.text, self.outside = [], set(), set(), [], []
        self.counts, self.speechless = {}, []
        self.feed(text)
        left = [t for t in self.open if t not in ("html", "body", "p", "li")]
        assert not left, left

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        if tag == "svg" and not dict(attributes).get("aria-label") or "plot" in (dict(attributes).get("class") or "").split() and not self.said:
            self.speechless.append(tag)
        self.said = dict(attributes).get("role") == "img" and bool(dict(attributes).get("aria-label"))
        for key, value in attributes:
            if key == "id":
                self.ids.add(value)
            if key == "href" and value.startswith("#"):
                self.targets.add(value[1:])
            elif key in ("href", "src") or key.startswith("on"):
                self.outside.append((tag, key, value))
        if tag not in VOID | WITHOUT_END | {"rect"} or tag == "i":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in WITHOUT_END | {"rect"}:
            return
        while self.open and self.open[-1] in ("p", "li") and self.open[-1] != tag:
            self.open.pop()
        assert self.open and self.open[-1] == tag, (tag, self.open[-5:])
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def report(*arguments):
    output = folder / "page.html"
    output.unlink(missing_ok=True)
    done = subprocess.run([ROOT / "bench/report", *map(str, arguments), "-o", output], capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done, output.read_text() if output.exists() else ""


def check(text):
    page = Page(text)
    assert not page.outside and page.targets <= page.ids and "script" not in page.counts, page.outside
    assert not re.search(r"https?://|@import|url\(", text)
    assert not page.speechless, f"pictures without a text alternative: {page.speechless}"
    return page, "".join(page.text)


done, text = report(HOST)
assert done.returncode == 0, done
page, words = check(text)
results = [json.loads(f.read_text()) for f in sorted(HOST.glob("[0-9][0-9]_*.json"))]
assert page.ids == {r["chapter"] for r in results} | {"ladder"}
for result in results:
    for variant in result["variants"]:
        assert variant["name"] in words
        assert f"{variant['peak_allocated_bytes']:,}" in words, variant["name"]
    for claim in result["claims"]:
        assert claim["claim"] in words and claim["verdict_text"] in words
# Every bar has the length that its bytes ask for: the widest of a chapter is the largest peak, and the budget has its line.
for section, result in zip(text.split("<section ")[1:], results):
    plotted = [v for v in result["variants"] if v.get("peak_allocated_bytes")]
    widths = [float(w) for w in re.findall(r'<div class="bar" style="width:([\d.]+)%', section)][:len(plotted)]
    largest = max(v["peak_allocated_bytes"] for v in plotted)
    for width, variant in zip(widths, plotted, strict=True):
        assert abs(width / max(widths) - variant["peak_allocated_bytes"] / largest) < 1e-3
    assert section.count('class="plot over"') == sum(v["outcome"] == "oom" for v in result["variants"])
    assert section.count('class="budget"') == len(plotted)
    # What the allocator holds is drawn where the chapter is about that, on the same scale, and nowhere else.
    held = [float(w) for w in re.findall(r'<div class="reserved" style="width:([\d.]+)%', section)]
    about = results_files.MITIGATIONS.get(result["chapter"])
    reserved = [v["peak_reserved_bytes"] for v in plotted] if about and about.by == "reserved" else []
    for width, bytes_ in zip(held, reserved, strict=True):
        assert abs(width / max(widths) - bytes_ / largest) < 1e-3



def number(words):
    """20 MiB, as axes and values say it, in bytes."""
    amount, _, unit = words.partition(" ")
    return float(amount) * 1024 ** (("bytes", "KiB", "MiB", "GiB").index(unit) if unit else 0)


def drawings(section):
    """The phases of a step, as drawn: (height of a value on the y-axis, [(height, category)] of each column, values shown, budget's height)."""
    for words in re.findall(r"<svg .*?</svg>", section, re.S):
        axis = [(float(y) - 5, number(name)) for y, name in re.findall(r'<text class="faint" x="72" y="([\d.]+)" text-anchor="end">([^<]+)<', words)]
        (low, zero), (high, most) = axis[0], axis[-1]
        assert zero == 0 and most > 0 and all(abs(low - y - (low - high) * amount / most) < 0.2 for y, amount in axis), "the axis is not even"
        parts = {}
        for x, height, category in re.findall(r'<rect x="([\d.]+)"[^>]* height="([\d.]+)" style="fill:var\(--(\w+)\)"', words):
            parts.setdefault(x, {})[category] = float(height) * most / (low - high)
        shown = re.findall(r'<g class="hit"><title>([^<:]*): ([^=]*) = ([^<]*)</title>', words)
        limit = re.search(r'<line class="limit"[^>]* y1="([\d.]+)" y2="\1"', words)
        yield list(parts.values()), shown, (low - float(limit[1])) * most / (low - high) if limit else None, most / (low - high)


# A step, phase by phase: columns as high as the y-axis and the bytes say, the budget's line where it belongs, values as in the file.
pairs = {r["chapter"]: [row for row in r["variants"] if row["name"] in results_files.MITIGATIONS.get(r["chapter"], ())[:2]] or r["variants"][:2] for r in results}
for section, result in zip(text.split("<section ")[1:], results):
    rows = [v for v in pairs[result["chapter"]] if v.get("phases")]
    drawn = list(drawings(section))
    assert len(drawn) == len(rows) > 0, (result["chapter"], len(drawn))
    for variant, (stacks, shown, budget, pixel) in zip(rows, drawn, strict=True):
        for phase, stack, (name, total, split) in zip(variant["phases"], stacks, shown, strict=True):
            bytes_of = {c: b for c, b in phase["by_category_bytes"].items() if b}
            assert stack.keys() == bytes_of.keys() and all(abs(stack[c] - b) < pixel for c, b in bytes_of.items()), (result["chapter"], variant["name"], phase["name"])
            assert (name, total) == (phase["name"], results_files.format_bytes(sum(bytes_of.values())))
            assert split == ", ".join(f"{c} {results_files.format_bytes(bytes_of[c])}" for c in results_files.CATEGORIES if c in bytes_of)
        assert abs(budget - variant["budget_bytes"]) < 2 * pixel

# The ladder: a row for each chapter that has one, with its figure for the baseline and for the mitigation, and a bar of their ratio. The figure is
# what the chapter is about, so it changes: a chapter that would stand there with nothing saved is compared by the wrong one.
ladder = text[text.index('id="ladder"'):text.index("<section ")]
climbed = re.findall(r'aria-label="(\d\d_\w+): ([^"]+)".*?<div class="kept" style="width:([\d.]+)%"', ladder)
assert [chapter for chapter, *_ in climbed] == [r["chapter"] for r in results if r["chapter"] in results_files.MITIGATIONS]
for chapter, words, width in climbed:
    mitigation = results_files.MITIGATIONS[chapter]
    rows = {v["name"]: v for v in pairs[chapter]}
    if mitigation.by == "refused":
        before, after = (int(rows[name]["outcome"] == "oom") for name in mitigation[:2])
        assert words == f"requests refused {before} → {after}", words
    else:
        before, after = (rows[name][f"peak_{mitigation.by}_bytes"] for name in mitigation[:2])
        about = "" if mitigation.by == "allocated" else f"peak {mitigation.by} "
        assert words == f"{about}{results_files.format_bytes(before)} → {results_files.format_bytes(after)}: {1 - after / before:.0%} less", words
    assert abs(float(width) - 100 * after / before) < 0.01
    assert after <= 0.75 * before, f"{chapter} says '{words}': what is that chapter about?"
assert {mitigation.by for mitigation in results_files.MITIGATIONS.values()} == {"allocated", "reserved", "refused"}

# Several devices: each variant once a side; another workload is said.
other = folder / "other"
other.mkdir()
changed = json.loads((HOST / "01_batch_reduction.json").read_text())
changed["system"] |= {"backend": "cuda", "device": "GPU X", "slug": "gpu-x"}
changed["config"]["batch"] = 4
(other / "01.json").write_text(json.dumps(changed))
done, text = report(HOST, other)
page, words = check(text)
assert done.returncode == 0 and "GPU X" in words and "different workloads" in words and "Missing in gpu-x" in words
side_by_side = text[text.index('id="machines"'):text.index('id="ladder"')]
peaks = [v["peak_allocated_bytes"] for v in changed["variants"]]
assert f"<td>{len(peaks)} of {len(peaks)}</td>" in side_by_side and "A: host; B: gpu-x" in side_by_side
assert text.count('aria-label="01_batch_reduction: ') == 2, "each machine has its row of the ladder"
# Of one workload, bytes that are equal share a picture; others stand side by side.
changed["config"]["batch"] = 512
(other / "01.json").write_text(json.dumps(changed))
of_one = report(HOST, other)[1].split('<section id="01_')[1].split("<section ")[0]
assert of_one.count("(host, gpu-x)</figcaption>") == 2 == of_one.count("<figcaption>")
changed["variants"][0]["phases"][2]["by_category_bytes"]["activations"] += 1
changed["variants"][0]["peak_allocated_bytes"] += 1
(other / "01.json").write_text(json.dumps(changed))
text = report(HOST, other)[1]
of_two = text.split('<section id="01_')[1].split("<section ")[0]
assert of_two.count("batch 512 (host)</figcaption>") == 1 == of_two.count("batch 512 (gpu-x)</figcaption>") and of_two.count("<figcaption>") == 3
assert f"<td>{len(peaks) - 1} of {len(peaks)}</td>" in text

# A trace becomes a timeline; a broken one is said.
(other / "traces").mkdir()
samples = [{"ph": "C", "name": "gpu0 by category", "ts": i, "args": dict.fromkeys(
    ("parameters", "gradients", "optimizer", "activations", "workspace", "data"), i)} for i in range(5000)]
samples[2503]["args"] = dict.fromkeys(samples[0]["args"], 20_000)  # a peak of one sample, of several that share a point
trace = other / "traces" / "01_batch_reduction.json"
slices = [{"ph": "X", "name": name, "tid": 1, "ts": ts, "dur": dur} for name, ts, dur in (("forward", 100, 1900), ("backward", 2001, 2500), ("inner", 3000, 60))]
refused = {"ph": "i", "name": "out of memory: <i>", "ts": 4000, "args": {"requested": 2048}}
marks = [{"ph": "M", "name": "process_name", "args": {"name": "<b>"}}]
trace.write_text(json.dumps({"traceEvents": [*marks, *slices, *samples[:4000], refused, *samples[4000:]]}))
done, text = report(other)
page, words = check(text)
assert done.returncode == 0 and page.counts["polygon"] == 6 and "5,000 allocations" in words
assert "117.19 KiB at most" in words, "the peak is not in the picture"
picture = next(p for p in re.findall(r"<svg .*?</svg>", text, re.S) if "polygon" in p)
assert "forward at most 11.72 KiB; backward at most 117.19 KiB; inner at most" in picture and "refused after 4,000" in picture and "budget" not in picture
values = re.findall(r'<g class="hit"><title>([\d,]+)(?:, (\w+))?: ([^=]+) = parameters ([^,]+),', picture)
assert 200 < len(values) <= 240 and ("2,504", "backward", "117.19 KiB", "19.53 KiB") in values, "a value is not what the trace says"
assert {phase for _, phase, *_ in values} >= {"forward", "backward", "", "inner"} and all("backward" != phase for n, phase, *_ in values if int(n.replace(",", "")) < 2000)
assert picture.count('text-anchor="middle">forward<') == 1 and 'text-anchor="middle">backward<' in picture
# Of a variant of the file, the budget is drawn, too.
marks[0]["args"]["name"] = "01_batch_reduction mlp-activations, batch 512"
samples[2503]["args"] = dict.fromkeys(samples[0]["args"], 20_000_000)
trace.write_text(json.dumps({"traceEvents": [*marks, *samples]}))
picture = next(p for p in re.findall(r"<svg .*?</svg>", report(other)[1], re.S) if "polygon" in p)
line, top, zero = (float(re.search(pattern, picture)[1]) for pattern in (r'class="limit"[^>]* y1="([\d.]+)"', r'class="hit".*?<rect [^>]*y="([\d.]+)"', r'class="edge"[^>]* y1="([\d.]+)"'))
assert abs((zero - line) / (zero - top) - changed["variants"][0]["budget_bytes"] / (120_000_000 * 1.04)) < 0.002, "the budget's line is elsewhere"
trace.write_text("{")
done, text = report(other)
assert done.returncode == 2 and "traces/01_batch_reduction.json" in done.stderr and check(text)

# Names are text, not markup. Broken files are named, and the rest is shown.
changed["variants"][0]["name"] = "<script>alert(1)</script>"
changed["variants"][1]["name"] = '<span id="planted">'
changed["variants"][3]["phases"][0]["name"] = "<i>&"
changed["title"] = '"><img src=x>'
(other / "01.json").write_text(json.dumps(changed))
trace.unlink()
(other / "broken.json").write_text(json.dumps(changed)[:500])
(other / "old.json").write_text(json.dumps(changed | {"schema_version": 0}))
done, text = report(other)
page, words = check(text)
assert done.returncode == 2 and "<script>alert(1)</script>" in words and "img" not in page.counts
assert words.count('<span id="planted">') == 2 and "planted" not in page.ids and "<i>&" in words
for file in ("broken.json", "old.json"):
    assert file in done.stderr and file in words

# Nothing to show.
empty = folder / "empty"
empty.mkdir()
done, text = report(empty)
assert done.returncode == 2 and "empty" in done.stderr and not text
assert subprocess.run([ROOT / "bench/report"], capture_output=True).returncode == 64
done = subprocess.run([ROOT / "bench/report", HOST, "-o", folder / "no" / "such"], capture_output=True, text=True)
assert done.returncode == 64 and len(done.stderr.splitlines()) == 1
print("ok")
