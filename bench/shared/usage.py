"""Options of the commands of bench/."""
import argparse

from shared import terminal


class Parser(argparse.ArgumentParser):
    """Bad usage is one line, and exit code 64: also where the line cannot be written, which argparse itself makes an error of in some
    versions of Python."""

    def __init__(self, **more):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **more)

    def error(self, message):
        terminal.fail(self.prog, 64, f"{message}; see --help")

    def print_help(self, file=None):
        print(self.format_help(), end="", file=file)  # argparse's own says nothing where it cannot be written
