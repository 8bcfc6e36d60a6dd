"""RowAdam: one second moment per output row, and the two update rules built on it (method.md §2).

    v_i ← β₂ v_i + (1 − β₂) mean_j S_ij²

Indexed by output row, v means the same before and after A is drawn anew: E_A[S_ij²] = ‖g_i‖²/r whatever
A is. Every function here is pure: tensors in, new tensors out, nothing remembered.

Left out: a first moment. Its coordinates would be those of an A that is gone at the next update.

Shapes: S sketch [d, r], v row moment [d], U or D factor [d, r].
"""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x in float64, where the device has it (Apple's mps has not): for short vectors and scalars."""
    return x if x.device.type == "mps" else x.double()


def next_row_moment(moment: Tensor, sketch: Tensor, beta2: float) -> Tensor:
    """β₂ v + (1 − β₂) mean_j S_ij² [d], fp32 (method.md §2)."""
    return torch.lerp(moment, sketch.square().mean(dim=1), 1 - beta2)  # [d]


def row_rms(moment: Tensor, step: int, beta2: float) -> Tensor:
    """ρ_i = √(v_i / (1 − β₂^t)) [d] with t = 1, 2, …: the moment starts at zero and is too small at first."""
    return (wide(moment) / (1 - beta2**step)).sqrt()  # [d]


def row_scale(moment: Tensor, step: int, beta2: float, eps: float) -> Tensor:
    """s_i ∝ 1/(ρ_i + max(ε·mean ρ, tiny)) [d] with RMS 1 over the layer (method.md §2, rule "paper")."""
    rho = row_rms(moment, step, beta2)
    floor = (eps * rho.mean()).clamp_min(torch.finfo(torch.float32).tiny)
    inverse = (rho + floor).reciprocal()
    return inverse / inverse.square().mean().sqrt()  # [d]


def paper_factor(sketch: Tensor, moment: Tensor, step: int, beta2: float, eps: float) -> Tensor:
    """U = (s ⊙ S̃)·‖S̃‖/‖s ⊙ S̃‖ [d, r]: rows rebalanced, the layer's norm kept (method.md §2, rule "paper").

    `sketch` is S̃ = S / N, `moment` the moment *after* this step's update. A layer without signal gives 0.
    The common factor c over all layers is `paper_scale`.
    """
    scaled = sketch * row_scale(moment, step, beta2, eps)[:, None].to(sketch.dtype)  # [d, r]
    before, after = wide(sketch).norm(), wide(scaled).norm()
    keep = torch.where(after > 0, before / after, torch.zeros_like(after))
    return scaled.mul_(keep.to(sketch.dtype))


def paper_scale(weights_square: float, proposed_square: float, update_ratio: float) -> float:
    """c = ρ_u √(Σ‖W‖² / Σ‖U A‖²): the step is a fixed fraction of the weights (method.md §2, rule "paper").

    0 where nothing is proposed.
    """
    return update_ratio * (weights_square / proposed_square) ** 0.5 if proposed_square > 0 else 0.0


def lr_factor(sketch: Tensor, moment: Tensor, step: int, beta2: float, eps: float) -> Tensor:
    """D = S / (ρ + ε) [d, r], so that D A has RMS ≈ 1 per element (method.md §2, rule "lr")."""
    return sketch / (row_rms(moment, step, beta2) + eps)[:, None].to(sketch.dtype)  # [d, r]
