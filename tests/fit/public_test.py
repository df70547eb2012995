#!/usr/bin/env python3
"""What fit says today of the settings that others published figures of: public_test.py ROOT PROGRAM. It is what docs/fit_public.md shows,
no program that ran out of memory fits, and most ratios are within bounds."""
import json
import pathlib
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]
sys.path.insert(0, str(ROOT / "bench"))

from publishing import fit_public  # noqa: E402

LEAST_SHARE = 0.80


def main():
    found = fit_public.answers(ROOT, PROGRAM)
    stored = json.loads((ROOT / fit_public.ANSWERS).read_text())
    for key in found.keys() | stored.keys():
        assert found.get(key) == stored.get(key), f"entry {key}: fit says {found.get(key)}, published is {stored.get(key)}: bench/publish --fit"
    for entry in fit_public.entries(ROOT)["entry"]:
        assert ("ask" in entry) != ("reach" in entry), f"entry {entry['id']} has neither a question nor a reason, or both"
        assert entry["of"] in ("live", "reserved", "device", "parameters", "file", "tokens", "out", "held", "formula", "estimate", "question"), entry
    said = fit_public.summary(ROOT, found)
    assert not said["wrong"], f"entries {said['wrong']} are on the wrong side"
    assert said["within"] >= LEAST_SHARE * len(said["ratios"]), said
    print(f"{said['asked']} of {said['entries']} asked, {said['within']} of {len(said['ratios'])} ratios within, {said['out']} ran out and do not fit")


if __name__ == "__main__":
    main()
