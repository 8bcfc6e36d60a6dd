"""Exercises of lesson 04: the sketch from H and X, the autograd function, bytes kept, FLOPs, a hook that fires twice.

Shapes: T token positions, d output rows and k input columns, r rank. H [T, d], X [T, k], A [r, k], P [T, r].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from logra_lab.lab import tap_laws
from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.lab.lesson04 import births
from logra_lab.lab.tap_laws import normal, situation
from logra_lab.method.sketch import _Tap, accumulate


def flow(tokens: int, rows: int, columns: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """H [T, d], X [T, k] and A [r, k] to try a function on."""
    return normal(tokens, rows), normal(tokens, columns, seed=1), normal(rank, columns, seed=2)


# ---------------------------------------------------------------- 1: S from H and X


def makes_no_gradient(function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool | str:
    """Whether S comes out without a tensor of G's shape, [d, k] or [k, d]."""
    with births() as born:
        function(*flow(7, 13, 11, 3))
    found = [shape for _, shape in born if shape in ((13, 11), (11, 13))]
    return f"it made a tensor of shape {list(found[0])}; that is G, or its transpose" if found else True


@exercise(
    "sketch_of",
    Case(
        "S = Hᵀ(X Aᵀ) is [d, r]",
        lambda: flow(6, 4, 5, 2),
        hint="H is [T, d]: transpose it. A is [r, k]: transpose it.",
    ),
    Case("one token is enough", lambda: flow(1, 3, 5, 2)),
    Law(
        "no tensor of G's shape is made on the way",
        makes_no_gradient,
        "Python multiplies from left to right: H.T @ X @ A.T makes H.T @ X first. Brackets!",
    ),
    slips=(
        Slip(
            "You averaged over the T tokens. S sums over them; the loss has its mean already.",
            lambda h, x, a: h.T @ (x @ a.T) / len(h),
        ),
        Slip(
            "This is the transpose, [r, d]. Rows of S belong to rows of W.", lambda h, x, a: (x @ a.T).T @ h
        ),
        Slip(
            "The sign is turned round: the minus comes with the update, not with the sketch.",
            lambda h, x, a: -h.T @ (x @ a.T),
        ),
        Slip("H and X are exchanged: X goes through A, since A has k columns.", lambda h, x, a: x.T @ h),
    ),
)
def sketch_of(output_grad: Tensor, x: Tensor, projection: Tensor) -> Tensor:
    """S = Hᵀ (X Aᵀ) [d, r] from H [T, d], X [T, k], A [r, k] (method.md §1)."""
    return output_grad.T @ (x @ projection.T)  # [d, r]


# ---------------------------------------------------------------- 2: the autograd function


@exercise(
    "sketch_tap",
    Law(
        "forward hands the layer's output on unchanged",
        tap_laws.output_passes,
        "return output.view_as(output)",
    ),
    Law(
        "backward adds Hᵀ P to the sketch, every time",
        tap_laws.sketch_adds,
        "grad is H [T, d], P is [T, r], the sketch [d, r].",
    ),
    Law(
        "backward hands H on to the layers below",
        tap_laws.gradient_passes,
        "One gradient per input of forward: H for output, None for P and for the sketch.",
    ),
    Law(
        "P alone is kept for backward",
        tap_laws.projected_is_saved,
        "ctx.save_for_backward(projected), then ctx.saved_tensors.",
    ),
)
def sketch_tap(output: Tensor, projected: Tensor, sketch: Tensor) -> Tensor:
    """`output` [T, d] unchanged; its backward adds Hᵀ P to `sketch` [d, r] (method.md §1), as LoGRA's own tap does."""
    anchor = torch.zeros((), requires_grad=True)
    return _Tap.apply(output, projected, anchor, lambda grad, kept: accumulate(sketch, grad, kept, 1.0))


# ---------------------------------------------------------------- 3: bytes kept

Reader = tuple[str, str, int]
BLOCK: tuple[Reader, ...] = (
    ("q_proj", "attention in", 48),
    ("k_proj", "attention in", 48),
    ("v_proj", "attention in", 48),
    ("o_proj", "attention out", 48),
    ("gate_proj", "mlp in", 48),
    ("up_proj", "mlp in", 48),
    ("down_proj", "mlp out", 88),
)


def distinct(readers: Sequence[Reader]) -> dict[str, int]:
    """Width of every distinct input."""
    return {name: width for _, name, width in readers}


def total(readers: Sequence[Reader]) -> int:
    """Widths of the distinct inputs, added up."""
    return sum(distinct(readers).values())


def by_width(readers: Sequence[Reader], tokens: int, rank: int, number_bytes: int) -> tuple[int, int]:
    """The slip that takes inputs of one width for one input."""
    widths = {width for *_, width in readers}
    return tokens * sum(widths) * number_bytes, tokens * rank * len(widths) * number_bytes


@exercise(
    "inputs_kept",
    Case("one layer, fp32: T·k numbers of 4 bytes against T·r", lambda: ([("o_proj", "x", 100)], 10, 4, 4)),
    Case("bf16 numbers take 2 bytes", lambda: ([("o_proj", "x", 100)], 10, 4, 2)),
    Case(
        "two layers with inputs of their own are two inputs",
        lambda: ([("a", "x", 30), ("b", "y", 50)], 8, 2, 4),
    ),
    Case(
        "the seven layers of a block have four inputs",
        lambda: (list(BLOCK), 64, 8, 4),
        hint="q, k and v read the same tensor: autograd keeps it once, and X Aᵀ is made once.",
    ),
    slips=(
        Slip(
            "You counted each reader. Layers that read one input keep it once, and share one X Aᵀ.",
            lambda readers, t, r, b: (t * sum(w for *_, w in readers) * b, t * r * len(readers) * b),
        ),
        Slip(
            "X is counted once per input; X Aᵀ is shared in the same way.",
            lambda readers, t, r, b: (t * total(readers) * b, t * r * len(readers) * b),
        ),
        Slip(
            "The tokens are missing: X is [T, k] and X Aᵀ is [T, r].",
            lambda readers, t, r, b: (total(readers) * b, r * len(distinct(readers)) * b),
        ),
        Slip(
            "These are numbers, not bytes.",
            lambda readers, t, r, b: (t * total(readers), t * r * len(distinct(readers))),
        ),
        Slip("Two inputs of one width are two inputs: tell them apart by name, not by width.", by_width),
        Slip(
            "X Aᵀ is [T, r]: its size does not depend on k.",
            lambda readers, t, r, b: (t * total(readers) * b, r * total(readers) * b),
        ),
        Slip(
            "Dense first, sketched second.",
            lambda readers, t, r, b: (t * r * len(distinct(readers)) * b, t * total(readers) * b),
        ),
    ),
)
def inputs_kept(readers: Sequence[Reader], tokens: int, rank: int, number_bytes: int) -> tuple[int, int]:
    """Bytes kept for the weights' sake: (X of every distinct input, X Aᵀ of every distinct input) (method.md §1)."""
    widths = distinct(readers).values()
    return tokens * sum(widths) * number_bytes, tokens * rank * len(widths) * number_bytes


# ---------------------------------------------------------------- 4: FLOPs


@exercise(
    "flops",
    Case(
        "a small layer",
        lambda: (10, 3, 5, 2),
        hint="Three products of [T, d, k], two FLOPs for each multiply-add.",
    ),
    Case("a layer of a 7B model", lambda: (4096, 3584, 18944, 64)),
    Case("rank 1", lambda: (7, 11, 13, 1)),
    slips=(
        Slip("A multiply-add is two FLOPs.",
             lambda t, d, k, r: (3 * t * d * k, 2 * t * d * k + t * k * r + t * d * r)),
        Slip("The layers below still need the gradient of X: H W, 2·T·d·k, stays in the sketched backward.",
             lambda t, d, k, r: (6 * t * d * k, 2 * t * d * k + 2 * t * r * (k + d))),
        Slip("X Aᵀ costs something too: 2·T·k·r.",
             lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * d * r)),
        Slip("Hᵀ P costs something too: 2·T·d·r.",
             lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * k * r)),
        Slip("Nothing is lifted: S A is never computed here.",
             lambda t, d, k, r: (6 * t * d * k, 4 * t * d * k + 2 * t * r * (k + d) + 2 * d * k * r)),
        Slip("This makes G first and projects it. S = Hᵀ(X Aᵀ) takes two thin products instead.",
             lambda t, d, k, r: (6 * t * d * k, 6 * t * d * k + 2 * d * k * r)),
        Slip("This is backward alone; forward is another 2·T·d·k (and X Aᵀ belongs to it).",
             lambda t, d, k, r: (4 * t * d * k, 2 * t * d * k + 2 * t * d * r)),
        Slip("This is backward alone; forward is another 2·T·d·k.",
             lambda t, d, k, r: (4 * t * d * k, 2 * t * d * k + 2 * t * r * (d + k))),
        Slip("Dense first, sketched second.",
             lambda t, d, k, r: (4 * t * d * k + 2 * t * r * (d + k), 6 * t * d * k)),
    ),
)  # fmt: skip
def flops(tokens: int, rows: int, columns: int, rank: int) -> tuple[int, int]:
    """FLOPs of forward and backward of one linear layer: (dense, sketched) (method.md §1)."""
    product = 2 * tokens * rows * columns
    return 3 * product, 2 * product + 2 * tokens * rank * (columns + rows)


# ---------------------------------------------------------------- 5: a hook that fires twice


@exercise(
    "make_hook",
    Law("S = G Aᵀ after one batch", situation((1,))),
    Law(
        "after three micro-batches",
        situation((1,), (2,), (3,)),
        "A backward must meet the P of its own forward only.",
    ),
    Law(
        "under checkpointing, where forward runs twice",
        situation((1, True)),
        "The second forward calls the hook again. Which P's does the backward of the first one see?",
    ),
    Law(
        "with a layer that is used twice in one forward",
        situation((1, False, 2)),
        "Two uses are two terms of G: both count, each with its own P.",
    ),
    Law(
        "with two forwards before the first backward",
        situation((1,), (2,), ahead=True),
        "A stack of P's pairs the first backward with the last forward. Let each call of the hook keep its own P.",
    ),
)
def make_hook(projection: Tensor, sketch: Tensor) -> Callable:
    """A forward hook that taps a layer's output: each call keeps its own P (method.md §1)."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return sketch_tap(output, inputs[0].detach() @ projection.T, sketch)

    return hook
