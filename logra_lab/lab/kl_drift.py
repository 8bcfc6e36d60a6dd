"""The play widget of lesson 06: predicted KL, measured KL and α over the steps of a recorded run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from logra_lab.lab.kl_recorded import BUDGETS, RANKS, STEP_SIZES
from logra_lab.lab.plots import Picture, new_figure, style
from logra_lab.lab.widgets import Choice, Slider

NO_BUDGET = "none"  # not None: a drop-down shows nothing chosen for that
BUDGET_OPTIONS = tuple(
    ("no budget", NO_BUDGET) if budget is None else (f"{budget:g}", budget) for budget in BUDGETS
)


def controls() -> dict[str, Choice]:
    """The controls that fit the recorded grid."""
    sizes = tuple((f"{size:g}", size) for size in STEP_SIZES)
    return {
        "step_size": Slider("step size", sizes, STEP_SIZES[1]),
        "rank": Slider("rank r", RANKS, RANKS[1]),
        "budget": Choice("KL budget", BUDGET_OPTIONS, BUDGETS[1]),
    }


def chosen_run(
    recorded: Mapping[str, Any], step_size: float, rank: int, budget: float | None
) -> Mapping[str, Any]:
    """The recorded run with these settings; raises KeyError with those there are."""
    for run in recorded["runs"]:
        if (run["step_size"], run["rank"], run["budget"]) == (step_size, rank, budget):
            return run
    there = sorted({(run["step_size"], run["rank"]) for run in recorded["runs"]})
    raise KeyError(f"no run with step size {step_size}, rank {rank}, budget {budget}; there are {there}")


def draw(recorded: Mapping[str, Any], step_size: float, rank: int, budget: float | str | None) -> Picture:
    """Predicted and measured KL per step above, α below; the caption says what came out."""
    budget = None if isinstance(budget, str) else budget  # NO_BUDGET is the one text among the choices
    run = chosen_run(recorded, step_size, rank, budget)
    steps = range(1, len(run["predicted"]) + 1)
    figure, (above, below) = new_figure(8.0, 4.6, 2, 1, sharex=True, height_ratios=(2, 1))
    above.plot(steps, run["predicted"], label="predicted", marker="o", markersize=4, **style(0))
    above.plot(steps, run["measured"], label="measured", marker="s", markersize=4, **style(1))
    if budget is not None:
        above.axhline(budget, label="budget", color="#888888", linewidth=1.2, zorder=0)
    above.set(
        yscale="log",
        ylim=(5e-5, 5),
        ylabel="KL per token",
        title="Foretold, then measured",
    )
    above.legend(loc="lower right", bbox_to_anchor=(1.0, 0.98), ncols=3)
    below.plot(steps, run["scale"], marker="o", markersize=4, **style(3))
    below.axhline(1.0, color="#888888", linewidth=1.2)
    below.set(xlabel="step", xlim=(0, len(steps) + 1), ylabel="scale α", ylim=(0, 3.2))
    caption = sentence(run)
    return Picture(figure, f"Two curves of KL per step on a log scale, and α below. {caption}", caption)


def sentence(run: Mapping[str, Any]) -> str:
    """What a run did, in words."""
    pairs = [(p, m) for p, m in zip(run["predicted"], run["measured"]) if p is not None and m]
    predicted, measured = (sum(column) / len(pairs) for column in zip(*pairs))
    budget = "no budget" if run["budget"] is None else f"budget {run['budget']:g}"
    scales = [scale for scale in run["scale"] if scale is not None]
    alpha = (
        f"from {min(scales):.2g} to {max(scales):.2g}"
        if min(scales) < max(scales)
        else f"always {scales[0]:.2g}"
    )
    return (
        f"Step size {run['step_size']:g}, rank {run['rank']}, {budget}: "
        f"on average predicted {predicted:.2g}, measured {measured:.2g} "
        f"(predicted / measured {predicted / measured:.2f}); α {alpha}; "
        f"right answers {early(run['right']):.0%} at first, {late(run['right']):.0%} at the end."
    )


def early(values: Sequence[float]) -> float:
    """Mean of the first four."""
    return sum(values[:4]) / len(values[:4])


def late(values: Sequence[float]) -> float:
    """Mean of the last four."""
    return sum(values[-4:]) / len(values[-4:])
