"""A step's answers with their rewards, and how they are cut into micro-batches.

P  prompts      G  answers per prompt      B = P*G  sequences      L  padded length      T  sampled tokens, flat
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from logra_lab.rl.config import RunConfig
from logra_lab.rl.generation import Sampler, sample_tokens
from logra_lab.rl.losses import no_signal, per_token
from logra_lab.rl.policy import Policy, Rollout, rollout
from logra_lab.rl.tasks import Problem, Task


class MicroBatch(NamedTuple):
    """Some sequences of a batch: ids and masks [b, L'], and per sampled token [T'] what the loss needs."""

    input_ids: Tensor
    attention_mask: Tensor
    generated_mask: Tensor
    log_probs: Tensor
    advantages: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Batch:
    """The rollout of a step; `right` and `rewards` are [B], `answers` is G."""

    rollout: Rollout
    right: Tensor
    rewards: Tensor
    answers: int

    @property
    def tokens(self) -> int:
        """Sampled tokens in the batch (T)."""
        return int(self.rollout.lengths.sum())

    def metrics(self) -> dict[str, Any]:
        """What can be said of the answers before they are learned from."""
        groups = self.rewards.view(-1, self.answers) if self.answers > 1 else self.rewards[None]
        return {
            "reward": self.rewards.mean().item(),
            "right": self.right.mean().item(),
            "no_signal": no_signal(groups).float().mean().item(),
            "length": self.rollout.lengths.float().mean().item(),
            "truncated": 1.0 - self.rollout.finished.float().mean().item(),
        }

    def mismatch(self, log_probs: Tensor) -> float | None:
        """Mean log pi_rollout - log pi_train over the tokens of finished answers; None without any (method.md §3)."""
        ended = per_token(self.rollout.finished, self.rollout.generated_mask)  # [T]
        return (self.rollout.log_probs - log_probs)[ended].mean().item() if bool(ended.any()) else None

    def micro_batches(self, size: int, weights: Tensor, advantages: Tensor) -> Iterator[MicroBatch]:
        """Cuts of `size` sequences, with `weights` [B, L] and `advantages` [B]; all-padding columns are dropped."""
        whole, start_token = self.rollout, 0
        for start in range(0, len(weights), size):
            rows = slice(start, start + size)
            generated = whole.generated_mask[rows]
            tokens = int(generated.sum())
            if not tokens:
                continue
            columns = whole.attention_mask[rows].any(0)
            yield MicroBatch(
                whole.input_ids[rows][:, columns],
                whole.attention_mask[rows][:, columns],
                generated[:, columns],
                whole.log_probs[start_token : start_token + tokens],
                per_token(advantages[rows], generated),
                weights[rows][generated],
            )
            start_token += tokens


def answer_prompts(
    policy: Policy,
    task: Task,
    problems: Sequence[Problem],
    config: RunConfig,
    generator: torch.Generator,
    *,
    sampler: Sampler = sample_tokens,
) -> Batch:
    """Sample `config.answers` answers to each problem, answers to the same problem side by side, and reward them."""
    repeated = [problem for problem in problems for _ in range(config.answers)]
    prompts = policy.encode([problem.prompt for problem in repeated])
    sampled = rollout(policy, prompts, config.sampling(), generator, sampler=sampler)
    right = torch.tensor(score_answers(task, repeated, sampled))  # [B]
    rewards = torch.where(right > 0, config.reward_right, config.reward_wrong)
    return Batch(sampled, right, rewards, config.answers)


def score_answers(task: Task, problems: Sequence[Problem], sampled: Rollout) -> list[float]:
    """1.0 or 0.0 per answer."""
    finished = sampled.finished.tolist()
    return [task.reward(*answer) for answer in zip(sampled.texts, problems, finished, strict=True)]


def draw_problems(problems: Sequence[Problem], count: int, generator: torch.Generator) -> list[Problem]:
    """`count` problems, without repeats unless there are too few."""
    if count <= len(problems):
        indices = torch.randperm(len(problems), generator=generator)[:count]
    else:
        indices = torch.randint(len(problems), (count,), generator=generator)
    return [problems[i] for i in indices.tolist()]


def generator_for(seed: int, step: int, purpose: str) -> torch.Generator:
    """A generator that depends on these three alone, so a resumed run draws what the first would have drawn."""
    digest = hashlib.sha256(f"{seed}:{step}:{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") % 2**63)
