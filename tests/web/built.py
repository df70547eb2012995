"""The page of site/fit as bench/web built it, and the native program beside it. No test builds it by day: that takes a minute and a compiler
that few machines have."""
import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "wheel"))
from old import newer_source  # noqa: E402

SKIPPED = 77
PROGRESS = re.compile(r"fit: still comparing: .*\n")  # of a search that takes longer than two seconds


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


class Built:
    def __init__(self, root, native):
        self.root, self.native = pathlib.Path(root).resolve(), pathlib.Path(native).resolve()
        self.program, self.page = self.root / "build/web/fit.wasm", self.root / "build/web/fit.html"
        if not self.page.exists():
            skip("build/web/fit.html is not there; bench/web builds it")
        newer = newer_source(self.root, self.page, "site/fit", "licenses", "LICENSE", "bench/shared/results_files.py")
        if newer:
            skip(f"{newer} is newer than build/web; bench/web builds it again")

    def natively(self, words):
        done = subprocess.run([self.native, *words], capture_output=True, cwd="/", check=False)
        return {"code": done.returncode, "out": done.stdout.decode(), "err": PROGRESS.sub("", done.stderr.decode())}

    def listed(self):
        return json.loads(self.natively(["--list", "--json"])["out"])


class Node:
    """The page's program under node: one process, a fresh instance for each question."""

    def __init__(self, built):
        node = shutil.which("node")
        if not node:
            skip("no node here: apt-get install nodejs")
        here = pathlib.Path(__file__).resolve().parent
        self.process = subprocess.Popen([node, here / "ask.js", built.program, built.root / "site/fit/wasi.js"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, words, files=None):
        packed = {path: base64.b64encode(contents).decode() for path, contents in (files or {}).items()}
        self.process.stdin.write(json.dumps({"words": words, "files": packed}).encode() + b"\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert answer.pop("broken") is None, (words, answer)
        return answer | {"err": PROGRESS.sub("", answer["err"])}

    def end(self):
        self.process.stdin.close()
        self.process.wait()
