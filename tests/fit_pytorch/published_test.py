#!/usr/bin/env python3
"""What PyTorch was measured to need, and what is predicted for it today: published_test.py ROOT fit_pytorch."""
import json
import pathlib
import subprocess
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
import gpu  # noqa: E402
import pytorch_training as peer  # noqa: E402

MEDIAN, WORST, LEAST = 0.02, 0.06, 24
GPU_WORST = 0.005
failures = []


def check(holds, what):
    if not holds:
        failures.append(what)


def predict(text):
    return subprocess.run([PROGRAM], input=text, capture_output=True, text=True)


# Of GPUs: settings have predictions, and what is stored has today's.
today = peer.ours(peer.SCRIPT.settings(), PROGRAM)
check(len(today) == len(peer.SCRIPT.settings()) and all(row["peak"] > 0 for row in today), "a setting for a GPU has no prediction")
files = gpu.files_of(peer.SCRIPT)
check(files, "no GPU has measured it")
for file in files:
    results = json.loads(file.read_text())
    check([row.get("predicted") for row in results["rows"]] == peer.ours([peer.setting_of(row["setting"]) for row in results["rows"]], PROGRAM),
          f"{file.stem}: other predictions than today's; pytorch_training.py --text")
    check(file.with_suffix(".txt").read_text() == gpu.table(results, peer.SCRIPT.shown), f"{file.stem}: the table is another one's; pytorch_training.py --text")
    for name, each in gpu.errors(results["rows"]).items():
        check(max(map(abs, each)) <= GPU_WORST, f"{file.stem}: the worst error of {name} is {max(map(abs, each)):.2%}")

summary = []
for file in (peer.RESULTS, peer.DRAWN):
    results = json.loads(file.read_text())
    rows, name = results["rows"], file.stem
    today = [json.loads(line) for line in predict("".join(row["setting"] + "\n" for row in rows)).stdout.splitlines()]
    check(len(today) == len(rows), f"{name}: {len(today)} predictions of {len(rows)}")
    for row, now in zip(rows, today):
        said = f"{name}: {row['setting']}"
        check(row["predicted"] == now, f"{said}: published {row['predicted']}, today {now}; run {results['command']}")
        check(sum(now[key] for key in ("parameters", "gradients", "optimizer", "activations", "data")) == now["peak"], f"{said}: no sum")
        check(now["checked"] == ("measured" in row), f"{said}: checked, but not measured, or the other way round")
    measured = [dict(row, predicted=now) for row, now in zip(rows, today) if "measured" in row]
    count, median, worst = peer.figures(measured, peer.WHO["predicted here"])
    check(count >= LEAST, f"{name}: {count} settings, not {LEAST}")
    check(median <= MEDIAN, f"{name}: the median error is {median:.2%}")
    check(worst <= WORST, f"{name}: the worst error is {worst:.2%}")
    check(file.with_suffix(".txt").read_text() == peer.table(results), f"{name}: the table is another one's; pytorch_training.py --text")
    summary.append(f"{name}: {count} settings, median {median:.2%}, worst {worst:.2%}")
    for style in ("gpt", "bert", "llama"):
        for words in ([], ["precision=bf16"], ["checkpoint=1"], ["precision=bf16", "checkpoint=1"]):
            there = any(style in row["setting"] and all(w in row["setting"] for w in words) for row in measured)
            check(there or file == peer.DRAWN, f"{name}: no {style} {words}")
    if file == peer.RESULTS:
        check([row["setting"] for row in rows] == [peer.words_of(peer.setting_of(w)) for w in peer.SETTINGS + peer.UNCHECKED],
              f"{name}: other settings than today's")

# Settings that are drawn are the same for the same seed, and are within what the program reads.
drawn = peer.random_settings(40, 7)
check(drawn == peer.random_settings(40, 7) and drawn != peer.random_settings(40, 8), "a seed does not decide what is drawn")
answered = predict("".join(peer.words_of(s) + "\n" for s in drawn))
check(answered.returncode == 0 and len(answered.stdout.splitlines()) == 40, f"drawn settings: {answered.stderr}")

for text, said in (("model=gtp2", "unknown"), ("batch=1", "begin with model="), ("model=gpt2 batch=0", "at least one token"),
                   ("model=gpt2 batch=-1", "no whole number"), ("model=gpt2 precision=fp8", "precision=fp8 is unknown"),
                   ("model=gpt2 seq", "is not KEY=VALUE"), ("model=gpt2 colour=red", "'colour' is unknown"),
                   ("model=bert-base tied=0", "is tied"),
                   ("model=gpt2 batch=9223372036854775807 seq=9", "")):
    run = predict(text + "\n")
    one_line = run.stdout == "" and run.stderr.count("\n") == 1 and said in run.stderr
    check(run.returncode == 64 and one_line, f"{text}: {run}")

print("\n".join(failures or summary))
sys.exit(bool(failures))
