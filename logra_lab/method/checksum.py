"""A checksum with a tolerance: how far apart two copies of the weights are, from a few numbers each.

Between device kinds matrix products round differently, so two right replicas are close, not equal, and a
hash of their weights says nothing. Random signs do: for s ∈ {±1}^d, t ∈ {±1}^k drawn once from the seed,

    c = sᵀ W t,      E[(c − c')²] = ‖W − W'‖²

so eight such numbers per target estimate the distance without sending a weight. It is the sketch's own
idea, used on the weights.

Left out: exactness. The estimate from eight probes is right within about a factor of two, and a change
that hides from all of them is possible, if unlikely; the chain of hashes is the exact test.

Shapes: W [d, k]; m probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .merge import row_blocks
from .projection import projection_key, signs
from .targets import Target
from .weights import WeightStore

PROBES = 8


def checksum(weights: WeightStore, seed: int) -> Tensor:
    """Probes and norm of each target, float64 [targets, m + 1] on the CPU, over all rows wherever they live."""
    sums = torch.stack([_probe(weights, target, seed) for target in weights.targets])  # [targets, m + 1]
    sums = weights.rows.total(sums)
    sums[:, -1].sqrt_()
    return sums


def relative_drift(mine: Tensor, theirs: Tensor) -> Tensor:
    """An estimate of ‖W − W'‖ / ‖W'‖ per target [targets], from two checksums."""
    squares = (mine[:, :-1] - theirs[:, :-1]).square().mean(dim=1)
    return squares.sqrt() / theirs[:, -1].clamp_min(torch.finfo(torch.float64).tiny)


def _probe(weights: WeightStore, target: Target, seed: int) -> Tensor:
    """sᵀ W t for each pair of probes, then ‖W‖² [m + 1], of the rows that live here."""
    weight, offset = weights.rows.local(target.weight)
    left = signs(projection_key(seed, 0, f"checksum/left/{target.name}"), PROBES, target.rows).double()
    right = signs(projection_key(seed, 0, f"checksum/right/{target.name}"), PROBES, target.columns).double()
    left, right = left[:, offset : offset + len(weight)], right.to(weight.device)
    result = torch.zeros(PROBES + 1, dtype=torch.float64)
    value = weights.read(target)
    for rows in row_blocks(*weight.shape):
        block = value[rows].double()
        probes = ((left[:, rows].to(block.device) @ block) * right).sum(dim=1)  # [m]
        result[:-1] += probes.cpu()
        result[-1] += block.square().sum().cpu()
    return result
