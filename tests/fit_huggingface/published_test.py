#!/usr/bin/env python3
"""What Hugging Face's modules were measured to need, and what is predicted for it today: published_test.py ROOT fit_huggingface."""
import json
import pathlib
import subprocess
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
import gpu  # noqa: E402
import huggingface_generation  # noqa: E402
import huggingface_models as models  # noqa: E402
import huggingface_training as peer  # noqa: E402
import published  # noqa: E402

MEDIAN, WORST, COUNT = 0.01, 0.05, 60
failures = []


def check(holds, what):
    if not holds:
        failures.append(what)


def predict(text):
    return subprocess.run([PROGRAM], input=text, capture_output=True, text=True)


EXPERTS = [words for words in peer.SETTINGS if "experts=" in words]
check({peer.setting_of(words)["family"] for words in EXPERTS} == set(peer.EXPERTS) and len(EXPERTS) >= 6, f"mixtures of experts: {EXPERTS}")
summary = []
for file, results, settings in published.hold(peer, PROGRAM, check, MEDIAN, WORST, ((peer.RESULTS, COUNT), (peer.DRAWN, COUNT))):
    name = file.stem
    count = COUNT + (len(EXPERTS) if file == peer.RESULTS else 0)
    check(len(results["rows"]) == count, f"{name}: {len(results['rows'])} settings, not {count}")
    summary.append(results["summary"])
    for family in peer.FAMILIES:
        check(any(s["family"] == family for s in settings), f"{name}: no {family}")
    for words in (["autocast"], ["weights"], ["checkpoint"], ["lora"], ["micro_batches"], ["autocast", "checkpoint"], ["lora", "checkpoint"]):
        check(any(all(word in s for word in words) for s in settings), f"{name}: none with {words}")

drawn = peer.random_settings(40, 7)
check(drawn == peer.random_settings(40, 7) and drawn != peer.random_settings(40, 8), "a seed does not decide what is drawn")
check(len(peer.ours(drawn, PROGRAM)) == 40, "drawn settings are not answered")

# What is stored of GPUs, and the table of one, with a row of each kind. 900 allocated less 100 of workspaces, predicted 760: 5% too few.
for script in (peer.SCRIPT, huggingface_generation.SCRIPT):
    published.hold_gpu(script, lambda settings, replay=0: peer.ours(settings, PROGRAM, "cuda", replay), check)
MIB = 2**20
measured = {"allocated": 900 * MIB, "workspaces": 100 * MIB, "requested": 850 * MIB, "reserved": 950 * MIB, "used": 1500 * MIB, "seconds": [9, 2, 4]}
shown = gpu.table({"command": "it", "device": "Card", "device_bytes": 8 * MIB, "torch": "2", "transformers": "5", "peft": "not installed", "cuda": "13", "left": ["more"], "rows": [
    measured | {"setting": "family=a", "predicted": {"peak": 765 * MIB, "allocated": 760 * MIB, "reserved": 884 * MIB}},
    measured | {"setting": "family=b", "predicted": {"peak": 808 * MIB}},
    {"setting": "family=c", "oom": "CUDA out of memory", "predicted": {"peak": 9000 * MIB}}, {"setting": "family=d", "failed": "Traceback\nValueError: it"}]}, peer.named)
for line in ("Card, 8 MiB; torch 2, transformers 5, CUDA 13. MiB.", "a      900.0      100.0     760.0 (-5.00%)     950.0     884.0 (+4.00%)    1500.0",
             "b      900.0      100.0     808.0 (+1.00%)     950.0                  -    1500.0", "c         out of memory             9000.0                            -",
             "d failed: ValueError: it", "1 settings are left: the time was over", "2 settings, error of live bytes, as requested: median 4.87%, worst 7.73%",
             "2 settings, error of allocated: median 3.00%, worst 5.00%", "1 settings, error of reserved: median 4.00%, worst 4.00%"):
    check(line in shown.splitlines(), f"the table of a GPU lacks {line!r}: {shown}")
llama = peer.setting_of("model=meta-llama/Llama-3.1-8B weights=bf16 batch=1 seq=8")
check(llama["layers"] == 32 and peer.named(peer.words_of(llama)) == "Llama-3.1-8B weights=bf16 batch=1 seq=8", f"a model by its name: {llama}")
check(set(gpu.small(llama)) == set(llama) and gpu.small(llama)["layers"] == 2, "a small setting has other words")

# A GPU's operators: a mask of dropout is a byte, attention with dropout keeps no scores.
TINY = "layers=2 width=256 heads=8 mlp=704 vocabulary=2000 positions=512 batch=4 seq=512 dropout_percent=10"
cpu, cuda = (json.loads(predict(f"family=gpt2 {TINY} device={device}\n").stdout)["peak"] for device in ("cpu", "cuda"))
check(cuda < 0.75 * cpu, f"a GPU needs {cuda} of a CPU's {cpu} bytes")

# A model by its name: two bytes of each weight, four of each adapter's, and what a step adds.
named = json.loads(predict("model=llama3.1-8b batch=1 seq=2048 weights=bf16 lora=16 checkpoint=1\n").stdout)
check(named["count"] == 8_030_261_248 and named["parameters"] >= 2 * named["count"] + 4 * named["trained"], f"llama3.1-8b: {named}")

LLAMA = "family=llama layers=2 heads=8 width=256 mlp=704 vocabulary=100"
for text, said in (("family=lama", "family=lama is unknown"), ("model=lama", "the nearest: "), ("batch=1", "begin with family="), (f"{LLAMA} batch=0", "at least one sequence"),
                   (f"{LLAMA} batch=-1", "no whole number"), (f"{LLAMA} weights=fp8", "weights=fp8 is unknown"),
                   (f"{LLAMA} seq", "is not KEY=VALUE"), (f"{LLAMA} colour=red", "'colour' is unknown"),
                   (f"{LLAMA.replace('llama', 'mixtral')} experts=4 active=2 lora=8", "adapters of experts"),
                   (f"{LLAMA.replace('llama', 'mixtral')} experts=4 active=2 parallel=zero3", "experts are not known in DeepSpeed's"),
                   (f"{LLAMA} seq=5000", "longer than the 4096"), (f"{LLAMA} lora=0", "a rank of at least 1"), ("family=llama", "heads are missing"),
                   (f"{LLAMA} batch=9223372036854775807 seq=9", "")):
    answer = predict(text + "\n")
    one_line = answer.stdout == "" and answer.stderr.count("\n") == 1 and said in answer.stderr
    check(answer.returncode == 64 and one_line, f"{text}: {answer}")

# The table of models: today's counts are those of transformers' own modules.
counted = json.loads(models.RESULTS.read_text())
stored = counted["rows"]
check({setting.split()[0] for setting in (row["setting"] for row in stored if row["name"] in counted["defaults"])} >= {
    f"family={family}" for family in ("llama", "mistral", "gemma2", "phi3", "gpt2", "bert", "vit")}, f"defaults: {counted['defaults']}")
check([dict(row, counted=row["parameters"]) for row in models.table(PROGRAM)] == stored, "huggingface_models.json: other models, or other counts, than today's")
check(len(stored) >= 60, f"{len(stored)} models")

print("\n".join(failures or summary))
sys.exit(bool(failures))
