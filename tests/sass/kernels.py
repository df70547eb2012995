#!/usr/bin/env python3
"""What the compiler made of the kernels: registers, shared memory, spills, and how wide each one reads and writes global memory.

  tests/sass/kernels.py [BUILD]            checks the kernels of a cuda build (default: build/cuda); no GPU is needed
  tests/sass/kernels.py [BUILD] --write    also writes the table, bench/results/sass/kernels.txt

What must hold for sm_75, sm_80 and sm_90, as far as the build is for them (.ci/run's is; the table needs all three):
  - No local memory: a spilled register, or an array that did not become registers, is traffic that nobody counted.
  - At most 64 registers, which is what 1,024 threads have each: common/cuda/launch.h promises blocks of up to 1,024 threads. Of a
    kernel that is never started with so many, kernels.toml says how many.
  - An update of weights rounds a product and its sum once, in packs and in what is left of them, so that no bit depends on where a
    piece of a tensor begins. kernels.toml says of which kernels, and how many fused instructions that takes.
  - A kernel that moves memory and computes little moves 16 bytes an instruction. kernels.toml says of each kernel that it does,
    and how many arrays it reads and writes so, or why it need not. A kernel of which it says nothing fails.
  - Every kernel has a row in the table, and every row a kernel. (Not its figures: those change with the compiler, which it names.)

It reads the objects with cuobjdump, of the CUDA toolkit. Exit code: 0 all hold; 1; 2 no cuobjdump, or no such build; 64 bad usage.
"""
import argparse
import collections
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TABLE = ROOT / "bench/results/sass/kernels.txt"
REGISTERS_OF_A_BLOCK = 65536  # compute capability 7.5 to 12.0
GENERATIONS = ("75", "80", "90")
THREADS_OF_A_BLOCK = 1024  # kMostBlockThreads in common/cuda/launch.h
MEMORY = ("LDG", "STG", "LDL", "STL")
NARROW = {"U8": 8, "S8": 8, "U16": 16, "S16": 16}  # bits; without a suffix 32


class Kernel:
    """A function of a file, in one generation. widths: how many instructions of each kind ("LDG", "STG", …) move how many bits.
    fused: how many multiply and add at once; added: additions of what a multiplication has just rounded, which could have been."""

    def __init__(self, registers, stack, shared, local):
        self.registers, self.stack, self.shared, self.local = registers, stack, shared, local
        self.widths = collections.defaultdict(collections.Counter)
        self.fused, self.added, self.written_by = 0, 0, {}

    def instruction(self, kind, suffixes, operands):
        if kind in MEMORY:
            widths = [NARROW.get(s) or int(s) for s in suffixes if s in NARROW or s in ("64", "128", "256")]
            self.widths[kind][widths[0] if widths else 32] += 1
        to, *of = operands.split(",")
        self.fused += kind == "FFMA"
        # Division and root are made of additions, too, with .FTZ, which code of ours never has: it is not compiled with -ftz=true.
        if kind == "FADD" and "FTZ" not in suffixes:
            self.added += any(self.written_by.get(int(register)) == "FMUL" for register in re.findall(r"\bR(\d+)", ",".join(of)))
        if match := re.fullmatch(r"R(\d+)", to.strip()):
            count = 4 if "128" in suffixes else 2 if {"64", "WIDE"} & set(suffixes) else 1
            self.written_by.update(dict.fromkeys(range(int(match[1]), int(match[1]) + count), kind))

    def wide(self, kind):
        return sum(count for bits, count in self.widths[kind].items() if bits >= 128)

    def local_accesses(self):
        return sum(sum(self.widths[kind].values()) for kind in ("LDL", "STL"))


LINE = re.compile(r"""^(?:arch[ ]=[ ]sm_(?P<architecture>\w+)
  |[ ]+Function[ ](?P<name>\S+):\n[ ]+REG:(?P<registers>\d+)[ ]STACK:(?P<stack>\d+)[ ]SHARED:(?P<shared>\d+)[ ]LOCAL:(?P<local>\d+)
  |[ \t]+Function[ ]:[ ](?P<code>\S+)
  |[ ]+/\*[0-9a-f]{4,}\*/[ ]+(?:@\S+[ ]+)?(?P<kind>[A-Z][A-Z0-9]*)(?P<suffixes>(?:\.\w+)*)[ ]+(?P<operands>[^;\n]*);)""", re.MULTILINE | re.VERBOSE)


def read(text):
    """{(architecture, mangled name): Kernel} of what cuobjdump -res-usage -sass prints."""
    kernels, architecture, code = {}, None, None
    for line in LINE.finditer(text):
        if line["kind"]:
            code.instruction(line["kind"], line["suffixes"].split("."), line["operands"])
        elif line["architecture"]:
            architecture = line["architecture"]
        elif line["name"]:
            kernels[architecture, line["name"]] = Kernel(*(int(line[what]) for what in ("registers", "stack", "shared", "local")))
        else:
            code = kernels[architecture, line["code"]]
    return kernels


def demangled(names):
    """{mangled name: short name}."""
    names = sorted(names)
    return dict(zip(names, map(short, run("c++filt", *names).splitlines()))) if names else {}


def short(name):
    """A function's name and template arguments, without our namespaces, what it returns and what it takes."""
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|oomlab::(\w+::)?", "", name)
    depth = 0
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if depth == 0 and c == "(":
            return name[:i].removeprefix("void ")
    return name


def complaints(kernels, entries, asked, rows):
    """What does not hold. kernels: {(source, name): {architecture: Kernel}}; entries: kernels.toml; asked: {source: architectures
    that it was compiled for}; rows: the (source, name) of the table."""
    found, used = [], set()
    for (source, name), by_architecture in kernels.items():
        matches = [(s, n) for s, names in entries.items() for n in names
                   if fnmatch.fnmatchcase(source, s) and fnmatch.fnmatchcase(name, n)]
        used.update(matches)
        what = f"{source}: {name}"
        if len(matches) != 1:
            found.append(f"{what}: {len(matches)} entries in kernels.toml, not one" + "".join(f"; '{n}'" for _, n in matches))
        if lacking := [a for a in GENERATIONS if a in asked[source] and a not in by_architecture]:
            found.append(f"{what}: cuobjdump shows none for sm_{', sm_'.join(lacking)}")
        for architecture in sorted(by_architecture.keys() & GENERATIONS):
            kernel = by_architecture[architecture]
            at = f"{what}, sm_{architecture}"
            if kernel.stack or kernel.local or kernel.local_accesses():
                found.append(f"{at}: {kernel.stack + kernel.local} bytes of local memory, {kernel.local_accesses()} instructions that use it")
            entry = entries[matches[0][0]][matches[0][1]] if len(matches) == 1 else {}
            threads = entry.get("threads", THREADS_OF_A_BLOCK) if isinstance(entry, dict) else THREADS_OF_A_BLOCK
            if kernel.registers > REGISTERS_OF_A_BLOCK // threads:
                found.append(f"{at}: {kernel.registers} registers; {threads} threads have {REGISTERS_OF_A_BLOCK // threads} each")
            if isinstance(entry, str):
                if kernel.wide("LDG") or kernel.wide("STG"):
                    found.append(f"{at}: has 128-bit accesses, so kernels.toml should count them instead of excusing it")
                continue
            for kind, key in (("LDG", "loads"), ("STG", "stores")):
                if kernel.wide(kind) < entry.get(key, 0):
                    found.append(f"{at}: {kernel.wide(kind)} of its {key} are 128 bits wide, fewer than {entry[key]}")
            if kernel.fused < entry.get("fused", 0):
                found.append(f"{at}: {kernel.fused} fused multiplications and additions, fewer than {entry['fused']}")
            if "fused" in entry and kernel.added:
                found.append(f"{at}: {kernel.added} products are rounded before something is added to them")
    found += [f"kernels.toml: '{n}' of '{s}' is no kernel" for s, names in entries.items() for n in names if (s, n) not in used]
    found += [f"{source}: {name} is not in {TABLE.relative_to(ROOT)}; --write adds it" for source, name in kernels if (source, name) not in rows]
    found += [f"{TABLE.relative_to(ROOT)}: {source}: {name} is no kernel; --write removes it" for source, name in rows if (source, name) not in kernels]
    return found


def table(kernels, compiler):
    """The text of bench/results/sass/kernels.txt."""
    def cell(values):
        return values[0] if len(set(values)) == 1 else "/".join(values)

    def widths(counter):
        return ",".join(str(bits) for bits in sorted(counter, reverse=True)) or "-"

    width = max(len(name) for _, name in kernels) + 4
    lines = ["$ tests/sass/kernels.py --write", compiler,
             f"One value where sm_{', sm_'.join(GENERATIONS)} agree, else one for each. Registers are a thread's; shared memory a block's, static, in bytes",
             "(with the 1,024 that the system keeps on sm_90, where a file has any); local: bytes of spills; loads and stores: bits of global accesses.", ""]
    head = f"{'':{width}}{'registers':<12}{'shared':<16}{'local':<7}{'loads':<24}stores"
    last = None
    for (source, name), by_architecture in sorted(kernels.items()):
        if source != last:
            lines += ([""] if last else []) + [source + head[len(source):]]
            last = source
        each = [by_architecture[a] for a in GENERATIONS if a in by_architecture]
        lines.append(f"{'  ' + name:{width}}{cell([str(k.registers) for k in each]):<12}{cell([str(k.shared) for k in each]):<16}"
                     f"{cell([str(k.stack + k.local) for k in each]):<7}{cell([widths(k.widths['LDG']) for k in each]):<24}"
                     f"{cell([widths(k.widths['STG']) for k in each])}")
    return "\n".join(lines) + "\n"


def rows_of(text):
    """The (source, name) of each row of a table."""
    rows, source = set(), None
    for line in text.splitlines():
        if match := re.match(r"(\S+\.cu)\s+registers", line):
            source = match[1]
        elif source and (match := re.match(r"  (\S.*?)\s{2,}", line + "  ")):
            rows.add((source, match[1]))
    return rows


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"kernels.py: {' '.join(map(str, command[:4]))}: {result.stderr.strip()}")
    return result.stdout


def stop(code, what):
    print(f"kernels.py: {what}", file=sys.stderr)
    sys.exit(code)


def main():
    parser = argparse.ArgumentParser(prog="tests/sass/kernels.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--write", action="store_true")
    try:
        arguments = parser.parse_args()
    except SystemExit as end:
        sys.exit(64 if end.code else 0)
    build = arguments.build.resolve()
    if not (build / "compile_commands.json").is_file():
        stop(2, f"{build} is no build: cmake --preset cuda && cmake --build --preset cuda")
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.MULTILINE))
    nvcc = cache.get("CMAKE_CUDA_COMPILER") or stop(2, f"{build} is not for CUDA")
    os.environ["PATH"] += os.pathsep + str(pathlib.Path(nvcc).parent)
    for tool in ("cuobjdump", "nvdisasm"):  # the one calls the other
        if not shutil.which(tool):
            stop(2, f"there is no {tool}, neither on the PATH nor beside nvcc; the CUDA toolkit has it (package cuda-{tool})")

    objects, asked = {}, {}
    for command in json.loads((build / "compile_commands.json").read_text()):
        source = pathlib.Path(command["file"])
        if source.suffix != ".cu" or not any(source.is_relative_to(ROOT / room) for room in ("common", "chapters")):
            continue
        source = source.relative_to(ROOT)
        architectures = re.findall(r"code=\[?(?:compute_\w+,)?sm_(\w+)", command["command"])
        if "tests" not in source.parts and architectures:  # none: oomlab_plain_cpp()
            source = str(source)
            objects[source] = build / re.search(r" -o (\S+)", command["command"])[1]
            asked[source] = architectures
    if missing := [str(o) for o in objects.values() if not o.is_file()]:
        stop(1, f"not built: {' '.join(missing)}")
    kernels = collections.defaultdict(dict)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        texts = pool.map(lambda file: run("cuobjdump", "-res-usage", "-sass", file), objects.values())
    for source, text in zip(objects, texts):
        found = read(text)
        names = demangled({name for _, name in found})
        for (architecture, name), kernel in found.items():
            if architecture in kernels[source, names[name]]:
                stop(1, f"{source}: two kernels are called {names[name]}")
            kernels[source, names[name]][architecture] = kernel
    present = [a for a in GENERATIONS if any(a in k for k in kernels.values())]
    if not present:
        stop(2, f"{build} is for none of sm_{', sm_'.join(GENERATIONS)}")

    if arguments.write:
        if len(present) < len(GENERATIONS):
            stop(1, f"{build} is not for all of sm_{', sm_'.join(GENERATIONS)}; .ci/run has the options")
        release = [re.search(r"V[\d.]+", run(tool, "--version"))[0].removeprefix("V") for tool in (nvcc, "cuobjdump")]
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table(kernels, f"Compiled by nvcc {release[0]}, read by cuobjdump {release[1]}."))
    entries = tomllib.loads((ROOT / "tests/sass/kernels.toml").read_text())
    wrong = complaints(kernels, entries, asked, rows_of(TABLE.read_text()) if TABLE.is_file() else set())
    print("\n".join([*wrong, f"{len(kernels)} kernels, for sm_{', sm_'.join(present)}: {len(wrong)} complaints"]))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
