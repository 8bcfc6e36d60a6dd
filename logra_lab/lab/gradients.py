"""A real policy gradient to look at: tiny-math answers some sums, and one backward gives G of every target.

The gradient is dense here on purpose, so that lessons can compare its sketches with it. Everything is drawn from
(seed, step) alone, so two calls give the same numbers. Leaves out: anything that trains.

Shapes: d output rows of a weight, k its input columns; B answers, T sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.utils import logging

from logra_lab.data_files import located
from logra_lab.method import DEFAULT_TARGETS, Target
from logra_lab.method.targets import find_targets
from logra_lab.rl import losses
from logra_lab.rl.batch import Batch, answer_prompts, draw_problems, generator_for
from logra_lab.rl.config import RunConfig
from logra_lab.rl.kl import ProbeSnapshot
from logra_lab.rl.policy import LMProbe, Policy, load_policy, token_scores
from logra_lab.rl.tasks import sums

TINY_MATH = located("data/tiny-math")
Matrices = dict[str, Tensor]


@dataclass(frozen=True)
class GradientStudy:
    """A policy, its sketchable weights, some answers, their dense gradient by name, and fresh answers to judge at."""

    policy: Policy
    targets: tuple[Target, ...]
    batch: Batch
    dense: Matrices
    fresh: ProbeSnapshot

    @property
    def square(self) -> float:
        """‖G‖² over all targets."""
        return inner(self.dense, self.dense)


def tiny_policy() -> Policy:
    """The course's small language model, loaded without a progress bar."""
    logging.disable_progress_bar()
    return load_policy(TINY_MATH)


def study(prompts: int = 128, answers: int = 8, seed: int = 0) -> GradientStudy:
    """Let tiny-math answer `prompts` sums `answers` times each and take the policy gradient of the rewards."""
    policy = tiny_policy()
    batches = [answer_sums(policy, prompts, answers, seed, step) for step in (0, 1)]
    targets = find_targets(policy.model, DEFAULT_TARGETS)
    advantages = losses.group_advantages(batches[0].rewards.view(-1, answers)).flatten()  # [B]
    dense = gradient(policy, targets, batches[0], advantages)
    seen = batches[1].rollout
    rows = slice(0, 64)
    probe = LMProbe(
        seen.input_ids[rows], seen.attention_mask[rows], seen.generated_mask[rows], rows_at_once=64
    )
    return GradientStudy(policy, targets, batches[0], dense, ProbeSnapshot(policy.model, probe))


def answer_sums(policy: Policy, prompts: int, answers: int, seed: int = 0, step: int = 0) -> Batch:
    """`answers` answers of the policy to each of `prompts` training sums, side by side, with their rewards."""
    task, config = sums(), RunConfig(algorithm="grpo", prompts=prompts, answers=answers, seed=seed)
    problems = draw_problems(task.train, prompts, generator_for(seed, step, "problems"))
    return answer_prompts(policy, task, problems, config, generator_for(seed, step, "answers"))


def policy_loss(policy: Policy, batch: Batch, advantages: Tensor) -> Tensor:
    """−mean over tokens of A log π, with `advantages` [B]; its backward gives the policy gradient."""
    sampled, mask = batch.rollout, batch.rollout.generated_mask
    scores = token_scores(policy.model, sampled.input_ids, sampled.attention_mask, mask)
    weights = losses.token_weights(mask)[mask]  # [T]
    return losses.reinforce_loss(
        scores.log_probs, sampled.log_probs, losses.per_token(advantages, mask), weights
    )


def gradient(policy: Policy, targets: tuple[Target, ...], batch: Batch, advantages: Tensor) -> Matrices:
    """The dense gradient [d, k] per target of `policy_loss`."""
    loss = policy_loss(policy, batch, advantages)
    found = torch.autograd.grad(loss, [target.weight for target in targets])
    return {target.name: matrix for target, matrix in zip(targets, found, strict=True)}


def score_noise(view: GradientStudy, seed: int) -> Matrices:
    """Noise [d, k] per target where the policy is *not* flat: the same answers, praised and blamed by coin."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.randint(0, 2, (len(view.batch.rewards),), generator=generator) * 2.0 - 1.0  # [B]
    return gradient(view.policy, view.targets, view.batch, coins)


@torch.no_grad()
def measured_kl(view: GradientStudy, step: Mapping[str, Tensor]) -> float:
    """KL per token, on fresh answers, of W ← W − step; the weights are put back."""
    before = {target.name: target.weight.detach().clone() for target in view.targets}
    try:
        for target in view.targets:
            target.weight.sub_(step[target.name])
        return view.fresh.kl(view.policy.model)
    finally:
        for target in view.targets:
            target.weight.copy_(before[target.name])


def inner(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """⟨a, b⟩ over all matrices."""
    return sum((a[name] * b[name]).sum().item() for name in a)
