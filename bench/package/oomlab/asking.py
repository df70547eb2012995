"""oomlab.fit() and oomlab.explain()."""
from __future__ import annotations

import json
import numbers
import os
import traceback
from typing import Any, Iterable, Optional, Union

from oomlab import programs
from oomlab.programs import Error, NoMessage, UsageError

Value = Union[str, int, float, bool, None, "os.PathLike[str]", Iterable[str]]
NO_QUESTION = {"help", "h", "cards", "list", "json"}  # what is no part of a question, or is there already


def fit(*, model: Optional[str] = None, config: Optional[Union[str, "os.PathLike[str]"]] = None, batch: Optional[int] = None,
        seq: Optional[int] = None, gpu: Optional[str] = None, memory: Optional[str] = None, **options: Value) -> dict[str, Any]:
    """What a step takes of a card, whether that fits, and what makes it fit: the dict that `oomlab fit --json` prints.

    model     a name: "llama-3.1-8b", "meta-llama/Llama-3.1-8B", "bert-large", "resnet50"; or
    config    the path of a Hugging Face config.json
    batch     samples of a step, on all cards (1)
    seq       tokens of a sequence (the model's longest, at most 2,048)
    gpu       a card: "rtx4090", "a100-80gb"; `oomlab cards` lists them; or
    memory    of a card, one size: "12GB" (10^9 bytes each) or "12GiB" (2^30). Without both, a step of training is answered for an
              a100-80gb, which is assumed: "memory_named" is False then, and all that says "fits" is about that card
    options   any other option of `oomlab fit --help`, with _ for -: method="qlora", gpus="8xa100-80gb", task="infer",
              gradient_checkpointing=True. True is an option without a value; None and False leave it out.

    In the answer, names that end in _bytes are bytes, and those in _seconds seconds. "pytorch" is about the caller's program ("serving" of a
    server, "images" of a network of images, "pipeline" of what makes images): "line" says in words whether it fits, "as_is" what it takes as
    it is, the rest what makes it fit. What stands beside it is about the course's own programs, which know fewer models.

    >>> oomlab.fit(model="llama-3.1-8b", gpu="rtx4090", method="qlora")["pytorch"]["as_is"]["fits"]
    True

    Raises UsageError, with one line, for what is not known or not allowed; Error where the program cannot answer."""
    given: dict[str, Value] = {"model": model, "config": config, "batch": batch, "seq": seq, "gpu": gpu, "memory": memory, **options}
    arguments, flags = ["--json"], []
    for name, value in given.items():
        option = name.replace("_", "-")
        if option in NO_QUESTION:
            raise UsageError(f"'{name}' is no part of a question")
        if value is None or value is False:
            continue
        if value is True:
            flags.append(f"--{option}")
        else:
            arguments.append(f"--{option}={words_of(name, value)}")
    if memory is not None and "," in words_of("memory", memory):
        raise UsageError(f"memory={memory!r}: one size at a time, so that the answer is one dict")
    done = programs.run("fit", arguments + flags)
    if done.returncode == 64:
        raise UsageError(programs.last_line(done))
    if done.returncode not in (0, 1) or not done.stdout.strip():
        raise Error(programs.last_line(done))
    answer = json.loads(done.stdout)
    if not isinstance(answer, dict):
        raise Error(f"the answer is a {type(answer).__name__}, where a dict is wanted")
    return answer


def words_of(name: str, value: Value) -> str:
    """A value as the command line has it; several words with commas between them."""
    if isinstance(value, (str, numbers.Real)):  # NumPy's, too
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(str, value))
    raise UsageError(f"{name}={value!r:.60}: a text, a number, a path or a list of texts is wanted")


def explain(text: Union[str, BaseException], *, all: bool = False, lang: str = "en") -> str:
    """The cause of an out-of-memory message, and what to do first: what `oomlab explain` prints, at most twelve lines.

    text      a message, a log with one somewhere in it, or an exception that was caught
    all       also the figures, everything else that helps, and what the message leaves out
    lang      "en", or "zh" for Chinese

    Raises NoMessage, with one line, where the text has none that is known; UsageError for another language."""
    if isinstance(text, BaseException):
        text = "".join(traceback.format_exception(type(text), text, text.__traceback__))
    if not isinstance(text, str):
        raise UsageError(f"text is a {type(text).__name__}; a str or an exception is wanted")
    done = programs.run("explain", ["-", f"--lang={lang}", *(["--all"] if all else [])], text.encode("utf-8", "surrogatepass"))
    if done.returncode:
        raise {1: NoMessage, 64: UsageError}.get(done.returncode, Error)(programs.last_line(done))
    return done.stdout.rstrip("\n")
