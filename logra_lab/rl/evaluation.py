"""Accuracy on held-out problems: sampled at the training temperature, and greedy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from logra_lab.rl.batch import draw_problems, score_answers
from logra_lab.rl.generation import Sampler, Sampling, sample_tokens
from logra_lab.rl.policy import Policy, rollout
from logra_lab.rl.tasks import Problem, Task

SEQUENCES = 512  # answered at a time


def evaluate(
    policy: Policy,
    task: Task,
    sampling: Sampling,
    generator: torch.Generator,
    problems: int | None = None,
    *,
    greedy: bool = True,
    sequences: int = SEQUENCES,
    sampler: Sampler = sample_tokens,
) -> dict[str, float]:
    """`accuracy` (sampled) and `greedy` on `problems` held-out problems, or on all of them."""
    chosen: Sequence[Problem] = task.held_out
    if problems is not None and problems < len(chosen):
        chosen = draw_problems(chosen, problems, generator)
    result = {"accuracy": accuracy(policy, task, chosen, sampling, generator, sequences, sampler)}
    if greedy:
        without_chance = dataclasses.replace(sampling, temperature=0.0)
        result["greedy"] = accuracy(policy, task, chosen, without_chance, generator, sequences, sampler)
    return result


def accuracy(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    sampling: Sampling,
    generator: torch.Generator,
    sequences: int = SEQUENCES,
    sampler: Sampler = sample_tokens,
) -> float:
    """The share of `problems` answered right, one answer each."""
    right = 0.0
    for start in range(0, len(problems), sequences):
        some = problems[start : start + sequences]
        answers = rollout(
            policy, policy.encode([p.prompt for p in some]), sampling, generator, sampler=sampler
        )
        right += sum(score_answers(task, some, answers))
    return right / len(problems)
