"""The widget of lesson 07 (arms, metric, seeds) and the sick runs of its diagnosis exercise.

Leaves out: smoothing. A curve is what the run wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from logra_lab.lab.lesson07 import final, labels, points, runs_of
from logra_lab.lab.plots import Picture, new_figure, style

METRICS = {
    "accuracy": "share of right held-out answers",
    "measured_kl": "measured KL per token",
    "entropy": "entropy, nats per token",
    "length": "answer length, tokens",
    "sketch_norm": "norm of sketch or gradient",
}
ALL = "all"


def arms_of(summary: Mapping[str, Any]) -> list[str]:
    """Every recorded arm as "panel / label"."""
    panels = dict.fromkeys(run["panel"] for run in summary["runs"])
    return [f"{panel} / {label}" for panel in panels for label in labels(summary, panel)]


def explorer(summary: Mapping[str, Any]) -> Callable[[str, str, str, str], Picture]:
    """The callback of the widget: (first arm, second arm, metric, seed) → picture of both."""

    def draw(first: str, second: str, metric: str, seed: str) -> Picture:
        figure, axes = new_figure(7.6, 3.8)
        told = []
        for number, arm in enumerate(dict.fromkeys((first, second))):
            runs = [r for r in _runs(summary, arm) if seed in (ALL, str(r["seed"]))]
            for i, run in enumerate(runs):
                steps, values = points(run, metric)
                axes.plot(steps, values, label=arm if i == 0 else None, **style(number))
            told.append(_sentence(arm, runs, metric))
        axes.set(xlabel="updates", ylabel=METRICS[metric])
        if metric == "measured_kl":
            axes.set_yscale("log")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best")
        alt = f"Curves of {METRICS[metric]} over updates for {first} and {second}, seeds: {seed}."
        return Picture(figure, alt, " ".join(told))

    return draw


def _runs(summary: Mapping[str, Any], arm: str) -> Sequence[Mapping[str, Any]]:
    panel, _, label = arm.partition(" / ")
    return runs_of(summary, panel, label)


def _sentence(arm: str, runs: Sequence[Mapping[str, Any]], metric: str) -> str:
    known = [points(run, metric)[1] for run in runs]
    known = [values for values in known if values]
    if not known:
        return f"{arm}: {METRICS[metric]} was not recorded."
    ends = ", ".join(f"{values[-1]:.3g}" for values in known)
    accuracy = ", ".join(f"{final(run):.1%}" for run in runs)
    return f"{arm}: {METRICS[metric]} ends at {ends}; final accuracy {accuracy}."


def clues(run: Mapping[str, Any]) -> dict[str, float]:
    """What a glance at a run's log tells: the numbers of the diagnosis exercise."""
    curves = run["curves"]
    kl = [value for value in curves["measured_kl"] if value is not None]
    tail = curves["right"][-10:]
    return {
        "largest_kl": max(kl) if kl else 0.0,
        "no_signal": sum(curves["no_signal"]) / len(curves["no_signal"]),
        "gain": sum(tail) / len(tail) - curves["right"][0],
    }
