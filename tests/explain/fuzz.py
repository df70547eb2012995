"""bench/explain on damaged messages: no crash, no wrong figure, no more calls of functions than MOST_CALLS each.

  tests/explain/fuzz.py [--rounds N] [--seed N] [--show]

A message is built of pieces, some of which are figures, and then damaged: cut off, wrapped, quoted, coloured, letters lost
or changed, others' lines put between. The oracle does not read the message. It knows the figures that it was built of, and
which of their characters the damage touched. A figure that is given must be the one that was built in; null is always
right. Where the damage changed a figure's own digits and left a well-formed one, no reader can know, and what now stands
there is right, too. A figure that is computed must follow from such ones.
"""
import argparse
import fractions
import io
import itertools
import random
import re
import sys

from load import explain
from explaining.explanation import LINES

UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30}
MOST_CALLS = 200_000  # of a message, Python's and C's; counted for every COUNTED-th one, because counting takes long
COUNTED = 4
COPY = 100  # a copy of a message has pieces of its own, numbered from here


def size(rng, low=2.0, high=40000.0):
    """A size as PyTorch prints it, from `low` to `high` MiB."""
    mib = rng.uniform(low, high)
    return f"{mib:.2f} MiB" if mib < 1024 else f"{mib / 1024:.2f} GiB"


def value(text):
    """Bytes of a well-formed size, None of any other text."""
    match = re.fullmatch(r"(\d+(?:\.\d\d)?|\d{1,3}(?:,\d{3})+(?:\.\d\d)?) ?(bytes|[KMG]iB)", text.strip(), re.I)
    return fractions.Fraction(match[1].replace(",", "")) * UNITS[match[2].lower()] if match else None


def pieces(rng):
    """(text, figure or "") of a random message, in one of the wordings."""
    def f(name, low=2.0, high=40000.0):
        return (size(rng, low, high), name)
    device = (str(rng.randrange(8)), "device")
    kind = rng.choice(["old", "old", "new", "new", "new", "cached", "async", "cupy", "llama", "vllm", "shape", "xla"])
    head = rng.choice(["CUDA out of memory. Tried to allocate ", "torch.OutOfMemoryError: HIP out of memory. Tried to allocate "])
    free, capacity = f("free", 2, 9000), f("capacity", 9000, 80000)
    if kind in ("old", "cached"):
        last = [("; ", ""), f("reserved", 2000, 30000), (" reserved in total by PyTorch)", "")] if kind == "old" else \
            [("; ", ""), f("cached", 2, 900), (" cached)", "")]
        allowed = [("; ", ""), f("limit"), (" allowed", "")] if kind == "old" and rng.random() < 0.2 else []
        return [(head, ""), f("asked"), (" (GPU ", ""), device, ("; ", ""), capacity, (" total capacity; ", ""), f("allocated"),
                (" already allocated; ", ""), free, (" free", ""), *allowed, *last]
    if kind == "new":
        result = [(head, ""), f("asked"), (". GPU ", ""), device, (" has a total capacity of ", ""), capacity, (" of which ", ""), free, (" is free.", "")]
        # What is listed makes up the card, but for a little: as it does where nothing was lost.
        others = [f(f"others{i}", 300, 3000) for i in range(rng.randrange(4))]
        left = value(capacity[0]) - value(free[0]) - sum(value(text) for text, _ in others)
        others = others if left > 2**31 else []
        this = (f"{float(left) / 2**30 - rng.uniform(0, 0.1):.2f} GiB", "this_process") if left > 2**31 else f("this_process")
        place = rng.randrange(len(others) + 1)
        for i in range(len(others) + 1):
            if i == place and rng.random() < 0.8:
                result += [(" Including non-PyTorch memory, this process has ", ""), this, (" memory in use.", "")]
            if i < len(others):
                result += [(f" Process {rng.randrange(100, 4000000)} has ", ""), others[i], (" memory in use.", "")]
        if rng.random() < 0.2:
            result += [(" ", ""), f("limit"), (" allowed;", "")]
        result += [(" Of the allocated memory ", ""), f("allocated"), (" is allocated by PyTorch, ", "")]
        if rng.random() < 0.2:
            result += [("with ", ""), f("pools"), (" allocated in private pools (e.g., CUDA Graphs), ", "")]
        return result + [("and ", ""), f("cached"), (" is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
                         "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.", "")]
    count = rng.randrange(10**6, 10**11)
    if kind == "async":
        return [("Allocation on device ", ""), device, (" would exceed allowed memory. (out of memory)\nCurrently allocated     : ", ""), f("allocated"),
                ("\nRequested               : ", ""), f("asked"), ("\nDevice limit            : ", ""), capacity, ("\nFree (according to CUDA): ", ""), free]
    if kind == "cupy":
        return [("Out of memory allocating ", ""), (f"{count:,} bytes", "asked"), (" (allocated so far: ", ""), (f"{count // 3:,} bytes", "allocated"),
                (", limit set to: ", ""), (f"{count + 5:,} bytes", "limit"), (").", "")]
    if kind == "llama":
        return [("ggml_backend_cuda_buffer_type_alloc_buffer: allocating ", ""), (f"{rng.uniform(1, 90000):.2f} MiB", "asked"), (" on device ", ""), device,
                (": cudaMalloc failed: out of memory\n", ""), ("llama_kv_cache_init: failed to allocate buffer for kv cache", "")]
    if kind == "vllm":
        a, b, c = (f"{rng.uniform(1, 90):.2f}" for _ in range(3))
        return [("ValueError: Free memory on device (", ""), (a, "free.gib"), ("/", ""), (b, "capacity.gib"), (" GiB) on startup is less than desired GPU "
                "memory utilization (0.9, ", ""), (c, "asked.gib"), (" GiB). Decrease GPU memory utilization", "")]
    if kind == "shape":
        sides = [rng.randrange(1, 300) for _ in range(4)]
        return [("OOM when allocating tensor with ", ""), (f"shape[{','.join(map(str, sides))}] and type float", "asked.shape"),
                (" on /job:localhost/replica:0/task:0/device:GPU:", ""), device, (" by allocator GPU_", ""), device, ("_bfc", "")]
    return [("RESOURCE_EXHAUSTED: Out of memory while trying to allocate ", ""), (f"{count} bytes", "asked"), (".\nBufferAssignment stats:", "")]


def marked(parts):
    """Characters, each with the number of the piece that it is of."""
    return [(c, i) for i, (text, _) in enumerate(parts) for c in text]


def digits_at(chars, i):
    return 0 <= i < len(chars) and (chars[i][0].isdigit() or chars[i][0] in ".,")


def damage(rng, parts):
    """The characters of the parts after one to three changes; those that are put in belong to no piece."""
    def plain(text):
        return [(c, -1) for c in text]
    chars = marked(parts)
    for round_ in range(rng.randrange(1, 4)):
        n = len(chars)
        if n < 5:
            break
        at = rng.randrange(n)
        kind = rng.randrange(14)
        if kind == 0:  # cut off at the end; within a number, at its end
            while digits_at(chars, at):
                at += 1
            chars = chars[:at]
        elif kind == 1:  # or at the beginning
            while digits_at(chars, at):
                at += 1
            chars = chars[at:]
        elif kind == 2:  # a piece from the middle; two numbers do not become one, and no number loses its beginning only
            end = min(n, at + rng.randrange(1, 120))
            while digits_at(chars, end) and (digits_at(chars, at - 1) or digits_at(chars, end - 1)):
                end += 1
            chars = chars[:at] + chars[end:]
        elif kind == 3:  # one character less
            chars = chars[:at] + chars[at + 1:]
        elif kind == 4:  # or another; but no digit that makes another number of the one beside it, which nobody could know
            put = rng.choice("abcXYZ019.,;: ()_")
            if put.isdigit() and not digits_at(chars, at) and (digits_at(chars, at - 1) or digits_at(chars, at + 1)):
                put = "X"
            chars = chars[:at] + [(put, chars[at][1])] + chars[at + 1:]
        elif kind == 5:  # wrapped at blanks
            chars = [("\n", i) if c == " " and rng.random() < 0.2 else (c, i) for c, i in chars]
        elif kind == 6:  # with what comments and loggers put before a line
            prefix = rng.choice(["# ", "> ", "[rank0]: ", "    ", "2024-05-06 07:08:09,123 - ERROR - "])
            chars = plain(prefix) + [x for c, i in chars for x in ([("\n", i), *plain(prefix)] if c == "\n" else [(c, i)])]
        elif kind == 7:  # coloured
            chars = chars[:at] + plain("\x1b[31m") + chars[at:] + plain("\x1b[0m")
        elif kind == 8:  # capitals
            chars = [(rng.choice((c.upper(), c.lower())), i) for c, i in chars]
        elif kind == 9:  # as a string in JSON
            chars = plain('{"error": "') + [x for c, i in chars for x in (plain("\\n") if c == "\n" else [(c, i)])] + plain('"}')
        elif kind == 10:  # more blanks
            chars = [x for c, i in chars for x in ([(c, i), (" ", i)] if c == " " and rng.random() < 0.3 else [(c, i)])]
        elif kind == 11:  # something else in front and behind
            chars = plain("step 12 loss 3.14, 5.00 GiB used so far\n") + chars + plain("\nRuntimeError: CUDA error: out of memory\n")
        elif kind == 12:  # words between two figures lost, and one of them, too: a figure before the other's name
            ends = [k for k in range(1, n) if chars[k - 1][1] != chars[k][1]]
            if len(ends) > 3 and not any(text == ", limit set to: " for text, _ in parts):  # CuPy's without it is whole, too
                first = rng.randrange(len(ends) - 2)
                chars = chars[:ends[first]] + chars[ends[min(first + 2, len(ends) - 1)]:]
        else:  # twice
            chars = chars + plain("\n") + [(c, i + (COPY << round_) if i >= 0 else i) for c, i in chars]
    return chars


def possible(parts, chars):
    """By figure: the values that may be said of it."""
    result = {}
    for i, (text, name) in enumerate(parts):
        if not name:
            continue
        name, _, form = name.partition(".")
        copies = {piece for _, piece in chars if piece >= 0 and piece % COPY == i}
        readings = {text} | {re.sub(r"\s+", " ", "".join(c for c, piece in chars if piece == copy)) for copy in copies}
        values = set()
        for reading in readings:
            if name == "device":
                values |= {int(reading)} if re.fullmatch(r"\d+", reading) else set()
            elif form == "shape":
                shape = re.match(r"shape\[([\d,]+)\]", reading, re.I)
                product = 1
                for side in re.findall(r"\d+", shape[1]) if shape else ():
                    product *= int(side)
                values |= {fractions.Fraction(product * 4)} if shape else set()
            else:
                read = value((reading + (" GiB" if form == "gib" else "")).replace(",", "") if "bytes" in reading.lower() or form else reading)
                values |= {read} if read is not None else set()
                if form == "gib" or "bytes" in text:  # a number without a form of its own may lose digits unseen
                    number = re.sub(r",", "", re.sub(r"(?i) ?[a-z]+$", "", reading)).strip()
                    values |= {fractions.Fraction(number) * (2**30 if form == "gib" else 1)} if re.fullmatch(r"\d+(\.\d+)?", number) else set()
        result[name] = result.get(name, set()) | values
    return result


def wrong(explained, parts, chars):
    """What is said and cannot be: a list of texts."""
    known = possible(parts, chars)

    def values(name):
        return known.get(name, set())

    def sums(plus, minus=()):
        terms = [values(n) for n in plus] + [{-v for v in values(n)} for n in minus]
        return {sum(combination) for combination in itertools.product(*terms)} if all(terms) else set()
    reserved = values("reserved") | sums(("allocated", "cached"))
    cached = values("cached") | sums(("reserved",), ("allocated",))
    known_reserved = known | {"r": reserved}
    others = sorted(n for n in known if n.startswith("others"))

    def less(first):
        return {a - b - c for a in values(first[0]) for b in (values(first[1]) if len(first) > 1 else {0}) for c in known_reserved["r"]}
    allowed = {"asked": values("asked"), "capacity": values("capacity"), "free": values("free"), "allocated": values("allocated"),
               "reserved": reserved, "reserved_unallocated": cached, "this_process": values("this_process"),
               "outside_framework": less(("this_process",)) | less(("capacity", "free")), "other_processes": sums(others) if others else set()}
    result = []
    for name, right in allowed.items():
        said = explained[f"{name}_bytes"]
        # A difference that rounding made negative is zero; rounding is at most 0.005 GiB a term.
        if said is not None and not any(abs(said - max(v, 0)) <= 1 for v in right if v > -0.02 * 2**30):
            result.append(f"{name}: {said}, possible {sorted(map(float, right))}")
    if explained["device"] is not None and explained["device"] not in values("device"):
        result.append(f"device: {explained['device']}")
    return result


def read(text, language):
    """What --json says, None where nothing is found; the words are made, too."""
    found = explain.find(io.BytesIO(text.encode()))
    if not found:
        return None
    explanation = explain.Explanation(found, language)
    ours = [part for part in explanation.text().split("\n\n") if not re.match(r"Message of |[^\n]{1,60} 的信息：", part)]
    if re.search(r"\{\w+\}", "\n".join((explanation.short(), *ours))):
        raise ValueError(f"a figure is missing in the words: {explanation.text()}")
    if len(explanation.short().splitlines()) > LINES:
        raise ValueError(f"a long answer: {explanation.short()}")
    return explanation.json()


def message(seed, number):
    """The pieces of message `number`, and its characters, damaged or, now and then, not."""
    rng = random.Random(seed * 10**9 + number)
    parts = pieces(rng)
    return parts, damage(rng, parts) if number % 20 else marked(parts)


def counted(text, language):
    """What read() says, and how many calls of functions it took: its work, in no unit of time."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in ("call", "c_call")
    sys.setprofile(count)
    try:
        return read(text, language), calls
    finally:
        sys.setprofile(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", action="store_true", help="also the messages of what is wrong, whole")
    arguments = parser.parse_args()
    failures, most, found_count, figures = 0, 0, 0, 0
    for number in range(arguments.rounds):
        parts, chars = message(arguments.seed, number)
        text = "".join(c for c, _ in chars)
        language = explain.LANGUAGES[number % 2]
        explained, calls = counted(text, language) if number % COUNTED == 0 else (read(text, language), 0)
        most = max(most, calls)
        if not explained:
            continue
        found_count += 1
        figures += sum(v is not None for v in explained.values()) - 1  # the diagnosis is none
        problems = wrong(explained, parts, chars)
        if not number % 20:  # not damaged: nothing printed may be missing that the figures do not contradict
            if explained["asked_bytes"] is None:
                problems.append("asked is missing")
        for problem in problems:
            failures += 1
            if failures <= 20:
                print(f"round {number}: {problem}")
                if arguments.show:
                    print(text)
    print(f"{arguments.rounds} messages, {found_count} found, {figures} figures, {failures} wrong; {most} calls at most")
    if most > MOST_CALLS:
        print(f"more than {MOST_CALLS} calls")
    return 1 if failures or not figures or not 0 < most <= MOST_CALLS else 0


if __name__ == "__main__":
    sys.exit(main())
