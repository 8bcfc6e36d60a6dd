"""Exercises of lesson 02 on advantages: compare with the group, or with a running mean.

P  prompts      G  answers per prompt      B  answers
"""

from __future__ import annotations

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Slip, exercise

EPS = 1e-4
WEIGHT = 0.1


def rewards(prompts: int = 3, answers: int = 4) -> Tensor:
    """0/1 rewards [P, G] with mixed groups."""
    drawn = torch.rand(prompts, answers, generator=torch.Generator().manual_seed(2)) < 0.5
    drawn[:, 0], drawn[:, 1] = True, False
    return drawn.float()


def centred(r: Tensor) -> Tensor:
    """Rewards minus the mean of their group [P, G]."""
    return r - r.mean(1, keepdim=True)


@exercise(
    "group_advantages",
    Case(
        "each group on its own",
        lambda: (rewards(),),
        hint="Mean and std along dimension 1, with keepdim=True.",
    ),
    Case(
        "a square of rewards, so that no axis is confused",
        lambda: (rewards(4, 4),),
        hint="A group is a row: dimension 1.",
    ),
    Case(
        "a group of equal rewards gets 0, not NaN",
        lambda: (torch.cat([torch.ones(1, 4), rewards(2, 4)]),),
        hint="std is 0 there: add 1e-4 before you divide.",
    ),
    slips=(
        Slip(
            "keepdim=True is missing: the mean of a row must stand beside that row.",
            lambda r: (r - r.mean(1)) / (r.std(1) + EPS),
        ),
        Slip(
            "Brackets are missing: take the mean off first, then divide.",
            lambda r: r - r.mean(1, keepdim=True) / (r.std(1, keepdim=True) + EPS),
        ),
        Slip(
            "The mean runs over prompts. A group is a row: dim=1.",
            lambda r: (r - r.mean(0)) / (r.std(0) + EPS),
        ),
        Slip(
            "One mean for all: compare an answer with the others to the same prompt.",
            lambda r: (r - r.mean()) / (r.std() + EPS),
        ),
        Slip(
            "That is std with G in its denominator; torch.std divides by G − 1.",
            lambda r: centred(r) / (r.std(1, keepdim=True, correction=0) + EPS),
        ),
        Slip("This is centred only; divide by the group's std as well.", centred),
        Slip(
            "That divides by the variance; take the standard deviation.",
            lambda r: centred(r) / (r.var(1, keepdim=True) + EPS),
        ),
        Slip(
            "0/0 in a group of equal rewards: add 1e-4 to the std.",
            lambda r: centred(r) / r.std(1, keepdim=True),
        ),
        Slip(
            "The sign is turned round: better than the mean is positive.",
            lambda r: -centred(r) / (r.std(1, keepdim=True) + EPS),
        ),
    ),
)
def group_advantages(rewards: Tensor) -> Tensor:
    """(r − mean) / (std + 1e-4) within each group, [P, G] (method.md §4)."""
    return centred(rewards) / (rewards.std(1, keepdim=True) + EPS)


@exercise(
    "running_advantages",
    Case(
        "advantages use the baseline as it was",
        lambda: (rewards().flatten(), 0.3),
        select=lambda pair: pair[0],
        hint="First the advantages, then the new baseline.",
    ),
    Case(
        "the new baseline is 0.9 of the old and 0.1 of this batch",
        lambda: (rewards().flatten(), 0.3),
        select=lambda pair: pair[1],
        hint="0.9 * baseline + 0.1 * rewards.mean()",
    ),
    Case("it starts from 0 as from anything else", lambda: (torch.tensor([1.0, 0.0, 0.0, 1.0]), 0.0)),
    slips=(
        Slip(
            "The new baseline has seen this batch, and that is a bias. Use the old one.",
            lambda r, b: (r - moved(r, b), moved(r, b)),
        ),
        Slip(
            "The weights are swapped: a new batch counts 0.1.",
            lambda r, b: (r - b, 0.1 * b + 0.9 * r.mean().item()),
        ),
        Slip(
            "This is the mean of the batch itself, not of past batches.",
            lambda r, b: (r - r.mean(), moved(r, b)),
        ),
        Slip(
            "The sign is turned round: better than the baseline is positive.",
            lambda r, b: (b - r, moved(r, b)),
        ),
        Slip(
            "This forgets the past: 0.9 of the old baseline stays.",
            lambda r, b: (r - b, r.mean().item()),
        ),
        Slip(
            "The baseline follows the mean of the rewards, not that of the advantages.",
            lambda r, b: (r - b, moved(r - b, b)),
        ),
        Slip("The advantages come first, then the baseline.", lambda r, b: (moved(r, b), r - b)),
        Slip(
            "The baseline moves by the sum of the batch; take its mean.",
            lambda r, b: (r - b, 0.9 * b + 0.1 * r.sum().item()),
        ),
    ),
)
def running_advantages(rewards: Tensor, baseline: float) -> tuple[Tensor, float]:
    """(r − b, 0.9 b + 0.1 mean(r)), from [B] (method.md §4)."""
    return rewards - baseline, moved(rewards, baseline)


def moved(rewards: Tensor, baseline: float) -> float:
    """The running mean after a batch."""
    return (1 - WEIGHT) * baseline + WEIGHT * rewards.mean().item()
