"""bench/compare, bench/report and bench/tensorboard: files that are no results, names that a terminal would obey, full disks."""
import copy
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile

import tries

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "explain"))
import copied  # noqa: E402

arguments = tries.arguments(tries=40)
BENCH, BASE = arguments.root / "bench", arguments.root / "bench/results/host/01_batch_reduction.json"
result = json.loads(BASE.read_text())
folder = pathlib.Path(tempfile.mkdtemp())
OBEYED = "\x1b]0;title\x07\x1b[2J\x00\u202e\x9b31m"


def compare(*words):
    return tries.attempt([BENCH / "compare", *words], folder=folder)


def report(*words):
    return tries.attempt([BENCH / "report", *words], folder=folder)


COMMANDS = {name: copied.module(name) for name in ("compare", "report")}


def copy_of(name, *words):
    """The same without a new interpreter for each: of what is drawn at random there is much."""
    done = copied.run(f"bench/{name}", COMMANDS[name].main, words, folder=folder)
    code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return tries.Outcome(" ".join(map(str, (name, *words))), code, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), 0)


def written(data, name="01_batch_reduction.json", place="broken"):
    path = folder / place / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


# What is no file, or never ends.
os.mkfifo(folder / "fifo")
for path in ("/dev/zero", folder / "fifo", "/dev/null", folder / "missing"):
    for done in (compare(path, BASE), compare(BASE, path), report(path)):
        tries.check(done, (2,))
        assert "regular file" in done.err or "No such file" in done.err, done

# Nobody can be shown the comparison: that is neither "nothing got worse" nor "memory grew".
for how in (">/dev/full", ">&-"):
    done = tries.check(tries.attempt(f"{BENCH}/compare {BASE} {BASE} {how}", folder=folder), (2,))
    assert len(done.err.splitlines()) == 1, done
# Where the line of an end cannot be written, the exit code tells.
for words, code in (("compare --nonsense", 64), ("compare missing missing", 2), ("report --nonsense", 64), ("report missing", 2),
                    ("tensorboard --nonsense", 64), ("run nonsense", 64), ("fit --nonsense", 64)):
    for how in ("2>/dev/full", "2>&-"):
        tries.check(tries.attempt(f"{BENCH}/{words} {how}", folder=folder), (code,))
tries.check(tries.attempt(f"{BENCH}/compare {BASE} {BASE} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}", folder=folder), (0, 141))

# A page never replaces what it is made from, and an old page stays until the new one is there.
own = written(result, place="own")
(own.parent / "traces").mkdir()
trace = own.parent / "traces/01_batch_reduction.json"
trace.write_text('{"traceEvents": []}')
link, hard = folder / "link.html", folder / "hard.html"
link.symlink_to(own)
hard.hardlink_to(own)
before = tries.files(own.parent)
for target in (own, link, hard, trace, own.parent / "../own/01_batch_reduction.json"):
    for words in ((own, "-o", target), (own.parent, "-o", target)):
        tries.refused(report(*words), "name another file")
assert tries.files(own.parent) == before
page = folder / "page.html"
tries.check(report(BASE, "-o", page), (0,))
old = page.read_bytes()
done = tries.check(tries.attempt(f"ulimit -f 8; {BENCH}/report {BASE} -o {page}", folder=folder), (2, 153))  # SIGXFSZ, or its error
assert page.read_bytes() == old and not [f for f in os.listdir(folder) if f.startswith(".page")], done
tries.check(report(BASE, "-o", "/dev/full"), (2,))
page.chmod(0o444)
tries.refused(report(BASE, "-o", page), "read-only")
assert page.read_bytes() == old

# Names that a terminal would obey, halves of characters.
named = copy.deepcopy(result)
named["title"] += "\ud800" + OBEYED
for variant in named["variants"]:
    variant["name"] += OBEYED
named["variants"][0]["reason"] = OBEYED
named["system"]["device"] = named["system"]["cpu"] = OBEYED
named["chapter"] += OBEYED
odd = written(named, place="odd")
for form in ((), ("--md",), ("--csv",), ("--json",)):
    tries.check(copy_of("compare", odd, odd, "--force", *form), (0, 1, 2))
    tries.check(copy_of("compare", BASE, odd, "--force", *form), (0, 1, 2))
tries.check(report(odd, "-o", folder / "odd.html"), (0, 2))
assert "\\x1b]0;title" in (folder / "odd.html").read_text(encoding="utf-8")
tries.check(report(folder / f"no{OBEYED[:2]}where", "-o", folder / "odd.html"), (2,))

# Traces without an end.
for text in ("[" * 100_000, '{"traceEvents": ' + "[" * 100_000, '{"traceEvents": [{"name": "process_name", "args": {"name": "x"}}, {"ph": "C", "name": '
             '"by category", "ts": 1e999, "args": {"parameters": 1e999}}]}', '{"traceEvents": [{"name": "process_name", "args": {"name": "x"}}, '
             + ", ".join('{"ph": "C", "name": "by category", "ts": 1, "args": {%s}}' % ", ".join(f'"{c}": 1{"0" * 400}' for c in (
                 "parameters", "gradients", "optimizer", "activations", "workspace", "data")) for _ in range(3)) + "]}"):
    trace.write_text(text)
    tries.check(report(own, "-o", folder / "traced.html"), (2,))
trace.unlink()
trace.symlink_to("/dev/zero")
tries.check(report(own, "-o", folder / "traced.html"), (0, 2))

# Anything anywhere.
pick = random.Random(7)
HOSTILE = (None, True, -1, 0, 1e308, 1e-320, 10**30, 10**400, float("nan"), float("inf"), "", OBEYED, "\udfff", [], {}, [[]] * 3, [None], {"": None}, "x" * 5000)


def places(value, path=()):
    for key in (value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()):
        yield (*path, key)
        yield from places(value[key], (*path, key))


every = list(places(result))
for n in range(arguments.tries):
    damaged = copy.deepcopy(result)
    for _ in range(pick.choice((1, 1, 3))):
        path, at = pick.choice(every), damaged
        try:
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = pick.choice(HOSTILE)
        except (KeyError, IndexError, TypeError):
            pass
    file = written(damaged)
    tries.check(copy_of("compare", BASE, file, *pick.choice(((), ("--md",), ("--json",), ("--csv", "--force")))), (0, 1, 2))
    tries.check(copy_of("report", file, *pick.choice(((), (BASE,))), "-o", folder / "page-of-anything.html"), (0, 2))
shutil.rmtree(folder)
print(f"ok, {arguments.tries} damaged results")
