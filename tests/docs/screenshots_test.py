"""The report and three READMEs in a real browser, light and dark, on a desktop and on a phone: nothing overflows, every picture has a text
alternative (bench/screenshots). What overflows is found.

  screenshots_test.py ROOT      exit code 77 where there is no Chromium, or no markdown-it-py
"""
import os
import pathlib
import subprocess
import sys
import tempfile

root = pathlib.Path(sys.argv[1]).resolve()
# The Python in use, or the system's, for which a package manager installs.
pythons = [p for p in (sys.executable, "/usr/bin/python3") if subprocess.run([p, "-c", "import markdown_it"], capture_output=True).returncode == 0]
tool = [(pythons or [sys.executable])[0], root / "bench/screenshots"]


def looked(*arguments, **environment):
    done = subprocess.run([*tool, *arguments], capture_output=True, text=True, env=os.environ | environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    assert looked("--only", "nothing")[0] == 64 and looked("no/such/page.md", "--out", folder)[0] == 64
    assert looked("report", "--out", folder, CHROMIUM=str(folder / "none"))[0] == 2
    (folder / "bad.html").write_text('<!doctype html><meta name="viewport" content="width=device-width"><p>fine</p><div style="width:900px">wide</div>'
                                     '<div style="overflow:auto"><pre style="width:900px">scrolls</pre></div><img src="none.png">'
                                     '<svg viewBox="0 0 10 10"><text x="9" y="9">long words</text></svg>')
    code, said = looked(folder / "bad.html", "--only", "phone-dark", "--out", folder)
    if code == 2:
        print(said)
        sys.exit(77)
    assert code == 1 and (folder / "bad-phone-dark.png").stat().st_size > 500, said
    for what in ("overflows: div wide", "no text alternative: img", "no text alternative: svg", "does not load", "runs out of its picture: text long words", "the page is"):
        assert what in said, (what, said)
    assert "scrolls" not in said and "fine" not in said, said
    code, said = looked("--out", folder)
    print(said)
    if code == 2:
        sys.exit(77)
    assert code == 0 and len(list(folder.glob("*.png"))) == 17
    assert looked("report", "--point", "--only", "desktop-light", "--out", folder)[0] == 0
kept = list((root / "bench/results/screenshots").glob("*.png"))
assert len(kept) >= 16 and sum(f.stat().st_size for f in kept) < 2_000_000, "the screenshots that are kept"
