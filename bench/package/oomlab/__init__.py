"""CUDA out of memory: what the message says, what fills the card, and what will fit it.

  oomlab.fit(model="llama-3.1-8b", gpu="rtx4090")   what training or inference takes, as the dict that `oomlab fit --json` prints
  oomlab.explain(text)                              the cause of an out-of-memory message, and what to do first
  with oomlab.watch():                              around a loop of PyTorch: explains the error when it comes

The same programs as the command `oomlab`, which this package starts: no module of the caller's is touched, and what they take of memory
is given back. Sizes are in bytes where a name ends in _bytes, and in what they name otherwise, as "12GB" (10^9) or "12GiB" (2^30).
"""
from oomlab.asking import explain, fit
from oomlab.programs import Error, NoMessage, UsageError, version
from oomlab.watching import watch

__all__ = ["Error", "NoMessage", "UsageError", "explain", "fit", "watch"]
__version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":  # looked up when it is asked for: that reads files
        return version()
    raise AttributeError(f"module 'oomlab' has no attribute '{name}'")
