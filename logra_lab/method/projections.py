"""The projections of one optimizer by group: made on demand, at one update at a time.

Where a kernel makes the signs of A itself (`logra_lab.kernels`), none is kept; elsewhere they are cached from
the forward pass to the merge. The cost there: r·k numbers a group until the update is done.

Shapes: k input columns, r rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import kernels
from .projection import gram, projection_key, signs
from .targets import Target


class Projections:
    """A by group, cached within an update and rebuilt after it.

    Args:
        seed: of the hash.
        rank: r.
        refresh: False keeps the first A for ever (the ablation of method.md §7).
    """

    def __init__(self, seed: int, rank: int, refresh: bool) -> None:
        self.seed, self.rank, self.refresh = seed, rank, refresh
        self.scale = rank**-0.5  # A = scale · signs: the signs are exact in bf16, 1/√r often is not
        self._update = 0
        self._cache: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}
        self._grams: dict[tuple[str, torch.device, torch.dtype], Tensor] = {}

    def advance(self, update: int) -> None:
        """Count: from here on every A is that of `update`."""
        self._update = update if self.refresh else 0
        self._cache.clear()
        self._grams.clear()

    def key(self, target: Target) -> tuple[int, int]:
        """The hash key of the target's group at this update."""
        return projection_key(self.seed, self._update, target.group)

    def signs(self, target: Target, device: torch.device, dtype: torch.dtype) -> Tensor:
        """√r·A as ±1 [r, k] of the target's group."""
        place = (target.group, device, dtype)
        if place in self._cache:
            return self._cache[place]
        made = signs(self.key(target), self.rank, target.columns, device=device, dtype=dtype)
        if kernels.backend(made) == "torch":
            self._cache[place] = made
        return made

    def project(self, target: Target, x: Tensor) -> Tensor:
        """P = x signs(A)ᵀ [..., r] in the type of x; not differentiable where a kernel does it."""

        def plain() -> Tensor:
            return x @ self.signs(target, x.device, x.dtype).T  # [..., r]

        return kernels.project(x, self.key(target), self.rank, plain=plain)

    def gram(self, target: Target, device: torch.device, dtype: torch.dtype) -> Tensor:
        """A Aᵀ [r, r] of the target's group."""
        place = (target.group, device, dtype)
        if place not in self._grams:
            self._grams[place] = gram(self.signs(target, device, dtype)).div_(self.rank)
        return self._grams[place]

    def nbytes(self) -> int:
        """Bytes that the cached signs occupy now."""
        return sum(matrix.numel() * matrix.element_size() for matrix in self._cache.values())
