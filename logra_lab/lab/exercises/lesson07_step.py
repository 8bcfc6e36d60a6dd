"""The first exercise of lesson 07: the whole step, put together from the functions of lessons 03 to 06.

Shapes: S sketch [d, r], A projection [r, k], W weight [d, k], v row moment [d].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Slip, exercise
from logra_lab.method.row_adam import next_row_moment, paper_factor, paper_scale
from logra_lab.method.trust_region import step_scale

BETA2, EPS, RATIO, ALPHA_MAX = 0.95, 1e-8, 3e-3, 3.0
Tensors = Mapping[str, Tensor]
Predict = Callable[[Tensors], float]


def layers(
    seed: int = 0,
) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    """Sketches, moments, projections and weights of two layers of different size."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"q_proj": (5, 7), "up_proj": (9, 6)}
    sketches = {n: torch.randn(d, 4, generator=generator) * 3 for n, (d, _) in sizes.items()}
    moments = {n: torch.rand(d, generator=generator) + 0.1 for n, (d, _) in sizes.items()}
    projections = {n: torch.randn(4, k, generator=generator) / 2 for n, (_, k) in sizes.items()}
    weights = {
        n: torch.randn(d, k, generator=generator) * (1 + i) for i, (n, (d, k)) in enumerate(sizes.items())
    }
    return sketches, moments, projections, weights


def predictor(scale: float) -> Predict:
    """A stand-in for the forward-mode pass: a quadratic form of the factors."""
    return lambda factors: scale * sum(float(u.square().sum()) for u in factors.values())


def _step(scale: float = 2e4, budget: float = 1e-2, seed: int = 0) -> tuple:
    return (*layers(seed), 4, predictor(scale), budget)


def _assemble(
    *,
    fresh: bool = True,
    common: bool = True,
    judge_scaled: bool = True,
    apply: bool = True,
    two_sided: bool = True,
    sign: float = -1.0,
):
    """The step, or the step with one mistake in it."""

    def assemble(sketches, moments, projections, weights, step, predict, budget):
        new = {n: next_row_moment(moments[n], sketches[n], BETA2) for n in sketches}
        used = new if fresh else moments
        factors = {n: paper_factor(sketches[n], used[n], step, BETA2, EPS) for n in sketches}
        lifted = {n: (factors[n] @ projections[n]).square().sum().item() for n in factors}
        sizes = {n: weights[n].square().sum().item() for n in weights}
        if common:
            c = dict.fromkeys(factors, paper_scale(sum(sizes.values()), sum(lifted.values()), RATIO))
        else:
            c = {n: paper_scale(sizes[n], lifted[n], RATIO) for n in factors}
        scaled = {n: c[n] * factors[n] for n in factors}
        alpha = step_scale(predict(scaled if judge_scaled else factors), budget, ALPHA_MAX, two_sided)
        alpha_used = alpha if apply else 1.0
        return {n: sign * alpha_used * scaled[n] @ projections[n] for n in scaled}, new, alpha

    return assemble


@exercise(
    "assemble_step",
    Case(
        "the changes, the moments and α of a step that the budget cuts",
        _step,
        hint="Follow the five lines of the text, in order.",
    ),
    Case(
        "a step that the budget lets grow, up to α = 3",
        lambda: _step(scale=1.0),
        hint="Two-sided: α may exceed 1.",
    ),
    Case("another step, other layers", lambda: _step(scale=0.1, seed=5)),
    slips=(
        Slip("The step climbs the loss: ΔW = −α U A.", _assemble(sign=1.0)),
        Slip(
            "The row scale uses last step's moments. Update v first, then scale by the new one.",
            _assemble(fresh=False),
        ),
        Slip(
            "c is taken per layer. It is one number for all layers: sum the squares first.",
            _assemble(common=False),
        ),
        Slip(
            "The KL is predicted for U before c. Judge the step that would be taken.",
            _assemble(judge_scaled=False),
        ),
        Slip("α is returned but not applied to the changes.", _assemble(apply=False)),
        Slip(
            "α is held at 1. Line 4 says two-sided: up to ALPHA_MAX it may lengthen a step.",
            _assemble(two_sided=False),
        ),
    ),
)
def assemble_step(
    sketches: Tensors,
    moments: Tensors,
    projections: Tensors,
    weights: Tensors,
    step: int,
    predict: Predict,
    budget: float,
) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    """(ΔW [d, k] by layer, new moments [d] by layer, α) of one step under rule "paper" (method.md §2, §3)."""
    return _assemble()(sketches, moments, projections, weights, step, predict, budget)
