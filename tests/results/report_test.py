"""bench/report: one self-contained page from good, broken and hostile result files."""

import html.parser
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
HOST = ROOT / "bench/results/host"
folder = pathlib.Path(tempfile.mkdtemp())
VOID = {"meta", "br", "link", "img", "i"}


class Page(html.parser.HTMLParser):
    """Tags that are closed as they were opened; ids, and all that could reach out."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.targets, self.text, self.outside = [], set(), set(), [], []
        self.counts = {}
        self.feed(text)
        left = [t for t in self.open if t not in ("html", "body", "p", "li")]
        assert not left, left

    def handle_starttag(self, tag, attributes):
        self.counts[tag] = self.counts.get(tag, 0) + 1
        for key, value in attributes:
            if key == "id":
                self.ids.add(value)
            if key == "href" and value.startswith("#"):
                self.targets.add(value[1:])
            elif key in ("href", "src") or key.startswith("on"):
                self.outside.append((tag, key, value))
        if tag not in VOID | {"polygon"} or tag == "i":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag == "polygon":
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
    return page, "".join(page.text)


done, text = report(HOST)
assert done.returncode == 0, done
page, words = check(text)
results = [json.loads(f.read_text()) for f in sorted(HOST.glob("[0-9][0-9]_*.json"))]
assert page.ids == {r["chapter"] for r in results}
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

# A trace becomes a timeline; a broken one is said.
(other / "traces").mkdir()
samples = [{"ph": "C", "name": "gpu0 by category", "ts": i, "args": dict.fromkeys(
    ("parameters", "gradients", "optimizer", "activations", "workspace", "data"), i)} for i in range(5000)]
samples[2503]["args"] = dict.fromkeys(samples[0]["args"], 20_000)  # a peak of one sample, of several that share a point
trace = other / "traces" / "01_batch_reduction.json"
trace.write_text(json.dumps({"traceEvents": [{"ph": "M", "name": "process_name", "args": {"name": "<b>"}}, *samples]}))
done, text = report(other)
page, words = check(text)
assert done.returncode == 0 and page.counts["polygon"] == 6 and "5,000 allocations" in words
assert "117.19 KiB at most" in words, "the peak is not in the picture"
trace.write_text("{")
done, text = report(other)
assert done.returncode == 2 and "traces/01_batch_reduction.json" in done.stderr and check(text)

# Names are text, not markup. Broken files are named, and the rest is shown.
changed["variants"][0]["name"] = "<script>alert(1)</script>"
changed["title"] = '"><img src=x>'
(other / "01.json").write_text(json.dumps(changed))
trace.unlink()
(other / "broken.json").write_text(json.dumps(changed)[:500])
(other / "old.json").write_text(json.dumps(changed | {"schema_version": 0}))
done, text = report(other)
page, words = check(text)
assert done.returncode == 2 and "<script>alert(1)</script>" in words and "img" not in page.counts
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
