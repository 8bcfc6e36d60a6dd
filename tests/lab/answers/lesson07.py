"""Answers to the exercises of lesson 07."""

from __future__ import annotations

import math

import numpy as np
import torch

from logra_lab.lab.exercises import lesson07, lesson07_step
from tests.lab.answers import Answers


def step_by_hand(sketches, moments, projections, weights, step, predict, budget):
    new, factors = {}, {}
    for name, sketch in sketches.items():
        new[name] = 0.95 * moments[name] + 0.05 * sketch.pow(2).mean(1)
        rho = (new[name] / (1 - 0.95**step)).sqrt()
        scaled = sketch / (rho + 1e-8 * rho.mean())[:, None]
        factors[name] = scaled * sketch.norm() / scaled.norm()
    size = sum(weight.norm().item() ** 2 for weight in weights.values())
    change = sum((factors[n] @ projections[n]).norm().item() ** 2 for n in factors)
    c = 3e-3 * math.sqrt(size / change)
    q = predict({n: c * u for n, u in factors.items()})
    alpha = min(3.0, math.sqrt(budget / q))
    return {n: -alpha * c * factors[n] @ projections[n] for n in factors}, new, alpha


def step_with_alpha_in_the_factor(sketches, moments, projections, weights, step, predict, budget):
    changes, new, alpha = lesson07_step.assemble_step(
        sketches, moments, projections, weights, step, predict, budget
    )
    return {name: 1.0 * change for name, change in changes.items()}, dict(new), float(alpha)


def brake_only(sketches, moments, projections, weights, step, predict, budget):
    changes, new, alpha = lesson07_step.assemble_step(
        sketches, moments, projections, weights, step, predict, budget
    )
    return {n: change * min(alpha, 1.0) / alpha for n, change in changes.items()}, new, min(alpha, 1.0)


def square_root_forgotten(sketches, moments, projections, weights, step, predict, budget):
    changes, new, alpha = lesson07_step.assemble_step(
        sketches, moments, projections, weights, step, predict, budget
    )
    return {n: change * alpha for n, change in changes.items()}, new, alpha**2


def diagnose_by_list(clues):
    table = [
        (clues["largest_kl"] > 0.1, "step too large"),
        (clues["no_signal"] > 0.8, "no signal"),
        (clues["gain"] <= 0.05, "rewards say nothing"),
        (True, "healthy"),
    ]
    return next(name for holds, name in table if holds)


def diagnose_nested(clues):
    if clues["largest_kl"] <= 0.1:
        if clues["no_signal"] <= 0.8:
            return "rewards say nothing" if clues["gain"] <= 0.05 else "healthy"
        return "no signal"
    return "step too large"


def signal_first(clues):
    if clues["no_signal"] > 0.8:
        return "no signal"
    if clues["largest_kl"] > 0.1:
        return "step too large"
    return "healthy" if clues["gain"] > 0.05 else "rewards say nothing"


def gain_first(clues):
    if clues["gain"] > 0.05:
        return "healthy"
    return (
        "step too large"
        if clues["largest_kl"] > 0.1
        else "no signal"
        if clues["no_signal"] > 0.8
        else "rewards say nothing"
    )


def interval_by_numpy(ours, theirs):
    gap = np.array(ours) - np.array(theirs)
    n = len(gap)
    return float(gap.mean()), float(lesson07.t_quantile(n - 1) * gap.std(ddof=1) / np.sqrt(n))


def interval_by_torch(ours, theirs):
    gap = torch.tensor(ours, dtype=torch.float64) - torch.tensor(theirs, dtype=torch.float64)
    return gap.mean().item(), (lesson07.t_quantile(len(gap) - 1) * gap.std() / len(gap) ** 0.5).item()


def interval_with(ours, theirs, quantile):
    gap = np.array(ours) - np.array(theirs)
    return float(gap.mean()), float(quantile * gap.std(ddof=1) / np.sqrt(len(gap)))


def interval_of_squares(ours, theirs):
    gap = np.array(ours) - np.array(theirs)
    n = len(gap)
    return float(gap.mean()), float(lesson07.t_quantile(n - 1) * gap.var(ddof=1) / np.sqrt(n))


def interval_turned(ours, theirs):
    middle, half = lesson07.paired_interval(ours, theirs)
    return -middle, half


def rank_by_loop(fits, ranks):
    best = 0
    for rank in ranks:
        if fits(rank) and rank > best:
            best = rank
    return best


def rank_by_sorting(fits, ranks):
    for rank in sorted(ranks, reverse=True):
        if fits(rank):
            return rank
    return 0


ANSWERS = {
    "assemble_step": Answers(
        right=(step_by_hand, step_with_alpha_in_the_factor),
        wrong=(
            (lesson07_step._assemble(sign=1.0), "ΔW = −α U A"),
            (lesson07_step._assemble(fresh=False), "Update v first"),
            (lesson07_step._assemble(common=False), "one number for all layers"),
            (lesson07_step._assemble(judge_scaled=False), "Judge the step that would be taken"),
            (lesson07_step._assemble(apply=False), "not applied"),
            (brake_only, "α is held at 1"),
            (lambda *a: (..., *step_by_hand(*a)[1:]), "still `...`"),
            (square_root_forgotten, "in order"),
        ),
    ),
    "diagnose": Answers(
        right=(diagnose_by_list, diagnose_nested),
        wrong=(
            (signal_first, "Look at the KL first"),
            (gain_first, "too large all the same"),
            (lambda clues: "healthy", "healthy"),
            (lambda clues: diagnose_by_list(clues | {"gain": clues["gain"] + 0.05}), "two points"),
            (
                lambda clues: diagnose_by_list(clues | {"no_signal": clues["no_signal"] + 0.01}),
                "leaves 0.1 itself out",
            ),
        ),
    ),
    "paired_interval": Answers(
        right=(interval_by_numpy, interval_by_torch),
        wrong=(
            (lesson07.faulty_interval, "pairs are still forgotten"),
            (
                lambda a, b: tuple(
                    x * y for x, y in zip(lesson07.paired_interval(a, b), (1, len(a) ** 0.5), strict=True)
                ),
                "divide by √n",
            ),
            (interval_turned, "ours minus theirs"),
            (lambda a, b: interval_with(a, b, 1.0), "standard error"),
            (lambda a, b: interval_with(a, b, lesson07.t_quantile(len(a))), "one fewer than seeds"),
            (lambda a, b: (m := interval_by_numpy(a, b), (m[0] - m[1], m[0] + m[1]))[1], "the two ends"),
            (lambda a, b: interval_by_numpy(sorted(a), sorted(b)), "✗"),
            (interval_of_squares, "The root is missing"),
            (lambda a, b: (a - b, 0.0), "the same"),
        ),
    ),
    "largest_rank": Answers(
        right=(rank_by_loop, rank_by_sorting),
        wrong=(
            (lambda fits, ranks: min((r for r in ranks if fits(r)), default=0), "smallest that fits"),
            (lambda fits, ranks: ([r for r in ranks if fits(r)] or [0])[-1], "need not be sorted"),
            (lambda fits, ranks: max(r for r in ranks if fits(r)), "nothing fits"),
        ),
    ),
}
