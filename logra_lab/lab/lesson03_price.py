"""What the noise of a sketch costs in KL: the last figure of lesson 03.

Two steps of the same first-order improvement are compared, the dense gradient and its lifted sketch, with squared norm
and with KL as rulers. A control puts as much noise where the policy is not flat.

Shapes: d output rows of a weight, k its input columns, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from logra_lab.lab.gradients import GradientStudy, inner, measured_kl, score_noise
from logra_lab.lab.lesson03 import SEED, plain_ticks, slope
from logra_lab.lab.plots import INK, Picture, draw_band, new_figure
from logra_lab.method.projection import lift, project, rademacher


def price(view: GradientStudy, ranks: Sequence[int], draws: int, dense_kl: float = 1e-4) -> dict[str, Tensor]:
    """What a step costs relative to the dense one at equal first-order improvement, each [draws, ranks].

    "norm": ‖ΔW‖²; "sketch": KL with the sketch's noise; "control": KL with as much noise along the answers' own scores.
    The dense step G is scaled to a KL of `dense_kl`.
    """
    square = view.square
    trial = 1e-3 / math.sqrt(square)
    size = trial * math.sqrt(dense_kl / measured_kl(view, scaled(view.dense, trial)))
    base = measured_kl(view, scaled(view.dense, size))
    found: dict[str, list[list[float]]] = {"norm": [], "sketch": [], "control": []}
    for update in range(draws):
        scores = orthogonal(score_noise(view, update), view.dense)
        noises = [sketch_noise(view, rank, update) for rank in ranks]
        controls = [alike(scores, noise) for noise in noises]
        found["norm"].append([1 + inner(noise, noise) / square for noise in noises])
        for name, family in (("sketch", noises), ("control", controls)):
            steps = [scaled(plus(view.dense, noise), size) for noise in family]
            found[name].append([measured_kl(view, step) / base for step in steps])
    return {name: torch.tensor(rows) for name, rows in found.items()}


def sketch_noise(view: GradientStudy, rank: int, update: int) -> dict[str, Tensor]:
    """c Ĝ − G per target, with the c at which ⟨c Ĝ, G⟩ = ‖G‖²: as much first-order improvement as G itself."""
    estimates = {}
    for target in view.targets:
        a = rademacher(SEED, update, target.group, rank, target.columns)
        estimates[target.name] = lift(project(view.dense[target.name], a), a)
    c = view.square / inner(estimates, view.dense)
    return {name: c * matrix - view.dense[name] for name, matrix in estimates.items()}


def orthogonal(noise: Mapping[str, Tensor], dense: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`noise` per target without its part along G, so that it changes no first-order improvement."""
    return {name: matrix - slope(matrix, dense[name]) * dense[name] for name, matrix in noise.items()}


def alike(noise: Mapping[str, Tensor], model: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`noise` with the length of `model` in every target."""
    return {name: matrix * (model[name].norm() / matrix.norm()) for name, matrix in noise.items()}


def scaled(step: Mapping[str, Tensor], factor: float) -> dict[str, Tensor]:
    """A step times a number."""
    return {name: factor * matrix for name, matrix in step.items()}


def plus(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sum of two steps."""
    return {name: a[name] + b[name] for name in a}


def draw_price(costs: Mapping[str, Tensor], ranks: Sequence[int], shown: int) -> Picture:
    """Squared norm, KL of the sketch and KL of the control against rank; the caption reads them at rank `shown`."""
    figure, axes = new_figure(8.4, 3.9)
    labels = {
        "norm": "squared norm of the step",
        "control": "KL, as much noise along the scores",
        "sketch": "KL, sketched step",
    }
    for number, (name, label) in enumerate(labels.items()):
        draw_band(axes, ranks, costs[name], label, number)
    axes.axhline(1.0, color=INK, linewidth=1.0)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="rank r", xticks=ranks, xticklabels=[str(r) for r in ranks])
    axes.set(ylabel="times the dense step", title="The same improvement, measured with two rulers")
    plain_ticks(axes, (1, 10, 100))
    axes.legend(loc="upper right")
    norm, control, kl = (costs[name].mean(0)[list(ranks).index(shown)].item() for name in labels)
    alt = (
        "Cost of a sketched step relative to the dense step against rank, on a log scale: its squared norm is many "
        "times larger and falls with rank; its KL stays near one at every rank; as much noise along the answers' "
        "scores costs clearly more KL."
    )
    caption = (
        f"At rank {shown} the sketched step is {norm:.1f} times the dense one in squared norm and {kl:.2f} times in "
        f"KL; as much noise along the scores costs {control:.1f} times the KL. Bands: least and most of the draws."
    )
    return Picture(figure, alt, caption)
