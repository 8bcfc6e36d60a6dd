"""From sketches to factors: one pass over all targets that applies an update rule (method.md §2).

Pure: sketches and moments in, new factors and moments out. The formulas are those of `row_adam.py` and
`projection.py`; here is only their order, and the one place where a non-finite sketch is caught.

Shapes: S sketch [d, r], U factor [d, r], v row moment [d].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .distributed import Reduce
from .projection import lifted_square
from .row_adam import lr_factor, next_row_moment, paper_factor, paper_scale, wide
from .sketch import Projections
from .targets import Target
from .values import NonFiniteSketch


@dataclass(frozen=True)
class Rule:
    """The numbers of one step; `step_size` is the learning rate or the update ratio, `step` is t = 1, 2, …"""

    name: str
    step_size: float
    step: int
    tokens: float
    beta2: float
    eps: float
    max_grad_norm: float | None


@dataclass(frozen=True, eq=False)
class Directions:
    """Factors and moments by target name, ‖S A‖ over all of them before clipping, and the clip factor."""

    norm: float
    clip: float = 1.0
    factors: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, Tensor] = field(default_factory=dict)


def total_tokens(tokens: float, reduce: Reduce) -> float:
    """N over all replicas.

    Raises:
        ValueError: if it is not positive and finite.
    """
    total = float(reduce.total(torch.tensor([float(tokens)], dtype=torch.float64))[0])
    if not (total > 0 and math.isfinite(total)):
        raise ValueError(
            f"tokens is {total}: pass the number of valid generated tokens of the step, at least 1"
        )
    return total


def directions(
    rule: Rule,
    targets: Sequence[Target],
    sketches: Mapping[str, Tensor],
    moments: Mapping[str, Tensor],
    projections: Projections,
    weights_square: Callable[[], float],
) -> Directions:
    """Factors U (rule "paper", c included) or lr·D (rule "lr") for every target; empty without signal.

    Raises:
        NonFiniteSketch: naming the targets whose sketch holds NaN or infinity.
    """
    names = [target.name for target in targets]
    _refuse_non_finite(names, [sketches[name] for name in names])
    norm = math.sqrt(_lifted_total(targets, sketches, projections))
    if not math.isfinite(norm):
        raise NonFiniteSketch(
            "‖S A‖ overflows: scale the loss down, then zero_grad() and go on; nothing was changed"
        )
    if norm == 0.0:
        return Directions(norm=0.0)
    clip = min(1.0, rule.max_grad_norm / norm) if rule.max_grad_norm is not None else 1.0
    shrink = clip if rule.name == "lr" else 1.0 / rule.tokens
    scaled = {name: sketches[name] * shrink if shrink != 1.0 else sketches[name] for name in names}
    new = {
        name: next_row_moment(moments[name].to(scaled[name].device), scaled[name], rule.beta2)
        for name in names
    }
    formula = lr_factor if rule.name == "lr" else paper_factor
    factors = {name: formula(scaled[name], new[name], rule.step, rule.beta2, rule.eps) for name in names}
    step_size = rule.step_size
    if rule.name == "paper":
        proposed = _lifted_total(targets, factors, projections)
        step_size = paper_scale(weights_square(), proposed, rule.step_size)
    return Directions(norm, clip, {name: factor.mul_(step_size) for name, factor in factors.items()}, new)


def _refuse_non_finite(names: Sequence[str], sketches: Sequence[Tensor]) -> None:
    """One transfer to the host for all targets: a sum of finite numbers times zero is zero."""
    device = sketches[0].device
    probes = torch.stack([(sketch * 0).sum().to(device) for sketch in sketches]).tolist()
    bad = [name for name, probe in zip(names, probes, strict=True) if probe != 0]
    if bad:
        raise NonFiniteSketch(
            f"the sketch of {', '.join(bad[:3])}{' …' if len(bad) > 3 else ''} is not finite "
            "(NaN or infinity): look for an overflow in the loss or the inputs, then zero_grad() and go on; "
            "nothing was changed"
        )


def _lifted_total(
    targets: Sequence[Target], factors: Mapping[str, Tensor], projections: Projections
) -> float:
    """Σ ‖F A‖² over the targets, by one Gram matrix per group; one transfer to the host."""
    grams: dict[tuple, Tensor] = {}
    squares = []
    for target in targets:
        factor = factors[target.name]
        key = (target.group, factor.device)
        if key not in grams:
            grams[key] = projections.gram(target, factor.device, factor.dtype)
        squares.append(wide(lifted_square(factor, grams[key])))
    # a Gram matrix of low rank may give −1e-20 instead of 0
    return max(0.0, float(torch.stack([square.to(squares[0].device) for square in squares]).sum()))
