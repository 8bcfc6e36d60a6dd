"""The seams for data parallelism and sharding, with their one-process defaults.

`method` knows no process groups. Whatever must be summed over replicas, and whichever rows of a weight
live here, it asks of two injected objects; `logra_lab.scale` has the distributed ones.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Reduce(Protocol):
    """Sums over the replicas of data parallelism."""

    def sketch(self, flat: Tensor) -> None:
        """Reduce one flat sketch buffer in place (a sum or a mean, as the trainer's loss needs)."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of a small tensor over all replicas; every replica gets the same."""


class Rows(Protocol):
    """Which rows of a weight live in this process."""

    def local(self, weight: Tensor) -> tuple[Tensor, int]:
        """The local rows [d', k] of a parameter, as writable memory, and the index of the first."""

    def gather(self, part: Tensor, weight: Tensor) -> Tensor:
        """All rows [d, ...] of which `part` are those of `weight` that live here; for packets of full weights."""

    def total(self, values: Tensor) -> Tensor:
        """The sum of a small tensor over the processes that hold the other rows."""


class OneProcess:
    """Both seams for a single process: nothing to sum, every row is here."""

    def sketch(self, flat: Tensor) -> None:
        """Nothing to add."""
        return None

    def total(self, values: Tensor) -> Tensor:
        """The values themselves."""
        return values

    def local(self, weight: Tensor) -> tuple[Tensor, int]:
        """The whole weight, which begins at row 0."""
        return weight.data, 0

    def gather(self, part: Tensor, weight: Tensor) -> Tensor:
        """The part, which is the whole."""
        return part
