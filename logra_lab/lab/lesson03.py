"""Figures and measurements of lesson 03: what one sketch shows of a gradient, and what many show.

Measurements are plain functions that return numbers; `draw_…` functions turn them into pictures. The learner's own
functions are passed in where the lesson has them. Leaves out: what the noise costs in
KL (`lesson03_price`) and the play widget (`lesson03_play`).

Shapes: d output rows of a gradient, k its input columns, r rank.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import torch
from matplotlib.axes import Axes
from torch import Tensor

from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.method.projection import lift, project, rademacher

SEED, GROUP = 42, "lesson 03"
Sketch = Callable[[Tensor, Tensor], Tensor]


def projection(rank: int, columns: int, update: int = 0) -> Tensor:
    """The A [r, k] of this lesson at one update."""
    return rademacher(SEED, update, GROUP, rank, columns)


def all_projections(rank: int, columns: int) -> list[Tensor]:
    """Every A [r, k] with entries ±1/√r there is, 2^(r·k) of them; raises ValueError for more than 2^16."""
    if rank * columns > 16:
        raise ValueError(
            f"rank {rank} × {columns} columns make 2^{rank * columns} matrices; keep rank·columns ≤ 16."
        )
    patterns = itertools.product((-1.0, 1.0), repeat=rank * columns)
    return [torch.tensor(pattern).view(rank, columns) / rank**0.5 for pattern in patterns]


def estimate(
    gradient: Tensor, rank: int, update: int, sketch: Sketch = project, lifted: Sketch = lift
) -> Tensor:
    """Ĝ [d, k] from one sketch at `rank`."""
    a = projection(rank, gradient.shape[1], update)
    return lifted(sketch(gradient, a), a)


def mean_estimates(gradient: Tensor, rank: int, steps: int, *, refresh: bool = True) -> list[Tensor]:
    """Running means of Ĝ [d, k] after 1 … `steps` sketches; without `refresh` every sketch uses the first A."""
    total, means = torch.zeros_like(gradient), []
    for step in range(steps):
        total = total + estimate(gradient, rank, step if refresh else 0)
        means.append(total / (step + 1))
    return means


def relative_error(estimated: Tensor, gradient: Tensor) -> float:
    """‖Ĝ − G‖ / ‖G‖."""
    return ((estimated - gradient).norm() / gradient.norm()).item()


def cosine(a: Tensor, b: Tensor) -> float:
    """Cosine of the angle between two matrices, read as long vectors."""
    return ((a * b).sum() / (a.norm() * b.norm())).item()


def slope(estimated: Tensor, gradient: Tensor) -> float:
    """⟨Ĝ, G⟩ / ‖G‖²: how much of G the estimate holds; 1 on average if it is unbiased."""
    return ((estimated * gradient).sum() / gradient.square().sum()).item()


def first_coordinates(gradient: Tensor, rank: int) -> Tensor:
    """The control: G [d, k] on its first r columns, 0 elsewhere."""
    return torch.cat([gradient[:, :rank], torch.zeros_like(gradient[:, rank:])], 1)


def best_of_rank(gradient: Tensor, rank: int) -> Tensor:
    """The nearest matrix of rank r (by SVD); it needs G itself."""
    u, s, vh = torch.linalg.svd(gradient, full_matrices=False)
    return (u[:, :rank] * s[:rank]) @ vh[:rank]


# ---------------------------------------------------------------- pictures of A and of AᵀA


def draw_matrices(
    matrices: Mapping[str, Tensor], alt: str, caption: str, limit: float | None = None
) -> Picture:
    """Matrices side by side in blue (negative), white and red, all on one colour scale."""
    rows, columns = next(iter(matrices.values())).shape
    figure, axes = new_figure(8.4, 0.7 + 7.2 / len(matrices) * rows / columns, columns=len(matrices))
    largest = limit or max(matrix.abs().max().item() for matrix in matrices.values())
    for axis, (title, matrix) in zip(axes, matrices.items(), strict=True):
        image = axis.imshow(matrix, cmap="RdBu_r", vmin=-largest, vmax=largest, interpolation="nearest")
        axis.set_title(title)
        axis.grid(False)
        axis.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
    figure.colorbar(image, ax=list(axes), ticks=[-largest, 0, largest], format="%.2g")
    return Picture(figure, alt, caption)


def off_diagonal(gram: Tensor) -> float:
    """Root mean square of the entries off the diagonal of AᵀA [k, k]."""
    k = len(gram)
    return (gram - torch.diag(gram.diagonal())).square().sum().div(k * (k - 1)).sqrt().item()


# ---------------------------------------------------------------- signature figure


def against_rank(
    gradient: Tensor, ranks: Sequence[int], draws: int, sketch: Sketch = project, lifted: Sketch = lift
) -> dict[str, Tensor]:
    """Measured "error" and "cosine", each [draws, ranks], of single sketches."""
    made = [[estimate(gradient, r, u, sketch, lifted) for r in ranks] for u in range(draws)]
    measures = {"error": relative_error, "cosine": cosine}
    return {
        name: torch.tensor([[f(e, gradient) for e in row] for row in made]) for name, f in measures.items()
    }


def draw_signature(gradient: Tensor, measured: Mapping[str, Tensor], ranks: Sequence[int],
                   noise: Callable[[int, int], float], rank: int, steps: int) -> Picture:  # fmt: skip
    """One sketch against rank (measured over theory) beside the mean of many sketches at one rank."""
    figure, (left, middle, right) = new_figure(10.6, 3.9, columns=3)
    columns = gradient.shape[1]
    errors = [math.sqrt(noise(r, columns)) for r in ranks]
    cosines = [1 / math.sqrt(1 + noise(r, columns)) for r in ranks]
    for axis, name, theory in ((left, "error", errors), (middle, "cosine", cosines)):
        low, high = measured[name].amin(0), measured[name].amax(0)
        axis.plot(ranks, theory, color=INK, linestyle="--", linewidth=1.4, label="theory")
        axis.vlines(ranks, low, high, color=COLOURS[0], linewidth=6, alpha=0.45, label="measured: range")
        axis.plot(ranks, measured[name].mean(0), "o", color=COLOURS[0], markersize=4, label="measured: mean")
        axis.set_xscale("log", base=2)
        axis.set(xlabel="rank r", xticks=ranks, xticklabels=[str(r) for r in ranks])
        axis.legend(loc="upper right" if name == "error" else "upper left")
    left.set(title="One sketch: relative error", yscale="log", ylabel="‖Ĝ − G‖ / ‖G‖")
    plain_ticks(left, (1, 2, 5, 10, 20))
    middle.set(title="One sketch: cosine", ylim=(0, 1.02), ylabel="cosine of Ĝ and G")
    kept = draw_averages(right, gradient, rank, steps)
    words = ", ".join(f"{name} {error:.2f}" for name, error in kept.items())
    alt = (
        "Three panels. Relative error of one sketch falls as one over the root of the rank, and its cosine with G "
        "rises; measured points lie on the theory. Error of the mean of many sketches: refreshed ones fall steadily, "
        "one fixed A, the first r columns and the best rank-r matrix stay level."
    )
    return Picture(
        figure, alt, f"Right, at rank {rank}: what is left of the error after {steps} steps: {words}."
    )


def draw_averages(axes: Axes, gradient: Tensor, rank: int, steps: int) -> dict[str, float]:
    """Error of the mean against the number of sketches, with the fixed rivals; returns the last error of each."""
    counts = range(1, steps + 1)
    rivals = {
        "new A each step": [relative_error(m, gradient) for m in mean_estimates(gradient, rank, steps)],
        "one fixed A": [relative_error(estimate(gradient, rank, 0), gradient)] * steps,
        "first r columns": [relative_error(first_coordinates(gradient, rank), gradient)] * steps,
        "best rank r (SVD)": [relative_error(best_of_rank(gradient, rank), gradient)] * steps,
    }
    for number, (label, errors) in enumerate(rivals.items()):
        axes.plot(counts, errors, label=label, **style(number))
    axes.set(title=f"Mean of many, r = {rank}", xscale="log", yscale="log", xlabel="steps averaged")
    axes.set(ylabel="‖mean Ĝ − G‖ / ‖G‖", ylim=(0.06 * min(map(min, rivals.values())), None))
    plain_ticks(axes, (0.01, 0.1, 1, 10))
    axes.set_xticks([1, 10, 100], ["1", "10", "100"])
    axes.legend(loc="lower left")
    return {label: errors[-1] for label, errors in rivals.items()}


def plain_ticks(axes: Axes, values: Sequence[float]) -> None:
    """Label a logarithmic y axis at these values, those within its limits, as plain numbers."""
    low, high = axes.get_ylim()
    inside = [value for value in values if low <= value <= high]
    axes.set_yticks(inside, [f"{value:g}" for value in inside])
    axes.tick_params(axis="y", which="minor", labelleft=False)
