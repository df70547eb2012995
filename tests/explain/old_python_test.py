"""bench/explain, and what else goes to other people's machines, works with Python 3.8: old_python_test.py ROOT.

Their syntax is parsed as 3.8's, and nothing newer is called. Where an older Python than this one is installed, explain runs with
it.
"""
import ast
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from cases import ARTICLE, CASES  # noqa: E402

FILES = [*(ROOT / "bench" / name for name in ("compare", "explain", "puzzle", "report", "running/kit.py")),
         *(file for folder in ("explaining", "puzzling", "reporting", "shared") for file in (ROOT / "bench" / folder).glob("*.py"))]
# Since 3.9 to 3.12: methods and functions, their keywords, modules, and what has a subscript only in an annotation before 3.9.
CALLED = {"removeprefix", "removesuffix", "is_relative_to", "with_stem", "readlink", "hardlink_to", "lcm", "nextafter", "ulp", "bit_count",
          "pairwise", "batched", "unparse", "randbytes", "waitstatus_to_exitcode", "total", "cache", "add_note"}
KEYWORDS = {"zip": {"strict"}, "dataclass": {"slots", "kw_only"}, "glob": {"root_dir"}, "bisect": {"key"},
            "write_text": {"newline"}, "ArgumentParser": {"exit_on_error"}}
MODULES = {"tomllib", "zoneinfo", "graphlib"}
BUILT_IN = {"dict", "list", "tuple", "set", "frozenset", "type"}
FLAGS = {"re", "os", "stat", "signal", "fcntl", "select"}


def is_no_dictionary(node):
    """Whether it is sure that `node`, beside |, is a set, a number or a flag: of dictionaries there is no union before 3.9."""
    if isinstance(node, (ast.Set, ast.SetComp, ast.Compare, ast.UnaryOp)):
        return True
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in FLAGS and node.attr.isupper()
    if isinstance(node, ast.Call):
        return getattr(node.func, "id", getattr(node.func, "attr", "")) in ("set", "frozenset", "keys", "bool", "any", "all")
    return isinstance(node, ast.BinOp) and (is_no_dictionary(node.left) or is_no_dictionary(node.right))


def newer(tree):
    """(line, what) of what Python 3.8 does not have."""
    for node in ast.walk(tree):
        name = getattr(node, "id", getattr(node, "attr", ""))
        if isinstance(node, ast.Attribute) and name in CALLED:
            yield node.lineno, name
        if isinstance(node, ast.Call):
            called = getattr(node.func, "id", getattr(node.func, "attr", ""))
            for keyword in {k.arg for k in node.keywords} & KEYWORDS.get(called, set()):
                yield node.lineno, f"{called}({keyword}=)"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for module in {alias.name for alias in node.names} | {getattr(node, "module", None)}:
                if module in MODULES:
                    yield node.lineno, module
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id in BUILT_IN:
            yield node.lineno, f"{node.value.id}[]"
        pair = ((node.left, node.right) if isinstance(node, ast.BinOp) else
                (node.target, node.value) if isinstance(node, ast.AugAssign) else ())
        if pair and isinstance(node.op, ast.BitOr) and not any(map(is_no_dictionary, pair)):
            yield node.lineno, f"{ast.unparse(node)}: if these are dictionaries or types"


def explained(python, *arguments):
    return subprocess.run([python, ROOT / "bench/explain", *arguments], capture_output=True, stdin=subprocess.DEVNULL)


wrong = []
for file in sorted(FILES):
    text = file.read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    wrong += [f"{file.relative_to(ROOT)}:{line}: {what}" for line, what in newer(tree)]
assert not wrong, "not in Python 3.8:\n" + "\n".join(wrong)
assert len(FILES) > 10
for text in ("a: int | None = None", "d = e | {'x': 1}", "d |= e", "'x'.removesuffix('y')", "zip(a, b, strict=True)", "x: list[int] = []",
             "import tomllib", "os.environ | more", "a() | (b or {})"):
    assert list(newer(ast.parse(text))), text
for text in ("re.I | re.M", "a.keys() | b", "s = {1} | t", "x |= a < b"):
    assert not list(newer(ast.parse(text))), text

# An older one than 3.8 says so in one line, before it meets anything that it cannot read.
entry = (ROOT / "bench/explain").read_text()
ast.parse(entry, feature_version=(3, 6))
as_if_old = "import sys; sys.version_info = (3, 7, 9); exec(compile(sys.stdin.read(), 'explain', 'exec'))"
done = subprocess.run([sys.executable, "-c", as_if_old], input=entry.encode(), capture_output=True)
assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"bench/explain: needs Python 3.8 or newer, and this one is 3.7\n"), done

tried = []
for minor in range(6, sys.version_info[1]):
    python = shutil.which(f"python3.{minor}")
    version = python and subprocess.run([python, "--version"], capture_output=True, text=True)
    if not version or version.returncode or not re.match(rf"Python 3\.{minor}\.", version.stdout):
        continue
    tried.append(f"3.{minor}")
    if minor < 8:
        done = explained(python, ARTICLE)
        assert done.returncode == 2 and done.stderr.count(b"\n") == 1 and b"needs Python 3.8" in done.stderr, done
        continue
    for _, message, *_ in CASES[::9]:
        for options in ([], ["--lang", "zh"], ["--json"]):
            old, new = (explained(which, *options, f"{message} ") for which in (python, sys.executable))
            assert (old.returncode, old.stdout, old.stderr) == (new.returncode, new.stdout, new.stderr), (python, old, new)
    assert explained(python, "--help").returncode == explained(python, "--table").returncode == 0
print(f"{len(FILES)} files; run with {', '.join(tried) or 'no older Python: none is installed'}")
