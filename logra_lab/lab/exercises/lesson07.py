"""Exercises of lesson 07: a diagnosis, a paired interval with a bug, and a rank for a memory limit.

The first exercise, the whole step, is in `lesson07_step.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

from logra_lab.lab.checks import Case, Slip, exercise
from logra_lab.lab.plots import t_quantile
from logra_lab.memory import plan

# ---------------------------------------------------------------- a diagnosis

NAMES = ("no signal", "step too large", "rewards say nothing", "healthy")


def _clues(largest_kl: float, no_signal: float, gain: float) -> tuple[dict[str, float]]:
    return ({"largest_kl": largest_kl, "no_signal": no_signal, "gain": gain},)


@exercise(
    "diagnose",
    Case("a run that learns within its budget is healthy", lambda: _clues(0.009, 0.1, 0.5)),
    Case("a KL of several tenths per step: the step is too large", lambda: _clues(0.4, 0.1, -0.3)),
    Case("nearly all groups agree: no signal", lambda: _clues(0.0, 0.95, 0.0)),
    Case(
        "small steps, signal in every batch, no gain: rewards say nothing", lambda: _clues(0.008, 0.0, -0.02)
    ),
    Case(
        "after a collapse nobody is ever right, so no batch has signal; the large KL came first",
        lambda: _clues(1.3, 0.9, -0.35),
        hint="Ask for the KL before you ask for the signal.",
    ),
    Case("a large step that still gains is too large all the same", lambda: _clues(0.2, 0.1, 0.3)),
    Case("a gain of two points in a hundred is none", lambda: _clues(0.01, 0.1, 0.02)),
    Case(
        "exactly 0.1, 0.8 and 0.05",
        lambda: _clues(0.1, 0.8, 0.05),
        hint="“Above 0.1” leaves 0.1 itself out; “at most 0.05” takes 0.05 in.",
    ),
    slips=(
        Slip(
            "A collapsed run has no signal either. Look at the KL first: it says why.",
            lambda c: (
                "no signal"
                if c["no_signal"] > 0.8
                else "step too large"
                if c["largest_kl"] > 0.1
                else "healthy"
                if c["gain"] > 0.05
                else "rewards say nothing"
            ),
        ),
        Slip("Every run is called healthy.", lambda c: "healthy"),
    ),
)
def diagnose(clues: Mapping[str, float]) -> str:
    """One of `NAMES` from the largest KL of a step, the share without signal and the gain in right answers."""
    if clues["largest_kl"] > 0.1:
        return "step too large"
    if clues["no_signal"] > 0.8:
        return "no signal"
    return "healthy" if clues["gain"] > 0.05 else "rewards say nothing"


# ---------------------------------------------------------------- the bug: an interval that forgets the pairs


def faulty_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean difference and its half-width, as if the two arms had nothing to do with each other. The bug is real."""
    n = len(ours)
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    spread = (statistics.variance(ours) + statistics.variance(theirs)) ** 0.5
    return difference, t_quantile(n - 1) * spread / n**0.5


def _half_width(of: Callable[[list[float]], float]) -> Callable[..., tuple[float, float]]:
    """The paired interval, its half-width taken otherwise."""

    def interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        return statistics.fmean(differences), of(differences)

    return interval


@exercise(
    "paired_interval",
    Case(
        "seeds that move both arms alike leave a narrow interval", lambda: ([0.5, 0.7, 0.9], [0.4, 0.61, 0.8])
    ),
    Case(
        "eight seeds",
        lambda: ([0.8, 0.7, 0.75, 0.9, 0.6, 0.72, 0.81, 0.77], [0.7, 0.72, 0.7, 0.8, 0.65, 0.7, 0.8, 0.7]),
    ),
    Case("the order of the arms gives the sign", lambda: ([0.1, 0.2, 0.15], [0.3, 0.35, 0.4])),
    slips=(
        Slip(
            "The pairs are still forgotten: take the difference per seed before any spread.", faulty_interval
        ),
        Slip(
            "This is the spread of one difference, not of their mean: divide by √n.",
            _half_width(lambda d: t_quantile(len(d) - 1) * statistics.stdev(d)),
        ),
        Slip(
            "The spread is taken with n, not n − 1: with three seeds that is a fifth too narrow.",
            _half_width(lambda d: t_quantile(len(d) - 1) * statistics.pstdev(d) / len(d) ** 0.5),
        ),
        Slip(
            "1.96 belongs to many seeds. With n of them use Student's t with n − 1.",
            _half_width(lambda d: 1.96 * statistics.stdev(d) / len(d) ** 0.5),
        ),
        Slip(
            "Student's quantile is missing: this is the standard error, not the interval.",
            _half_width(lambda d: statistics.stdev(d) / len(d) ** 0.5),
        ),
        Slip(
            "The quantile has n − 1 degrees of freedom, one fewer than seeds.",
            _half_width(lambda d: t_quantile(len(d)) * statistics.stdev(d) / len(d) ** 0.5),
        ),
        Slip(
            "The root is missing: statistics.variance is a square.",
            _half_width(lambda d: t_quantile(len(d) - 1) * statistics.variance(d) / len(d) ** 0.5),
        ),
        Slip(
            "The sign is turned round: it is ours minus theirs.",
            lambda a, b: (-paired_interval(a, b)[0], paired_interval(a, b)[1]),
        ),
        Slip(
            "These are the two ends of the interval; return its middle and its half-width.",
            lambda a, b: (sum(paired_interval(b, a)) * -1, sum(paired_interval(a, b))),
        ),
    ),
)
def paired_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Mean of the per-seed differences and the half-width of its 95 % Student interval."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    n = len(differences)
    return statistics.fmean(differences), t_quantile(n - 1) * statistics.stdev(differences) / n**0.5


# ---------------------------------------------------------------- a rank for a memory limit

RANKS = (8, 16, 32, 64, 128, 256, 512)


def fits_7b(rank: int, card: int) -> bool:
    """Whether the planner puts Qwen2.5-Math-7B with sketches of this rank on one card of so many GB."""
    return plan("Qwen2.5-Math-7B", "logra", rank=rank, precision="split", checkpointing=True).fits(card)


def _limit(largest: int) -> Callable[[int], bool]:
    return lambda rank: rank <= largest


@exercise(
    "largest_rank",
    Case("the largest that fits", lambda: (_limit(64), RANKS)),
    Case(
        "nothing fits: 0",
        lambda: (_limit(0), RANKS),
        hint="An empty selection has no largest: return 0.",
    ),
    Case("all fit", lambda: (_limit(10**6), RANKS)),
    Case("the ranks may come in any order", lambda: (_limit(100), (256, 8, 64, 32))),
    slips=(
        Slip(
            "This is the smallest that fits.",
            lambda fits, ranks: min((r for r in ranks if fits(r)), default=0),
        ),
        Slip(
            "This is the first that does not fit.",
            lambda fits, ranks: min((r for r in ranks if not fits(r)), default=0),
        ),
        Slip(
            "This is the last in the list that fits; they need not be sorted.",
            lambda fits, ranks: ([r for r in ranks if fits(r)] or [0])[-1],
        ),
    ),
)
def largest_rank(fits: Callable[[int], bool], ranks: Sequence[int]) -> int:
    """The largest of `ranks` for which `fits(rank)` holds, 0 if there is none."""
    return max((rank for rank in ranks if fits(rank)), default=0)
