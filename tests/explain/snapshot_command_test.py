"""bench/explain SNAPSHOT, the command: what it compares, its page, its languages, and what it refuses: snapshot_command_test.py ROOT"""
import html.parser
import json
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys

from snapshot_run import EXPLAIN, WORK, all_of, explained, figures, written
from program import FORWARD, MIB, STEP, OutOfMemory, Program, pictures, training
from explaining import snapshot_pickle, snapshot_words
from explaining.snapshot_categories import NAMES
from explaining.snapshot_html import WIDTH, places


def of_comparison():
    one, two = Program(), Program()
    training(one, 4)
    training(two, 4)
    two.allocate(50 * MIB, "/home/me/train.py:40 in main", "/home/me/extra.py:3 in cache")
    training(two, 2, parameter=8 * MIB)
    a, b = written(one, "a.pickle"), written(two, "b.pickle")
    found = json.loads(explained("--compare", a, b, "--json"))
    row = next(line for line in found["lines"] if line["place"] == "extra.py:3 in cache")
    assert (row["more_bytes"], row["first_bytes"], row["second_bytes"]) == (50 * MIB, 0, 50 * MIB), row
    assert found["more_bytes"] == sum(line["more_bytes"] for line in found["lines"]) == sum(found["more_by_category_bytes"].values()), found
    assert "extra.py:3 in cache" in explained("--compare", a, b) and "No line has more" in explained("--compare", a, a)
    explained("--compare", b, a, "--lang", "zh")


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.open, self.outside = {}, [], []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.outside += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action", "data")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()


def of_pages():
    program = Program(budget=800 * MIB)
    try:
        training(program, 40, leak=20 * MIB)
    except OutOfMemory:
        pass
    program.frames["/home/me/train.py:23 in main"]["name"] = "main<script>alert(1)</script>"
    for language in ("en", "zh"):
        explained(written(program), "--html", WORK / "p.html", "--lang", language)
        text = (WORK / "p.html").read_text(encoding="utf-8")
        page = Page()
        page.feed(text)
        assert not page.open and not page.outside and "http" not in text.replace("http://www.w3.org/2000/svg", "") and "script" not in page.tags, page.open
        assert page.tags["svg"] == 1 and page.tags["table"] == 2 and page.tags["polygon"] >= 5, page.tags
        assert "url(" not in text and "@import" not in text and "train.py:23" in text
        assert text.count("<div class=wide>") == 3 and ".wide{overflow-x:auto}" in text  # what is wider than a phone scrolls by itself
    texts = [snapshot_words.say(name, "en") for name in NAMES]
    keys = places(texts)  # of every category at once: in rows, none over another, none beyond the picture
    assert len({down for _, down in keys}) > 1 and len(set(keys)) == len(NAMES)
    assert all(place + 16 + 7 * len(text) <= WIDTH for (place, _), text in zip(keys, texts)), keys
    for file, drawn in pictures().items():
        assert file.read_text(encoding="utf-8") == drawn, f"{file.name} is older than what draws it: python3 tests/explain/program.py"
    assert "cannot be written" in explained(WORK / "s.pickle", "--html", WORK / "none/p.html", code=2)


def of_languages():
    for key, texts in snapshot_words.TEXT.items():
        english, chinese = (sorted(re.findall(r"\{\w+\}", text)) for text in texts)
        assert english == chinese, key
    for size, text in ((0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.00 KiB"), (1 << 30, "1.00 GiB"), ((1 << 30) - 1, "1.00 GiB"), (-2048, "-2.00 KiB")):
        assert snapshot_words.shown(size, "en") == text and snapshot_words.shown(size, "zh") == text.replace("bytes", "字节"), (size, text)
    # A long name beside a long kind: explained() looks at the width.
    program = Program()
    program.allocate(2 * MIB, STEP)
    since = len(program.trace)  # it is older than the recording, which is the longest kind that stands beside a name
    program.allocate(3 * MIB, "/home/me/" + "a_very_long_name_of_a_file" * 4 + ".py:1234 in " + "a_function_with_a_long_name" * 3)
    for language in ("en", "zh"):
        assert "a_long_name" in explained(written(program, since=since), "--all", "--lang", language)
    program = Program()
    training(program, 6)
    english, chinese = (explained(written(program), "--all", "--lang", language) for language in ("en", "zh"))
    assert len(re.findall(r"\d+\.\d\d [KMG]iB", english)) == len(re.findall(r"\d+\.\d\d [KMG]iB", chinese))
    assert len(explained(written(program), "--lang", "zh").splitlines()) <= 25


class Call:
    def __init__(self, function, *arguments):
        self.what = (function, arguments)

    def __reduce__(self):
        return self.what


def of_hostile_files():
    """One line and exit code 2, whatever is in it; and nothing is run."""
    mark = WORK / "ran"
    exponential = b"\x80\x04K\x01\x85" + b"2\x86" * 80 + b"0}" + b"K\x01\x85" + b"2\x86" * 80 + b"K\x01s."
    plain = pickle.dumps({"segments": [], "device_traces": [[]]})
    shared = b"\x80\x04]\x94" + b"".join(b"](" + b"h\x00" * 5000 + b"e" for _ in range(1)) + b"."
    files = {
        "call": pickle.dumps(Call(os.system, f"touch {mark}")),
        "call_inside": pickle.dumps({"segments": [Call(os.system, f"touch {mark}")], "device_traces": []}, protocol=2),
        "old_call": f"cos\nsystem\n(S'touch {mark}'\ntR.".encode(),
        "persistent": b"\x80\x02X\x01\x00\x00\x00aQ.",
        "extension": b"\x80\x02\x82\x01.",
        "class": pickle.dumps(pathlib.Path("x")), "array": pickle.dumps(bytearray(b"x")) if sys.version_info >= (3, 8) else b"\x80",
        "memo": b"\x80\x04}r\xff\xff\xff\x7f.", "huge_text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
        "huge_bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
        "exponential": exponential, "shared": shared, "empty": b"", "cut": plain[:-3], "short": b"\x80", "text": b"no pickle at all",
        "nothing": pickle.dumps({"segments": [], "device_traces": []}), "other": pickle.dumps({"a": 1}), "number": pickle.dumps(7),
        "deep": b"\x80\x02" + b"]" * 200000 + b"a" * 199999 + b".",
        "wrong_event": pickle.dumps({"device_traces": [[7]]}), "wrong_size": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": "x"}]]}),
        "wrong_frames": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 8, "frames": 3}]]}),
        "negative": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": -8, "frames": []}]]}),
        "infinite": pickle.dumps({"device_traces": [[{"action": "alloc", "addr": 1, "size": 1 << 300, "frames": []}]]}),
        "devices": pickle.dumps({"device_traces": [[]] * 5000}), "lists": pickle.dumps({"segments": 3, "device_traces": []}),
    }
    row = [{"action": "alloc", "addr": 1, "size": 8, "frames": []}]
    for _ in range(12):
        row = row * 40 if len(row) < 100000 else row
    files["laughs"] = pickle.dumps({"device_traces": [row] * 50})
    for name, data in files.items():
        file = WORK / f"{name}.pickle"
        file.write_bytes(data)
        # What takes more processor time than it may would take all of it here, so it may take less.
        limit = snapshot_pickle.seconds_limit
        snapshot_pickle.seconds_limit = (lambda size: 1) if name == "exponential" else limit
        error = explained(file, code=2)
        snapshot_pickle.seconds_limit = limit
        assert str(file) in error and len(error) < 400, (name, error)
        assert ("would run code" in error) == (name in ("call", "call_inside", "old_call", "class", "array")), (name, error)
    assert not mark.exists(), "it ran"
    assert "cut off" in explained(WORK / "cut.pickle", code=2) and "repeat" in explained(WORK / "laughs.pickle", code=2)
    # Names are shown as text, whatever is in them.
    program = Program()
    program.allocate(MIB, "/home/me/\x1b[31mtrain.py:1 in \u202emain\x07")
    text = explained(written(program))
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[31mtrain.py" in text, text
    # What cannot be written is said, and who reads the first line only is no error.
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([sys.executable, EXPLAIN, WORK / "s.pickle"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "No space left" in done.stderr, done
    done = subprocess.run(f"{sys.executable} {EXPLAIN} {WORK / 's.pickle'} --all | head -1; echo ${{PIPESTATUS[0]}}", shell=True, executable="/bin/bash",
                          capture_output=True, text=True)
    assert done.stderr == "" and done.stdout.count("\n") == 2, done
    # Usage.
    for arguments in (("--compare", WORK / "s.pickle"), ("--html", WORK / "x.html"), (WORK / "s.pickle", "--nothing"),
                      (WORK / "s.pickle", "--compare", WORK / "s.pickle", WORK / "s.pickle")):
        explained(*arguments, code=64)
    assert "no such file" in explained("--compare", WORK / "s.pickle", WORK / "missing.pickle", code=2).lower()
    assert "--compare" in explained(WORK / "s.pickle", "--help")


def of_formats():
    """Every protocol; the list that memory_snapshot() gives; segments without a history; more devices than one."""
    program = Program()
    truth, _ = training(program, 6)
    for protocol in (2, 3, 4, 5):
        assert figures(written(program, protocol=protocol))["peak_bytes"] == sum(truth.values()), protocol
    value = program.snapshot()
    (WORK / "list.pickle").write_bytes(pickle.dumps(value["segments"]))
    assert "no history was recorded" in explained(WORK / "list.pickle")
    other = Program()
    other.allocate(500 * MIB, STEP, *FORWARD)
    more = other.snapshot()["segments"]
    for segment in more:
        segment["device"] = 1
    both = {"segments": value["segments"] + more, "device_traces": [value["device_traces"][0], other.trace]}
    (WORK / "two.pickle").write_bytes(pickle.dumps(both))
    found = json.loads(explained(WORK / "two.pickle", "--json"))["devices"]
    assert [(f["device"], f["peak_bytes"]) for f in found] == [(1, 500 * MIB), (0, sum(truth.values()))], found
    assert "Also: device 0, peak " in explained(WORK / "two.pickle") and explained(WORK / "two.pickle", "--all").count("What filled it") == 2


all_of((of_comparison, of_pages, of_languages, of_hostile_files, of_formats))
