"""The torch twins of the kernels: what each must equal, in as few lines as possible.

They make A whole and pass a whole W through fp32. `method/merge.py` does the same in row blocks.

Shapes: X [..., k], W [d, k], F [d, r].
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..method.merge import join_halves, rounding_noise, split_halves, stochastic_round
from ..method.projection import signs


def project(x: Tensor, key: tuple[int, int], rank: int) -> Tensor:
    """X signs(A)ᵀ [..., r] in X's type (method.md §1)."""
    return x @ signs(key, rank, x.shape[-1], device=x.device, dtype=x.dtype).T  # [..., r]


def merge(
    weight: Tensor,
    factor: Tensor,
    key: tuple[int, int],
    *,
    kind: str,
    lower: Tensor | None = None,
    decay: float = 0.0,
    noise_key: tuple[int, int] = (0, 0),
    offset: int = 0,
) -> None:
    """W ← (1 − decay) W − F A in place; see `logra_lab.kernels.merge` (method.md §6)."""
    rank, (rows, columns) = factor.shape[1], weight.shape
    halves = lower if kind == "split" else None
    value = weight.float() if halves is None else join_halves(weight, halves)
    plus = signs(key, rank, columns, device=weight.device)  # [r, k]
    value = torch.addmm(value, factor, plus, beta=1 - decay, alpha=-(rank**-0.5))
    if halves is not None:
        upper, halves[:] = split_halves(value)
        weight.copy_(upper)
    elif kind == "stochastic":
        index = torch.arange(rows, device=weight.device) + offset
        weight.copy_(stochastic_round(value, rounding_noise(noise_key, index, columns)))
    else:
        weight.copy_(value)
