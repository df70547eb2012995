#!/usr/bin/env python3
"""docs/card.png, by Chromium: bench/site --card runs this."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from siting import card  # noqa: E402

loader = importlib.machinery.SourceFileLoader("screenshots", str(ROOT / "bench/screenshots"))
screenshots = importlib.util.module_from_spec(importlib.util.spec_from_loader("screenshots", loader))
loader.exec_module(screenshots)

svg = card.drawn(ROOT)
with tempfile.TemporaryDirectory() as folder:
    page = pathlib.Path(folder) / "card.html"
    page.write_text(f'<!doctype html><meta charset="utf-8"><style>body {{ margin: 0 }} svg {{ display: block }}</style>{svg}', encoding="utf-8")
    screenshots.VIEWS["card"] = (card.WIDTH, card.HEIGHT, False, "light")
    browser = screenshots.Browser()
    browser.show(page, "card")
    png = screenshots.smaller(browser.picture("card", 0, card.HEIGHT))
    browser.end()
(ROOT / "docs/card.png").write_bytes(card.with_source(png, svg))
print(ROOT / "docs/card.png")
