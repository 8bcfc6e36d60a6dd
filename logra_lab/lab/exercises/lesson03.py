"""Exercises of lesson 03: A from bits, sketch and lift, E[AᵀA] = I, one sketch's noise, and a missing scale.

Shapes: d output rows of a gradient, k its input columns, r rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.method.projection import projection_key, rademacher, sign_words, signs

KEY = projection_key(42, 0, "exercise")


def words_of(rank: int, columns: int) -> Tensor:
    """Hash words [r, ⌈k/32⌉] to try a function on."""
    return sign_words(KEY, rank, columns)


def gradient(rows: int, columns: int) -> Tensor:
    """A gradient [d, k] to try a function on."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def draw(rank: int, columns: int) -> Callable[[int], Tensor]:
    """A function that draws A [r, k] of a given update."""
    return lambda update: rademacher(42, update, "exercise", rank, columns)


# ---------------------------------------------------------------- A from bits


def bits_of(words: Tensor) -> Tensor:
    """Bits of int32 words [r, w] as 0 and 1, [r, w, 32], lowest first."""
    return (words[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1


def unscaled(words: Tensor, columns: int) -> Tensor:
    """±1 [r, columns]."""
    return bits_of(words).reshape(len(words), -1)[:, :columns].float() * 2 - 1


def unmasked(words: Tensor, columns: int) -> Tensor:
    """The slip that shifts and keeps the higher bits too."""
    shifted = words[:, :, None] >> torch.arange(32, dtype=torch.int32)
    return (shifted.reshape(len(words), -1)[:, :columns].float() * 2 - 1) / len(words) ** 0.5


@exercise(
    "projection_from_words",
    Case("bit 0 of a word decides its first column", lambda: (torch.tensor([[1]], dtype=torch.int32), 4)),
    Case(
        "bit 31, the sign bit of an int32, decides the last",
        lambda: (torch.tensor([[-(2**31)]], dtype=torch.int32), 32),
    ),
    Case(
        "the second word holds columns 32 to 63",
        lambda: (torch.tensor([[0, -1]], dtype=torch.int32), 64),
        hint="First all 32 bits of word 0, then all 32 bits of word 1: reshape [r, words, 32].",
    ),
    Case(
        "every entry is +1/√r or −1/√r",
        lambda: (words_of(4, 64), 64),
        hint="r is the number of rows of words.",
    ),
    Case("bits beyond the last column are cut off", lambda: (words_of(3, 40), 40), hint="[:, :columns]"),
    slips=(
        Slip("The entries are ±1: divide by √r, so that AᵀA averages to I.", unscaled),
        Slip("You divided by r. It is √r: A stands twice in AᵀA.", lambda w, c: unscaled(w, c) / len(w)),
        Slip("You divided by √k. The sum in AᵀA runs over the r rows.", lambda w, c: unscaled(w, c) / c**0.5),
        Slip("The signs are turned round: a bit of 1 means +.", lambda w, c: -unscaled(w, c) / len(w) ** 0.5),
        Slip(
            "The bits run the wrong way: bit 0, the lowest, is the first column.",
            lambda w, c: (bits_of(w).flip(2).reshape(len(w), -1)[:, :c].float() * 2 - 1) / len(w) ** 0.5,
        ),
        Slip(
            "Words are interleaved: column j comes from word j // 32, bit j % 32.",
            lambda w, c: (
                (bits_of(w).transpose(1, 2).reshape(len(w), -1)[:, :c].float() * 2 - 1) / len(w) ** 0.5
            ),
        ),
        Slip("A bit of 0 gives 0 here; it means −.", lambda w, c: (unscaled(w, c) + 1) / 2 / len(w) ** 0.5),
        Slip("`& 1` is missing: it keeps the lowest bit alone.", unmasked),
    ),
)
def projection_from_words(words: Tensor, columns: int) -> Tensor:
    """A [r, columns] from int32 hash words [r, ⌈columns/32⌉] (method.md §1)."""
    return unscaled(words, columns) / len(words) ** 0.5


# ---------------------------------------------------------------- sketch and lift


@exercise(
    "sketch_gradient",
    Case(
        "S = G Aᵀ is [d, r]",
        lambda: (gradient(5, 40), projection_from_words(words_of(3, 40), 40)),
        hint="A is [r, k] and G is [d, k]: which of them has to be transposed?",
    ),
    Case(
        "also for a square G", lambda: (gradient(32, 32), projection_from_words(words_of(32, 32), 32)),
        hint="S = G Aᵀ: G first, A transposed.",
    ),
    slips=(
        Slip("This is A Gᵀ, the transpose. Rows of S belong to rows of G.", lambda g, a: a @ g.T),
        Slip("A is not transposed: S = G Aᵀ.", lambda g, a: g @ a),
        Slip("The 1/√r is in A already; here it comes twice.", lambda g, a: g @ a.T / len(a) ** 0.5),
        Slip("The √r that A was divided by is put back; leave it in.", lambda g, a: g @ a.T * len(a) ** 0.5),
    ),
)  # fmt: skip
def sketch_gradient(gradient: Tensor, projection: Tensor) -> Tensor:
    """S = G Aᵀ [d, r] (method.md §1)."""
    return gradient @ projection.T  # [d, r]


def mean_slope(function: Callable[[Tensor, Tensor], Tensor]) -> bool | str:
    """Whether the average of 400 lifted sketches lies on G: slope ⟨mean Ĝ, G⟩ / ‖G‖² near 1."""
    g = gradient(4, 24)
    mean = sum(function(g @ a.T, a) for a in map(draw(4, 24), range(400))) / 400
    slope = ((mean * g).sum() / g.square().sum()).item()
    return True if abs(slope - 1) < 0.1 else f"the average of 400 estimates is {slope:.2f} G, not G"


@exercise(
    "lift_sketch",
    Case(
        "Ĝ = S A is [d, k]",
        lambda: (gradient(5, 3), projection_from_words(words_of(3, 40), 40)),
        hint="[d, r] @ [r, k]",
    ),
    Law("the average over many A is G", mean_slope, hint="Ĝ = G AᵀA, and AᵀA averages to I."),
    slips=(
        Slip(
            "This is the least-squares fit, (A Aᵀ)⁻¹ included. It is nearer to G in one draw, but it shrinks: its "
            "average is about r/k · G. The plain S A is unbiased.",
            lambda s, a: s @ torch.linalg.pinv(a).T,
        ),
        Slip("This is the transpose [k, d] of the estimate.", lambda s, a: a.T @ s.T),
        Slip("No k/r is needed: 1/√r stands in A twice, in S and here.", lambda s, a: s @ a * a.shape[1] / len(a)),
        Slip("The 1/√r is in A already; here it comes again.", lambda s, a: s @ a / len(a) ** 0.5),
    ),
)  # fmt: skip
def lift_sketch(sketch: Tensor, projection: Tensor) -> Tensor:
    """Ĝ = S A [d, k] (method.md §1)."""
    return sketch @ projection  # [d, k]


# ---------------------------------------------------------------- unbiased, and how noisy


def averaged(draws: Callable[[int], Tensor], updates: int, part: Callable[[Tensor], Tensor]) -> Tensor:
    """Mean of `part(A)` over updates 0 … updates − 1."""
    total = part(draws(0))
    for update in range(1, updates):
        total = total + part(draws(update))
    return total / updates


def gram_of_mean(draws: Callable[[int], Tensor], updates: int) -> Tensor:
    """The slip that averages A first."""
    mean = averaged(draws, updates, lambda a: a)
    return mean.T @ mean


@exercise(
    "average_gram",
    Case("one draw: AᵀA [k, k]", lambda: (draw(3, 10), 1), hint="The small square is A Aᵀ [r, r]; here it is AᵀA."),
    Case("seven draws: their mean", lambda: (draw(3, 10), 7), hint="draw(0), draw(1), …, draw(updates - 1)"),
    slips=(
        Slip("This is A Aᵀ [r, r]. The lift needs AᵀA [k, k].", lambda f, n: averaged(f, n, lambda a: a @ a.T)),
        Slip("This is the sum; divide by the number of draws.", lambda f, n: averaged(f, n, lambda a: a.T @ a) * n),
        Slip("The same A each time: draw(update), with update counting up.", lambda f, n: f(0).T @ f(0)),
        Slip("You averaged A first, and A averages to 0. Multiply first, then average.", gram_of_mean),
        Slip("The last draw is missing: range(updates) ends at updates − 1 by itself.",
             lambda f, n: sum(f(u).T @ f(u) for u in range(n - 1)) / n),
        Slip("Updates count from 0 to updates − 1.", lambda f, n: averaged(lambda u: f(u + 1), n, lambda a: a.T @ a)),
    ),
)  # fmt: skip
def average_gram(draw: Callable[[int], Tensor], updates: int) -> Tensor:
    """Mean of AᵀA [k, k] over `draw(0)` … `draw(updates - 1)`."""
    return averaged(draw, updates, lambda a: a.T @ a)


@exercise(
    "expected_noise",
    Case("rank 1 of 2 columns: 1", lambda: (1, 2), hint="One entry off the diagonal per column, of variance 1/r."),
    Case("rank 8 of 288 columns", lambda: (8, 288), hint="How many entries off the diagonal meet one gᵢ?"),
    Case("rank 64 of 4096 columns", lambda: (64, 4096)),
    Case("one column has no other to be confused with: no noise", lambda: (4, 1)),
    slips=(
        Slip("Nearly: the diagonal of AᵀA is exactly 1 and adds no noise, so k − 1 entries do.", lambda r, k: k / r),
        Slip("That is ‖Ĝ‖² / ‖G‖², signal and noise. Take off the signal, 1.", lambda r, k: (k + r - 1) / r),
        Slip("That is its root. Leave it squared here; the figure takes the root.", lambda r, k: ((k - 1) / r) ** 0.5),
        Slip("That is what r columns miss. A random A does not project; its rows overlap.", lambda r, k: (k - r) / r),
        Slip("The variance of an entry is 1/r, its standard deviation 1/√r.", lambda r, k: (k - 1) / r**0.5),
        Slip("1/r is the variance of one entry; k − 1 of them add up.", lambda r, k: 1 / r),
    ),
)  # fmt: skip
def expected_noise(rank: int, columns: int) -> float:
    """E‖Ĝ − G‖² / ‖G‖² = (k − 1)/r (method.md §1)."""
    return (columns - 1) / rank


# ---------------------------------------------------------------- find the bug


def faulty_estimate(gradient: Tensor, rank: int, key: tuple[int, int]) -> Tensor:
    """The bug of the lesson: the scale 1/√r is applied once where the signs are used twice."""
    plus_minus = signs(key, rank, gradient.shape[1])  # [r, k]
    sketch = gradient @ plus_minus.T  # [d, r]
    return sketch @ (plus_minus / rank**0.5)  # [d, k]


def scaled_by(factor: Callable[[int, int], float]) -> Callable[..., Tensor]:
    """A slip: the faulty estimate times `factor(r, k)`."""
    return lambda g, rank, key: faulty_estimate(g, rank, key) * factor(rank, g.shape[1])


def rescaled(gradient: Tensor, rank: int, key: tuple[int, int]) -> Tensor:
    """The slip that hides the symptom: the estimate at the gradient's own length."""
    estimate = faulty_estimate(gradient, rank, key)
    return estimate * gradient.norm() / estimate.norm()


@exercise(
    "repaired_estimate",
    Case("rank 1, where the faulty version is right too", lambda: (gradient(6, 40), 1, KEY)),
    Case("rank 4", lambda: (gradient(6, 40), 4, KEY), hint="How often are the signs used, how often the scale?"),
    Case("rank 64", lambda: (gradient(6, 40), 64, KEY), hint="How often are the signs used, how often the scale?"),
    slips=(
        Slip("The bug is still there: at rank r the estimate is √r times too long.", faulty_estimate),
        Slip("The scale is gone altogether: now it is r times too long.", scaled_by(lambda r, k: r**0.5)),
        Slip("Scale 1/r in one place and 1/√r in the other: one root too many.", scaled_by(lambda r, k: 1 / r)),
        Slip("1/r in both places: the signs are used twice, so each use takes 1/√r.", scaled_by(lambda r, k: r**-1.5)),
        Slip("The length of G is no cure: an unbiased estimate is longer than G. Scale A itself.", rescaled),
        Slip("√k has no part in it: E[AᵀA] sums over the r rows.", scaled_by(lambda r, k: k**-0.5)),
    ),
)  # fmt: skip
def repaired_estimate(gradient: Tensor, rank: int, key: tuple[int, int]) -> Tensor:
    """Ĝ [d, k] with 1/√r wherever the signs are used."""
    projection = signs(key, rank, gradient.shape[1]) / rank**0.5  # [r, k]
    return gradient @ projection.T @ projection  # [d, k]
