"""Answers to the exercises of lesson 05."""

from __future__ import annotations

import numpy as np
import torch

from logra_lab.lab import halves_laws
from tests.lab.answers import Answers


def moment_by_loop(moment, sketch, step, beta2):
    following = torch.stack(
        [beta2 * v + (1 - beta2) * sum(s * s for s in row) / len(row) for v, row in zip(moment, sketch)]
    )
    return following, torch.sqrt(following / (1 - beta2**step))


def moment_in_place_of_a_copy(moment, sketch, step, beta2):
    following = moment.clone().mul_(beta2).add_(sketch.pow(2).mean(dim=-1), alpha=1 - beta2)
    return [following, following.div(1 - beta2**step).sqrt()]


def moment_of(square):
    """An answer that takes `square(sketch)` for the mean squares of the rows."""

    def answer(moment, sketch, step, beta2):
        following = beta2 * moment + (1 - beta2) * square(sketch)
        return following, (following / (1 - beta2**step)).sqrt()

    return answer


def uncorrected(moment, sketch, step, beta2):
    following = beta2 * moment + (1 - beta2) * sketch.square().mean(1)
    return following, following.sqrt()


def late(moment, sketch, step, beta2):
    following = beta2 * moment + (1 - beta2) * sketch.square().mean(1)
    return following, (following / (1 - beta2 ** (step + 1))).sqrt()


def exchanged(moment, sketch, step, beta2):
    return moment_in_place_of_a_copy(moment, sketch, step, 1 - beta2)[0], late(moment, sketch, step, beta2)[1]


def corrected_twice(moment, sketch, step, beta2):
    following = moment_in_place_of_a_copy(moment, sketch, step, beta2)[0] / (1 - beta2**step)
    return following, following.sqrt()


def survives_by_count(weight, update):
    after = (weight.double() - update.double()).float().bfloat16()
    return int((after.view(torch.int16) != weight.view(torch.int16)).sum()) / weight.numel()


def split_by_rounding(value):
    bits = value.numpy().view(np.int32).astype(np.int64)
    upper = (bits + 32768) // 65536
    lower = bits - upper * 65536
    half = torch.tensor(upper.astype(np.int16)).view(torch.bfloat16)
    return half, torch.tensor(lower.astype(np.int16))


def split_by_where(value):
    bits = value.view(torch.int32)
    low = bits & 0xFFFF
    up = (bits >> 16) + (low >= 0x8000).int()
    return up.to(torch.int16).view(torch.bfloat16), torch.where(low >= 0x8000, low - 0x10000, low).to(
        torch.int16
    )


def split_truncated(value):
    bits = value.view(torch.int32)
    return (bits >> 16).to(torch.int16).view(torch.bfloat16), (bits & 0xFFFF).to(torch.int16)


def split_to_even(value):
    upper = value.to(torch.bfloat16)
    return upper, (value.view(torch.int32) - (upper.view(torch.int16).int() << 16)).to(torch.int16)


def split_rounded_up(value):
    bits = value.view(torch.int32)
    upper = (bits + 0xFFFF) >> 16
    return upper.to(torch.int16).view(torch.bfloat16), (bits - (upper << 16)).to(torch.int16)


def split_in_numbers(value):
    upper = value.to(torch.bfloat16)
    return upper, value - upper.float()


ANSWERS = {
    "row_moment": Answers(
        right=(moment_by_loop, moment_in_place_of_a_copy),
        wrong=(
            (moment_of(lambda s: s.square().mean(0)), "wrong axis"),
            (lambda v, s, t, b: moment_by_loop(v, s, t, b)[::-1], "v comes first"),
            (lambda v, s, t, b: (m := uncorrected(v, s, t, b)[0], m.sqrt() / (1 - b**t)), "under the root"),
            (moment_of(lambda s: s.square().sum(1)), "You summed over the row"),
            (moment_of(lambda s: s.mean(1).square()), "You squared the mean"),
            (uncorrected, "The bias correction is missing"),
            (late, "one step late"),
            (corrected_twice, "Return the moment as it is"),
            (exchanged, "values are off"),
            (lambda v, s, t, b: moment_by_loop(v, s, t, b)[0], "2 values were expected"),
        ),
    ),
    "expected_square": Answers(
        right=(
            lambda g, r: (g @ g.T).diagonal() / r,
            lambda g, r: torch.linalg.vector_norm(g, dim=1) ** 2 / r,
        ),
        wrong=(
            (lambda g, r: g.square().sum(1), "You forgot the rank"),
            (lambda g, r: g.square().mean(1) / r, "mean over the columns"),
            (lambda g, r: g.norm(dim=1) / r, "This is the norm"),
            (lambda g, r: g.square().sum(1) / r**0.5, "divide by r"),
            (lambda g, r: g.square().sum(0) / r, "sums over rows"),
            (lambda g, r: g.sum(1).square() / r, "You squared the sum"),
            (lambda g, r: (g.norm(dim=1) / r) ** 2, "squared once"),
        ),
    ),
    "survives": Answers(
        right=(
            survives_by_count,
            lambda w, u: 1 - torch.eq((w.float() - u).to(torch.bfloat16), w).double().mean().item(),
        ),
        wrong=(
            (lambda w, u: (w - u != w.float()).float().mean().item(), "compared before rounding"),
            (lambda w, u: 1 - survives_by_count(w, u), "share that is lost"),
            (lambda w, u: 100 * survives_by_count(w, u), "in per cent"),
            (lambda w, u: survives_by_count(w, -u), "taken off, not added"),
            (lambda w, u: (w - u.bfloat16() != w).float().mean().item(), "rounded to bf16 before"),
            (lambda w, u: survives_by_count(w, u) * w.numel(), "This is a count"),
            (lambda w, u: ((w.float() - u).half() != w.half()).float().mean().item(), "three bits more"),
        ),
    ),
    "split_number": Answers(
        right=(split_by_rounding, split_by_where),
        wrong=(
            (split_truncated, "cut off, not rounded"),
            (split_to_even, "Round half up"),
            (lambda x: split_by_where(x)[::-1], "the halves are torch.int16 and torch.bfloat16"),
            (split_in_numbers, "torch.bfloat16 and torch.float32"),
            (halves_laws.converted, "reads its bits"),
            (lambda x: (halves_laws.converted(x)[0], x.to(torch.int16)), "other numbers altogether"),
            (split_rounded_up, "larger than the numbers"),
            (lambda x: None, "not written yet"),
        ),
    ),
    "decayed_step": Answers(
        right=(
            lambda w, u, c: w - c * w - u,
            lambda w, u, c: torch.lerp(w, torch.zeros_like(w), c).sub(u),
        ),
        wrong=(
            (lambda w, u, c: (1 - c) * (w - u), "The update does not arrive whole"),
            (lambda w, u, c: (1 + c) * w - u, "weights would grow"),
            (lambda w, u, c: (1 - c) * w + u, "it is taken off"),
            (lambda w, u, c: w - u, "gone altogether"),
            (lambda w, u, c: w - (1 - c) * u, "shrinks the update"),
        ),
    ),
}
