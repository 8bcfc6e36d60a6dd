"""Medians and paired ratios with an interval that needs no assumption.

Of n paired ratios in order, the i-th from below and the i-th from above enclose the true median unless fewer than i
fall on one side of it, which has a binomial probability. The interval is the narrowest of these that still covers it
with 95 %: for n = 9 the second and the eighth (96.1 %). Below six rounds none does; then it is the smallest and the
largest.
"""

from __future__ import annotations

import math
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
    ratios = sorted(value / reference for value, reference in zip(values, references, strict=True))
    left_out, covered = narrowest(len(ratios))
    return Ratio(statistics.median(ratios), ratios[left_out], ratios[-1 - left_out], covered)


def narrowest(count: int, wanted: float = 0.95) -> tuple[int, float]:
    """How many of `count` ordered values to leave out at each end, and the probability to cover the median then."""
    found = (0, coverage(count, 0))
    for left_out in range(1, (count - 1) // 2 + 1):
        if (covered := coverage(count, left_out)) >= wanted:
            found = (left_out, covered)
    return found


def coverage(count: int, left_out: int) -> float:
    """Probability that the median lies between the ends when `left_out` of `count` values are dropped at each."""
    missed = sum(math.comb(count, below) for below in range(left_out + 1)) / 2**count
    return 1 - 2 * missed


def medians(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of each entry over the rounds."""
    return {name: statistics.median(entry[name] for entry in rounds) for name in rounds[0]}
