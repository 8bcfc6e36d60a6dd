"""Answers to the exercises of lesson 02."""

from __future__ import annotations

import torch

from logra_lab.lab.exercises import lesson02
from logra_lab.rl import losses
from tests.lab.answers import Answers


def loss_by_loop(log_probs, advantages, mask):
    total = 0.0
    for row, advantage, used in zip(log_probs, advantages, mask):
        total = total - advantage * row[used].sum()
    return total / len(log_probs)


def loss_by_filling(log_probs, advantages, mask):
    return -(log_probs.masked_fill(~mask, 0.0).sum(-1) * advantages).mean()


def loss_by_product(log_probs, advantages, mask):
    return -(log_probs * mask * advantages[:, None]).sum() / len(log_probs)


def loss_of_flat_means(log_probs, advantages, mask):
    return -(log_probs.masked_fill(~mask, 0.0).sum(-1) / mask.sum(-1) * advantages).mean()


def group_by_loop(rewards):
    return torch.stack([(row - row.mean()) / (row.std() + 1e-4) for row in rewards])


def group_by_transpose(rewards):
    return ((rewards.T - rewards.mean(1)) / (rewards.std(1) + 1e-4)).T


def running_as_tensor(rewards, baseline):
    return rewards - baseline, torch.lerp(torch.tensor(baseline), rewards.mean(), 0.1)


def running_by_library(rewards, baseline):
    return losses.baseline_advantages(rewards, baseline), losses.next_baseline(baseline, rewards)


def running_peeking(rewards, baseline):
    baseline = 0.9 * baseline + 0.1 * rewards.mean().item()
    return rewards - baseline, baseline


def micro_by_library(log_probs, advantages, mask, total_tokens):
    old, weights = log_probs[mask].detach(), torch.full((int(mask.sum()),), 1 / total_tokens)
    return losses.reinforce_loss(log_probs[mask], old, losses.per_token(advantages, mask), weights)


def mask_by_lengths(ids):
    lengths = [row.index(2) + 1 if 2 in row else len(row) for row in ids.tolist()]
    return torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]


def mask_by_shift(ids):
    ended = (ids == 2).cumsum(1) > 0
    return ~torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1)


ANSWERS = {
    "policy_gradient_loss": Answers(
        right=(loss_by_loop, loss_by_filling),
        wrong=(
            (lambda p, a, m: -loss_by_loop(p, a, m), "The sign"),
            (lambda p, a, m: loss_by_loop(p, a, m) * len(p) / m.sum(), "mean over tokens"),
            (lambda p, a, m: loss_by_loop(p, a, m) * len(p), "take their mean"),
            (loss_of_flat_means, "mean within each answer"),
            (loss_by_product, "0 · (−inf) is NaN"),
            (lambda p, a, m: -(p * a[:, None]).sum() / len(p), "Sum the log-probs of those only"),
            (lambda p, a, m: loss_by_loop(p, a, m).reshape(1, 1), "a single number was expected"),
            (lambda p, a, m: loss_by_loop(p, a, m).detach(), "it has no gradient"),
            (lambda p, a, m: loss_by_loop(p, a, m).item(), "it has no gradient"),
            (lambda p, a, m: loss_by_loop(p, a, ~m), "The mask is turned round"),
            (lambda p, a, m: -(p.masked_fill(~m, 0.0) * a).sum() / len(p), "paired with positions"),
            (lambda p, a, m: -(p.sum(1) * a).mean(), "The mask is missing"),
        ),
    ),
    "group_advantages": Answers(
        right=(group_by_loop, group_by_transpose, losses.group_advantages),
        wrong=(
            (lambda r: group_by_loop(r.T).T, "dim=1"),
            (lambda r: (r - r.mean()) / (r.std() + 1e-4), "One mean for all"),
            (lambda r: r - r.mean(-1, keepdim=True), "centred only"),
            (lambda r: (r - r.mean(1)) / (r.std(1) + 1e-4), "keepdim=True is missing"),
            (lambda r: r - r.mean(1, keepdim=True) / (r.std(1, keepdim=True) + 1e-4), "Brackets are missing"),
            (lambda r: (r - r.mean(-1, keepdim=True)) / r.std(-1, keepdim=True), "add 1e-4"),
            (
                lambda r: (r - r.mean(-1, keepdim=True)) / (r.std(-1, keepdim=True, unbiased=False) + 1e-4),
                "G − 1",
            ),
        ),
    ),
    "running_advantages": Answers(
        right=(running_as_tensor, running_by_library),
        wrong=(
            (running_peeking, "has seen this batch"),
            (lambda r, b: (r - b, 0.9 * r.mean().item() + 0.1 * b), "weights are swapped"),
            (lambda r, b: (r - r.mean(), 0.9 * b + 0.1 * r.mean().item()), "not of past batches"),
            (lambda r, b: (b - r, 0.9 * b + 0.1 * r.mean().item()), "sign is turned round"),
            (lambda r, b: r - b, "shape [12]; 2 values were expected"),
            (lambda r, b: (r - b, r.mean().item()), "forgets the past"),
            (lambda r, b: (r - b, 0.9 * b + 0.1 * (r - b).mean().item()), "not that of the advantages"),
            (lambda r, b: running_by_library(r, b)[::-1], "The advantages come first"),
        ),
    ),
    "micro_batch_loss": Answers(
        right=(lambda p, a, m, n: loss_by_loop(p, a, m) * len(p) / n, micro_by_library),
        wrong=(
            (lambda p, a, m, n: loss_by_loop(p, a, m) * len(p) / m.sum(), "this part's own tokens"),
            (lambda p, a, m, n: loss_by_loop(p, a, m), "number of answers"),
            (lambda p, a, m, n: -loss_by_loop(p, a, m) * len(p) / n, "sign is turned round"),
            (lambda p, a, m, n: loss_by_loop(p, a, m) * len(p), "divide it by total_tokens"),
            (lambda p, a, m, n: -(p * a[:, None]).sum() / n, "mask is missing"),
            (lambda p, a, m, n: loss_by_loop(p, a, m) / n, "multiply by their number"),
            (lambda p, a, m, n: loss_by_loop(p, a, m) * len(p) / m.numel(), "padding too"),
            (lambda p, a, m, n: loss_by_product(p, a, m) * len(p) / n, "0 · (−inf) is NaN"),
            (lambda p, a, m, n: micro_by_library(p, a, m, n).detach(), "it has no gradient"),
        ),
    ),
    "no_signal_share": Answers(
        right=(
            lambda p, g: float(torch.tensor([p, 1 - p], dtype=torch.float64).pow(g).sum()),
            lambda p, g: p * p ** (g - 1) + (1 - p) * (1 - p) ** (g - 1),
        ),
        wrong=(
            (lambda p, g: p**g, "all wrong is the other"),
            (lambda p, g: (1 - p) ** g, "all right is the other"),
            (lambda p, g: 1 - p**g - (1 - p) ** g, "*with* signal"),
            (lambda p, g: p**g * (1 - p) ** g, "add, don't multiply"),
            (lambda p, g: g * p, "All right: p^G"),
        ),
    ),
    "answer_mask": Answers(
        right=(mask_by_lengths, mask_by_shift),
        wrong=(
            (lesson02.faulty_mask, "still there"),
            (lambda i: torch.ones_like(i) > 0, "Everything counts"),
            (lambda i: (i == 2).cumsum(1) <= 2, "One stop token too many"),
            (lambda i: ~mask_by_shift(i), "turned round"),
            (lambda i: mask_by_shift(i.T).T, "over the answers"),
            (lambda i: mask_by_shift(i).float(), "float32; bool was expected"),
        ),
    ),
}
