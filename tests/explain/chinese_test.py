"""Every error of bench/explain has Chinese words, and under --lang zh it is said in them: chinese_test.py ROOT

What it may say is read in its sources: the texts of fail(), complain(), error() and Refused().
"""
import ast
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(ROOT / "bench"))
import copied  # noqa: E402
from explaining.snapshot import __doc__ as snapshot_help  # noqa: E402
from explaining.snapshot_words import HELP_ZH  # noqa: E402
from explaining.words_usage import ENDS, in_chinese  # noqa: E402
from load import explain  # noqa: E402

CHINESE = re.compile("[\u4e00-\u9fff]")
SAYS = {"fail", "complain", "error", "Refused"}
# It says that Chinese cannot be written here.
LEFT = ("Chinese cannot be written",)


def texts(node):
    """The texts that an expression may be, a value in them as 7."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.BinOp):
        return [left + (right or ["7"])[0] for left in texts(node.left) for right in [texts(node.right)]]
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ending":
        return texts(node.args[0])
    return []


told = []
for file in [ROOT / "bench/explain", *sorted((ROOT / "bench/explaining").glob("*.py"))]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in SAYS:
            told += [(file.name, text) for argument in node.args for text in texts(argument)
                     if " " in text and not re.fullmatch(r"7(: 7)?(; see --help)?", text)]
assert len(told) >= 40, len(told)
for name, text in told:
    said = in_chinese(text)
    if not CHINESE.search(said):
        said = in_chinese(f"a file.pickle: {text}")
    assert CHINESE.search(said) or text.startswith(LEFT), f"{name}: no Chinese for {text!r}"
    assert not re.search(r"[a-z]{3} [a-z]{3}", said.replace("a file", "")) or text.startswith(LEFT), f"{name}: {said}"
assert len({pattern for pattern, _ in ENDS}) == len(ENDS)
for pattern, chinese in ENDS:
    assert CHINESE.search(chinese) and len(re.findall(r"\\\d", chinese)) == re.compile(pattern).groups, pattern
assert {*re.findall("--[a-z]+", HELP_ZH)} == {*re.findall("--[a-z]+", snapshot_help)}


def run(*arguments):
    done = copied.run("bench/explain", explain.main, arguments)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    return done


with tempfile.TemporaryDirectory() as folder:
    cut = pathlib.Path(folder) / "cut.pickle"
    cut.write_bytes(b"\x80\x04")
    hostile = pathlib.Path(folder) / "call.pickle"
    hostile.write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    for arguments, code, words in (
            (["--nosuch", "x y"], 64, "不认识的参数：--nosuch"), (["a", "b"], 64, "不认识的参数：b"), (["--json=x", "a b"], 64, "--json 没有值"),
            ([""], 64, "报错是空的"), ([f"{folder}/none.txt"], 2, "无法读取：No such file"), ([folder], 2, "无法读取"), (["nothing of the kind"], 1, "这段文字里没有内存不足的报错"),
            ([str(cut)], 2, "不完整：缺少结尾"), ([str(hostile)], 2, "会运行代码：它引用了 os.system"), (["--compare", str(cut)], 64, "--compare 需要 2 个值"),
            ([str(cut), "--html", f"{folder}/p.html", "--compare", str(cut), str(cut)], 64, "请给出一个快照")):
        for language in (["--lang", "zh"], ["--lang=zh"]):
            done = run(*arguments, *language)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1) and words in done.stderr, (arguments, done)
        assert not CHINESE.search(run(*arguments).stderr), arguments
    for choice in (["--lang", "zh", "--lang", "de", "x y"],):
        assert "--lang 没有 'de' 这个值" in run(*choice).stderr, run(*choice).stderr
    assert "退出码" in run("--help", str(cut), "--lang", "zh").stdout
    # Where the terminal has no such letters, the English line is better than twenty escapes.
    done = subprocess.run([sys.executable, ROOT / "bench/explain", "--nosuch", "x", "--lang", "zh"], capture_output=True, env={"PYTHONIOENCODING": "latin-1", "PATH": "/usr/bin:/bin"})
    assert done.returncode == 64 and b"unrecognized arguments: --nosuch" in done.stderr and b"\\u" not in done.stderr, done
print(f"{len(told)} errors in Chinese")
