#!/usr/bin/env python3
"""No English is left in what fit, explain and puzzle say with --lang zh: in_chinese_test.py ROOT FIT

Two words of small letters side by side are English, outside of what stays as it is: code, options, what is quoted from a message, and a reader's own names.
"""
import importlib
import io
import pathlib
import re
import subprocess
import sys

ROOT, FIT = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path[:0] = [str(ROOT / "tests/explain"), str(ROOT / "bench")]
from answers import ANSWERS  # noqa: E402
from cases import CASES  # noqa: E402
from load import explain  # noqa: E402
from explaining import log  # noqa: E402
from puzzling import words  # noqa: E402

QUESTIONS = (
    "--model llama-3.1-8b --gpu rtx4090", "--model llama-3.2-1b --batch 1 --seq 2048 --gpu rtx3060", "--model gpt2 --task infer --gpu t4", "--model resnet50 --gpu t4 --batch 256",
    "--model llama-3.1-70b --batch 64 --seq 4096 --gpus 64xh100-sxm", "--model meta-llama/Llama-3.1-8B --gpu l4 --method qlora --framework trl",
    "--model llama-3.1-8b --memory 8GB,12GB,24GB --method lora --largest batch", "--model llama-3.1-8b --gpus 4xa100-40gb --engine vllm", "--model gpt2 --gpu h100-sxm --framework deepspeed",
    "--model sdxl --gpu rtx3070 --size 2048", "--model flux.1-dev --gpu t4 --without 8-bits", "--model sd-1.5 --gpu t4 --batch 8 --with enable_vae_slicing",
    "--model sdxl --gpu rtx3080", "--model sdxl --memory 6GB,8GB,24GB --largest size", "--model sd-1.5 --memory 6GB --attn-implementation eager --size 1024",
    "--model sd-2.1 --memory 3GB --task image",
)
ENGLISH = re.compile(r"(?<![-\w./=])[a-z]{2,}(?: [a-z]{2,})+(?![-\w./=])")
# As a program, a command or a message has it.
WRITTEN = {"import torch", "pip install", "out of memory", "core dump", "docker logs", "docker stop", "kubectl logs", "kubectl describe pod", "shared memory", "tensor memory"}
CHINESE = re.compile("[\u4e00-\u9fff]")


def english_in(text):
    """Runs of English words in a Chinese text; what a message says and how something is written are shown further in, without a Chinese word."""
    lines = [line for line in text.splitlines() if CHINESE.search(line) or not line.startswith("  ")]
    runs = ENGLISH.findall(re.sub(r"`[^`]*`|“[^”]*”|\"[^\"]*\"|\{[^}]*\}", " ", "\n".join(lines)))
    return [run for run in runs if run not in WRITTEN]


def texts(value):
    """All strings in a table of words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | tuple | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def words_of_explain():
    """(where it stands, a Chinese text) for everything that explain can say, whether one of the messages below asks for it or not."""
    for file in sorted((ROOT / "bench/explaining").glob("*.py")):
        if "words" in file.stem or file.stem == "advice":
            for name, value in vars(importlib.import_module("explaining." + file.stem)).items():
                if name.isupper():
                    yield from ((f"{file.stem}.{name}", text) for text in texts(value) if CHINESE.search(text))


def said():
    """(who says it, a text)"""
    for question in QUESTIONS:
        done = subprocess.run([FIT, *question.split(), "--lang", "zh"], capture_output=True, text=True, encoding="utf-8")
        assert done.returncode == 0 and CHINESE.search(done.stdout), done
        yield f"fit {question}", done.stdout
    for name, text, *_ in (*CASES[::3], *ANSWERS):
        answer = explain.Explanation(log.find(io.BytesIO(text if isinstance(text, bytes) else text.encode())), "zh")
        yield f"explain, {name}", f"{answer.short()}\n{answer.text()}"
    tables = list(words_of_explain())
    assert len(tables) > 500, len(tables)
    yield from tables
    for key, (_, chinese) in (*words.VERDICTS.items(), *words.SENTENCES.items()):
        yield f"puzzle, {key}", chinese
    yield "puzzle --help", words.HELP_ZH


wrong = [f"{who}: '{run}'" for who, text in said() for run in english_in(text)]
print(*wrong[:20], sep="\n")
assert english_in("按设计不同：another model") and not english_in("  loss = model(x) and more of it\n`a b` 是 bytes")
sys.exit(bool(wrong))
