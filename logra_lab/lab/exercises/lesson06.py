"""Exercises of lesson 06: the quadratic form, the scale, the budget, and the positions to judge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.method import trust_region

# ---------------------------------------------------------------- ½ Var


def by_hand() -> tuple[Tensor, Tensor]:
    """Three tokens with probabilities ½, ¼, ¼; only the first one's logit moves."""
    return torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[1.0, 0.0, 0.0]])


def positions(shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Five positions, seven tokens; `shift` is added to every tangent."""
    random = torch.Generator().manual_seed(6)
    logits = 2 * torch.randn(5, 7, generator=random)
    return logits, torch.randn(5, 7, generator=random) + shift


def is_the_kl_of_a_small_step(function) -> bool | str:
    """½ Var equals KL(π_z ‖ π_{z + εż}) / ε² for a small ε."""
    logits, tangent = (x.double() for x in positions())
    small = 1e-3
    old, new = logits.log_softmax(-1), (logits + small * tangent).log_softmax(-1)
    kl = (old.exp() * (old - new)).sum(-1).mean().item() / small**2
    yours = float(torch.as_tensor(function(logits, tangent)).double().mean())
    if math.isclose(yours, kl, rel_tol=0.01):
        return True
    return f"on a small step the measured KL is {kl:.4f} ε², yours {yours:.4f} ε²"


def uncentred(logits: Tensor, tangent: Tensor) -> Tensor:
    return 0.5 * (logits.softmax(-1) * tangent.square()).sum(-1)


def unweighted(logits: Tensor, tangent: Tensor) -> Tensor:
    return 0.5 * tangent.var(-1, unbiased=False)


def flattened(logits: Tensor, tangent: Tensor) -> Tensor:
    policy = logits.softmax(-1)
    return 0.5 * (policy * (tangent - (policy * tangent).sum(-1)).square()).sum(-1)


def of(probabilities: Tensor, tangent: Tensor) -> Tensor:
    """The variance of the tangent under some weights."""
    mean = (probabilities * tangent).sum(-1, keepdim=True)
    return (probabilities * (tangent - mean).square()).sum(-1)


@exercise(
    "half_variance",
    Case(
        "gives ⅛ for π = (½, ¼, ¼) and ż = (1, 0, 0)",
        by_hand,
        "E[ż] = ½ and E[ż²] = ½, so Var = ½ − ¼.",
        dtype=False,
    ),
    Case(
        "gives one value per position [n]",
        positions,
        "sum over the vocabulary, the last axis, only.",
        dtype=False,
    ),
    Case(
        "does not care about a constant added to ż",
        lambda: positions(shift=3.0),
        "subtract the mean of ż under π before you square.",
        dtype=False,
    ),
    Law("is the KL of a small step", is_the_kl_of_a_small_step, "½ Var, with the ½ and with weights π."),
    slips=(
        Slip("this is ½ E[ż²]: the mean of ż under π was not subtracted.", uncentred),
        Slip("every token counts the same here: weight by π, the softmax of the logits.", unweighted),
        Slip(
            "every token counts the same here: weight by π, the softmax of the logits.",
            lambda z, t: 0.5 * t.var(-1),
        ),
        Slip("keepdim=True is missing: the mean of a position must stand beside its row.", flattened),
        Slip("the factor ½ is missing.", lambda z, t: of(z.softmax(-1), t)),
        Slip(
            "the softmax runs over the positions; it belongs over the vocabulary.",
            lambda z, t: 0.5 * of(z.softmax(0), t),
        ),
        Slip(
            "this is a standard deviation: leave the root away.",
            lambda z, t: 0.5 * of(z.softmax(-1), t).sqrt(),
        ),
        Slip(
            "the mean was subtracted without weights: use the mean under π.",
            lambda z, t: 0.5 * (z.softmax(-1) * (t - t.mean(-1, keepdim=True)).square()).sum(-1),
        ),
    ),
)
def half_variance(logits: Tensor, tangent: Tensor) -> Tensor:
    return trust_region.half_variance(logits, tangent)


# ---------------------------------------------------------------- α


TURNED = "the ratio is upside down: budget over predicted KL."
LARGER = "α_max is a ceiling: take the smaller of the two, not the larger."


def root_ratio(q: float, delta: float) -> float:
    """√(δ/q), 1 where q = 0."""
    return math.sqrt(delta / q) if q else 1.0


@exercise(
    "step_scale",
    Case(
        "shrinks a step that costs four times the budget to a half",
        lambda: (4e-3, 1e-3, 3.0, True),
        "KL grows as α², so the root of δ/q is needed.",
    ),
    Case(
        "lengthens a short step when two-sided",
        lambda: (1e-3, 4e-3, 3.0, True),
        "two_sided lets α exceed 1, up to alpha_max.",
    ),
    Case("never exceeds alpha_max", lambda: (1e-9, 1e-3, 3.0, True), "α = min(α_max, …)."),
    Case(
        "is only a brake when not two-sided",
        lambda: (1e-3, 4e-3, 3.0, False),
        "then 1 stands in for alpha_max.",
    ),
    Case(
        "still brakes when not two-sided",
        lambda: (1e-1, 1e-3, 3.0, False),
        "√(δ/q) below 1 applies either way.",
    ),
    Case(
        "leaves a step alone that moves nothing (q = 0)",
        lambda: (0.0, 1e-3, 3.0, True),
        "return 1 before you divide.",
    ),
    slips=(
        Slip(
            "the square root is missing: KL grows as α².",
            lambda q, d, m, two: min(m if two else 1.0, d / q if q else 1.0),
        ),
        Slip(TURNED, lambda q, d, m, two: min(m if two else 1.0, math.sqrt(q / d))),
        Slip(TURNED, lambda q, d, m, two: min(m if two else 1.0, math.sqrt(q / d)) if q else 1.0),
        Slip(
            "two_sided is not looked at: without it α must not exceed 1.",
            lambda q, d, m, two: min(m, root_ratio(q, d)),
        ),
        Slip(
            "alpha_max is missing.",
            lambda q, d, m, two: root_ratio(q, d) if two else min(1.0, root_ratio(q, d)),
        ),
        Slip(LARGER, lambda q, d, m, two: max(m if two else 1.0, root_ratio(q, d))),
        Slip(LARGER, lambda q, d, m, two: max(m if two else 1.0, root_ratio(q, d)) if q else 1.0),
        Slip("there is no ceiling: alpha_max if two-sided, 1 if not.", lambda q, d, m, two: root_ratio(q, d)),
        Slip("α never exceeds 1 here; two_sided allows it.", lambda q, d, m, two: min(1.0, root_ratio(q, d))),
    ),
)
def step_scale(predicted_kl: float, delta: float, alpha_max: float, two_sided: bool) -> float:
    return trust_region.step_scale(predicted_kl, delta, alpha_max, two_sided)


# ---------------------------------------------------------------- δ(u)


def cosine(start: float, end: float, share: float) -> float:
    """From start to end, half a cosine, at this share of the way."""
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * share))


@exercise(
    "kl_budget",
    Case("allows δ_0 to the first update (u = 0)", lambda: (0, 1e-2, 1e-3, 101), "cos(0) = 1."),
    Case("is half way down in the middle", lambda: (50, 1e-2, 1e-3, 101), "u runs from 0 to H − 1."),
    Case("is close to δ_0 for the first tenth", lambda: (10, 1e-2, 1e-3, 101), "a cosine starts flat."),
    Case("reaches δ_T at update H − 1", lambda: (100, 1e-2, 1e-3, 101), "H updates are counted from 0."),
    Case("stays there", lambda: (140, 1e-2, 1e-3, 101), "cap u/(H − 1) at 1, or the cosine climbs again."),
    slips=(
        Slip("divide by H − 1: the updates are counted from 0.", lambda u, a, b, h: cosine(a, b, min(u / h, 1))),
        Slip("nothing stops u at the end of the schedule, and a cosine comes back.",
             lambda u, a, b, h: cosine(a, b, u / (h - 1))),
        Slip("this falls in a straight line; the schedule is half a cosine.",
             lambda u, a, b, h: a + (b - a) * min(u / (h - 1), 1)),
        Slip("the ½ is missing: 1 + cos runs from 2 to 0.",
             lambda u, a, b, h: b + (a - b) * (1 + math.cos(math.pi * min(u / (h - 1), 1)))),
        Slip("it climbs: δ_0 and δ_T have changed places.", lambda u, a, b, h: cosine(b, a, min(u / (h - 1), 1))),
        Slip("this runs through a whole cosine: use π, not 2π.",
             lambda u, a, b, h: cosine(a, b, 2 * min(u / (h - 1), 1))),
        Slip("π is missing: the cosine has to run from 0 to π.",
             lambda u, a, b, h: cosine(a, b, min(u / (h - 1), 1) / math.pi)),
    ),
)  # fmt: skip
def kl_budget(updates: int, budget: float, final_budget: float, schedule_steps: int) -> float:
    return trust_region.kl_budget(updates, budget, final_budget, schedule_steps)


# ---------------------------------------------------------------- which positions


def two_rows() -> tuple[Tensor, Tensor]:
    """Two sequences of different length: prompts padded on the left, answers on the right."""
    attention = torch.tensor([[0, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 1, 1]]).bool()
    generated = torch.tensor([[0, 0, 0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1, 1]]).bool()
    return attention, generated


def every_real(attention: Tensor, generated: Tensor) -> Tensor:
    real = attention.bool()
    return torch.nn.functional.pad(real[:, 1:] & real[:, :-1], (0, 1))


def one_per_sampled_token(function) -> bool | str:
    """As many positions as there are sampled tokens, row by row."""
    attention, generated = two_rows()
    seen, wanted = function(attention, generated).sum(1).tolist(), generated.sum(1).tolist()
    return True if seen == wanted else f"it marks {seen} positions for {wanted} sampled tokens"


@exercise(
    "judged_positions",
    Law("marks one position per sampled token", one_per_sampled_token, "what was not sampled is not judged."),
    Case(
        "marks the position before each sampled token",
        two_rows,
        "the logits at position t speak of token t + 1.",
    ),
    slips=(
        Slip("this judges the prompt too: start from generated_mask.", every_real),
        Slip("these are the sampled tokens; each is predicted one position earlier.", lambda a, g: g),
        Slip("this is one position too late: shift to the left.", lambda a, g: g.roll(1, 1)),
        Slip(
            "this is one position too late: shift to the left.",
            lambda a, g: torch.nn.functional.pad(g, (1, -1)),
        ),
        Slip("these are the prompt's positions.", lambda a, g: a & ~g),
    ),
)
def judged_positions(attention_mask: Tensor, generated_mask: Tensor) -> Tensor:
    return torch.nn.functional.pad(generated_mask[:, 1:], (0, 1))
