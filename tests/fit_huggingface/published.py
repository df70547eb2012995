"""What the published files of a peers' script say, held to today's predictions: the part that all of them share."""
import json

import gpu
import huggingface_training as peer

SUMMED = ("parameters", "gradients", "optimizer", "activations", "data")


def hold(script, program, check, median_bar, worst_bar, files):
    """Today's predictions to the files of `script`, each with the settings that it must have at least, by check(holds, what). Yields of each
    file its path, its results and its settings; the summary of a file is in results["summary"]."""
    for file, least in files:
        results = json.loads(file.read_text())
        rows, name = results["rows"], file.stem
        check(len(rows) >= least, f"{name}: {len(rows)} settings, not {least}")
        settings = [peer.setting_of(row["setting"]) for row in rows]
        for row, now in zip(rows, peer.ours(settings, program)):
            said = f"{name}: {row['setting']}"
            check(row["predicted"] == now, f"{said}: published {row['predicted']}, today {now}; {script.__name__}.py --text")
            check(sum(now[key] for key in SUMMED) == now["peak"], f"{said}: no sum")
            check(now["checked"], f"{said}: measured, and said to be unchecked")
            row["predicted"] = now
        count, median, worst = peer.figures(rows)
        check(median <= median_bar, f"{name}: the median error is {median:.2%}")
        check(worst <= worst_bar, f"{name}: the worst error is {worst:.2%}")
        check(file.with_suffix(".txt").read_text() == peer.table(results), f"{name}: the table is another one's; {script.__name__}.py --text")
        if file == script.RESULTS:
            check([row["setting"] for row in rows] == [peer.words_of(peer.setting_of(w)) for w in script.SETTINGS], f"{name}: other settings than today's")
        results["summary"] = f"{name}: {count} settings, median {median:.2%}, worst {worst:.2%}"
        yield file, results, settings


# The largest error that is let pass of each figure, on every GPU that is stored. Reserved bytes are a replay.
GPU_BARS = {"live bytes, as requested": 0.005, "allocated": 0.005, "reserved": 0.03}


def hold_gpu(script, ours, check):
    """What GPUs were measured to need, as `script` (gpu.Script) stored it, against today's predictions, and that all its settings have one."""
    check(all(now["peak"] > 0 for now in ours(script.settings())), f"{script.name}: a setting for a GPU has no prediction")
    files = gpu.files_of(script)
    check(files, f"{script.name}: no GPU has measured it")
    for file in files:
        results = json.loads(file.read_text())
        for row, now in zip(results["rows"], ours([script.setting_of(row["setting"]) for row in results["rows"]], replay=1)):
            check(row.get("predicted") == now, f"{file.stem}: {row['setting']}: published {row.get('predicted')}, today {now}; {script.name}.py --text")
        check(file.with_suffix(".txt").read_text() == gpu.table(results, script.shown), f"{file.stem}: the table is another one's; {script.name}.py --text")
        check(not any("failed" in row for row in results["rows"]), f"{file.stem}: a setting failed")
        found = gpu.errors(results["rows"])
        check(set(found) == set(GPU_BARS), f"{file.stem}: errors of {list(found)}")
        for name, each in found.items():
            worst = max(map(abs, each))
            check(worst <= GPU_BARS[name], f"{file.stem}: the worst error of {name} is {worst:.2%}")
