"""bench/explain: what it derives, says, and refuses: explain_test.py ROOT."""

import fractions
import functools
import io
import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path[:0] = [str(ROOT / "bench"), str(pathlib.Path(__file__).resolve().parent)]
import copied  # noqa: E402
from answers import ANSWERS, two_truths  # noqa: E402
from cases import CASES, CUDA, REPORT, new  # noqa: E402
from refused import REFUSED, REPEATED  # noqa: E402
import explaining.layout  # noqa: E402
import explaining.log  # noqa: E402
import explaining.rules  # noqa: E402
import explaining.words  # noqa: E402
import explaining.advice  # noqa: E402
from explaining.figures import DIAGNOSES, read_number  # noqa: E402
from explaining.layout import SHORTEST, WIDTH, columns  # noqa: E402
from explaining.refusals import FIGURES, LOOKALIKES  # noqa: E402
from explaining.explanation import LINES  # noqa: E402
from explaining.first import SERVERS, first  # noqa: E402
from explaining.first_words import FIRST  # noqa: E402
from load import explain  # noqa: E402

ARTICLE = CASES[0][1]
KEYS = ["diagnosis", "asked_bytes", "capacity_bytes", "free_bytes", "allocated_bytes", "reserved_bytes", "reserved_unallocated_bytes",
        "this_process_bytes", "outside_framework_bytes", "other_processes_bytes", "device"]
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def run(*arguments, given=b""):
    return subprocess.run([ROOT / "bench/explain", *arguments], input=given, capture_output=True)


def run_copied(*arguments):
    return copied.run("bench/explain", explain.main, arguments)


@functools.lru_cache(maxsize=4)
def found(text):
    result = explaining.log.find(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    assert result, f"nothing found in {text[:200]}"
    return result


def said(text, language="en"):
    return explain.Explanation(found(text), language)


def expected(expression):
    """Bytes of "21.70 GiB - 19.18 GiB"."""
    total = fractions.Fraction(0)
    for sign, number, unit in re.findall(r"([+-]?)\s*(\d[\d.]*) (bytes|[KMG]iB)", expression):
        total += (-1 if sign == "-" else 1) * fractions.Fraction(number) * UNITS[unit]
    return total


def check(text, diagnosis, figures, device, name):
    result = said(text)
    got = result.json()
    assert list(got) == KEYS, got
    assert got["diagnosis"] == diagnosis in DIAGNOSES, f"{name}: {got['diagnosis']}, not {diagnosis}"
    assert got["device"] == device, f"{name}: device {got['device']}"
    for key in KEYS[1:-1]:
        want = figures.get(key.removesuffix("_bytes"))
        right = got[key] is None if want is None else got[key] is not None and abs(got[key] - expected(want)) <= 1
        assert right, f"{name}: {key} is {got[key]}, not {want}"
    return result


def in_english_words(text):
    """What both languages have alike, as English has it: bytes, and chapters."""
    return re.sub(r"第 (\d+) 章《", r"chapters/\1", text.replace("字节", "bytes"))


# Every case, its figures, and the same in Chinese.
for name, text, diagnosis, figures, device in CASES:
    english = check(text, diagnosis, figures, device, name).text()
    chinese = said(text, "zh").text()
    numbers = [sorted(re.findall(r"\d[\d.,]* (?:bytes|[KMGT]iB)|chapters/\d+", in_english_words(t))) for t in (english, chinese)]
    assert numbers[0] == numbers[1], (name, numbers)
    assert len(english.splitlines()) > 8 and re.search("[\u4e00-\u9fff]", chinese) and not re.search(r"\{\w+\}", english + chinese), name
    for line in (english + "\n" + chinese).splitlines():
        assert columns(line) <= WIDTH or " " not in line.strip()[:90], line
    answers = [said(text, language).short().splitlines() for language in explain.LANGUAGES]
    assert all(len(answer) <= LINES for answer in answers), (name, answers)
    assert all(columns(line) <= WIDTH for answer in answers for line in answer), (name, answers)
for key, texts in explaining.words.TEXT.items():
    assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in texts}) == 1, f"{key}: other values in Chinese"
assert set(explaining.advice.ADVICE) == set(DIAGNOSES) and all(len(advice) == 3 for advice in explaining.advice.ADVICE.values())

# The article's message: 2.52 GiB cached, 1.68 GiB outside PyTorch, and why 870 MiB do not come out of the cache.
article = said(ARTICLE).text()
for words in ("2.52 GiB  21.70 GiB reserved - 19.18 GiB allocated", "1.68 GiB  23.70 GiB capacity - 323.81 MiB free - 21.70 GiB reserved",
              "Why 870.00 MiB do not come out of 2.52 GiB", "in pieces", "another stream", "pool for small tensors",
              "Cause: fragmentation.", "chapters/06_caching_allocator", "nvidia-smi"):
    assert words in article.replace("\n", " "), (words, article)

# However a message comes: wrapped, commented out, with a logger's prefix, coloured, as JSON, in capitals, cut off in front.
ours = {n: (t, d, f, dev) for n, t, d, f, dev in CASES}
for name in ("the article's", "2.4, others", "2.5, private pools", "1.0, cached"):
    text, diagnosis, figures, device = ours[name]
    wrapped = re.sub(r"(.{50,70}?) ", r"\1\n", text)
    hard = "\n".join(text[i:i + 61] for i in range(0, len(text), 61))
    for form, other in {
        "wrapped": wrapped, "wrapped in a word": hard, "comment": re.sub("^", "# ", wrapped, flags=re.M),
        "rank": re.sub("^", "[rank0]: ", wrapped, flags=re.M), "worker": re.sub("^", "(VllmWorker rank=1 pid=254) ERROR 06-02 05:17:18 [core.py:387] ", text),
        "time": re.sub("^", "2024-05-06 07:08:09,123 - ", wrapped, flags=re.M), "coloured": text.replace("memory", "\x1b[31mmemory\x1b[0m"),
        "JSON": json.dumps({"error": wrapped}), "lower": text.lower(), "upper": text.upper(), "CRLF": wrapped.replace("\n", "\r\n"),
        "decimal comma": re.sub(r"(\d)\.(\d\d) ([KMG])", r"\1,\2 \3", text), "no-break spaces": text.replace(" GiB", "\u00a0GiB"),
        "a log": "step 1 used 3.00 GiB\n" * 500 + "Traceback (most recent call last):\n" + text + "\nstep 2\n" * 500,
        "cut off in front": text[text.index("GPU" if "GPU" in text else "out"):],
        "UTF-16": text.encode("utf-16"), "bad UTF-8": b"\xff\xfe\xfd"[1:] + text.encode() + b"\xc3"}.items():
        want = dict(figures)
        if form == "cut off in front":
            want.pop("asked")
            if "(GPU" in text:
                want.pop("capacity"), want.pop("outside_framework", None)
            got = said(other).json()
            for key, value in want.items():
                assert got[f"{key}_bytes"] is None or abs(got[f"{key}_bytes"] - expected(value)) <= 1, (name, key, got)
            assert got["asked_bytes"] is None and sum(v is not None for v in got.values()) >= 4, got
            continue
        check(other, diagnosis, want, device, f"{name}, {form}")

# What is said first: by the call that failed, the program, and what else the log says.
for name, text, diagnosis, key, words in ANSWERS:
    result = said(text)
    assert (result.diagnosis, first(result)[0]) == (diagnosis, key), f"{name}: {result.diagnosis}, {first(result)[0]}, not {diagnosis}, {key}"
    answer, chinese = result.short(), said(text, "zh").short()
    for word in words:
        assert (word[1:] not in answer.replace("\n", " ")) if word[0] == "!" else word in answer.replace("\n", " "), f"{name}: {word!r} in\n{answer}"
    for lines in (answer.splitlines(), chinese.splitlines()):
        assert len(lines) <= LINES and all(columns(line) <= WIDTH for line in lines), f"{name}: {lines}"
        assert not any(line.endswith("（") or line[:1] in "，。；：、）" for line in lines if line), f"{name}: {lines}"
    numbers = [sorted(re.findall(r"\d[\d.,]* (?:bytes|[KMGT]iB|%)|chapters/\d+|^    .*", in_english_words(t), re.M)) for t in (answer, chinese)]
    assert numbers[0] == numbers[1] and re.search("[\u4e00-\u9fff]", chinese), (name, numbers)
    if result.context.engine in SERVERS and diagnosis in ("live_tensors_fill_it", "kv_cache_or_pool_reservation"):
        assert not re.search("ccumulate|TF_FORCE|XLA_PYTHON", result.text()), f"{name}: advice for training, or of another framework\n{result.text()}"
# A limit is not what exceeds it: without brackets the Chinese may be read as either.
assert "超过上限（约 4096 MiB）" in said(next(text for name, text, *_ in CASES if name == "2.0, a fraction"), "zh").short()
assert len(REFUSED) >= 40 and len([*two_truths()]) >= 40
assert not FIRST.keys() - {first(said(text))[0] for _, text, *_ in (*ANSWERS, *CASES)}, "said of no case"
for key, (english, chinese, paste) in FIRST.items():
    assert len({tuple(sorted(re.findall(r"\{\w+\}", text))) for text in (english, chinese)}) == 1, f"{key}: other values in Chinese"

# What only looks like a message is refused, in one line of either language, and the reason is the right one.
for text, why in REFUSED:
    reasons = {}
    refused = explaining.log.find(io.BytesIO(text.encode()), reasons)
    assert refused is None, f"refused it must be: {text}: {refused.message}"
    assert reasons.keys() == ({why} if why else set()), f"{text}: {reasons}"
    for language in explain.LANGUAGES:
        assert "\n" not in explaining.words.refusal(reasons, language)
assert {why for _, why in REFUSED if why} == {key for key, _, _ in LOOKALIKES}, "a reason without a text"
for text, says, figures in REPEATED:
    reasons = {}
    assert explaining.log.find(io.BytesIO(text.encode()), reasons) is None and [said for said, _ in reasons.values()] == [says], (text, reasons)
    english, chinese = (explaining.words.refusal(reasons, language) for language in explain.LANGUAGES)
    assert all(figure in english for figure in figures) and sorted(re.findall(r"\d+", english)) == sorted(re.findall(r"\d+", chinese)), (english, chinese)
assert {says for _, says, _ in REPEATED} == {says for _, says, _ in FIGURES}, "figures that no text has"

# A full card with a little in pieces is full: it says of what, and does not say that much was free.
full = said(ours["2.4, a full card, 31.00 MiB in pieces, 20.00 MiB asked"][0]).text().replace("\n", " ")
assert "78.60 GiB of 79.15 GiB are live tensors" in full and "under 0.5 % of the card" in full and "expandable_segments" not in full, full
assert "expandable_segments" in said(ours["2.4, a full card, 412.00 MiB in pieces, 20.00 MiB asked"][0]).text()

# PyTorch gives cached segments back and tries again before it reports: nobody is told to do that, and 16 bits are no advice
# for the state of AdamW, which they leave as large as it is.
advices = [advice for three in (*explaining.advice.ADVICE.values(), *explaining.advice.ADVICE_OF.values()) for advice in three]
for text in (text for texts in (*(texts for texts, *_ in advices), *explaining.words.TEXT.values()) for text in texts):
    assert "empty_cache" not in text or re.search("does not help|无用", text), text
    assert not re.search(r"(optimizer are most of it|优化器占大头)[:：][^.。]*16", text), text
    assert "BF16" not in text or "8.0" in text, f"BF16 for cards that have none: {text}"

# No paragraph of Chinese ends in a line of a character or two, no code between backticks is broken, and no blank is lost.
for length in range(40, 160):
    text = "显存碎片" * (length // 4) + "占" * (length % 4) + " 25,104 个。"
    lines = explaining.layout.wrapped(text)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "") and all(columns(line) <= WIDTH for line in lines), lines
    assert (len(lines) == 1 or columns(lines[-1]) >= SHORTEST) and "104个" not in lines[-1], lines
    assert any("`device_map={'': 0}`" in line for line in explaining.layout.wrapped("x " * length + "`device_map={'': 0}`")), length

# Damaged figures are left out.
for damaged in ("870.0 MiB", "0.87 GiB", "1870.00 MiB", "8 70.00 MiB", "870.00 M", "870.00.1 MiB"):
    assert said(ARTICLE.replace("870.00 MiB", damaged)).json()["asked_bytes"] is None, damaged
impossible = said(f"{CUDA} 1.00 GiB (GPU 0; 23.70 GiB total capacity; 1.02 GiB already allocated; 30.00 GiB free; 2.00 GiB reserved in total by PyTorch)").json()
assert impossible["free_bytes"] is impossible["capacity_bytes"] is impossible["outside_framework_bytes"] is None
assert impossible["diagnosis"] == "not_enough_information"
for text, whole, value in (("1,073", True, 1073), ("1.073.741", True, 1073741), ("1,073", False, 1073), ("1.073", False, fractions.Fraction("1.073")),
                           ("1724,50", False, fractions.Fraction("1724.5")), ("1,724.50", False, fractions.Fraction("1724.5")),
                           ("1.724,50", False, fractions.Fraction("1724.5")), ("1\u202f724,5", False, fractions.Fraction("1724.5")), ("12,34,5", False, None)):
    read = read_number(text, whole)
    assert (read and read[0]) == value, (text, read)

# Several messages: the first that tells something is explained; a warning is no message.
second = ARTICLE.replace("870.00 MiB", "1.50 GiB")
several = said(f"{ARTICLE}\n{second}\n" + "ncclUnhandledCudaError: Last error:\nCuda failure 2 'out of memory'\n")
assert several.json()["asked_bytes"] == 870 * 2**20 and several.found.count == 2 and several.found.others == ("NCCL",)
assert "The first of 2" in several.text() and "NCCL" in several.text()
assert said(f"RuntimeError: CUDA error: out of memory\n{ARTICLE}").json()["device"] == 2
warning = ("Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.25GiB with freed_by_count=0. The caller indicates that this is not a "
           "failure, but may mean that there could be performance gains if more memory were available.\n")
assert not explaining.log.find(io.BytesIO(warning.encode()))
assert said(warning + ARTICLE).found.message.rule == "pytorch"

# The notebook trap, and a retry in `except`, where they apply.
cell = "---> 12 loss.backward()\nFile /tmp/ipykernel_71/1.py in <module>\n"
assert "notebook" in said(cell + ARTICLE).text() and "notebook" not in article
chained = f"{ARTICLE}\n\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n{second}"
assert "Inside `except`" in said(chained).text().replace("\n", " ") and "except" not in article
assert "CUDA graphs" in said(ours["2.5, private pools"][0]).text()

# What else helps goes with the cause: a request that is the problem has a shape, and a Mac has no dmesg.
asked_at_once = said(ours["2.4, half of the card in one request, a little in pieces"][0]).text()
assert "Where the size comes from" in asked_at_once and "Which tensors are live" not in asked_at_once and "Look at the shape first" in asked_at_once, asked_at_once
assert "dmesg" not in said("zsh: Killed: 9 python train.py").text() and "dmesg" in said("a.sh: line 4: 2714 Killed   python a.py").text()

# A note for which only the Chinese answer has room is in neither.
crowded = cell + new("300.00 MiB", "23.64 GiB", "100.00 MiB", "20.90 GiB", "20.00 MiB", this="22.60 GiB", before=[(901, "410.00 MiB")], after=[(902, "410.00 MiB")])[0]
shown = {}
for language in explain.LANGUAGES:
    result = said(crowded, language)
    joined = result.short().replace("\n", "").replace(" ", "")
    shown[language] = [place for place, note in enumerate(result.notes(all_of_them=False)) if note.replace(" ", "") in joined]
assert shown["en"] == shown["zh"] and len(shown["en"]) < len(said(crowded).notes(all_of_them=False)), shown

# A message that somebody retyped: its sizes are not used, and it says why. The capacity, which was read, is not called missing.
retyped = said(f"{CUDA} 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.12 GiB is free. Of the allocated memory 13.9 GiB is allocated "
               "by PyTorch, and 8.1 GiB is reserved by PyTorch but unallocated.")
assert retyped.diagnosis == "not_enough_information" and retyped.json()["allocated_bytes"] is None
assert "1.12 GiB of 23.65 GiB were free" in retyped.text() and "two decimals" in retyped.text() and "two decimals" not in article

# Our own report, made up and published.
published = (ROOT / "bench/results/host/00_anatomy.txt").read_text()
headline = re.search(r"^CUDA out of memory\. .*$", published, re.M)[0]
for text in (published, REPORT):
    report = said(text)
    assert report.json()["diagnosis"] == "limit_set_by_user" and "OOM Lab" in report.text() and "exceeds the limit of" in report.text().replace("\n", " ")
asked, free = (expected(re.search(pattern, headline)[1]) for pattern in (r"allocate (\S+ \S+)", r"capacity of .* of which (\S+ \S+) is free"))
assert said(published).json()["asked_bytes"] == asked and abs(said(published).json()["free_bytes"] - free) < 1

# The README's table: the example of each row is diagnosed, and named, as the row says; the README has the table.
for words, example in explaining.rules.TABLE:
    row = next(line for line in explain.table().splitlines() if words in line)
    assert f"| {explaining.words.say(said(example).diagnosis, 'en')} |" in row, row
for (_, example), steps in zip(explaining.rules.TABLE, explaining.rules.PATHS):
    helping = {number for _, numbers, _ in explaining.advice.ADVICE[said(example).diagnosis] for number in numbers}
    assert 1 <= len(steps) <= 3 and {number for number, _, _ in steps} <= helping, f"a row's path leaves its diagnosis: {steps}"
    assert all(bool(english) == bool(chinese) == (len(steps) > 1) for _, english, chinese in steps), f"a step without a reason: {steps}"
assert len(explaining.rules.PATHS) == len(explaining.rules.TABLE) == len(explaining.rules.TABLE_ZH)
assert len({said(example).diagnosis for _, example in explaining.rules.TABLE}) == len(DIAGNOSES), "a cause has no row"
for folder in re.findall(r"\(chapters/(\w+)\)", explain.table()):
    assert (ROOT / "chapters" / folder).is_dir()
assert explain.table() in (ROOT / "README.md").read_text(), "bench/publish --fill puts the table into README.md"
assert explain.table("zh") in (ROOT / "README.zh-CN.md").read_text().replace("/README.zh-CN.md)", ")"), "bench/publish --fill puts the table into README.zh-CN.md"
in_english, in_chinese = ([re.findall(r"`[^`]+`|\(chapters/\w+\)", line) for line in explain.table(language).splitlines()] for language in ("en", "zh"))
assert in_english == in_chinese, "the two tables quote other words, or send to other chapters"

# The command.
with tempfile.TemporaryDirectory() as name:
    log = pathlib.Path(name) / "a log.txt"
    log.write_text("epoch 1\n" + ARTICLE + "\n")
    outputs = [run(ARTICLE), run(str(log)), run(given=ARTICLE.encode()), run("-", given=ARTICLE.encode())]
    assert all(done.returncode == 0 and done.stdout == outputs[0].stdout and not done.stderr for done in outputs), outputs
    assert json.loads(run("--json", str(log)).stdout)["device"] == 2 and "碎片" in run("--lang", "zh", ARTICLE).stdout.decode()
    for arguments, code, words in ((["--json", "--nosuch"], 64, "--nosuch"), (["--lang", "de", "x y"], 64, "de"), (["a", "b"], 64, "b"),
                                   ([f"{name}/none.txt"], 2, "No such file"), ([name], 2, "directory"), (["nothing of the kind"], 1, "PyTorch, TensorFlow"),
                                   ([""], 64, "is empty")):
        done = run_copied(*arguments)
        error = done.stderr.decode()
        assert done.returncode == code and words in error and error.count("\n") == 1 and not done.stdout, (arguments, done)
    for text, _ in REFUSED[::4]:
        done = run_copied("--lang", "zh", text + " ")
        assert done.returncode == 1 and not done.stdout and re.search("[\u4e00-\u9fff]", done.stderr.decode()), (text, done)
    assert run(given=b"").returncode == 1
    assert run("--help").returncode == 0
    chinese = run("--lang", "zh", "--help").stdout.decode()
    assert "退出码" in chinese and {*re.findall("--[a-z]+", chinese)} == {*re.findall("--[a-z]+", explain.__doc__)}, chinese

    # A long log, with lines that do not end, is read in bounded memory.
    with open(log, "wb") as file:
        for _ in range(20):  # 43 MB: more than what the process may have
            file.write(b"step 7: loss 1.25, memory 12.5 GiB, lr 0.001\n" * 24000 + b"x" * 2**20)
        file.write(b"\n" + ARTICLE.encode() + b"\n" + b"y" * 2**20)
    limit = 38 << 20  # bytes of data, beside what the interpreter maps; 20 MB are enough for it

    def bound():
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    done = subprocess.run([ROOT / "bench/explain", "--json", log], capture_output=True, preexec_fn=bound)
    assert done.returncode == 0 and json.loads(done.stdout)["reserved_unallocated_bytes"] == round(expected("21.70 GiB - 19.18 GiB")), done
    assert os.path.getsize(log) > limit

print(f"{len(CASES)} cases")
