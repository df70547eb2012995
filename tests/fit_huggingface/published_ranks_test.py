#!/usr/bin/env python3
"""What a rank, and generate(), were measured to need, and what is predicted for them today: published_ranks_test.py ROOT fit_huggingface."""
import pathlib
import subprocess
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "bench/peers"))
import huggingface_generation as generation  # noqa: E402
import huggingface_ranks as ranks  # noqa: E402
import huggingface_training as peer  # noqa: E402
import published  # noqa: E402

failures, summary = [], []


def check(holds, what):
    if not holds:
        failures.append(what)


def hold(script, median_bar, worst_bar, counts):
    """Both of a script's files; the settings of the script."""
    for _, results, _ in published.hold(script, PROGRAM, check, median_bar, worst_bar, zip((script.RESULTS, script.DRAWN), counts)):
        summary.append(results["summary"])
    return [peer.setting_of(w) for w in script.SETTINGS]


chosen = hold(ranks, 0.02, 0.08, (34, 14))
for words in ({"parallel": "ddp", "ranks": 4}, {"parallel": "fsdp2", "ranks": 4}, {"parallel": "fsdp2", "checkpoint": 1}, {"parallel": "fsdp2", "compute": "bf16"},
              {"parallel": "ddp", "bucket_view": 1}, {"parallel": "fsdp2", "micro_batches": 2}, {"parallel": "tensor", "ranks": 4}, {"parallel": "tensor", "checkpoint": 1}):
    check(any(words.items() <= setting.items() for setting in chosen), f"no setting with {words}")
check(any("lora" in s and s["parallel"] == "fsdp2" for s in chosen), "no adapters in shards")

chosen = hold(generation, 0.01, 0.05, (19, 16))
for family in (*generation.FAMILIES, *peer.EXPERTS):
    check(any(s["family"] == family for s in chosen), f"generate(): no {family}")
for word in ("beams", "static_cache", "weights", "attention"):
    check(any(word in s for s in chosen), f"generate(): none with {word}")


def predict(text):
    return subprocess.run([PROGRAM], input=text + "\n", capture_output=True, text=True)


LLAMA = "family=llama layers=2 heads=8 width=256 mlp=704 vocabulary=100 positions=64"
for text, said in ((f"{LLAMA} parallel=zero4", "parallel=zero4 is unknown"), (f"{LLAMA} parallel=ddp ranks=0", "at least one rank"),
                   (f"{LLAMA} parallel=fsdp2 optimizer=adafactor", "only AdamW and SGD"), (f"{LLAMA} parallel=zero2 compute=bf16", "type of the weights"),
                   (f"{LLAMA} parallel=zero2 offload_parameters=1", "stage 3 only"), (f"{LLAMA} parallel=ddp offload_optimizer=1", "by DeepSpeed only"),
                   (f"{LLAMA} parallel=tensor ranks=3", "3 ranks do not divide llama's 8 heads"), (f"{LLAMA} parallel=tensor ranks=8 kv_heads=4", "4 heads of keys"),
                   (f"{LLAMA} parallel=tensor lora=8", "adapters are not known"), (f"{LLAMA} parallel=tensor loss=liger", "only the whole loss"),
                   (f"{LLAMA.replace('llama', 'phi3')} parallel=tensor", "not of phi3"), (f"{LLAMA} parallel=tensor compute=bf16", "FSDP's"),
                   (f"{LLAMA} parallel=zero3 lora=8 four_bits=1", "four bits are not known"), (f"{LLAMA} prompt=60 new_tokens=10", "more than the 64"),
                   (f"{LLAMA} prompt=6 new_tokens=0", "one new token"), ("family=bert layers=2 heads=8 width=256 mlp=704 vocabulary=100 prompt=1", "does not generate")):
    answer = predict(text)
    one_line = answer.stdout == "" and answer.stderr.count("\n") == 1 and said in answer.stderr
    check(answer.returncode == 64 and one_line, f"{text}: {answer}")

print("\n".join(failures or summary))
sys.exit(bool(failures))
