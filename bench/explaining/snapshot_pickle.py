"""Reads a memory snapshot's pickle: plain data and nothing else, within limits of memory and time.

A pickle is a program. Ours may build numbers, text, lists, tuples and dictionaries; it may name no class and call nothing. And
because a few bytes can ask for a terabyte, or for a hash that takes a year, it is read in a process with limits.
"""
import gc
import os
import pickle
import signal
import sys
import traceback

from explaining.words_usage import ending
from shared import terminal

try:
    import resource
except ImportError:  # Windows: there are no limits then
    resource = None

LARGEST = 4 << 30  # bytes of a file


class Refused(Exception):
    """The file is no snapshot that can be used: one line that says why."""


class PlainData(pickle.Unpickler):
    """Knows no class and no function: what names one is refused before anything is done with it."""

    def find_class(self, module, name):
        raise Refused(f"would run code: it names {str(module)[:60]}.{str(name)[:60]}. A snapshot has plain data only, so nothing of "
                      "it was read")

    def persistent_load(self, which):
        raise Refused("refers to things outside itself; a snapshot has plain data only, so nothing of it was read")


def load(stream):
    """The value of the pickle in the binary stream. Raises Refused."""
    collects = gc.isenabled()
    gc.disable()  # it would look at millions of dictionaries again and again
    told, sys.excepthook = sys.excepthook, lambda *what: None  # a bytearray that is cut off makes some Pythons tell of themselves
    try:
        return PlainData(stream).load()
    except Refused:
        raise
    except MemoryError:
        raise Refused("asks for more memory than a snapshot of its size can need") from None
    except (EOFError, pickle.UnpicklingError) as error:
        cut = isinstance(error, EOFError) or "truncated" in str(error)
        raise Refused("is cut off: its end is missing" if cut else "is not the pickle of a snapshot: " + one_line(error)) from None
    except RecursionError:
        raise Refused("is nested too deeply for a snapshot") from None
    except OSError:
        raise
    except Exception as error:  # a damaged pickle may end in any of them, and each means the same
        raise Refused("is not the pickle of a snapshot: " + one_line(error)) from None
    finally:
        sys.excepthook = told
        if collects:
            gc.enable()


def one_line(error):
    return " ".join(str(error).split())[:120] or type(error).__name__


def memory_limit(size):
    """Bytes of address space for a file of `size` bytes: 200 MB get less than 2 GiB."""
    return (1 << 29) + 7 * size


def seconds_limit(size):
    """Of processor time: 200 MB take less than 10 s on the machine that this was written on, and others are slower."""
    return 10 + size // (2 << 20)


def within_limits(size, work, program, name):
    """Calls work() in a process of its own, which may take so much memory and time, and returns its exit code."""
    if not (resource and hasattr(os, "fork")):
        return work()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            lower(resource.RLIMIT_AS, memory_limit(size) + address_space())
            lower(resource.RLIMIT_CPU, seconds_limit(size))
            code = work()
            sys.stdout.flush()
        except MemoryError:
            terminal.complain(program, ending(f"{name}: takes more memory than a snapshot of its size can need"))
            code = 2
        except OSError as error:
            terminal.complain(program, ending(f"standard output: {error.strerror or error}"))
            code = 2
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):  # `bench/explain FILE | head` is no error
            os.kill(os.getpid(), os.WTERMSIG(status))
        if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL):
            raise Refused(f"takes more than {seconds_limit(size)} s of processor time, or more memory than there is: it was given up")
        raise Refused(f"ended the process that read it (signal {os.WTERMSIG(status)})")
    return os.WEXITSTATUS(status)


def lower(which, limit):
    """Sets the soft limit, never above one that is there already."""
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or limit < soft:
        try:
            resource.setrlimit(which, (limit, hard))
        except (OSError, ValueError):
            pass  # this system does not have it


def address_space():
    """What this process has mapped already."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError):
        return 1 << 29
