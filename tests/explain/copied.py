"""A command of bench/ in a copy of this process, which has its modules loaded already: that takes a tenth of what a new interpreter does."""
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from shared import terminal  # noqa: E402


def module(name):
    """bench/`name`, which is a command, as a module."""
    loader = importlib.machinery.SourceFileLoader(name, str(ROOT / "bench" / name))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(loaded)
    return loaded


def run(program, main, arguments, given=b"", folder=None):
    """What subprocess.run() says of `program arguments`, as bytes; `main` is what the command calls, `given` its standard input."""
    command = [program, *map(os.fspath, arguments)]
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given)
        stdin.seek(0)
        child = os.fork()
        if child == 0:
            _become(command, main, (stdin, out, err), folder)
        _, status = os.waitpid(child, 0)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(command, code, out.read(), err.read())


def _become(command, main, files, folder):
    """Runs the command in this process, and ends it as the interpreter would."""
    code = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if folder is not None:
            os.chdir(folder)
        sys.argv = command
        terminal.run(command[0], main)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
