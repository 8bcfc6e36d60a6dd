"""The play widget of lesson 03 (rank and steps → error, cosine, bytes) and the figure of its bug.

Shapes: d output rows of a gradient, k its input columns, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from matplotlib.axes import Axes
from torch import Tensor

from logra_lab.lab.lesson03 import cosine, mean_estimates, plain_ticks, relative_error, slope
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.method.projection import projection_key

RANKS = (1, 2, 4, 8, 16, 32, 64, 128)
STEPS = (1, 4, 16, 64)
FLOAT = 4  # bytes of an fp32 number
LARGE = 4096  # rows and columns of a weight of a 7B model
SHOWN = 600  # entries in the scatter


def size(count: float) -> str:
    """A number of bytes in KiB or MiB."""
    return f"{count / 2**20:.4g} MiB" if count >= 2**20 else f"{count / 2**10:.4g} KiB"


def sketch_bytes(rows: int, rank: int) -> int:
    """Bytes of S [d, r] in fp32; G [d, k] is a sketch of "rank" k."""
    return rows * rank * FLOAT


def explorer(gradient: Tensor) -> Callable[[int, int], Picture]:
    """The callback of the widget for one gradient [d, k]: (rank, steps) → picture."""

    @cache
    def mean(rank: int, steps: int) -> Tensor:
        return mean_estimates(gradient, rank, steps)[-1]

    def draw(rank: int, steps: int) -> Picture:
        estimated = mean(rank, steps)
        figure, (left, middle, right) = new_figure(10.6, 3.6, columns=3)
        draw_entries(left, estimated, gradient)
        draw_quality(middle, estimated, gradient, rank, steps)
        rows, columns = gradient.shape
        draw_bytes(right, rows, columns, rank)
        return Picture(figure, explorer_alt(rank, steps), explorer_caption(estimated, gradient, rank, steps))

    return draw


def expected_error(rank: int, columns: int, steps: int) -> float:
    """Relative error of the mean of `steps` sketches: √((k − 1)/(r · steps))."""
    return math.sqrt((columns - 1) / (rank * steps))


def explorer_caption(estimated: Tensor, gradient: Tensor, rank: int, steps: int) -> str:
    """What the picture shows, in numbers."""
    rows, columns = gradient.shape
    error, near = relative_error(estimated, gradient), cosine(estimated, gradient)
    kept, whole = sketch_bytes(rows, rank), sketch_bytes(rows, columns)
    of_steps = "one sketch" if steps == 1 else f"the mean of {steps} sketches"
    return (
        f"Rank {rank}, {of_steps}: relative error {error:.2f} (theory {expected_error(rank, columns, steps):.2f}), "
        f"cosine {near:.2f}. S takes {size(kept)} instead of {size(whole)} ({kept / whole:.1%}); for a "
        f"{LARGE} × {LARGE} weight, {size(sketch_bytes(LARGE, rank))} instead of {size(sketch_bytes(LARGE, LARGE))}."
    )


def explorer_alt(rank: int, steps: int) -> str:
    """The picture in words."""
    return (
        f"Left: entries of the estimate at rank {rank}, mean of {steps}, against those of the true gradient, around "
        "the line where they are equal. Middle: relative error and cosine against rank, this choice marked. Right: "
        "bytes of gradient, sketch and A against rank, this rank marked."
    )


def draw_entries(axes: Axes, estimated: Tensor, gradient: Tensor) -> None:
    """Estimated against true entries, in units of the root mean square of G."""
    unit = gradient.square().mean().sqrt()
    picks = torch.randperm(gradient.numel(), generator=torch.Generator().manual_seed(0))[:SHOWN]
    true, made = (matrix.flatten()[picks] / unit for matrix in (gradient, estimated))
    axes.plot(true, made, ".", color=COLOURS[0], markersize=4, alpha=0.5)
    axes.plot([-6, 6], [-6, 6], color=INK, linestyle="-", linewidth=1.2, label="equal")
    axes.set(xlim=(-6, 6), ylim=(-24, 24), xlabel="entry of G (in RMS)", ylabel="entry of the estimate")
    axes.set_title("What you see of G")
    axes.legend(loc="upper left")


def draw_quality(axes: Axes, estimated: Tensor, gradient: Tensor, rank: int, steps: int) -> None:
    """Expected error and cosine over all ranks at this number of steps, the measured ones as dots."""
    columns = gradient.shape[1]
    errors = [expected_error(r, columns, steps) for r in RANKS]
    axes.plot(RANKS, errors, label="relative error", **style(1))
    axes.plot(RANKS, [1 / math.sqrt(1 + error**2) for error in errors], label="cosine", **style(2))
    measured = {1: relative_error(estimated, gradient), 2: cosine(estimated, gradient)}
    for number, value in measured.items():
        above = value == max(measured.values())  # so that the two numbers never meet
        axes.plot([rank], [value], "o", color=style(number)["color"], markersize=9)
        place = (0, 9 if above else -20)
        axes.annotate(f"{value:.2f}", (rank, value), xytext=place, textcoords="offset points", ha="center")
    axes.set(xscale="log", yscale="log", ylim=(0.02, 60), xlabel="rank r", title="How good it is")
    plain_ticks(axes, (0.1, 1, 10))
    axes.set_xticks(RANKS, [str(r) for r in RANKS])
    axes.legend(loc="lower right")


def draw_bytes(axes: Axes, rows: int, columns: int, rank: int) -> None:
    """Bytes of G, S and A against rank for this weight."""
    lines = {
        "G": [sketch_bytes(rows, columns)] * len(RANKS),
        "A (made again, not kept)": [sketch_bytes(columns, r) for r in RANKS],
        "S": [sketch_bytes(rows, r) for r in RANKS],
    }
    for number, (label, values) in enumerate(lines.items()):
        axes.plot(RANKS, [value / 1024 for value in values], label=label, **style((0, 3, 1)[number]))
    value = sketch_bytes(rows, rank) / 1024
    axes.plot([rank], [value], "o", color=style(1)["color"], markersize=9)
    axes.annotate(size(value * 1024), (rank, value), xytext=(0, -18), textcoords="offset points", ha="center")
    axes.set(
        xscale="log", yscale="log", xlabel="rank r", ylabel="KiB", title=f"What it takes ({rows} × {columns})"
    )
    axes.set_ylim(0.1, 3000)
    plain_ticks(axes, (0.1, 1, 10, 100))
    axes.set_xticks(RANKS, [str(r) for r in RANKS])
    axes.legend(loc="upper left")


# ---------------------------------------------------------------- find the bug


Estimate = Callable[[Tensor, int, tuple[int, int]], Tensor]


def mean_slopes(estimate: Estimate, gradient: Tensor, ranks: Sequence[int], draws: int) -> list[float]:
    """Mean of ⟨Ĝ, G⟩ / ‖G‖² over `draws` estimates at each rank; 1 if unbiased."""
    found = []
    for rank in ranks:
        keys = [projection_key(42, update, "bug") for update in range(draws)]
        found.append(sum(slope(estimate(gradient, rank, key), gradient) for key in keys) / draws)
    return found


def draw_slopes(slopes: Mapping[str, Sequence[float]], ranks: Sequence[int]) -> Picture:
    """How much of G the mean estimate holds against rank, for one or several implementations."""
    figure, axes = new_figure(7.4, 3.4)
    for number, (label, values) in enumerate(slopes.items()):
        axes.plot(ranks, values, marker="o", label=label, **style(number + 1))
    axes.axhline(1.0, color=INK, linewidth=1.0, label="unbiased: 1")
    axes.set(xscale="log", yscale="log", xlabel="rank r", title="How much of G the average estimate holds")
    axes.set(ylabel="⟨mean Ĝ, G⟩ / ‖G‖²", ylim=(0.5, 30))
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.set_yticks([0.5, 1, 2, 5, 10, 20], ["0.5", "1", "2", "5", "10", "20"])
    axes.legend(loc="upper left")
    ends = [
        f"{label}: {v[0]:.2f} at rank {ranks[0]} and {v[-1]:.2f} at rank {ranks[-1]}"
        for label, v in slopes.items()
    ]
    last = ", ".join(ends)
    return Picture(
        figure, "The share of G that an average estimate holds, against rank, on log scales.", f"{last}."
    )
