"""What bench/fit says of the settings of docs/data/fit_public.toml, beside the figures that others published of them."""
import json
import pathlib
import shlex
import subprocess
import tempfile
import tomllib

ENTRIES = "docs/data/fit_public.toml"
ANSWERS = "bench/results/peers/fit_public.json"
# Within these a ratio, fit's figure / the published one, counts as right.
LEAST, MOST = 0.90, 1.15
RAN_OUT, RAN = "out", "held"
# What a server's cache holds.
TOKENS = "tokens"


def entries(root):
    return tomllib.loads((pathlib.Path(root) / ENTRIES).read_text(encoding="utf-8"))


def said(program, entry, configs):
    """fit's line, its figure as the entry counts (bytes, or None), and whether it says that it fits as it is."""
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.json"
        named = []
        if "config" in entry:
            config.write_text(json.dumps(configs[entry["config"]]))
            named = ["--config", str(config)]
        run = subprocess.run([program, *shlex.split(entry["ask"]), *named, "--json"], capture_output=True, text=True)
    if run.returncode not in (0, 1):
        raise ValueError(f"fit {entry['ask']}: exit code {run.returncode}: {run.stderr}")
    answer = json.loads(run.stdout)
    if answer["images"]:
        way = answer["images"]["as_is"]
        figures = {"live": way["live_bytes"], "reserved": way["live_bytes"] + way["allocator_bytes"]}
        return {"line": answer["images"]["line"], "bytes": figures.get(entry["of"], way["device_bytes"]), "fits": way["fits"]}
    if answer["pipeline"]:
        way = answer["pipeline"]["as_is"]
        reserved = way["live_bytes"] + way["allocator_bytes"]
        figures = {"live": way["live_bytes"], "reserved": reserved}
        return {"line": answer["pipeline"]["line"], "bytes": figures.get(entry["of"], way["device_bytes"]), "fits": way["fits"]}
    if answer["serving"]:
        way = answer["serving"]["as_is"]
        figures = {"file": way["file_bytes"], TOKENS: way["cached_tokens_low"], "parameters": way["bytes"]["weights"]["low"]}
        return {"line": answer["serving"]["line"], "bytes": figures.get(entry["of"], way["needed_high"]), "fits": way["fits"]}
    if not answer["pytorch"]:
        row = answer["as_is"]
        return {"line": "fits" if row["fits"] else "does not fit", "bytes": row["peak_bytes"], "fits": row["fits"]}
    way = answer["pytorch"]["as_is"]
    if entry["of"] == "parameters":
        return {"line": answer["pytorch"]["line"], "bytes": way["bytes"]["parameters"], "fits": way["fits"]}
    outside = {"live": 0, "reserved": way["allocator_bytes"]}.get(entry["of"], way["allocator_bytes"] + way["outside_bytes"])
    return {"line": answer["pytorch"]["line"], "bytes": way["live_bytes"] + outside, "fits": way["fits"]}


def answers(root, program):
    """{id: what fit says} of all entries that are asked."""
    known = entries(root)
    return {str(entry["id"]): said(program, entry, known["configs"]) for entry in known["entry"] if "ask" in entry}


def ratio(entry, answer):
    """fit's figure / the published one; None where there are not both."""
    return answer["bytes"] / entry["bytes"] if answer and "bytes" in entry else None


def wrong_side(entry, answer):
    """Whether it "fits" and ran out of memory, or the other way round."""
    return bool(answer) and ((entry["of"] == RAN_OUT and answer["fits"]) or (entry["of"] == RAN and not answer["fits"]))


def summary(root, found):
    """Figures for the page and the test: how many are asked, how many ratios are within the bounds, which ran out and fit."""
    all_ = entries(root)["entry"]
    ratios = [r for entry in all_ if (r := ratio(entry, found.get(str(entry["id"])))) is not None]
    return {"entries": len(all_), "asked": len(found), "ratios": sorted(ratios), "within": sum(LEAST <= r <= MOST for r in ratios),
            "out": sum(entry["of"] == RAN_OUT and str(entry["id"]) in found for entry in all_),
            "wrong": [entry["id"] for entry in all_ if wrong_side(entry, found.get(str(entry["id"])))]}
