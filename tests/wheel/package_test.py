#!/usr/bin/env python3
"""The package `oomlab` answers what the commands of bench/ answer: package_test.py ROOT BUILD

It is installed from the host build into a folder, so everything but the compiling of a wheel is as on another machine.
"""
import ast
import json
import os
import pathlib
import sys
import tempfile

from installed import install, native, types

ROOT, BUILD = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
FIT = BUILD / "bin/fit"
MESSAGE = ("CUDA out of memory. Tried to allocate 870.00 MiB (GPU 2; 23.70 GiB total capacity; 19.18 GiB already allocated; 323.81 MiB free; "
           "21.70 GiB reserved in total by PyTorch)")
SNAPSHOT = ROOT / "tests/explain/snapshots/pieces.pickle"
QUESTION = {"model": "gpt2", "batch": 2, "seq": 128, "gpu": "t4"}
WORDS = ["--model", "gpt2", "--batch", "2", "--seq", "128", "--gpu", "t4"]


def refused(kind, line, call, *arguments, **named):
    """The call raises just that, with one line that has these words."""
    try:
        answer = call(*arguments, **named)
    except oomlab.Error as error:
        assert type(error) is kind and line in str(error) and "\n" not in str(error), repr(error)
    else:
        raise AssertionError(f"{arguments} {named}: not refused, but {answer!r:.200}")


def layout():
    """Everything is in one folder, is read by Python 3.9, and is a file of the tree or of the build."""
    assert [p.name for p in PLACE.iterdir()] == ["oomlab"], list(PLACE.iterdir())
    package = PLACE / "oomlab"
    for file in package.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))
    assert (package / "py.typed").exists()
    for file in filter(pathlib.Path.is_file, (package / "tree").rglob("*")):
        assert file.read_bytes() == (ROOT / file.relative_to(package / "tree")).read_bytes(), file
    assert {p.name for p in (package / "tree/chapters").iterdir()} == {p.name for p in ROOT.glob("chapters/[0-9][0-9]_*")}, "a chapter's name is not known"


def of_fit():
    assert oomlab.fit(**QUESTION) == json.loads(native(FIT, *WORDS, "--json")[1])
    assert oomlab.fit(**QUESTION, without=["offload", "stochastic"], gradient_checkpointing=True, prompt=None, all=False) == json.loads(
        native(FIT, *WORDS, "--json", "--without", "offload,stochastic", "--gradient-checkpointing")[1])
    too_much = oomlab.fit(model="llama-3.1-70b", memory="6GB", numbers="same")
    assert too_much["pytorch"]["line"].startswith("does not fit") and not too_much["pytorch"]["as_is"]["fits"], too_much
    for line, question in (("bertha", {"model": "bertha", "gpu": "t4"}), ("--batch '0'", {**QUESTION, "batch": 0}), ("--model", {}), ("--nosuch", {**QUESTION, "nosuch": 1}),
                           ("no part", {**QUESTION, "help": True}), ("no part", {"list": True}), ("one size", {"model": "gpt2", "memory": "8GB,9GB"}),
                           ("one size", {"model": "gpt2", "memory": ["8GB", "9GB"]}), ("NUL", {"model": "gpt2\0"}), ("an argument has a character", {"model": "gpt2\ud800"}),
                           ("an argument is too long", {"model": "g" * 200_000}), ("two models", {"model": "gpt2", "config": "config.json"}),
                           ("wanted", {**QUESTION, "without": object()}), ("needs a value", {**QUESTION, "batch": True})):
        refused(oomlab.UsageError, line, oomlab.fit, **question)


def for_scripts():
    """--must-fit asks for more than that something fits, of whichever program, and on every size."""
    for question in ("--model llama-3.1-8b --gpu rtx4090", "--model llama-3.1-8b --task infer --memory 16GB --batch 64", "--model llama-3.1-8b --engine vllm --gpu t4",
                     "--engine oomlab --model llama-3.2-1b --gpu rtx3060 --seq 512", "--model resnet50 --batch 256 --gpu rtx3060", "--model sdxl --gpu rtx3070 --size 2048", "--model gpt2 --memory 1GB,80GB"):
        assert native(FIT, *question.split())[0] == 0, question
        assert native(FIT, *question.split(), "--must-fit")[0] == 1, question
    for question in ("--model gpt2 --memory 40GB,80GB", "--model llama-3.1-8b --task infer --gpu h100-sxm", "--engine oomlab --model gpt2 --gpu h100-sxm",
                     "--model vit-b-16 --gpu rtx3090 --method qlora"):  # whose classifier has no 4 bits
        assert native(FIT, *question.split(), "--must-fit")[0] == 0, question
    code, _, line = native(FIT, "--model", "gpt2", "--must-fit")
    assert code == 64 and "--gpu" in line, line


def cards():
    known = {card["name"]: card["total_bytes"] for card in json.loads(native(FIT, "--cards", "--json")[1])}
    shown = {line.split()[0]: line.split()[1] for line in native(FIT, "--cards")[1].splitlines()[1:-1]}
    assert known.keys() == shown.keys() and known["t4"] == int(14.56 * 2**30) and shown["t4"] == "14.56", (known, shown)
    code, out, line = native(FIT, "--cards", "--model", "gpt2")
    assert (code, out) == (64, "") and "--model" in line, line


def hostile_configs():
    """What is no config.json of a model is refused as the program in the tree refuses it, in the same words."""
    with tempfile.TemporaryDirectory() as folder:
        files = {"empty": b"", "cut": b'{"model_type": "llama", "hidden_size": 6', "deep": b"[" * 100_000, "bytes": bytes(range(256)) * 8, "null": b"null", "mamba": b'{"model_type": "mamba"}',
                 "negative": b'{"model_type": "gpt2", "n_embd": -64, "n_layer": 2, "n_head": 2}', "huge": b'{"model_type": "gpt2", "n_embd": 1e300, "n_layer": 2, "n_head": 2}',
                 "obeyed": b'{"model_type": "\\u001b]0;x\\u0007"}'}
        for name, data in files.items():
            file = pathlib.Path(folder) / f"{name}.json"
            file.write_bytes(data)
            code, out, line = native(FIT, "--config", file, "--gpu", "t4", "--json")
            assert (code, out) == (64, ""), (name, code, out)
            refused(oomlab.UsageError, line.strip().removeprefix("fit: "), oomlab.fit, config=file, gpu="t4")
        os.mkfifo(f"{folder}/pipe.json")
        for file in ("pipe.json", "nothing.json", "."):
            refused(oomlab.UsageError, file, oomlab.fit, config=f"{folder}/{file}", gpu="t4")


def of_explain():
    """Of an exception, with everything in its text that a terminal would obey; in Chinese; and of no message."""
    try:
        raise RuntimeError(f"\ud800\x1b]0;x\x07 \u202e\n{MESSAGE}\0\x1b[2J")
    except RuntimeError as error:
        shown = oomlab.explain(error, all=True)
    assert shown.startswith("Cause: fragmentation") and "What it says, device 2" in shown and not any(c in shown for c in "\x1b\x07\0\u202e"), shown
    assert oomlab.explain(MESSAGE, lang="zh").startswith("原因")
    refused(oomlab.NoMessage, "", oomlab.explain, "Tried to allocate " * 10_000)
    refused(oomlab.UsageError, "--lang", oomlab.explain, MESSAGE, lang="de")
    refused(oomlab.UsageError, "a str", oomlab.explain, 5)


def the_command():
    """layout() has seen that the scripts are the tree's, so what is looked at here is that they are started, and what they are called."""
    code, out, err = types(PLACE, "--help")
    assert code == 0 and all(f"oomlab {name} " in out for name in ("fit", "explain", "snapshot", "puzzle", "cards")) and not err
    code, out, err = types(PLACE, "nosuch")
    assert (code, out) == (64, "") and "'nosuch'" in err and err.count("\n") == 1, err
    for mine, its in ((["fit", *WORDS], WORDS), (["fit", "--batch"], ["--batch"]), (["cards"], ["--cards"])):
        assert types(PLACE, *mine) == native(FIT, *its), mine
    for words, code, said in ((["cards", "--help"], 0, "oomlab cards --json"), (["cards", "--gpu", "t4"], 64, "oomlab: cards: '--gpu t4' is not allowed"),
                              (["--version"], 0, f"oomlab {oomlab.__version__}\n")):
        answer = types(PLACE, *words)
        assert answer[0] == code and said in "".join(answer[1:]), answer
    code, out, err = types(PLACE, "explain", text=MESSAGE.encode())
    assert code == 0 and out.startswith("Cause: fragmentation") and not err, (out, err)
    code, out, err = types(PLACE, "snapshot", SNAPSHOT)
    assert code == 0 and "What filled it: pieces" in out and not err, (out, err)
    code, out, err = types(PLACE, "snapshot", ROOT / "README.md")
    assert (code, out) == (2, "") and err.startswith("oomlab snapshot: ") and err.count("\n") == 1, err
    for name, own, other in (("fit", "oomlab fit --model", "bench/fit"), ("explain", "oomlab explain FILE", "bench/explain"),
                             ("snapshot", "oomlab snapshot --compare", "--snapshot FILE")):
        code, out, err = types(PLACE, name, "--help")
        assert code == 0 and own in out and other not in out, out


def puzzles():
    """They are listed, and judged elsewhere."""
    code, out, err = types(PLACE, "puzzle", "--list")
    listed = native(ROOT / "bench/puzzle", "--list")[1]
    assert code == 0 and [line.split()[0] for line in out.splitlines()[:-1]] == [line.split()[0] for line in listed.splitlines()[:-1]], out
    assert "clone" in out.splitlines()[-1], out
    code, out, err = types(PLACE, "puzzle", "04")
    assert (code, out) == (2, "") and "clone" in err and err.count("\n") == 1, err


with tempfile.TemporaryDirectory() as place:
    PLACE = install(BUILD, place)
    import oomlab  # noqa: E402
    for case in (layout, of_fit, for_scripts, cards, hostile_configs, of_explain, the_command, puzzles):
        case()
        print(case.__name__)
