"""Whether a wheel or the page is older than what it was made of: bench/setup.sh has the list."""
import subprocess


def newer_source(root, made, *others):
    """A source of bench/fit, or one of `others`, that is newer than `made`; "" where there is none."""
    done = subprocess.run(["bash", "-euc", '. bench/setup.sh; newer_than "$@"', "bash", str(made), *others], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split("\n", 1)[0]
