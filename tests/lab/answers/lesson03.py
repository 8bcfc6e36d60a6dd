"""Answers to the exercises of lesson 03."""

from __future__ import annotations

import numpy as np
import torch

from logra_lab.lab.exercises import lesson03
from logra_lab.method.projection import lift, project, signs
from tests.lab.answers import Answers


def projection_by_loop(words, columns):
    rank = words.shape[0]
    a = torch.empty(rank, columns)
    for i in range(rank):
        for j in range(columns):
            bit = (int(words[i, j // 32]) >> (j % 32)) & 1
            a[i, j] = (1 if bit else -1) / rank**0.5
    return a


def projection_by_numpy(words, columns):
    bits = np.unpackbits(words.numpy().astype("<i4").view(np.uint8), axis=1, bitorder="little")
    return torch.where(torch.tensor(bits[:, :columns]) == 1, 1.0, -1.0) / len(words) ** 0.5


def bits_reversed(words, columns):
    bits = (words[:, :, None] >> torch.arange(31, -1, -1, dtype=torch.int32)) & 1
    return (2.0 * bits.flatten(1)[:, :columns] - 1) / len(words) ** 0.5


def uncut(words, columns):
    return (2.0 * lesson03.bits_of(words).flatten(1) - 1) / len(words) ** 0.5


def gram_by_stack(draw, updates):
    rows = torch.cat([draw(update) for update in range(updates)])
    return rows.T @ rows / updates


def gram_by_einsum(draw, updates):
    drawn = torch.stack([draw(update) for update in range(updates)])
    return torch.einsum("urk,urj->kj", drawn, drawn) / updates


def gram_of_mean(draw, updates):
    mean = torch.stack([draw(update) for update in range(updates)]).mean(0)
    return mean.T @ mean


def repaired_in_both(gradient, rank, key):
    plus_minus = signs(key, rank, gradient.shape[1])
    sketch = gradient @ (plus_minus / rank**0.5).T
    return sketch @ (plus_minus / rank**0.5)


def repaired_at_the_end(gradient, rank, key):
    plus_minus = signs(key, rank, gradient.shape[1])
    return gradient @ plus_minus.T @ plus_minus / rank


ANSWERS = {
    "projection_from_words": Answers(
        right=(projection_by_loop, projection_by_numpy),
        wrong=(
            (lesson03.unscaled, "divide by √r"),
            (lambda w, c: lesson03.unscaled(w, c) / w.shape[0], "You divided by r"),
            (lambda w, c: -projection_by_loop(w, c), "a bit of 1 means +"),
            (bits_reversed, "bit 0, the lowest"),
            (uncut, "bits beyond the last column are cut off"),
            (lambda w, c: projection_by_loop(w, c).T, "its shape is [4, 1]"),
            (lesson03.unmasked, "`& 1` is missing"),
            (lambda w, c: projection_by_loop(w, c).double(), "float64; float32 was expected"),
        ),
    ),
    "sketch_gradient": Answers(
        right=(lambda g, a: torch.einsum("dk,rk->dr", g, a), lambda g, a: (a @ g.mT).T, project),
        wrong=(
            (lambda g, a: a @ g.T, "the transpose"),
            (lambda g, a: g @ a, "A is not transposed"),
            (lambda g, a: g @ a.T / a.shape[0] ** 0.5, "comes twice"),
            (lambda g, a: g @ a.T * a.shape[0] ** 0.5, "leave it in"),
        ),
    ),
    "lift_sketch": Answers(
        right=(lambda s, a: torch.einsum("dr,rk->dk", s, a), lambda s, a: (a.T @ s.T).T, lift),
        wrong=(
            (lambda s, a: s @ torch.linalg.solve(a @ a.T, a), "it shrinks"),
            (lambda s, a: (s @ a).T, "the transpose"),
            (lambda s, a: s @ a / a.shape[0] ** 0.5, "comes again"),
            (lambda s, a: -(s @ a), "-1.0"),
        ),
    ),
    "average_gram": Answers(
        right=(gram_by_stack, gram_by_einsum),
        wrong=(
            (lambda f, n: sum(f(u) @ f(u).T for u in range(n)) / n, "The lift needs AᵀA"),
            (lambda f, n: sum(f(u).T @ f(u) for u in range(n)), "divide by the number of draws"),
            (lambda f, n: sum(f(0).T @ f(0) for u in range(n)) / n, "The same A each time"),
            (gram_of_mean, "Multiply first, then average"),
            (lambda f, n: sum(f(u).T @ f(u) for u in range(n - 1)) / n, "The last draw is missing"),
            (lambda f, n: sum(f(u).T @ f(u) for u in range(1, n + 1)) / n, "count from 0"),
        ),
    ),
    "expected_noise": Answers(
        right=(
            lambda r, k: k / r - 1 / r,
            lambda r, k: sum(1 / r for other in range(1, k)),
        ),
        wrong=(
            (lambda r, k: k / r, "k − 1 entries do"),
            (lambda r, k: (k + r - 1) / r, "Take off the signal"),
            (lambda r, k: ((k - 1) / r) ** 0.5, "its root"),
            (lambda r, k: (k - r) / r, "does not project"),
            (lambda r, k: (k - 1) / r**0.5, "standard deviation"),
            (lambda r, k: r / (k - 1) if k > 1 else 0.0, "How many entries off the diagonal"),
        ),
    ),
    "repaired_estimate": Answers(
        right=(repaired_in_both, repaired_at_the_end),
        wrong=(
            (lesson03.faulty_estimate, "still there"),
            (lambda g, r, k: g @ signs(k, r, g.shape[1]).T @ signs(k, r, g.shape[1]), "gone altogether"),
            (lesson03.rescaled, "no cure"),
            (lambda g, r, k: lesson03.faulty_estimate(g, r, k) / r, "one root too many"),
            (lambda g, r, k: repaired_at_the_end(g, r, k) * 1.1, "values are off"),
            (lambda g, r, k: repaired_at_the_end(g, r, k) / r, "each use takes 1/√r"),
        ),
    ),
}
