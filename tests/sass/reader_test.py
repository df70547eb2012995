#!/usr/bin/env python3
"""kernels.py on what cuobjdump printed once (recorded.txt, shortened), and whether kernels.toml knows every kernel of common/.
No CUDA toolkit is needed."""
import copy
import fnmatch
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import kernels as sass  # noqa: E402

failures = []


def expect(found, expected, what):
    if found != expected:
        failures.append(f"{what}: {found} instead of {expected}")


# ------------------------------------------------------------------------------------------------------------- reading

SOURCE = "common/nn/x.cu"
PACKED, SINGLE, SPILLED = "twice_kernel<float, true>", "twice_kernel<__half, false>", "spilled_kernel"
FUSED, ADDED = "sum_kernel<true>", "sum_kernel<false>"  # fmaf(x, c, y), and x * c + y, each rounded
recorded = sass.read((HERE / "recorded.txt").read_text())
names = sass.demangled({name for _, name in recorded})
expect(sorted(names.values()), sorted((PACKED, SINGLE, SPILLED, FUSED, ADDED)), "names")
kernels = {}
for (architecture, name), kernel in recorded.items():
    kernels.setdefault((SOURCE, names[name]), {})[architecture] = kernel
for (_, name), by_architecture in kernels.items():
    expect(sorted(by_architecture), ["75", "90"], f"architectures of {name}")


def figures(name, architecture):
    kernel = kernels[SOURCE, name][architecture]
    return (kernel.registers, kernel.stack, kernel.shared, kernel.local,
            *({bits: n for bits, n in kernel.widths[kind].items()} for kind in ("LDG", "STG")), kernel.local_accesses())


expect(figures(PACKED, "75"), (14, 0, 0, 0, {128: 1}, {128: 1}, 0), "packed, sm_75")
expect(figures(PACKED, "90"), (14, 0, 0, 0, {128: 1}, {128: 1}, 0), "packed, sm_90")
expect(figures(SINGLE, "75"), (10, 0, 0, 0, {16: 2}, {16: 1}, 0), "one by one, sm_75")
expect(figures(SINGLE, "90"), (10, 0, 0, 0, {16: 2}, {16: 1}, 0), "one by one, sm_90")
expect(figures(SPILLED, "75"), (13, 0, 64, 0, {128: 1}, {32: 1}, 0), "without a spill")
expect(figures(SPILLED, "90"), (14, 16, 1088, 0, {}, {32: 1}, 5), "with one")  # what goes to shared memory at once is no LDG
for architecture in ("75", "90"):
    for name, expected in ((FUSED, (1, 0)), (ADDED, (0, 1)), (PACKED, (0, 0))):
        kernel = kernels[SOURCE, name][architecture]
        expect((kernel.fused, kernel.added), expected, f"fused and added, {name}, sm_{architecture}")


def sums(*instructions):
    """How many of these are fused, and how many add what has just been rounded."""
    kernel = sass.Kernel(10, 0, 0, 0)
    for instruction in instructions:
        name, _, operands = instruction.partition(" ")
        kernel.instruction(name.split(".")[0], name.split(".")[1:], operands)
    return kernel.fused, kernel.added


expect(sums("FMUL R5, R2, R3", "FADD R7, -R5.reuse, R1"), (0, 1), "a product with a sign")
expect(sums("FMUL R5, R2, R3", "MUFU.RSQ R5, R5", "FADD R7, R5, R1"), (0, 0), "what was made of a product")
expect(sums("FMUL R5, R2, R3", "LDG.E.128 R4, [R8.64]", "FADD R7, R5, R1"), (0, 0), "a register that has been loaded since")
expect(sums("FMUL R5, R2, R3", "IMAD.WIDE R4, R2, R3, R8", "FADD R7, R5, R1"), (0, 0), "half of a wide result")
expect(sums("FMUL R5, R2, R3", "FADD R7, UR5, R1"), (0, 0), "a register of a warp")
expect(sums("FMUL.FTZ R5, R2, R3", "FADD.FTZ R7, R5, -RZ"), (0, 0), "a part of a square root")
expect(sums("FMUL R5, R2, R3", "FFMA R7, R5, R1, R2"), (1, 0), "a product of a product")
for mangled, expected in [
    ("void oomlab::nn::_GLOBAL__N__1f_6_x_cu_2e::sum_kernel<oomlab::nn::(anonymous namespace)::Of<float, true>, float>("
     "oomlab::nn::(anonymous namespace)::Of<float, true>, float*)", "sum_kernel<Of<float, true>, float>"),
    ("void oomlab::nn::(anonymous namespace)::f<float, (oomlab::nn::Activation)1>(float*)", "f<float, (Activation)1>"),
    ("update(float*, float*)", "update"),
]:
    expect(sass.short(mangled), expected, "short name")

# --------------------------------------------------------------------------------------------------------------- rules

good = {key: by for key, by in kernels.items() if key[1] in (PACKED, SINGLE)}
ENTRIES = {"common/nn/*.cu": {"twice_kernel<*, true>": {"loads": 1, "stores": 1}, "twice_kernel<*, false>": "narrow"}}
ASKED, ROWS = {SOURCE: ["75", "90"]}, set(good)


def complaints(change=lambda kernels, entries: None, asked=ASKED, rows=ROWS):
    kernels, entries = copy.deepcopy(good), copy.deepcopy(ENTRIES)
    change(kernels, entries)
    return sass.complaints(kernels, entries, asked, rows)


def one(what, expected, **arguments):
    """Exactly one complaint, with these words."""
    found = complaints(**arguments)
    if len(found) != 1 or expected not in found[0]:
        failures.append(f"{what}: {found} instead of '{expected}'")


def of(architecture, name=PACKED, **values):
    return lambda kernels, entries: vars(kernels[SOURCE, name][architecture]).update(values)


def narrowed(kind):
    return lambda kernels, entries: kernels[SOURCE, PACKED]["75"].widths.update({kind: {32: 4}})


expect(complaints(), [], "what is right")
expect(complaints(of("90", registers=64)), [], "64 registers")
one("65 registers", "sm_90: 65 registers; 1024 threads have 64 each", change=of("90", registers=65))
expect(complaints(lambda kernels, entries: (of("90", registers=128)(kernels, entries), entries["common/nn/*.cu"]["twice_kernel<*, true>"].update(threads=512))),
       [], "128 registers of 512 threads")
one("129 registers", "512 threads have 128 each", change=lambda kernels, entries: (
    of("90", registers=129)(kernels, entries), entries["common/nn/*.cu"]["twice_kernel<*, true>"].update(threads=512)))
one("a stack", "8 bytes of local memory", change=of("75", stack=8))
one("local bytes", "16 bytes of local memory", change=of("75", SINGLE, local=16))
for kind in ("LDL", "STL"):
    one(kind, "1 instructions that use it", change=lambda kernels, _, kind=kind: kernels[SOURCE, PACKED]["75"].widths.update({kind: {32: 1}}))
one("narrow loads", "sm_75: 0 of its loads are 128 bits wide, fewer than 1", change=narrowed("LDG"))
one("narrow stores", "sm_75: 0 of its stores are 128 bits wide, fewer than 1", change=narrowed("STG"))
one("one wide load of two", "fewer than 2", change=lambda kernels, entries: (
    entries["common/nn/*.cu"]["twice_kernel<*, true>"].update(loads=2), kernels[SOURCE, PACKED].pop("90")), asked={SOURCE: ["75"]})
one("excused without need", "instead of excusing it", change=lambda kernels, _: kernels[SOURCE, SINGLE]["90"].widths.update(STG={128: 1}))
one("in no entry", "0 entries", change=lambda _, entries: entries["common/nn/*.cu"].pop("twice_kernel<*, false>"))
one("in two entries", "2 entries", change=lambda _, entries: entries.update({SOURCE: {SINGLE: "narrow"}}))
one("an entry without a kernel", "'gone<*>' of 'common/nn/*.cu' is no kernel", change=lambda _, entries: entries["common/nn/*.cu"].update({"gone<*>": ""}))
one("not in the listing", "shows none for sm_80", change=lambda kernels, _: kernels[SOURCE, PACKED].update({"80": kernels[SOURCE, PACKED]["75"]}),
    asked={SOURCE: ["75", "80", "86", "90"]})
spilled = kernels[SOURCE, SPILLED]["90"]
expect(complaints(lambda kernels, _: kernels[SOURCE, PACKED].update({"120": spilled})), [], "another generation")
one("a spill", "sm_80: 16 bytes of local memory, 5 instructions", change=lambda kernels, entries: (
    kernels[SOURCE, PACKED].update({"80": spilled}), entries["common/nn/*.cu"].update({"twice_kernel<*, true>": {}})))
for name, fused, expected in ((FUSED, 1, []), (FUSED, 2, ["sm_90: 1 fused multiplications and additions, fewer than 2"]),
                              (ADDED, 0, ["sm_90: 1 products are rounded before something is added to them"])):
    found = sass.complaints({(SOURCE, name): {"90": kernels[SOURCE, name]["90"]}}, {SOURCE: {name: {"fused": fused}}}, {SOURCE: ["90"]}, {(SOURCE, name)})
    expect([f.partition(", ")[2] for f in found], expected, f"{fused} fused of {name}")
one("not in the table", "is not in bench/results/sass/kernels.txt", rows=ROWS - {(SOURCE, SINGLE)})
one("only in the table", "gone is no kernel", rows=ROWS | {(SOURCE, "gone")})

# ----------------------------------------------------------------------------------------------------------- the table

text = sass.table(kernels, "Compiled by a compiler.")
expect(sass.rows_of(text), set(kernels), "rows of a table")
row = next(line for line in text.splitlines() if SPILLED in line)
expect(row.split(), [SPILLED, "13/14", "64/1088", "0/16", "128/-", "32"], "a row")

# -------------------------------------------------------------------------- kernels.toml, as far as the sources tell

entries = tomllib.loads((HERE / "kernels.toml").read_text())
declared = {match[1] for file in sorted((ROOT / "common").rglob("*")) if file.suffix in (".cu", ".h") and "host" not in file.parts
            for match in re.finditer(r"__global__\s+void\s+(?:__launch_bounds__\(\w+\)\s+)?(?!__)(\w+)\(", file.read_text())}
known = {name.split("<")[0] for source, names in entries.items() if source.startswith("common/") for name in names}
if len(declared) < 20:
    failures.append(f"only {len(declared)} kernels found in common/")
failures += [f"kernels.toml has no entry for {name}" for name in sorted(declared) if not any(fnmatch.fnmatchcase(name, n) for n in known)]
failures += [f"kernels.toml: there is no kernel {n}" for n in sorted(known) if not any(fnmatch.fnmatchcase(name, n) for name in declared)]

print("\n".join(failures) or f"{len(declared)} kernels have entries")
sys.exit(1 if failures else 0)
