"""bench/explain SNAPSHOT.pickle: what filled the memory. From torch.cuda.memory._dump_snapshot(), or
from --snapshot of the programs of this course, which write the same format.

  bench/explain FILE              what filled it; what to do first; what was live; what grows
    --all                         the rest: ten lines, all levers, pools, other settings by replay
    --html PAGE                   writes one page with the timeline, which needs no network
    --json                        the figures in bytes
    --lang zh                     in Chinese
  bench/explain --compare A B     what is live in B that was not in A, by line
  bench/explain --snapshot FILE   a snapshot, whatever the file is called and begins with

The pickle is read by a reader that builds plain data and nothing else, in a process with limits of
memory and time.

Exit code: 0; 2 the file cannot be read, or is no snapshot; 64 bad usage.
"""
import argparse
import gc
import json
import os
import stat
import sys

from explaining import snapshot_pickle
from explaining.snapshot_events import recordings
from explaining.snapshot_findings import Finding, compare
from explaining.snapshot_html import page
from explaining.snapshot_pickle import Refused
from explaining.snapshot_text import Text, comparison
from explaining.snapshot_words import HELP_ZH
from explaining.words_usage import ending
from shared import chinese, terminal

PROGRAM = terminal.command("bench/explain")


def wanted(arguments):
    """Whether these arguments of bench/explain are about a snapshot: a file that begins as a pickle does, or is named as one."""
    if any(argument == option or argument.startswith(option + "=") for argument in arguments for option in ("--compare", "--html")):
        return True
    return any(is_pickle(argument) for argument in arguments if not argument.startswith("-"))


def is_pickle(path):
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            start = file.read(2)
        named = path.lower().endswith((".pickle", ".pkl"))
        return named or (len(start) == 2 and start[0] == 0x80 and 2 <= start[1] <= 5)
    except (OSError, ValueError):
        return False


def findings(path):
    """Those of the devices of a file, the one that ran out of memory or has the highest peak first. Raises Refused."""
    try:
        size = os.path.getsize(path)
        if size > snapshot_pickle.LARGEST:
            raise Refused("has more than 4 GiB")
        with open(path, "rb") as file:
            value = snapshot_pickle.load(file)
        found, settings = recordings(value, size)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise Refused("takes more memory than a snapshot of its size can need") from None
    for recording in found:
        recording.stacks.forget_ids()
    del value
    if not found:
        raise Refused("is a snapshot without any block or event: was the recording on, and on this device?")
    result = [Finding(recording, settings) for recording in found]
    return sorted(result, key=lambda finding: (finding.refusal is None, -finding.peak, finding.recording.device))


class Parser(argparse.ArgumentParser):
    def error(self, message):
        terminal.fail(PROGRAM, 64, ending(f"{message}; see --help"))


def main(arguments):
    parser = Parser(prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument("--compare", nargs=2, metavar=("A", "B"), help=argparse.SUPPRESS)
    for option in ("--all", "--json"):
        parser.add_argument(option, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--html", metavar="PAGE", help=argparse.SUPPRESS)
    parser.add_argument("--lang", choices=chinese.LANGUAGES, default="en", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.help:
        lines = (HELP_ZH if chinese.wanted(arguments, sys.stdout) else __doc__).strip().splitlines()
        if PROGRAM.endswith(" snapshot"):  # which reads nothing else
            lines = [line for line in lines if "--snapshot FILE" not in line]
        print("\n".join(lines).replace("bench/explain", PROGRAM))
        return
    if (options.file is None) == (options.compare is None):
        parser.error("give one snapshot, or --compare and two")
    if options.compare and options.html:
        parser.error("--html is for one snapshot")
    paths = options.compare or [options.file]
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    try:
        code = snapshot_pickle.within_limits(size, lambda: work(options, paths), PROGRAM, paths[0])
    except Refused as why:
        terminal.fail(PROGRAM, 2, ending(f"{paths[0]}: {why}"))
    if code:
        sys.exit(code)


def work(options, paths):
    """Reads the files and prints; the exit code."""
    gc.disable()  # nothing here refers to itself, and it would look at millions of dictionaries again and again
    found = []
    for path in paths:
        try:
            found.append(findings(path))
        except Refused as why:
            terminal.complain(PROGRAM, ending(f"{path}: {why}"))
            return 2
    names = [terminal.as_text(os.path.basename(path), keep="") for path in paths]
    if options.compare:
        first, second = (devices[0] for devices in found)
        if options.json:
            lines, kinds = compare(first, second)
            print(json.dumps({"lines": [dict(zip(("place", "more_bytes", "first_bytes", "second_bytes"), row)) for row in lines],
                              "more_by_category_bytes": dict(kinds), "more_bytes": second.live - first.live}, indent=1))
        else:
            print(terminal.as_text(comparison(first, second, names, options.lang, options.all)))
        return 0
    devices = found[0]
    if options.html:
        try:
            with open(options.html, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(page(devices, options.lang, names[0]))
        except OSError as error:
            terminal.complain(PROGRAM, ending(f"{options.html}: cannot be written: {error.strerror or error}"))
            return 2
    if options.json:
        print(json.dumps({"devices": [finding.json() for finding in devices]}, indent=1))
        return 0
    shown = devices if options.all else devices[:1]
    texts = [Text(finding, options.lang, names[0]).text(options.all, devices[1:]) for finding in shown]
    print(terminal.as_text("\n\n".join(texts)))
    return 0
