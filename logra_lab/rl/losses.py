"""Losses: from rewards to per-token terms whose gradient is the policy gradient (method.md §4).

    P  prompts      G  answers per prompt      B = P*G  sequences      L  padded length      T  sampled tokens, flat

Every loss here is a plain weighted sum over sampled tokens. The weights are made once for the whole batch by
`token_weights`, so a batch split into any micro-batches adds up to the same gradient. On-policy the value of such a
loss says nothing (it hovers around 0); watch the reward.

Left out: value functions and generalised advantages: an answer has one reward, at its end.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Denominator = Literal["batch_tokens", "own_length", "constant"]
DENOMINATORS = ("batch_tokens", "own_length", "constant")
ReferenceKL = Literal["reverse", "forward"]
REFERENCE_KLS = ("reverse", "forward")
LENGTH_SCALE = 1024  # the paper's later configurations weight an answer by 1024 / length


def group_advantages(rewards: Tensor, *, use_std: bool = True, eps: float = 1e-4) -> Tensor:
    """Advantages [P, G] of rewards [P, G] within each prompt's group (GRPO).

    A = r - mean(r), and with `use_std` divided by (std + eps), std with G - 1 in its denominator. A group of equal
    rewards gets exactly 0, whatever the mean rounds to. ValueError for a group of one, which can't be compared.
    """
    if rewards.dim() != 2:
        raise ValueError(f"rewards are {list(rewards.shape)}; shape them [prompts, answers per prompt]")
    if rewards.shape[1] < 2:
        raise ValueError(
            "a group of 1 has no advantage; use answers >= 2, or algorithm='reinforce' with its baseline"
        )
    exact = rewards.double()
    centred = exact - exact.mean(-1, keepdim=True)  # [P, G]
    if use_std:
        centred = centred / (exact.std(-1, keepdim=True) + eps)
    return torch.where(no_signal(rewards)[:, None], 0.0, centred).float()


def no_signal(rewards: Tensor) -> Tensor:
    """Which groups [P] of rewards [P, G] teach nothing, since all their rewards are equal."""
    return rewards.amax(-1) == rewards.amin(-1)


def next_baseline(baseline: float, rewards: Tensor, weight: float = 0.1) -> float:
    """The running mean after a batch: b <- (1 - weight) b + weight mean(r); it starts at 0 (method.md §4)."""
    return (1.0 - weight) * baseline + weight * rewards.double().mean().item()


def baseline_advantages(rewards: Tensor, baseline: float) -> Tensor:
    """Advantages r - b of rewards [B]; b is the running mean of *past* batches and knows nothing of this one."""
    return (rewards.double() - baseline).float()


def token_weights(
    generated_mask: Tensor,
    denominator: Denominator = "batch_tokens",
    *,
    constant: float | None = None,
    length_weight: bool = False,
) -> Tensor:
    """Weight [B, L] of each sampled token in the loss of the whole batch (0 elsewhere).

    "batch_tokens": 1 / (all sampled tokens), a token mean. "own_length": 1 / (B * own length), a mean of means, where
    a token of a long answer counts less. "constant": 1 / (B * constant), a sum over each answer, the unbiased one.
    `length_weight` multiplies by 1024 / own length. A batch without sampled tokens gets zeros.
    """
    if denominator not in DENOMINATORS:
        raise ValueError(f"denominator={denominator!r} is unknown; use one of {', '.join(DENOMINATORS)}")
    if denominator == "constant" and not (constant and constant > 0):
        raise ValueError(
            f"denominator='constant' needs a positive constant, got {constant}; use e.g. the length limit"
        )
    mask = generated_mask.float()
    lengths = mask.sum(-1, keepdim=True)  # [B, 1]
    sequences = len(mask)
    divisor = {
        "batch_tokens": lengths.sum().expand_as(lengths),
        "own_length": sequences * lengths,
        "constant": torch.full_like(lengths, sequences * (constant or 1.0)),
    }[denominator]
    weights = mask / divisor.clamp(min=1e-30).where(divisor > 0, 1.0)  # [B, L]
    return weights * (LENGTH_SCALE / lengths.clamp(min=1.0)) if length_weight else weights


def per_token(sequence_values: Tensor, generated_mask: Tensor) -> Tensor:
    """Values [B] of sequences repeated for each of their sampled tokens [T], in the order of `nonzero()`."""
    return sequence_values[:, None].expand(generated_mask.shape)[generated_mask]


def reinforce_loss(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, weights: Tensor, *, cap: float = 2.0
) -> Tensor:
    """REINFORCE with truncated importance weights: -sum w A min(pi_train / pi_rollout, cap) log pi. All inputs [T].

    The ratio is detached: it corrects where the sample came from and has no gradient of its own. Positions of weight 0
    add exactly 0, even where their log-prob is -inf.
    """
    ratio = (log_probs.detach() - rollout_log_probs).exp().clamp(max=cap)
    return -_weighted_sum(weights, advantages * ratio * log_probs)


def grpo_loss(
    log_probs: Tensor, rollout_log_probs: Tensor, advantages: Tensor, weights: Tensor, *, clip: float = 0.2
) -> Tensor:
    """GRPO's clipped ratio per token: -sum w min(rho A, clip(rho, 1 - clip, 1 + clip) A). All inputs [T]."""
    if not 0.0 < clip < 1.0:
        raise ValueError(f"clip={clip} is no range around 1; use a number between 0 and 1, e.g. 0.2")
    ratio = (log_probs - rollout_log_probs).exp()
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -_weighted_sum(weights, torch.minimum(ratio * advantages, clipped * advantages))


def reference_kl_loss(
    log_probs: Tensor, reference_log_probs: Tensor, weights: Tensor, kind: ReferenceKL
) -> Tensor:
    """A loss on on-policy samples whose gradient is that of a KL to the reference, token by token. All inputs [T].

    "reverse": the gradient of KL(pi || ref), from ½ (log pi - log ref)². "forward": the gradient of KL(ref || pi), from
    ref/pi - 1 - log(ref/pi). Each is the KL of the next token with the text before it held fixed. (The sampled
    log pi - log ref itself estimates KL(pi || ref), but its gradient averages to 0.)
    """
    if kind not in REFERENCE_KLS:
        raise ValueError(f"reference KL {kind!r} is unknown; use one of {', '.join(REFERENCE_KLS)}")
    gap = log_probs - reference_log_probs
    value = 0.5 * gap.square() if kind == "reverse" else torch.expm1(-gap) + gap
    return _weighted_sum(weights, value)


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    # `where`, not a product: 0 * inf would be NaN. The second `where` keeps NaN out of the gradient as well.
    used = weights != 0
    return (weights * torch.where(used, values, torch.zeros_like(values))).sum()
