"""Exercises of lesson 05: the row moment, what a sketch's square means, bf16's resolution, two halves, decay in order.

Shapes: d output rows, k input columns, r rank. S sketch [d, r], v row moment [d], G gradient [d, k].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.lab.halves_laws import (
    as_bits,
    converted,
    normal,
    numbers,
    rejoins,
    truncated,
    unbiased,
)
from logra_lab.method.merge import split_halves
from logra_lab.method.projection import rademacher
from logra_lab.method.row_adam import next_row_moment, row_rms

BETA2 = 0.95


# ---------------------------------------------------------------- 1: the row moment


def moment(v: Tensor, square: Tensor, step: int, beta2: float) -> tuple[Tensor, Tensor]:
    """The next v and ρ, given what stands for the mean square of each row."""
    following = beta2 * v + (1 - beta2) * square
    return following, (following / (1 - beta2**step)).sqrt()


def steady(function: Callable) -> bool | str:
    """Whether ρ is the RMS of a sketch that never changes, from the first step on."""
    sketch = normal(4, 6)
    v, wanted = torch.zeros(4), sketch.square().mean(1).sqrt()
    for step in (1, 2, 3):
        v, rho = function(v, sketch, step, BETA2)
        if not torch.allclose(rho, wanted, rtol=1e-4):
            return f"at step {step} it is {(rho / wanted).mean().item():.3f} times the RMS of the row"
    return True


@exercise(
    "row_moment",
    Case("the first step", lambda: (torch.zeros(3), normal(3, 5), 1, BETA2), hint="v starts at zero."),
    Case("a later step", lambda: (normal(3, seed=1).square(), normal(3, 5), 7, BETA2)),
    Law(
        "for a sketch that stays the same, ρ is its RMS from the first step on",
        steady,
        "The sum of the weights of all steps so far is 1 − β₂^t: divide by it.",
    ),
    slips=(
        Slip(
            "The mean runs over the wrong axis: one number per output row, the mean over j = 1 … r.",
            lambda v, s, t, b: moment(v, s.square().mean(0), t, b),
        ),
        Slip(
            "You summed over the row. v holds the mean of the squares, so that it does not grow with the rank.",
            lambda v, s, t, b: moment(v, s.square().sum(1), t, b),
        ),
        Slip(
            "You squared the mean; it is the mean of the squares.",
            lambda v, s, t, b: moment(v, s.mean(1).square(), t, b),
        ),
        Slip(
            "The two weights are exchanged: β₂ = 0.95 belongs to the old moment.",
            lambda v, s, t, b: (m := (1 - b) * v + b * s.square().mean(1), (m / (1 - b**t)).sqrt()),
        ),
        Slip(
            "The bias correction is missing: √(v / (1 − β₂^t)).",
            lambda v, s, t, b: (m := next_row_moment(v, s, b), m.sqrt()),
        ),
        Slip(
            "The correction is one step late: steps count from 1, so at the first it is 1 − β₂.",
            lambda v, s, t, b: (m := next_row_moment(v, s, b), (m / (1 - b ** (t + 1))).sqrt()),
        ),
        Slip(
            "The root is missing: ρ is a size, v a square.",
            lambda v, s, t, b: (m := next_row_moment(v, s, b), m / (1 - b**t)),
        ),
        Slip(
            "The correction belongs under the root.",
            lambda v, s, t, b: (m := next_row_moment(v, s, b), m.sqrt() / (1 - b**t)),
        ),
        Slip("v comes first, then ρ.", lambda v, s, t, b: row_moment(v, s, t, b)[::-1]),
        Slip(
            "Return the moment as it is; the correction is for ρ only, or it is applied again at the next step.",
            lambda v, s, t, b: (m := next_row_moment(v, s, b) / (1 - b**t), m.sqrt()),
        ),
    ),
)
def row_moment(moment: Tensor, sketch: Tensor, step: int, beta2: float) -> tuple[Tensor, Tensor]:
    """The next v [d] and ρ = √(v/(1 − β₂^t)) [d] (method.md §2)."""
    following = next_row_moment(moment, sketch, beta2)
    return following, row_rms(following, step, beta2).to(sketch.dtype)


# ---------------------------------------------------------------- 2: what a sketch's square means


def true_on_average(function: Callable[[Tensor, int], Tensor]) -> bool | str:
    """Whether the average of S_ij² over 400 projections is what `function` says, for each row."""
    gradient = normal(3, 32) * torch.tensor([[0.1], [1.0], [10.0]])
    squares = [(gradient @ rademacher(5, u, "square", 4, 32).T).square() for u in range(400)]
    measured = torch.stack(squares).mean((0, 2))
    ratio = torch.as_tensor(function(gradient, 4)) / measured
    if bool(((ratio - 1).abs() < 0.15).all()):
        return True
    return f"it is {ratio.mean().item():.2f} times what 400 draws of A give"


@exercise(
    "expected_square",
    Case(
        "one row: three numbers, rank 2", lambda: (torch.tensor([[3.0, 0.0, 4.0]]), 2), hint="3² + 4² = 25."
    ),
    Case("several rows", lambda: (normal(4, 7), 3)),
    Law(
        "it is what 400 draws of A give on average",
        true_on_average,
        "Write S_ij as a sum over c and square it.",
    ),
    slips=(
        Slip("You forgot the rank: A's entries are ±1/√r, so each square carries 1/r.", lambda g, r: g.square().sum(1)),
        Slip("The 1/√r is squared as well: divide by r.", lambda g, r: g.square().sum(1) / r**0.5),
        Slip("This is the mean over the columns; all k of them add up.", lambda g, r: g.square().mean(1) / r),
        Slip("This is the norm; the expectation is of a square.", lambda g, r: g.square().sum(1).sqrt() / r),
        Slip("This sums over rows: S_ij knows row i only.", lambda g, r: g.square().sum(0) / r),
        Slip("You squared the sum. Mixed terms cancel on average; the squares stay.", lambda g, r: g.sum(1) ** 2 / r),
        Slip("1/√r is squared once: divide by r.", lambda g, r: g.square().sum(1) / r**2),
    ),
)  # fmt: skip
def expected_square(gradient: Tensor, rank: int) -> Tensor:
    """E_A[S_ij²] = ‖g_i‖²/r [d], the same for every column j (method.md §2)."""
    return gradient.square().sum(1) / rank


# ---------------------------------------------------------------- 3: what bf16 sees


def weights_and(size: float) -> tuple[Tensor, Tensor]:
    """bf16 weights of about 0.03 and updates of about `size`."""
    return (normal(40, 50) * 0.03).to(torch.bfloat16), normal(40, 50, seed=1) * size


@exercise(
    "survives",
    Case("updates as large as the weights all arrive", lambda: weights_and(0.03)),
    Case(
        "updates of the paper's size hardly ever do",
        lambda: weights_and(2e-6),
        hint="Add in fp32, then round.",
    ),
    Case("in between, some do", lambda: weights_and(1e-4)),
    Case("an update of zero changes nothing", lambda: weights_and(0.0)),
    slips=(
        Slip("You compared before rounding: the sum has to be stored in bf16 to know what is left of it.",
             lambda w, u: (w.float() - u != w.float()).float().mean().item()),
        Slip("This is the share that is lost.", lambda w, u: 1 - survives(w, u)),
        Slip("This is a count; divide by the number of weights.", lambda w, u: survives(w, u) * w.numel()),
        Slip("A share lies between 0 and 1; this is in per cent.", lambda w, u: 100 * survives(w, u)),
        Slip("The update is taken off, not added.", lambda w, u: survives(w, -u)),
        Slip("The update was rounded to bf16 before it was taken off: compute in fp32, store in bf16.",
             lambda w, u: (w - u.to(w.dtype) != w).float().mean().item()),
        Slip("Rounded to fp16, which has three bits more than bf16. Use torch.bfloat16.",
             lambda w, u: ((w.float() - u).half() != w.half()).float().mean().item()),
    ),
)  # fmt: skip
def survives(weight: Tensor, update: Tensor) -> float:
    """The share of bf16 weights [d, k] that change when the update [d, k] is taken off and the rest rounded to bf16."""
    return ((weight.float() - update).to(torch.bfloat16) != weight).float().mean().item()


# ---------------------------------------------------------------- 4: two halves


@exercise(
    "split_number",
    Law("upper + lower give every bit back", rejoins, "lower = bits − (upper << 16), as int16."),
    Law(
        "the upper half is rounded, not cut", unbiased, "Add half of the last place before shifting: 0x8000."
    ),
    Case(
        "bit for bit the library's halves",
        lambda: (numbers(),),
        select=as_bits,
        rtol=0.0,
        atol=0.0,
        hint="(bits + 0x8000) >> 16",
    ),
    slips=(
        Slip(
            "You cut the number in two: the model would compute with weights that are all a little too small. Round.",
            truncated,
        ),
        Slip(
            "Rounding to nearest even leaves a remainder of +32768 at a tie, and int16 ends at 32767. Round half up.",
            lambda x: (
                x.to(torch.bfloat16),
                (x.view(torch.int32) - (x.to(torch.bfloat16).view(torch.int16).int() << 16)).to(torch.int16),
            ),
        ),
        Slip("The halves are exchanged: first the upper, a bf16 number.", lambda x: split_halves(x)[::-1]),
        Slip(".to(torch.bfloat16) converts an integer; .view(torch.bfloat16) reads its bits.", converted),
    ),
)
def split_number(value: Tensor) -> tuple[Tensor, Tensor]:
    """fp32 as (upper half bf16, lower half int16), rounded half up (method.md §6)."""
    return split_halves(value)


# ---------------------------------------------------------------- 5: decay in order


@exercise(
    "decayed_step",
    Case(
        "from W = 0 there is nothing to decay: the step is exactly −ΔW",
        lambda: (torch.zeros(2, 3), normal(2, 3), 0.5),
        hint="Whatever the decay, a step from zero must arrive whole.",
    ),
    Case("without decay it is a plain step", lambda: (normal(2, 3), normal(2, 3, seed=1), 0.0)),
    Case("without an update it is plain decay", lambda: (normal(2, 3), torch.zeros(2, 3), 0.1)),
    Case("both together", lambda: (normal(2, 3), normal(2, 3, seed=1), 0.1)),
    slips=(
        Slip(
            "The update does not arrive whole: something takes its share of it. Try W = 0.",
            lambda w, u, c: (1 - c) * (w - u),
        ),
        Slip(
            "The decay went into the update with the wrong sign: weights would grow.",
            lambda w, u, c: (1 + c) * w - u,
        ),
        Slip("The update is added; it is taken off.", lambda w, u, c: (1 - c) * w + u),
        Slip("decay is the share taken off; what stays is 1 − decay.", lambda w, u, c: c * w - u),
        Slip("The decay shrinks the update instead of the weight.", lambda w, u, c: w - (1 - c) * u),
        Slip("The decay is gone altogether.", lambda w, u, c: w - u),
    ),
)
def decayed_step(weight: Tensor, update: Tensor, decay: float) -> Tensor:
    """(1 − decay) W − ΔW [d, k] (method.md §2, rule "lr")."""
    return (1 - decay) * weight - update
