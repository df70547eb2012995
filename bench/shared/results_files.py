"""Reading result files of bench/run (and of bench/peers, which writes the same). Needs nothing but Python."""

import json
import math
import os
import pathlib
import re
import stat
import tempfile
import typing

SCHEMA_VERSION = 3
OLDEST_VERSION = 2  # the same without tables: results of peers, published before there were any
CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "workspace", "data")
# Distinct also in grey and to colour-blind eyes (Okabe and Ito), with patterns not needed: the order is always the same.
COLOURS = {"parameters": "#0072b2", "gradients": "#e69f00", "optimizer": "#009e73", "activations": "#d55e00",
           "workspace": "#8a8a8a", "data": "#cc79a7"}
COLOURS_DARK = {**COLOURS, "parameters": "#4ba3e3", "optimizer": "#1fb58c", "activations": "#ef7d32"}
OUTCOMES = ("ok", "oom", "skipped")


class Mitigation(typing.NamedTuple):
    """A chapter's baseline, and the mitigation that stands for it where chapters stand in one picture: names of variants. And the figure that the
    chapter is about: bytes at the peak, `allocated` or `reserved`, or how many requests were `refused`."""
    before: str
    after: str
    by: str = "allocated"


MITIGATIONS = {chapter: Mitigation(*names) for chapter, names in {
    "01_batch_reduction": ("mlp-activations, batch 512", "mlp-activations, batch 64"),
    "02_gradient_accumulation": ("full batch 32", "8 x 4, global count"),
    "03_mixed_precision": ("fp32", "bf16"),
    "04_checkpointing": ("none", "solved"),
    "05_unified_memory": ("device memory", "streamed"),
    "06_caching_allocator": ("best fit", "ours", "reserved"),
    "07_multi_gpu": ("one device", "ZeRO-3 x 8"),
    "08_attention_and_loss": ("textbook", "lean"),
    "09_input_size": ("full size", "resized to 32"),
    "10_lighter_models": ("resnet:3-16", "mobilenet:16"),
    "11_inference": ("predictions on device", "predictions on host"),
    "12_quantisation": ("fp32", "int8 per row"),
    "13_optimizer_memory": ("adamw", "bf16, 8-bit, in backward"),
    "14_adapters": ("full", "qlora, checkpoints"),
    "15_sharing": ("first come, first served", "a cache that is emptied", "refused"),
    "16_capstone": ("textbook", "8-bit"),
    "17_long_sequences": ("textbook", "MLP by tiles"),
    "18_image_generation": ("all resident", "layer by layer"),
}.items()}
# Where and how often something ran does not make it another workload.
NOT_WORKLOAD = {"device", "steps", "memory_steps"}
# What every chapter has; the rest of "config" are a chapter's own options.
COMMON_OPTIONS = {"model", "batch", "steps", "memory_steps", "budget_bytes", "host_memory_bytes", "workspace_bytes", "device", "devices", "quick", "plan"}


# Files beside the results of chapters: the machine's, and what tests/run bench and bench_allocators saw there.
BESIDE = {"system.json", "benchmarks.json", "allocators.json"}
LARGEST_FILE = 256 << 20  # bytes; the largest that the course writes have a few MiB
LARGEST_NUMBER = 1 << 63  # of bytes, and of everything else


class BadFile(Exception):
    """One line that names the file and, where it is one, the field."""


def read_json(path):
    """What a JSON file has. Only a regular file: a pipe may never end, and a device never does. Raises BadFile."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise BadFile(f"{path}: is no regular file")
            if about.st_size > LARGEST_FILE:
                raise BadFile(f"{path}: has {format_bytes(about.st_size)}; no result or trace has more than {format_bytes(LARGEST_FILE)}")
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path}: not JSON, or cut off: {str(error)[:80]}") from None


def save(path, data):
    """Writes a file whole, or not at all: what was there stays until all of `data` (bytes) is on the disk. A terminal or a pipe
    gets it as it is. Raises OSError, also for a file that is there to be read only."""
    path = pathlib.Path(os.path.realpath(path))  # of a link, what it leads to
    mode = path.stat().st_mode if path.exists() else None
    if mode is not None and not stat.S_ISREG(mode):
        path.write_bytes(data)
        return
    if mode is not None and not mode & 0o222:
        raise PermissionError(13, "is read-only", str(path))
    descriptor, part = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(part, stat.S_IMODE(mode) if mode is not None else 0o666 & ~umask)
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


class Field:
    """A value in a result, which knows where it stands: Field(file, "", data)["variants"][0]["name"].text()."""

    def __init__(self, file, path, value):
        self.file, self.path, self.value = file, path, value

    def fail(self, what):
        raise BadFile(f"{self.file}: {self.path or 'the file'} {what}")

    def __getitem__(self, key):
        if isinstance(key, str):
            path = f"{self.path}.{key}" if self.path else key
            if not isinstance(self.value, dict):
                self.fail("is not an object")
            if key not in self.value:
                raise BadFile(f"{self.file}: {path} is missing")
            return Field(self.file, path, self.value[key])
        return Field(self.file, f"{self.path}[{key}]", self.value[key])

    def get(self, key):
        """The field, or None where it is absent or null."""
        return self[key] if isinstance(self.value, dict) and self.value.get(key) is not None else None

    def items(self):
        if not isinstance(self.value, list):
            self.fail("is not a list")
        return [self[i] for i in range(len(self.value))]

    def keys(self):
        if not isinstance(self.value, dict):
            self.fail("is not an object")
        return list(self.value)

    def text(self):
        if not isinstance(self.value, str):
            self.fail(f"is {json.dumps(self.value)[:40]}, not a text")
        return self.value

    def number(self, least=-math.inf):
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)) or self.value != self.value:
            self.fail(f"is {json.dumps(self.value)[:40]}, not a number")
        if abs(self.value) > LARGEST_NUMBER:
            self.fail("is larger than any such number can be")
        if self.value < least:
            self.fail(f"is {self.value}; at least {least} is possible")
        return self.value

    def rate(self):
        """Something a second: 0, or not so little that ratios of it are none."""
        value = self.number(0)
        if 0 < value < 1 / LARGEST_NUMBER:
            self.fail("is smaller than any such number can be")
        return value

    def bytes(self):
        value = self.number(0)
        if not isinstance(value, int):
            self.fail(f"is {value}, not a whole number of bytes")
        return value

    def setting(self):
        """What an option was, of whatever type; a number is one that can be shown."""
        return self.number() if isinstance(self.value, (int, float)) and not isinstance(self.value, bool) else self.value

    def truth(self):
        if not isinstance(self.value, bool):
            self.fail(f"is {json.dumps(self.value)[:40]}, not true or false")
        return self.value

    def one_of(self, allowed):
        if self.value not in allowed:
            self.fail(f"is {json.dumps(self.value)[:40]}; known: {', '.join(allowed)}")
        return self.value


class Variant:
    """One row. Bytes; rates in samples per second."""

    def __init__(self, field):
        self.name = field["name"].text()
        self.baseline = field["role"].text() == "baseline"
        self.batch = field["batch"].number(1)
        self.outcome = field["outcome"].one_of(OUTCOMES)
        reason = field.get("reason")
        self.reason = reason.text() if reason else ""
        budget = field.get("budget_bytes")
        self.budget = budget.bytes() if budget else None
        predicted = field.get("predicted_bytes")
        self.predicted = predicted.bytes() if predicted else None
        peak = field.get("peak_allocated_bytes")
        self.peak = peak.bytes() if peak else None
        reserved = field.get("peak_reserved_bytes")
        self.reserved = reserved.bytes() if reserved else None
        host = field.get("host_memory")
        host = host and host.get("peak_bytes")
        self.host = host.bytes() if host else None  # of the host's memory
        split = field.get("by_category_bytes")
        self.by_category = {c: split[c].bytes() for c in CATEGORIES} if split else None
        phases = field.get("phases")
        self.phases = [(p["name"].text(), {c: p["by_category_bytes"][c].bytes() for c in CATEGORIES})
                       for p in phases.items()] if phases else []
        rate = field.get("throughput")
        self.rate = tuple(rate[key].rate() for key in ("p10", "median", "p90")) if rate else None
        if self.rate and not self.rate[0] <= self.rate[1] <= self.rate[2]:
            rate.fail("has a median outside its p10 and p90")
        self.repetitions = rate["repetitions"].number(1) if rate else 0
        reference = rate.get("reference") if rate else None
        self.reference = reference["median"].rate() if reference else None
        self.agrees = field["numerics"]["agrees"].truth()

    def figure(self, by):
        """What a chapter is about (Mitigation.by); None where it was not measured."""
        if by == "refused":  # a step ends with the first request that is refused
            return None if self.outcome == "skipped" else int(self.outcome == "oom")
        return {"allocated": self.peak, "reserved": self.reserved}[by]


class Claim:
    """Folk advice, the figure that it is judged by, and the verdict."""

    def __init__(self, field):
        def number(key):
            value = field.get(key)
            return value.number() if value else None
        self.text, self.what, self.size = field["claim"].text(), field["what"].text(), field.get("size")
        self.size = self.size.text() if self.size else ""
        self.about = field["about"].one_of(("memory", "time", "numbers"))
        self.low, self.high = number("low"), number("high")
        if self.low is None and self.high is None:
            field.fail("has neither low nor high")
        self.measured, at_size = number("measured"), number("at_size")
        self.judged = at_size if self.size else self.measured
        self.verdict = field["verdict"].one_of(("holds", "holds for some sizes", "does not hold", "not judged", "not measured"))
        self.verdict_text = field["verdict_text"].text()

    def expected(self):
        """The range in which the claim is true."""
        if self.low is None:
            return f"at most {self.high:g}"
        if self.high is None:
            return f"at least {self.low:g}"
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


class Result:
    """One chapter's file."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        data = read_json(path)
        top = Field(path, "", data)
        if not isinstance(data, dict) or "schema_version" not in data:
            raise BadFile(f"{path}: schema_version is missing: not a result of OOM Lab")
        version = top["schema_version"].number()
        if not OLDEST_VERSION <= version <= SCHEMA_VERSION:
            age = "older" if version < SCHEMA_VERSION else "newer"
            raise BadFile(f"{path}: schema_version is {version}, {age} than the {SCHEMA_VERSION} that is read here; "
                          "run the chapter again")
        self.chapter, self.title = top["chapter"].text(), top["title"].text()
        system = top["system"]
        self.backend, self.device, self.slug = (system[k].text() for k in ("backend", "device", "slug"))
        self.cpu = system["cpu"].text()
        self.driver, self.runtime = system["driver"].text(), system["runtime"].text()
        self.config = {key: top["config"][key].setting() for key in top["config"].keys()}
        self.variants = [Variant(v) for v in top["variants"].items()]
        if not self.variants:
            top["variants"].fail("is empty")
        self.claims = [Claim(c) for c in top["claims"].items()]
        self.findings = {key: top["findings"][key].value for key in top["findings"].keys()}
        self.passed = top["passed"].truth()

    def options(self):
        """The chapter's own options; one that was not given (null in older files) is not there."""
        return {key: value for key, value in self.config.items() if key not in COMMON_OPTIONS and value is not None}

    def workload(self):
        common = {key: self.config.get(key) for key in COMMON_OPTIONS - NOT_WORKLOAD}
        return {**common, **self.options()}


class Side:
    """The results of one machine (or peer): a folder's, or a file's."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.results, self.problems = {}, []
        if self.path.is_dir():
            files = sorted(f for f in self.path.glob("*.json") if f.name not in BESIDE and not f.name.startswith("."))
        else:
            files = [self.path]
        for file in files:
            try:
                result = Result(file)
                if result.chapter in self.results:
                    raise BadFile(f"{file}: chapter is {result.chapter}, and {self.results[result.chapter].path} has that, too")
                self.results[result.chapter] = result
            except BadFile as error:
                self.problems.append(str(error))
        if not files:
            self.problems.append(f"{path}: no result files (*.json) here")
        first = next(iter(self.results.values()), None)
        self.name = first.slug if first else str(path)
        self.device = f"{first.device} ({first.cpu})" if first and first.backend == "host" else first.device if first else "?"


def name_sides(sides):
    """A name for each that no other has."""
    names = [side.name for side in sides]
    for side in sides:
        if names.count(side.name) > 1:
            side.name = str(side.path)


def pair(result):
    """(baseline, mitigation, the figure by which they are compared) of a chapter where both have that figure; None where they do not."""
    def like(name):
        return re.sub(r"\d+", "0", name)

    if result.chapter not in MITIGATIONS:
        return None
    before, after, by = MITIGATIONS[result.chapter]
    rows = {v.name: v for v in result.variants if v.figure(by) is not None and v.peak}
    # A run at other sizes (--quick, --batch) has other numbers in its names; there the first is the baseline, the last the mitigation.
    before = rows.get(before) or next((v for v in rows.values() if like(v.name) == like(before)), None)
    after = rows.get(after) or next((v for v in reversed(rows.values()) if like(v.name) == like(after)), None)
    return (before, after, by) if before and after else None


class Compared(typing.NamedTuple):
    """A chapter's figure in words."""
    what: str
    before: str
    after: str
    less: str  # in per cent; empty where it is no amount


def compared(before, after, by):
    a, b = before.figure(by), after.figure(by)
    if by == "refused":
        return Compared("requests refused", str(a), str(b), "")
    return Compared(f"peak {by}", format_bytes(a), format_bytes(b), f"{1 - b / a:.0%}")


def format_bytes(count):
    """As the tables write it: 1536 is 1.50 KiB."""
    if abs(count) < 1024:
        return f"{count} bytes"
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        count /= 1024
        if abs(count) < 1024 or unit == "PiB":
            return f"{count:.2f} {unit}"
