"""logra_lab: reinforcement learning of language models with low-rank gradient sketches (LoGRA)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("logra-lab")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = ["__version__"]
