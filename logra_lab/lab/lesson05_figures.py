"""Figures of lesson 05: moments across a refresh, displacement kept (also to play with), the run that bf16 loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from logra_lab.lab.lesson05 import Kept, Trace, stored_four_ways
from logra_lab.lab.plots import COLOURS, Picture, draw_band, new_figure, style

NUMBERS = {"fp32": 0, "split": 2, "stochastic": 5, "nearest": 1}
NAMES = {"fp32": "fp32", "split": "split", "stochastic": "bf16, stochastic", "nearest": "bf16, nearest"}


# ---------------------------------------------------------------- moments across a refresh


def refresh_picture(study: Mapping[str, Sequence[Trace]], period: int) -> Picture:
    """Size and cosine of the update over steps, each rule a band over seeds; A is drawn anew every `period` steps."""
    figure, (left, right) = new_figure(9.2, 3.9, columns=2)
    for number, (name, traces) in enumerate(study.items()):
        steps = range(1, len(traces[0].size) + 1)
        draw_band(left, steps, [trace.size for trace in traces], name, number)
        draw_band(right, steps, [trace.cosine for trace in traces], name, number)
    for axes in (left, right):
        for start in range(period, len(traces[0].size), period):
            axes.axvline(start + 0.5, color="#777777", linewidth=1, linestyle=":")
        axes.set(xlabel=f"step (dotted: A is drawn anew, every {period} steps)")
    left.set(title="Size of the update", ylabel="RMS per entry", ylim=(0, None))
    right.set(title="Direction of the update", ylabel="cosine to the gradient's rows", ylim=(0, None))
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    caption = refresh_words(study, period)
    alt = (
        f"Two panels over steps, with A drawn anew every {period}. Left: update size; right: cosine to the gradient. "
        f"Bands over {len(traces)} seeds. {caption}"
    )
    return Picture(figure, alt, caption)


def refresh_words(study: Mapping[str, Sequence[Trace]], period: int) -> str:
    """What happens at the first refresh, in numbers: means over seeds just before and just after."""
    parts = []
    for name, traces in study.items():
        size = torch.tensor([trace.size for trace in traces]).mean(0)
        cosine = torch.tensor([trace.cosine for trace in traces]).mean(0)
        before, after = period - 1, period
        parts.append(
            f"{name}: size {size[before]:.2f} → {size[after]:.2f}, cosine {cosine[before]:.3f} → {cosine[after]:.3f}"
        )
    return "At the first refresh, " + "; ".join(parts) + "."


# ---------------------------------------------------------------- displacement kept


def kept_picture(update_ratio: float) -> Picture:
    """Share of the displacement kept and error over 300 steps at the four precisions."""
    kept = stored_four_ways(update_ratio)
    figure, (left, right) = new_figure(9.2, 3.6, columns=2, width_ratios=(1.25, 1))
    draw_share(left, kept)
    draw_error(right, kept)
    caption = kept_words(kept, update_ratio)
    alt = (
        "Left: lines of the share of fp32's displacement that each precision keeps, over steps; right: bars of the "
        f"error at the end. {caption}"
    )
    return Picture(figure, alt, caption)


def draw_share(axes: Axes, kept: Mapping[str, Kept]) -> None:
    """The share kept, over steps."""
    for name, curve in kept.items():
        axes.plot(
            curve.steps, [100 * share for share in curve.share], label=NAMES[name], **style(NUMBERS[name])
        )
    axes.set(title="Displacement kept", xlabel="step", ylabel="% of fp32's", ylim=(-8, 125))
    axes.legend(loc="center right")


def draw_error(axes: Axes, kept: Mapping[str, Kept]) -> None:
    """The error at the end, in units of the displacement."""
    errors = {NAMES[name]: curve.error[-1] for name, curve in kept.items()}
    axes.barh(
        list(errors), list(errors.values()), color=[COLOURS[NUMBERS[name]] for name in kept], height=0.6
    )
    for row, value in enumerate(errors.values()):
        axes.text(value, row, f" {value:.2f}", va="center")
    axes.set(
        title="Error at the end", xlabel="error / displacement", xlim=(0, 1.25 * max(1.0, *errors.values()))
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def kept_words(kept: Mapping[str, Kept], update_ratio: float) -> str:
    """The sentence under the picture."""
    last = {name: curve.share[-1] for name, curve in kept.items()}
    steps = kept["fp32"].steps[-1]
    exact = "bit for bit" if kept["split"].error[-1] == 0 else f"but for {kept['split'].error[-1]:.1e}"
    return (
        f"{steps} steps, each {update_ratio:.0e} of the weights' norm. Kept of fp32's displacement: bf16 rounded to "
        f"nearest {last['nearest']:.1%}, stochastic {last['stochastic']:.1%} with an error of "
        f"{kept['stochastic'].error[-1]:.2f} displacements, split {last['split']:.0%}, {exact}."
    )


# ---------------------------------------------------------------- the run that bf16 loses


def run_picture(record: Mapping[str, Any], live: Mapping[str, Sequence[float]]) -> Picture:
    """Share of right answers over the recorded runs, bands over seeds, and the first steps run again here as crosses.

    `live` holds, by precision, block means of seed 0 from this machine.
    """
    figure, axes = new_figure(8.2, 4.0)
    block = record["block"]
    for precision in NAMES:
        curves = [run["curve"] for run in record["runs"] if run["precision"] == precision]
        middle = [block * (i + 0.5) + 0.5 for i in range(len(curves[0]))]
        draw_band(axes, middle, 100 * torch.tensor(curves), NAMES[precision], NUMBERS[precision])
    for precision, values in live.items():
        middle = [block * (i + 0.5) + 0.5 for i in range(len(values))]
        colour = COLOURS[NUMBERS[precision]]
        axes.plot(
            middle, [100 * value for value in values], "x", color=colour, markersize=9, markeredgewidth=2
        )
    axes.plot([], [], "x", color="#444444", label="seed 0, run again here")
    axes.set(title="One RL run, stored four ways", xlabel="step", ylabel="right answers while training, %")
    axes.legend(loc="upper left")
    caption = run_words(record)
    return Picture(figure, f"Lines of the share of right answers over steps. {caption}", caption)


def run_words(record: Mapping[str, Any]) -> str:
    """Held-out accuracy before and after, by precision: mean, lowest and highest of the seeds."""
    seeds = len(record["seeds"])
    before = [run["before"] for run in record["runs"] if run["precision"] == "fp32"]
    parts = []
    for precision, name in NAMES.items():
        after = [run["after"] for run in record["runs"] if run["precision"] == precision]
        parts.append(f"{name} {sum(after) / len(after):.1%} [{min(after):.1%}, {max(after):.1%}]")
    return (
        f"Recorded, {seeds} seeds (band: lowest to highest). Held-out accuracy from {sum(before) / len(before):.1%} "
        f"to: {', '.join(parts)}."
    )


# ---------------------------------------------------------------- weight decay and play


def decay_picture(sizes: Mapping[str, Sequence[float]], decay: float) -> Picture:
    """RMS of a weight over steps, decay before and after the update."""
    figure, axes = new_figure(7.0, 3.1)
    for number, (name, values) in enumerate(sizes.items()):
        axes.plot(range(1, len(values) + 1), values, label=name, **style(number))
    axes.set(
        title="Same update, same decay, two orders", xlabel="step", ylabel="RMS of the weight", ylim=(0, None)
    )
    axes.legend()
    ends = {name: values[-1] for name, values in sizes.items()}
    first, last = ends.values()
    caption = (
        f"With a constant update and decay {decay:g} a step, the weight settles at {first:.4f} (decay first) or "
        f"{last:.4f} (decay last): {1 - last / first:.0%} of every update was taken off again."
    )
    return Picture(figure, f"Two curves that settle at different heights. {caption}", caption)


def play_precision(update_ratio: float, shown: str) -> Picture:
    """The play widget: one step size, at all precisions; `shown` is "displacement kept" or "error"."""
    kept = stored_four_ways(update_ratio)
    figure, axes = new_figure(8.0, 3.0)
    if shown == "error":
        draw_error(axes, kept)
    else:
        draw_share(axes, kept)
    return Picture(
        figure,
        f"{shown} at four precisions. {kept_words(kept, update_ratio)}",
        kept_words(kept, update_ratio),
    )
