"""bench/explain, which is a command, as a module."""

import importlib.machinery
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
loader = importlib.machinery.SourceFileLoader("explain", str(ROOT / "bench/explain"))
explain = importlib.util.module_from_spec(importlib.util.spec_from_loader("explain", loader))
loader.exec_module(explain)
