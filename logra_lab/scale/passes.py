"""Pass@1 and Pass@k on held-out problems, the problems shared by all processes.

P  problems      k  answers to each
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from logra_lab.rl.batch import score_answers
from logra_lab.rl.evaluation import SEQUENCES
from logra_lab.rl.generation import Sampler, Sampling, sample_tokens
from logra_lab.rl.policy import Policy, rollout
from logra_lab.rl.tasks import Problem, Task
from logra_lab.scale.world import World


def right_answers(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    answers: int = 1,
    sampler: Sampler = sample_tokens,
    world: World | None = None,
    sequences: int = SEQUENCES,
) -> Tensor:
    """How many of `answers` answers to each problem are right [P], in the order of `problems`, on every process.

    Each process answers every `world.size`-th problem; a short share repeats its last one, so that all run alike.
    """
    world = world or World()
    share = -(-len(problems) // world.size)
    own = [
        problems[min(rank, len(problems) - 1)] for rank in range(world.rank, share * world.size, world.size)
    ]
    repeated = [problem for problem in own for _ in range(answers)]
    right: list[float] = []
    for start in range(0, len(repeated), sequences):
        some = repeated[start : start + sequences]
        sampled = rollout(
            policy, policy.encode([p.prompt for p in some]), sampling, generator, sampler=sampler
        )
        right += score_answers(task, some, sampled)
    counts = torch.tensor(right).view(-1, answers).sum(-1)  # [share]
    by_rank = world.gather(counts).view(world.size, -1)  # [size, share]
    return by_rank.T.flatten()[: len(problems)]


def pass_at(right: Tensor, answers: int, k: int) -> float:
    """Pass@k from `right` [P] of `answers` answers each: the chance that k of them, drawn at random, hold a right one.

    1 − C(n − c, k) / C(n, k) per problem; ValueError if k is above the number of answers.
    """
    if not 1 <= k <= answers:
        raise ValueError(f"Pass@{k} of {answers} answers can't be told; use k from 1 to {answers}")
    wrong = answers - right.double()
    missed = torch.ones_like(wrong)
    for drawn in range(k):
        missed *= ((wrong - drawn) / (answers - drawn)).clamp(min=0)
    return 1.0 - missed.mean().item()
