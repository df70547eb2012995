"""bench/explain on 63 messages in the form of public reports, each from another place: reports_test.py ROOT

reports.json has, for each: the message (the wording is the framework's, the figures are changed), the diagnoses that an expert accepts, the
figures in bytes that follow from it, those that do not, what is to be done first, and words that the answer must have, or with ! must not;
or the reasons with which it is refused.
"""

import io
import json
import pathlib
import sys

ROOT = pathlib.Path(sys.argv[1])
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT / "bench"), str(HERE)]
import explaining.log  # noqa: E402
from explaining.explanation import LINES  # noqa: E402
from explaining.first import first  # noqa: E402
from explaining.layout import WIDTH, columns  # noqa: E402
from load import explain  # noqa: E402

ROUNDED = 2  # bytes that a figure of two terms may differ by, each of them rounded
reports = json.loads((HERE / "reports.json").read_text(encoding="utf-8"))
assert len(reports) == 63 and len({report["name"] for report in reports}) == 63
for report in reports:
    name, reasons = report["name"], {}
    found = explaining.log.find(io.BytesIO(report["message"].encode()), reasons)
    if "refused" in report:
        assert found is None and sorted(reasons) == report["refused"], (name, found and found.message, reasons)
        continue
    assert found, f"{name}: not recognised"
    english, chinese = (explain.Explanation(found, language) for language in explain.LANGUAGES)
    got = english.json()
    assert got["diagnosis"] in report["diagnoses"], f"{name}: {got['diagnosis']}, not {report['diagnoses']}"
    for figure, value in report["figures"].items():
        has = got["device" if figure == "device" else f"{figure}_bytes"]
        assert has is not None and abs(has - value) <= (0 if figure == "device" else ROUNDED), f"{name}: {figure} is {has}, not {value}"
    for figure in report["unknown"]:
        assert got["device" if figure == "device" else f"{figure}_bytes"] is None, f"{name}: {figure} is made up"
    assert first(english)[0] == report["first"], f"{name}: {first(english)[0]} first, not {report['first']}"
    answer = english.short()
    for word in report.get("words", ()):
        wanted = not word.startswith("!")
        assert (word.lstrip("!") in answer.replace("\n", " ")) == wanted, f"{name}: {word!r} in\n{answer}"
    for text in (answer, chinese.short()):
        lines = text.splitlines()
        assert len(lines) <= LINES and all(columns(line) <= WIDTH for line in lines), f"{name}:\n{text}"
print(f"{len(reports)} reports")
