"""The package as the host build has it, installed into a folder: with the programs and the layout that a wheel has."""
import os
import pathlib
import subprocess
import sys


def install(build, folder):
    """Where Python finds `oomlab` then."""
    subprocess.run(["cmake", "--install", str(build), "--component", "wheel", "--prefix", str(folder)], check=True, stdout=subprocess.DEVNULL)
    sys.path.insert(0, str(folder))
    return pathlib.Path(folder)


def types(place, *arguments, text=b"", **environment):
    """`oomlab ...` as a process: (exit code, standard output, standard error)."""
    done = subprocess.run([sys.executable, "-m", "oomlab", *map(str, arguments)], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env={**os.environ, "PYTHONPATH": str(place), "PYTHONIOENCODING": "utf-8", **environment})
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def native(program, *arguments, text=b""):
    """The same of a program in the tree."""
    done = subprocess.run([str(program), *map(str, arguments)], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    return done.returncode, done.stdout.decode(), done.stderr.decode()
