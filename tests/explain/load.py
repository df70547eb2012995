"""bench/explain, which is a command, as a module."""

from copied import ROOT, module  # noqa: F401: ROOT is for others

explain = module("explain")
