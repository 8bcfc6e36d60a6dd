"""The pictures of lesson 06: pure functions from numbers to a figure with words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.lab.trust_step import Sweep

LOG_KL = "KL per token (nats)"


def moved_policy(
    tokens: Sequence[str],
    probabilities: Mapping[float, Tensor],
    kl: Mapping[float, float],
    least: float = 2e-3,
) -> Picture:
    """The next token's distribution [V] at one position for several scales of one step; rarer tokens are left out."""
    figure, axes = new_figure(9.6, 2.7, 1, len(probabilities), sharey=True)
    before = next(iter(probabilities.values()))
    kept = [i for i in range(len(tokens)) if max(float(p[i]) for p in probabilities.values()) >= least]
    for place, (scale, after) in zip(axes, probabilities.items()):
        place.bar(range(len(kept)), after[kept].tolist(), color=COLOURS[0], label="after the step")
        place.plot(range(len(kept)), before[kept].tolist(), "o", color=INK, markersize=4, label="before")
        place.set_xticks(range(len(kept)), [tokens[i] for i in kept], fontsize=9)
        place.set_title(f"α = {scale:g},  KL {kl[scale]:.2g}", fontsize=11)
        place.grid(axis="x", visible=False)
    axes[0].set(ylabel="probability", ylim=(0, 1.05))
    axes[0].legend(loc="upper right", fontsize=9)
    words = "; ".join(f"at α = {scale:g} the KL is {kl[scale]:.2g}" for scale in probabilities)
    alt = f"Bars: probabilities of the next token at one position, for growing steps along one direction; {words}."
    caption = "One position of one answer. Dots: the policy before the step. Bars: after it, at four sizes of one step."
    return Picture(figure, alt, caption)


def predicted_against_measured(sweeps: Sequence[Sweep]) -> Picture:
    """The signature figure: six decades of KL for several steps, the bend, and the floor of bf16."""
    figure, (left, right) = new_figure(9.6, 4.2, 1, 2, width_ratios=(1.15, 1))
    ends = [float(sweeps[0].predicted.min()), float(sweeps[0].predicted.max())]
    left.plot(ends, ends, color="#888888", linewidth=1.2, linestyle="-", label="predicted = measured")
    right.axhline(1.0, color="#888888", linewidth=1.2)
    for number, sweep in enumerate(sweeps):
        label = (number == 0) * 1
        x = sweep.predicted
        kept = dict(color=style(0)["color"], linestyle="-", marker="o", markersize=4, linewidth=1.4)
        half = dict(color=style(1)["color"], linestyle="--", marker="s", markersize=4, linewidth=1.4)
        left.plot(x, sweep.measured, **kept, label="measured in fp32" if label else None)
        left.plot(x, sweep.half, **half, label="measured in bf16" if label else None)
        right.plot(x, sweep.predicted / sweep.measured, **kept)
        right.plot(x, sweep.predicted / sweep.half, **half)
    for axes in (left, right):
        axes.set(xscale="log", xlabel=f"predicted {LOG_KL}")
    left.set(yscale="log", ylabel=f"measured {LOG_KL}", title="Foretold and then measured")
    left.legend(loc="upper left")
    right.set(ylabel="predicted / measured", title="The same as a ratio", ylim=(0, 2.2))
    right.text(4e-4, 0.2, "bf16: rounding\nhides small steps", color=style(1)["color"])
    right.text(2e-4, 1.5, "large steps:\nthe parabola bends", color=style(0)["color"])
    return Picture(figure, sweep_words(sweeps), sweep_words(sweeps))


def ratio_at(sweeps: Sequence[Sweep], kl: float) -> float:
    """Mean predicted / measured (fp32) at the size whose predicted KL is nearest to `kl`."""
    near = [(sweep.predicted.log() - math.log(kl)).abs().argmin() for sweep in sweeps]
    return sum(float(s.predicted[i] / s.measured[i]) for s, i in zip(sweeps, near)) / len(sweeps)


def worst_miss(sweeps: Sequence[Sweep], kl: float) -> float:
    """Largest |predicted / measured − 1| (fp32) over the steps, at the size nearest to `kl`."""
    return max(abs(ratio_at([sweep], kl) - 1) for sweep in sweeps)


def noise_floor(sweeps: Sequence[Sweep]) -> float:
    """What bf16 measures at the smallest step, whose true KL is far below: its rounding."""
    return sum(float(sweep.half[sweep.predicted.argmin()]) for sweep in sweeps) / len(sweeps)


def sweep_words(sweeps: Sequence[Sweep]) -> str:
    """What the sweep shows, in a sentence."""
    off = {kl: worst_miss(sweeps, kl) for kl in (1e-3, 3e-2, 0.3)}
    return (
        f"{len(sweeps)} steps at {len(sweeps[0].predicted)} sizes each. The forecast is off by at most {off[1e-3]:.1%} "
        f"at a KL of 0.001, by {off[3e-2]:.0%} at 0.03 and by {off[0.3]:.0%} at 0.3. "
        f"Measured in bf16, no step looks smaller than {noise_floor(sweeps):.1g}."
    )


FREE_SERIES = {
    "own": "on its own batch",
    "own_over_fresh": "on its own batch, over the forecast for fresh answers",
    "fresh": "on fresh answers (the control)",
}


def free_against_fresh(runs: Sequence[Mapping[str, Any]]) -> Picture:
    """The same-batch estimate over the forward-mode one, by batch size, on own and on fresh answers."""
    figure, axes = new_figure(8.0, 4.0)
    sizes = batch_sizes(runs)
    for number, (name, label) in enumerate(FREE_SERIES.items()):
        for size in sizes:
            values = free_ratios(runs, size, name)
            axes.plot([size] * len(values), values, "osD"[number], color=style(number)["color"], alpha=0.3)
        axes.plot(
            sizes,
            [middle(runs, size, name) for size in sizes],
            label=label,
            marker="osD"[number],
            **style(number),
        )
    axes.axhline(1.0, color="#888888", linewidth=1.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_yscale("log")
    axes.set_yticks([0.5, 1, 2, 5, 10, 20, 50], ["0.5", "1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()
    axes.set(xlabel="answers that made the step", ylabel="ratio", ylim=(0.4, 150))
    axes.set_title("The free estimate, divided by the forward-mode forecast")
    axes.legend(loc="upper right")
    return Picture(figure, free_words(runs), free_words(runs))


def batch_sizes(runs: Sequence[Mapping[str, Any]]) -> list[int]:
    """The recorded batch sizes, smallest first."""
    return sorted({run["prompts"] for run in runs})


def free_ratios(runs: Sequence[Mapping[str, Any]], prompts: int, name: str) -> list[float]:
    """One series at one batch size, a value per seed."""
    chosen = [run for run in runs if run["prompts"] == prompts]
    if name == "own_over_fresh":
        return [run["own"] / run["fresh_over_own"] for run in chosen]
    return [run[name] for run in chosen]


def middle(runs: Sequence[Mapping[str, Any]], prompts: int, name: str) -> float:
    """The median over seeds of one series at one batch size."""
    return median(free_ratios(runs, prompts, name))


def free_words(runs: Sequence[Mapping[str, Any]]) -> str:
    """What the free estimate does, in a sentence."""
    sizes = batch_sizes(runs)
    parts = [", ".join(f"{middle(runs, size, name):.1f}" for size in sizes) for name in FREE_SERIES]
    counts = ", ".join(map(str, sizes))
    return (
        f"Medians over seeds, for {counts} answers. On its own batch: {parts[0]}; "
        f"over what fresh answers cost: {parts[1]}; on fresh answers, the control: {parts[2]}. "
        "Faint marks: single seeds."
    )


def over_budget(ratios: Mapping[str, Sequence[float]]) -> Picture:
    """Measured KL over budget for steps scaled by different probes."""
    figure, axes = new_figure(6.4, 3.0)
    for number, (name, values) in enumerate(ratios.items()):
        axes.plot(
            range(1, len(values) + 1),
            list(values),
            "os"[number % 2],
            label=name,
            color=style(number)["color"],
            markersize=8,
        )
    axes.axhline(1.0, color="#888888", linewidth=1.2)
    longest = max(len(values) for values in ratios.values())
    axes.set_xticks(range(1, longest + 1))
    axes.set(
        xlabel="step (one seed each)", ylabel="measured KL / budget", title="Measured on the sampled tokens"
    )
    axes.set(xlim=(0.5, longest + 0.5), ylim=(0, max(max(values) for values in ratios.values()) * 1.15))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    words = "; ".join(f"{name}: {min(v):.2f} to {max(v):.2f}" for name, v in ratios.items())
    return Picture(
        figure,
        f"Measured KL over budget, a mark per step. {words}.",
        f"Measured KL over the budget. {words}.",
    )


def spread_over_tokens(values: Tensor, title: str = "Predicted KL of each sampled token") -> Picture:
    """How unevenly a step's KL [n] lies over the tokens."""
    figure, axes = new_figure(7.6, 3.0)
    shown = values.clamp_min(float(values.mean()) * 1e-5)
    edges = torch.logspace(math.log10(float(shown.min())), math.log10(float(shown.max()) * 1.01), 40).tolist()
    axes.hist(shown.tolist(), bins=edges, color=COLOURS[0])
    worst = float(values.float().quantile(0.99))
    for place, name, number in ((float(values.mean()), "mean", 1), (worst, "99th percentile", 2)):
        axes.axvline(place, label=f"{name}: {place:.2g}", **style(number))
    axes.set(xscale="log", xlabel=LOG_KL, ylabel="tokens", title=title)
    axes.legend(loc="upper left")
    share = float(values.topk(max(1, len(values) // 10)).values.sum() / values.sum())
    words = (
        f"{len(values)} tokens. Mean {float(values.mean()):.2g}, 99th percentile {worst:.2g}, "
        f"{worst / float(values.mean()):.0f} times as much; the top tenth of the tokens carries {share:.0%} of the KL."
    )
    return Picture(figure, f"A histogram on a log scale. {words}", words)
