#!/usr/bin/env python3
"""A wheel on a machine that has Python and nothing else: trial.py ROOT FIT WHEEL [--questions N]

It is installed into an empty environment without any other package, asked what the program FIT of a build answers, too, and removed.
"""
import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import venv
import zipfile

from questions import compare

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.70 GiB total capacity; 22.18 GiB already allocated; 323.81 MiB free; 22.70 GiB reserved in total by PyTorch)"


def files(folder):
    return {path.relative_to(folder) for path in folder.rglob("*")}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("fit", type=pathlib.Path)
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=1000)
    options = parser.parse_args()
    root, wheel = options.root.resolve(), options.wheel.resolve()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert {name.split("/")[0].split("-")[0] for name in names} == {"oomlab"}, "it takes a name that is not its own"
        for text in ("LICENSE", "licenses/fmt.txt", "licenses/json.txt", "licenses/gcc.txt", "licenses/glibc.txt", "licenses/LGPL-2.1.txt"):
            assert any(name.endswith(f".dist-info/licenses/{text}") for name in names), (text, names)
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        venv.create(place / "env", with_pip=True)
        (place / "here").mkdir()
        before, programs = files(place / "env"), place / "env/bin"

        def types(*words):
            done = subprocess.run([programs / words[0], *words[1:]], cwd=place / "here", capture_output=True, text=True, check=False,
                                  env={"PATH": str(programs), "HOME": str(place / "here"), "PIP_DISABLE_PIP_VERSION_CHECK": "1"})
            assert done.returncode == 0, (words, done.returncode, done.stdout, done.stderr)
            return done.stdout

        types("pip", "install", "--no-index", str(wheel))
        assert types("oomlab", "--version").strip() == f"oomlab {wheel.name.split('-')[1]}"
        assert "fits" in types("oomlab", "fit", "--model", "gpt2", "--gpu", "t4").splitlines()[0]
        assert types("oomlab", "explain", MESSAGE).startswith("Cause: ")
        assert "pieces" in types("oomlab", "snapshot", str(root / "tests/explain/snapshots/pieces.pickle"))
        assert "a100-80gb" in types("oomlab", "cards") and "04-segments" in types("oomlab", "puzzle", "--list")
        assert types("python", "-c", "import oomlab; print(oomlab.fit(model='gpt2', gpu='t4')['pytorch']['as_is']['fits'], oomlab.__version__)") == f"True {wheel.name.split('-')[1]}\n"
        compare(options.fit.resolve(), next((place / "env").glob("lib*/python*/site-packages/oomlab/bin/fit")), options.questions)
        types("pip", "uninstall", "--yes", "oomlab")
        left = {path for path in files(place / "env") - before if "__pycache__" not in path.parts or "oomlab" in path.parts}
        assert not left and not os.listdir(place / "here"), f"left behind: {sorted(map(str, left))}, {os.listdir(place / 'here')}"
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, installed, asked and removed")


if __name__ == "__main__":
    sys.exit(main())
