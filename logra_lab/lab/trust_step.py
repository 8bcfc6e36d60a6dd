"""One step of the real loop, stopped before it is taken: what lesson 06 looks at from all sides.

    step = one_step(policy, task, seed=0)
    step.optimizer, step.proposal, step.probe        # U for every target, and the answers it was made of

Left out: everything before and after the step; `logra_lab.rl.training` is the loop.

    B  sequences      L  padded length      T  sampled tokens      V  vocabulary      n  judged positions
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.utils import logging

from logra_lab.data_files import located
from logra_lab.method import LoGRA, Proposal, TrustRegion
from logra_lab.method.same_batch import sequence_scores
from logra_lab.method.side_branch import tangent_branch
from logra_lab.rl import losses
from logra_lab.rl.batch import Batch, answer_prompts, draw_problems, generator_for
from logra_lab.rl.config import RunConfig
from logra_lab.rl.policy import Policy, Rollout, load_policy, token_scores
from logra_lab.rl.probe import LMProbe
from logra_lab.rl.tasks import Task

MODEL = located("data/tiny-math")
WIDE_OPEN = TrustRegion(budget=1e6, final_budget=1e6, two_sided=False)  # predicts, and never scales


@dataclass(frozen=True)
class Step:
    """A policy, its optimizer with full sketches, what it proposes, and the batch and probe it came from."""

    policy: Policy
    optimizer: LoGRA
    proposal: Proposal
    batch: Batch
    probe: LMProbe


@dataclass(frozen=True)
class Sweep:
    """One proposed step at many sizes: KL predicted, measured in fp32, and measured in bf16, each [sizes]."""

    predicted: Tensor
    measured: Tensor
    half: Tensor


def fresh_policy() -> Policy:
    """The small arithmetic model of the course, as it was before any reinforcement learning."""
    logging.disable_progress_bar()  # a bar for twenty small tensors, on stderr
    return load_policy(MODEL)


def one_step(
    policy: Policy,
    task: Task,
    *,
    seed: int = 0,
    prompts: int = 256,
    rank: int = 8,
    update_ratio: float = 3e-3,
    region: TrustRegion = WIDE_OPEN,
) -> Step:
    """Sample, reward and run backward once on a copy of `policy`; the step is proposed and not taken."""
    policy = Policy(copy.deepcopy(policy.model), policy.tokenizer)
    optimizer = LoGRA(policy.model, rank=rank, seed=seed, update_ratio=update_ratio, trust_region=region)
    batch = answers(policy, task, seed=seed, prompts=prompts)
    rollout = batch.rollout
    weights = losses.token_weights(rollout.generated_mask)[rollout.generated_mask]  # [T]
    advantages = losses.baseline_advantages(batch.rewards, batch.rewards.mean().item())  # [B]
    scored = token_scores(
        policy.model, rollout.input_ids, rollout.attention_mask, rollout.generated_mask
    ).log_probs
    per_token = losses.per_token(advantages, rollout.generated_mask)  # [T]
    losses.reinforce_loss(scored, rollout.log_probs, per_token, weights).backward()
    return Step(policy, optimizer, optimizer.propose(tokens=batch.tokens), batch, probe_of(rollout))


def answers(policy: Policy, task: Task, *, seed: int, prompts: int, purpose: str = "lesson 06") -> Batch:
    """One sampled and rewarded answer to each of `prompts` training problems."""
    problems = draw_problems(task.train, prompts, generator_for(seed, 0, purpose))
    config = RunConfig(prompts=prompts, seed=seed)
    return answer_prompts(policy, task, problems, config, generator_for(seed, 1, purpose))


def probe_of(rollout: Rollout, mask: Tensor | None = None) -> LMProbe:
    """All answers of a rollout as a probe; `mask` [B, L] stands in for the mask of sampled tokens."""
    generated = rollout.generated_mask if mask is None else mask
    return LMProbe(rollout.input_ids, rollout.attention_mask, generated, max_tokens=100_000, rows_at_once=256)


@torch.no_grad()
def logits_and_tangent(step: Step, probe: LMProbe | None = None) -> tuple[Tensor, Tensor]:
    """z and ż [n, V] along the proposed step, by one forward-mode pass (method.md §3).

    The package's `predict_kl` does the same and keeps a chunk at a time; a lesson may hold all of it.
    """
    model, probe = step.policy.model, probe or step.probe
    branch = tangent_branch(step.optimizer.targets, step.proposal.factors, step.optimizer.projections)
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level(), branch:
        z, z_dot = forward_ad.unpack_dual(probe.logits(model, probe.features(model)))
        return z.clone(), z_dot.clone()


def every_position(rollout: Rollout) -> Tensor:
    """Mask [B, L] of all real tokens that have a real token before them: prompts and answers alike."""
    real = rollout.attention_mask.bool()
    return real & torch.nn.functional.pad(real, (1, 0))[:, :-1]


def on_grid(values: Tensor, mask: Tensor) -> Tensor:
    """Values of the tokens in `mask` [B, L], each put at the position before its token [B, L]; 0 elsewhere."""
    grid = values.new_zeros(mask.shape)
    grid[mask] = values
    return grid.roll(-1, dims=1)  # the first column is never judged, so nothing wraps


@torch.no_grad()
def next_token_logits(step: Step, scale: float, probe: LMProbe | None = None) -> Tensor:
    """Logits [n, V] of the policy as if the proposal were committed at `scale`."""
    probe = probe or step.probe
    with step.optimizer.preview(step.proposal, scale):
        return probe.logits(step.policy.model, probe.features(step.policy.model))


def kl_divergence(old: Tensor, new: Tensor) -> Tensor:
    """KL(π_old ‖ π_new) [n] of logits [n, V], in float64."""
    log_old, log_new = old.double().log_softmax(-1), new.double().log_softmax(-1)
    return (log_old.exp() * (log_old - log_new)).sum(-1)


def half_precision_twin(step: Step, scale: float) -> nn.Module:
    """The model in bf16 with the weights it would compute with after the step at `scale`."""
    twin = copy.deepcopy(step.policy.model).bfloat16()
    modules = dict(twin.named_modules())
    for name, factor in step.proposal.factors.items():
        moved = step.optimizer.weight(name) - scale * factor @ step.optimizer.projection(name)  # [d, k]
        modules[name].weight.data.copy_(moved)
    return twin


@torch.no_grad()
def sweep(step: Step, predicted_kl: float, sizes: Tensor) -> Sweep:
    """Scale the step so that its predicted KL is each of `sizes`, and measure; `predicted_kl` is that at α = 1."""
    probe, before = step.probe, next_token_logits(step, 0.0)  # [n, V]
    measured, half = [], []
    rounded = half_precision_twin(step, 0.0)
    rounded_before = probe.logits(rounded, probe.features(rounded))
    for scale in (sizes / predicted_kl).sqrt().tolist():
        measured.append(kl_divergence(before, next_token_logits(step, scale)).mean())
        twin = half_precision_twin(step, scale)
        half.append(kl_divergence(rounded_before, probe.logits(twin, probe.features(twin))).mean())
    return Sweep(sizes, torch.stack(measured), torch.stack(half))


def answer_log_probs(step: Step, batch: Batch) -> list[Callable[[], Tensor]]:
    """One callable per answer that returns its log-probability, a scalar with a gradient."""

    def of(row: int) -> Callable[[], Tensor]:
        rollout = batch.rollout
        one = (rollout.input_ids[[row]], rollout.attention_mask[[row]], rollout.generated_mask[[row]])
        return lambda: token_scores(step.policy.model, *one).log_probs.sum()

    return [of(row) for row in range(len(batch.rewards))]


def free_scores(step: Step, batch: Batch) -> Tensor:
    """⟨S_b, U⟩ of every answer b [B]: what backward gives away for nothing (method.md §8.1)."""
    return sequence_scores(step.optimizer, step.proposal, answer_log_probs(step, batch))
