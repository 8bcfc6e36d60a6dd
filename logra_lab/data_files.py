"""Where the data lies that comes with the kit: tiny-math, the problems, the recorded runs.

In a checkout (and an editable installation) it is `data/` beside the package; a wheel carries it inside the package.
Paths are written as in the checkout, "data/tiny-math", and work from any folder in both.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["located"]

PACKAGE = Path(__file__).resolve().parent


def located(path: str | Path) -> Path:
    """`path` itself if it exists or isn't part of the kit's data, else the place where that data lies.

    Hand it to `from_pretrained` as `located(path).as_posix()`: a hub id has a slash on Windows too.
    A folder of the reader's own comes first.
    """
    path = Path(path)
    if path.exists() or path.parts[:1] != ("data",):
        return path
    rest = path.parts[1:]
    for root in (PACKAGE / "data", PACKAGE.parent / "data"):
        if (there := root.joinpath(*rest)).exists():
            return there
    return path
