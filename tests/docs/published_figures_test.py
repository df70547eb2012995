"""Every figure of a page is the one in bench/results/, and none is read out of what our own programs print: published_figures_test.py ROOT

The first is bench/publish --check. While it makes pages and pictures, nothing but QUOTES opens a text file of bench/results/: these take lines or
the whole as they are, or compare them. All else comes from result files, where what a chapter finds is a table of cells
(common/harness/table.h). And in what --check does not run, no function that has a program's output or a text file of results uses a pattern.

Not looked at: bench/explaining reads the error messages of other programs, bench/peers runs them and keeps what they said, bench/puzzling reads
readers' files and what compilers and sanitizers say of them.
"""
import ast
import importlib.machinery
import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(sys.argv[1]).resolve()
FOREIGN = ("bench/explain", "bench/explaining/", "bench/peers/", "bench/puzzling/", "bench/results/")
# Functions of bench/publish and below that open printed text: (file, name).
QUOTES = {
    ("bench/publish", "excerpt"),  # the blocks of READMEs, line by line
    ("bench/publish", "renew_maps"),  # compares the whole
    ("bench/publishing/pages.py", "pytorch_lesson"),
    ("bench/publishing/on_gpus.py", "lesson"),
    ("bench/publishing/on_gpus.py", "devices"),
    ("bench/publishing/pictures/reading.py", "lesson_prints"),  # compares whole lines
}
PATTERN_CALLS = {"search", "match", "fullmatch", "findall", "finditer", "sub", "subn", "split"}


def callers():
    """(file, function) of all that is being called, below ROOT."""
    frame = sys._getframe(2)
    while frame:
        file = pathlib.Path(frame.f_code.co_filename)
        if file.is_absolute() and file.is_relative_to(ROOT):
            yield str(file.relative_to(ROOT)), frame.f_code.co_name
        frame = frame.f_back


opened, quoted = {}, set()


def note_open(event, arguments):
    if event != "open" or not str(arguments[0]).endswith(".txt") or "bench/results/" not in str(arguments[0]):
        return
    by = list(callers())
    if QUOTES.isdisjoint(by):
        opened[str(arguments[0])] = by[0] if by else ("?", "?")
    quoted.update(QUOTES.intersection(by))


def of_patterns(tree):
    """Names of a module that are patterns."""
    return {target.id for node in ast.walk(tree) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_call_of(node.value, {"re"}, {"compile"})
            for target in node.targets if isinstance(target, ast.Name)}


def is_call_of(node, receivers, names):
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
            and node.func.value.id in receivers and node.func.attr in names)


def has_printed_text(node):
    """The output of a program, or the name of a text file; CMakeLists.txt is none."""
    return (isinstance(node, ast.Attribute) and node.attr == "stdout") or (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".txt") and not node.value.endswith("CMakeLists.txt"))


def readers(text):
    """Functions of a module that have printed text, and use a pattern."""
    tree = ast.parse(text)
    patterns = {"re"} | of_patterns(tree)
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        inside = list(ast.walk(function))
        if any(is_call_of(node, patterns, PATTERN_CALLS) for node in inside) and any(has_printed_text(node) for node in inside):
            yield function.name


def programs():
    for file in (*sorted((ROOT / "bench").rglob("*")), *sorted((ROOT / "notebooks").rglob("*.py")), *sorted((ROOT / "tests/notebooks").glob("*"))):
        name = str(file.relative_to(ROOT))
        if not name.startswith(FOREIGN) and file.is_file() and (file.suffix == ".py" or file.read_bytes().startswith(b"#!/usr/bin/env python3")):
            yield name, file.read_text(encoding="utf-8")


def try_itself():
    assert list(readers("def f(run):\n    return re.search('a', run().stdout)\n")) == ["f"]
    assert list(readers("P = re.compile('a')\ndef f(x):\n    return P.findall((x / 'a.txt').read_text())\n")) == ["f"]
    assert not list(readers("def f(x):\n    return re.search('a', (x / 'CMakeLists.txt').read_text())\ndef g(run):\n    return run().stdout\n"))


try_itself()
sys.addaudithook(note_open)
sys.path.insert(0, str(ROOT / "bench"))
loader = importlib.machinery.SourceFileLoader("publish", str(ROOT / "bench/publish"))
publish = importlib.util.module_from_spec(importlib.util.spec_from_loader("publish", loader))
loader.exec_module(publish)
sys.argv = ["bench/publish", "--check"]
wrong = []
try:
    publish.main()
except SystemExit as error:
    wrong += [f"bench/publish --check: {error.code}"] if error.code else []
wrong += [f"{by[0]}: {by[1]}() opens {file}" for file, by in sorted(opened.items())]
wrong += [f"{file}: {name}() opens no text file of results any more" for file, name in sorted(QUOTES - quoted)]
looked_at = dict(programs())
wrong += [f"{name}: {function}() reads printed text with a pattern" for name, text in looked_at.items() for function in readers(text)
          if (name, function) not in QUOTES]
print(*wrong, f"{len(quoted)} functions quote printed text, {len(opened)} others open some; {len(looked_at)} programs looked at", sep="\n")
sys.exit(1 if wrong or len(looked_at) < 10 else 0)
