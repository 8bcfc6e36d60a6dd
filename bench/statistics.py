"""Medians and paired ratios with an interval that needs no assumption.

Of n paired ratios the smallest and the largest enclose the true median with probability 1 − 2^(1−n): the median
is missed only if all n fall on one side of it. So n = 7 gives 98.4 %.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Ratio:
    """A median ratio, and the interval that covers the true one with probability `coverage`."""

    median: float
    low: float
    high: float
    coverage: float

    def to_json(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(values: Sequence[float], references: Sequence[float]) -> Ratio:
    """value / reference, round by round.

    Raises:
        ValueError: if the rounds don't pair up, or there are none.
    """
    if len(values) != len(references) or not values:
        raise ValueError(
            f"{len(values)} rounds can't be paired with {len(references)}: measure both in each round"
        )
    ratios = [value / reference for value, reference in zip(values, references, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), 1 - 2.0 ** (1 - len(ratios)))


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each entry over the rounds."""
    return {name: statistics.median(entry[name] for entry in rounds) for name in rounds[0]}
