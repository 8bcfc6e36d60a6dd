"""The words and units every other file of this package shares: classes of bytes, phases of a step, GiB.

1 GiB is 2^30 bytes, 1 GB is 10^9 (7 % less). Every figure this package prints is in GiB and says so; the names that
cards are sold under ("24 GB", "80 GB") are kept as names, their capacity is given in GiB (presets.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

MIB = 2**20
GIB = 2**30
GB = 10**9

CLASSES = (
    "weights",
    "gradients",
    "optimizer state",
    "sketches",
    "projections",
    "saved activations",
    "logits",
    "KL probe",
    "KV cache",
    "other",
)
PHASES = ("rollout", "forward", "backward", "step", "probe")


def gib(bytes_: float) -> float:
    """Bytes as GiB."""
    return bytes_ / GIB


def size(bytes_: float) -> str:
    """A byte count in words, always in GiB: four significant figures below 1 GiB, two decimals above."""
    value = bytes_ / GIB
    return f"{value:.2f} GiB" if abs(value) >= 1 else f"{value:.4g} GiB"


class Bytes(Mapping[str, int]):
    """Bytes by class: an immutable mapping over `CLASSES` that adds up.

    Classes left out are zero. Raises ValueError for a class that is not in `CLASSES`.
    """

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        values = dict(values or {})
        if unknown := [name for name in values if name not in CLASSES]:
            raise ValueError(f"Unknown class of bytes {unknown[0]!r}; the classes are {', '.join(CLASSES)}.")
        self._values = {name: round(values.get(name, 0)) for name in CLASSES}

    def __getitem__(self, name: str) -> int:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __add__(self, other: Mapping[str, float]) -> Bytes:
        return Bytes({name: self[name] + other.get(name, 0) for name in CLASSES})

    @property
    def total(self) -> int:
        """The sum over classes, in bytes."""
        return sum(self._values.values())

    def largest(self, count: int = 3) -> list[tuple[str, int]]:
        """The `count` largest classes that hold anything, largest first."""
        filled = [(name, value) for name, value in self._values.items() if value > 0]
        return sorted(filled, key=lambda pair: -pair[1])[:count]

    def __repr__(self) -> str:
        return f"Bytes({ {name: value for name, value in self._values.items() if value} })"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A plain text table: the first column left, the others right aligned."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    rule = ["-" * width for width in widths]

    def draw(line: list[str]) -> str:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(draw(line) for line in [lines[0], rule, *lines[1:]])
