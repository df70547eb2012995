"""GPUs' results on pages (bench/publishing/on_gpus.py): gpus_test.py ROOT

  - Where a GPU's folder has an answer that the host leaves open, verdict, figure and "on a ..." are its; a claim that the host answers stays.
  - The sentences count the peaks: one that is not the prediction's, or not the host's, is not called equal.
  - Without such a folder, pages say that there is none, and a chapter has no block.
  - Published folders: each peak is the prediction's and the host's to the byte, each lesson ends in PASS, each device has its words, and the
    variants that docs/data/gpus.toml names exist.
"""
import json
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1]).resolve()
sys.path.insert(0, str(ROOT / "bench"))
from publishing import on_gpus, pages  # noqa: E402


def claim(verdict, measured, name="it is fast"):
    return {"claim": name, "what": "samples/s", "low": 0.95, "high": None, "size": None, "at_size": None, "measured": measured, "verdict": verdict,
            "verdict_text": verdict}


def row(peak, **more):
    return {"name": "full", "outcome": "ok", "peak_allocated_bytes": peak, "predicted_bytes": 512, "peak_reserved_bytes": 1 << 20,
            "peak_device_used_bytes": 5 << 20, "device_used_before_bytes": 2 << 20, **more}


with tempfile.TemporaryDirectory() as name:
    root = pathlib.Path(name)
    chapter = root / "chapters/01_one"
    for folder in (chapter, root / "docs/data", root / "bench/results/host", root / "bench/results/gpu-x", root / "bench/results/pytorch-gpu"):
        folder.mkdir(parents=True)
    (root / "docs/data/verdicts.toml").write_text('[01]\n"it is fast" = {host = "{run:.2f} times, on one core", gpu = "{run:.2f} times"}\n"it fits" = "{run:.0f}"\n')
    (root / "docs/data/gpus.toml").write_text('["01"]\nlesson = "Its words."\nlesson_zh = "它的话。"\n')
    (root / "docs/data/claims.zh.toml").write_text('[01]\n"it is fast" = ["快", "每秒"]\n"it fits" = ["放得下", "字节"]\n')
    (chapter / "README.zh-CN.md").write_text("# 01 - 第一章\n")

    def write(folder, backend, claims, rows):
        system = {"backend": backend, "device": "NVIDIA GPU X", "driver": "1", "runtime": "CUDA 2"}
        (root / "bench/results" / folder / "system.json").write_text(json.dumps(system))
        (root / "bench/results" / folder / "01_one.json").write_text(json.dumps({"claims": claims, "variants": rows, "findings": {}}))

    def page(name, document=chapter / "README.md", language="en"):
        return pages.page(root, name, language, document)

    write("host", "host", [claim("not judged", 0.25), claim("holds", 1, "it fits")], [row(512)])
    assert "**Open**: 0.25 times, on one core (a CPU's time" in page("verdicts") and page("gpu") == page("gpu-lesson") == ""
    assert "No GPU's results" in page("gpu-front", root / "README.md") and "None yet" in page("gpu-devices", root / "docs/results.md")
    skipped = {"name": "two", "outcome": "skipped", "reason": "needs 2 devices, this machine has 1"}
    write("gpu-x", "cuda", [claim("does not hold", 0.5), claim("does not hold", 7, "it fits")],
          [row(512, throughput={"median": 1234.5, "p10": 1, "p90": 2000}, least_time={"share_of_bound": 0.125}), skipped])
    write("pytorch-gpu", "cuda", [claim("holds", 9)], [row(1)])
    said = page("verdicts")
    assert "| it is fast | **No**: 0.50 times, in this chapter's program on a GPU X |" in said and "<sub>on a GPU X</sub> | at least 0.95 | 0.25 |" in said, said
    assert "| it fits | **Yes**: 1 |" in said, said
    assert "| 0.5 (on a CPU 0.25) | at least 0.95 | does not hold (on a GPU X) |" in page("claims") and " one**" in page("claims")
    assert "不成立（在 GPU X 上）" in page("claims", language="zh") and " 第一章**" in page("claims", language="zh")
    block = page("gpu")
    assert "the one peak is the predicted one" in block and "1 row was skipped (needs 2 devices, this machine has 1)" in block, block
    assert "| full | 1,234.5 | 1.0 to 2,000.0 | 12 % | 1.00 MiB | 3.00 MiB |" in block, block
    assert [on_gpus.share(value) for value in (1.21, 0.456, 0.0123, None)] == ["121 %", "46 %", "1.2 %", "-"]
    assert "on a GPU X" in page("gpu-front", root / "README.md") and "1 of 1" in page("gpu-devices", root / "docs/results.md")
    (root / "docs/data/verdicts.zh.toml").write_text('[phrases]\n"needs {} devices, this machine has {}" = "需要 {} 个设备，这台机器有 {} 个"\n')
    in_chinese = page("gpu", language="zh")
    assert "**在 GPU X 上**，这一个峰值" in in_chinese and "；另外 1 行没有运行（需要 2 个设备，这台机器有 1 个）" in in_chinese, in_chinese
    assert "| full | 1,234.5 | 1.0 到 2,000.0 | 12 % | 1.00 MiB | 3.00 MiB |" in in_chinese, in_chinese
    (root / "bench/results/gpu-x/01_one.lesson.txt").write_text("PASS\n")
    assert "On a GPU X the lesson prints this. Its words.\n\n```text\nPASS\n```\n" == page("gpu-lesson")
    assert "在 GPU X 上，示例程序打印如下。它的话。\n\n```text\nPASS\n```\n" == page("gpu-lesson", language="zh")
    for host, gpu in ((512, 1024), (1024, 512)):
        write("host", "host", [claim("not judged", 0.25), claim("holds", 1, "it fits")], [row(host)])
        write("gpu-x", "cuda", [], [row(gpu)])
        assert "the one peak is not the predicted one" in page("gpu") and "0 of 1" in page("gpu-devices", root / "docs/results.md"), (host, gpu)
    assert "**Open**" in page("verdicts"), "a GPU without the claim answers it"

words, host = pages.data(ROOT, "gpus.toml"), pages.Figures(ROOT).chapters
wrong = []
for digits, said in words.items():
    if digits != "device":
        variants = {variant["name"] for variant in host[digits]["variants"]}
        wrong += [f"gpus.toml: chapter {digits} has no variant '{variant}'" for variant in said.get("rows", []) if variant not in variants]
gpus = on_gpus.published(ROOT)
for gpu in gpus:
    equal, total = on_gpus.count(gpu.chapters, host)
    if equal != total or not total:
        wrong.append(f"{gpu.folder.name}: {equal} of {total} peaks are the predicted ones and the host's")
    if gpu.folder.name not in words["device"]:
        wrong.append(f"gpus.toml has no words for {gpu.folder.name}")
    wrong += [f"{file.name} of {gpu.folder.name} does not end in PASS" for file in gpu.folder.glob("*.lesson.txt")
              if not file.name.startswith("07_") and not file.read_text(encoding="utf-8").endswith("\nPASS\n")]
print(*wrong, f"{len(gpus)} GPUs", sep="\n")
sys.exit(1 if wrong else 0)
