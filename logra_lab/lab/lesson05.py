"""What lesson 05 measures: moments across a refresh of A, and what is left of an update at four precisions.

Shapes: d output rows and k input columns of a weight, r rank. S sketch [d, r], v row moment [d], U factor [d, r].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from logra_lab.method.merge import PRECISIONS
from logra_lab.method.projection import projection_key, rademacher, signs
from logra_lab.method.row_adam import next_row_moment, paper_factor, paper_scale

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8
RowMoment = Callable[[Tensor, Tensor, int, float], tuple[Tensor, Tensor]]


def uneven_gradient(rows: int = 64, columns: int = 256, seed: int = 0) -> Tensor:
    """A gradient [d, k] whose rows differ in size a hundredfold, as those of real layers do."""
    sizes = torch.logspace(-1, 1, rows)[:, None]
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * sizes


# ---------------------------------------------------------------- moments across a refresh


@dataclass(frozen=True)
class Trace:
    """Per step: RMS of the lifted update per entry, and its cosine to the direction it should have."""

    size: tuple[float, ...]
    cosine: tuple[float, ...]


class ByRow:
    """One second moment per row, by the learner's function: `row_moment(v, S, t, β₂)` -> (next v, ρ)."""

    def __init__(self, row_moment: RowMoment, rows: int, rank: int) -> None:
        self.row_moment, self.moment = row_moment, torch.zeros(rows)

    def direction(self, sketch: Tensor, step: int) -> Tensor:
        """S / ρ [d, r]."""
        self.moment, rho = self.row_moment(self.moment, sketch, step, BETA2)
        return sketch / (rho[:, None] + EPS)


class ByCoordinate:
    """Adam in the sketch's coordinates: two moments per entry of S; `momentum=False` leaves the first out."""

    def __init__(self, momentum: bool, rows: int, rank: int) -> None:
        self.momentum = momentum
        self.first, self.second = torch.zeros(rows, rank), torch.zeros(rows, rank)

    def direction(self, sketch: Tensor, step: int) -> Tensor:
        """m / √v, or S / √v, both corrected for their start at zero [d, r]."""
        self.first = BETA1 * self.first + (1 - BETA1) * sketch
        self.second = BETA2 * self.second + (1 - BETA2) * sketch.square()
        top = self.first / (1 - BETA1**step) if self.momentum else sketch
        return top / ((self.second / (1 - BETA2**step)).sqrt() + EPS)


def across_refreshes(rule: ByRow | ByCoordinate, period: int, steps: int, rank: int, seed: int) -> Trace:
    """Feed `rule` sketches of one gradient with noise, A drawn anew every `period` steps."""
    gradient = uneven_gradient()
    ideal = gradient / gradient.square().mean(1, keepdim=True).sqrt()
    noise = torch.Generator().manual_seed(seed)
    sizes, cosines = [], []
    for step in range(1, steps + 1):
        a = rademacher(seed, (step - 1) // period, "refresh", rank, gradient.shape[1])
        batch = gradient * (1 + 0.3 * torch.randn(gradient.shape, generator=noise))
        update = rule.direction(batch @ a.T, step) @ a  # [d, k]
        sizes.append(update.square().mean().sqrt().item())
        cosines.append(torch.cosine_similarity(update.flatten(), ideal.flatten(), dim=0).item())
    return Trace(tuple(sizes), tuple(cosines))


def refresh_study(
    row_moment: RowMoment, period: int, steps: int = 90, rank: int = 8, seeds: Sequence[int] = range(6)
) -> dict[str, list[Trace]]:
    """Traces over seeds of row moments, and of Adam's moments per coordinate with and without the first."""
    rows = len(uneven_gradient())
    rules: dict[str, Callable[[], ByRow | ByCoordinate]] = {
        "one moment per row": lambda: ByRow(row_moment, rows, rank),
        "Adam's v per coordinate": lambda: ByCoordinate(False, rows, rank),
        "Adam's m and v per coordinate": lambda: ByCoordinate(True, rows, rank),
    }
    return {
        name: [across_refreshes(make(), period, steps, rank, seed) for seed in seeds]
        for name, make in rules.items()
    }


# ---------------------------------------------------------------- the same updates, stored four ways


@dataclass(frozen=True)
class Kept:
    """Over steps: the share of fp32's displacement that a precision has kept, and its error in units of it."""

    steps: tuple[int, ...]
    share: tuple[float, ...]
    error: tuple[float, ...]


class Stored:
    """One weight [d, k] at one of the method's precisions."""

    def __init__(self, precision: str, start: Tensor) -> None:
        self.precision = PRECISIONS[precision](seed=0)
        self.weight = start.clone() if precision == "fp32" else start.to(torch.bfloat16)
        self.precision.adopt("W", self.weight)
        self.start = self.value()

    def value(self) -> Tensor:
        """The weight's full value in fp32."""
        return self.precision.read("W", self.weight).float()

    def moved(self) -> Tensor:
        """How far the weight is from its start [d, k]."""
        return self.value() - self.start


def bf16_weight(rows: int, columns: int, scale: float = 0.03) -> Tensor:
    """Gaussian weights [d, k] that bf16 can hold, so that all precisions start from the same point."""
    w = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * scale
    return w.to(torch.bfloat16).float()


@lru_cache(maxsize=32)
def stored_four_ways(
    update_ratio: float, steps: int = 300, rows: int = 96, columns: int = 128, rank: int = 8, every: int = 20
) -> dict[str, Kept]:
    """Row Adam's steps of one size, merged into one weight at each precision, compared with what fp32 did."""
    start, gradient = bf16_weight(rows, columns), uneven_gradient(rows, columns)
    stores = {name: Stored(name, start) for name in PRECISIONS}
    noise, moment = torch.Generator().manual_seed(2), torch.zeros(rows)
    marks: list[int] = []
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
    for step in range(1, steps + 1):
        plus_minus = signs(projection_key(0, step, "merge"), rank, columns)
        batch = gradient * (1 + 0.5 * torch.randn(gradient.shape, generator=noise))
        sketch = batch @ plus_minus.T * rank**-0.5  # [d, r]
        moment = next_row_moment(moment, sketch, BETA2)
        factor = paper_factor(sketch, moment, step, BETA2, EPS)
        lifted = (factor @ plus_minus).square().sum().item() / rank
        factor = factor * paper_scale(start.square().sum().item(), lifted, update_ratio)
        for store in stores.values():
            store.precision.add_low_rank("W", store.weight, factor, plus_minus, 0.0, step)
        if step % every == 0:
            marks.append(step)
            for name, store in stores.items():
                seen[name].append(compared(store.moved(), stores["fp32"].moved()))
    return {name: Kept(tuple(marks), *map(tuple, zip(*pairs, strict=True))) for name, pairs in seen.items()}


def compared(moved: Tensor, wanted: Tensor) -> tuple[float, float]:
    """(share kept, error): ⟨moved, wanted⟩/‖wanted‖² and ‖moved − wanted‖/‖wanted‖."""
    square = wanted.square().sum()
    return ((moved * wanted).sum() / square).item(), ((moved - wanted).norm() / square.sqrt()).item()


def bf16_neighbours(value: float) -> tuple[float, float]:
    """The bf16 number nearest to `value` (positive), and the gap to the next one above."""
    number = torch.tensor(value).to(torch.bfloat16)
    above = (number.view(torch.int16) + 1).view(torch.bfloat16)
    return number.item(), (above.float() - number.float()).item()


# ---------------------------------------------------------------- weight decay


def two_orders(decay_then_step: Callable, decay: float, steps: int = 200) -> dict[str, list[float]]:
    """RMS of a weight over steps under the learner's order and under the other; constant update of RMS 1e-3."""
    start, update = (
        bf16_weight(32, 48),
        1e-3 * torch.randn(32, 48, generator=torch.Generator().manual_seed(3)).sign(),
    )
    weights = {"decay first": start.clone(), "decay last": start.clone()}
    sizes: dict[str, list[float]] = {name: [] for name in weights}
    for _ in range(steps):
        weights["decay first"] = decay_then_step(weights["decay first"], update, decay)
        weights["decay last"] = (1 - decay) * (weights["decay last"] - update)
        for name, weight in weights.items():
            sizes[name].append(weight.square().mean().sqrt().item())
    return sizes
