"""The play widget of lesson 02: estimator, answers per step and a bonus for everybody → how gradient estimates scatter.

B  answers      n  estimates      D  parameters of the policy (9)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from logra_lab.lab import small_world as world
from logra_lab.lab.lesson02 import Cloud, Loss, Rule, estimates
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure

ANSWERS = (8, 16, 32, 64, 128, 256)
BONUSES = (0, 1, 3, 10)


def explorer(policy: Tensor, rules: Mapping[str, Rule], loss: Loss) -> Callable[[str, int, int], Picture]:
    """The callback of the widget: (estimator, answers per step, bonus) → picture."""
    truth = world.true_gradient(policy).flatten()  # [D]

    def draw(estimator: str, answers: int, bonus: int) -> Picture:
        found = estimates(policy, rules[estimator], loss, answers=answers, bonus=bonus)
        return draw_cloud(found, truth, estimator, answers, bonus)

    return draw


def draw_cloud(found: Tensor, truth: Tensor, estimator: str, answers: int, bonus: int) -> Picture:
    """One cloud of estimates [n, D] from the side and as a histogram of how far each points uphill."""
    cloud = Cloud.of(found, truth)
    along = found @ truth / truth.square().sum()  # [n]
    across = sideways(found, truth)
    uphill = (found @ truth > 0).float().mean().item()
    figure, (left, right) = new_figure(9.2, 3.5, columns=2)
    left.plot(along, across, ".", color=COLOURS[0], alpha=0.4, markersize=5)
    left.plot([1], [0], "*", color="black", markersize=15, label="truth")
    left.set(xlim=(-6, 8), ylim=(-7, 7), xlabel="along the truth", ylabel="across it", title="Estimates")
    left.legend(loc="upper left")
    right.hist(along.clamp(-6, 8), bins=[i / 2 for i in range(-12, 17)], color=COLOURS[4])
    for place, words in ((0, "uphill →"), (1, None)):
        right.axvline(place, color=INK, linewidth=1.2, linestyle="-" if words is None else "--")
    right.set(
        xlabel="along the truth", ylabel="estimates", title="How far uphill", xlim=(-6, 8), ylim=(0, 200)
    )
    right.text(1.3, 185, "uphill →", fontsize=10)
    caption = (
        f"Estimator: {estimator}; {answers} answers a step, {bonus} added to every reward: {uphill:.0%} of the "
        f"estimates point uphill. Their noise is {cloud.noise:.2f} times their mean, which holds {cloud.slope:.2f} "
        f"times the truth and has a cosine of {cloud.cosine:.2f} with it."
    )
    alt = (
        f"Left: {len(found)} gradient estimates ({estimator}, {answers} answers, bonus {bonus}) around the true "
        "gradient, which is a star. Right: histogram of their parts along the truth, with marks at 0 and at 1."
    )
    return Picture(figure, alt, caption)


def sideways(found: Tensor, truth: Tensor) -> Tensor:
    """The part [n] of estimates [n, D] along the direction in which they scatter most, at right angles to the truth."""
    unit = truth / truth.norm()
    rest = found - (found @ unit)[:, None] * unit
    widest = torch.linalg.svd(rest - rest.mean(0), full_matrices=False).Vh[0]
    widest = widest * torch.sign(widest[widest.abs().argmax()])
    return rest @ widest / truth.norm()
