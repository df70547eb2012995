"""Runs a program that nobody trusts, in an empty folder, with an end to everything: time, memory, output, files."""
import os
import pathlib
import resource
import selectors
import signal
import subprocess
import tempfile
import time
import typing

MIB = 1 << 20
PATIENCE = 15  # seconds after which whoever waits is told


class Limits(typing.NamedTuple):
    cpu_seconds: int = 30     # of all its threads
    wall_seconds: int = 180   # what only a program that sleeps reaches, or a machine that does much else
    memory: int = 3 << 30     # bytes of resident memory
    output: int = MIB         # bytes printed
    file: int = MIB           # bytes of any file that it writes
    descriptors: int = 64     # open at a time
    stack: int = MIB // 2     # bytes of the host's stack: what recursion keeps there is not saved, either; the runtime wants so many


class Outcome(typing.NamedTuple):
    code: int                  # exit code; negative: the signal that ended it
    output: str
    event: str                 # what it wrote to the descriptor that it was given
    over: typing.Optional[str]  # the limit that ended it: "time", "wall", "memory", "output", "file", "call"


def _limit(limits, address_space):
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu_seconds, limits.cpu_seconds + 5))
    resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, limits.file))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.descriptors, limits.descriptors))
    if address_space:  # sanitizers reserve terabytes, and use little of that; their frames are larger, too
        resource.setrlimit(resource.RLIMIT_STACK, (limits.stack, limits.stack))
        resource.setrlimit(resource.RLIMIT_AS, (2 * limits.memory, 2 * limits.memory))


def _resident(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _end_session(session):
    """Ends the program and whatever it started that is still in its session."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if int((entry / "stat").read_text().rsplit(")", 1)[1].split()[3]) == session:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, IndexError, ValueError):
            continue


def run(command, limits=Limits(), environment=None, address_space=True, patience=lambda seconds: None):
    """Runs the command, and gives what became of it. The last argument that it gets is the number of the descriptor for its events. `patience`: called
    once, where it takes long, with the seconds that it has taken."""
    with tempfile.TemporaryDirectory(prefix="oomlab-puzzle-") as folder:
        reading, writing = os.pipe()

        surroundings = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", **(environment or {})}
        process = subprocess.Popen([*map(str, command), str(writing)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, cwd=folder, env=surroundings, pass_fds=(writing,), start_new_session=True,
                                   preexec_fn=lambda: _limit(limits, address_space))
        os.close(writing)
        texts, over = {"output": b"", "event": b""}, None
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ, "output")
                selector.register(reading, selectors.EVENT_READ, "event")
                began, told = time.monotonic(), False
                while selector.get_map() and not over:
                    for key, _ in selector.select(0.05):
                        data = os.read(key.fd, 1 << 16)
                        if not data:
                            selector.unregister(key.fileobj)
                        texts[key.data] += data
                    if len(texts["output"]) > limits.output or len(texts["event"]) > MIB:
                        over = "output"
                    elif _resident(process.pid) > limits.memory:
                        over = "memory"
                    elif time.monotonic() > began + limits.wall_seconds:
                        over = "wall"
                    elif process.poll() is not None and not selector.select(0):
                        break  # somebody that it started still has the pipes
                    if not told and time.monotonic() > began + PATIENCE:
                        told = True
                        patience(PATIENCE)
            if over:
                process.kill()
            code = process.wait()
        finally:  # Ctrl-C ends it, too: it is in a session of its own
            process.kill()
            process.wait()
            os.close(reading)
            process.stdout.close()
            _end_session(process.pid)
    if not over:
        over = {-signal.SIGXCPU: "time", -signal.SIGXFSZ: "file", -signal.SIGSYS: "call"}.get(code)
    return Outcome(code, texts["output"][:limits.output].decode("utf-8", "replace"), texts["event"].decode("utf-8", "replace"), over)
