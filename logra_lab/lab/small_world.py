"""A world of two tokens that can be enumerated: 15 answers, nine parameters, and so the true policy gradient.

An answer is a row of the tokens 0 and 1. It ends with a stop token or is cut after three tokens. It is right if it
stops and holds exactly one 1. The policy is a table of logits, [token before, next token]; at the start the token
before is the stop token. Leaves out prompts: there is one.

    B  answers      L  tokens of the longest answer (3)      V  tokens (0, 1 and stop)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

STOP, LENGTH, TOKENS = 2, 4, 3


@dataclass(frozen=True)
class Answers:
    """Answers as `ids` [B, L] (padded with the stop token), which positions were sampled, and 0/1 rewards [B]."""

    ids: Tensor
    mask: Tensor
    rewards: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Tensor:
        """Sampled tokens of each answer [B], the stop token among them."""
        return self.mask.sum(-1)


def answer_mask(ids: Tensor) -> Tensor:
    """Which positions [B, L] of padded answers were sampled: up to the first stop token, and it too."""
    stops = (ids == STOP).long()
    return stops.cumsum(-1) - stops == 0


def is_right(ids: Tensor) -> Tensor:
    """1.0 where an answer [B, L] stops and holds exactly one 1, else 0.0, [B]."""
    content = answer_mask(ids) & (ids != STOP)
    ones = ((ids == 1) & content).sum(-1)
    return ((ones == 1) & (ids == STOP).any(-1)).float()


def complete(ids: Tensor) -> Answers:
    """Answers from their padded ids [B, L]."""
    return Answers(ids, answer_mask(ids), is_right(ids))


def every_answer() -> Answers:
    """All 15 answers, shortest first."""
    rows = [
        [*content, *[STOP] * (LENGTH - length)]
        for length in range(LENGTH + 1)
        for content in itertools.product((0, 1), repeat=length)
    ]
    return complete(torch.tensor(rows))


def text(ids: Tensor) -> str:
    """One answer [L] as text, the stop token as a point."""
    kept = ids[answer_mask(ids[None])[0]].tolist()
    return "".join("." if token == STOP else str(token) for token in kept)


def start(seed: int = 3, size: float = 0.7) -> Tensor:
    """The policy of the lesson [V, V]: random logits, the same for the same seed."""
    return size * torch.randn(TOKENS, TOKENS, generator=torch.Generator().manual_seed(seed))


def log_probs(policy: Tensor, ids: Tensor) -> Tensor:
    """Log-prob of each token of `ids` [B, L] given the one before, under the table `policy` [V, V]."""
    before = torch.cat([torch.full_like(ids[:, :1], STOP), ids[:, :-1]], 1)  # [B, L]
    return policy.log_softmax(-1)[before, ids]


def probabilities(policy: Tensor, answers: Answers) -> Tensor:
    """Probability of each answer [B]."""
    return torch.where(answers.mask, log_probs(policy, answers.ids), 0.0).sum(-1).exp()


def accuracy(policy: Tensor) -> float:
    """The exact chance of a right answer."""
    answers = every_answer()
    return (probabilities(policy, answers) * answers.rewards).sum().item()


def mean_length(policy: Tensor) -> float:
    """The exact mean number of sampled tokens."""
    answers = every_answer()
    return (probabilities(policy, answers) * answers.lengths).sum().item()


def true_gradient(policy: Tensor) -> Tensor:
    """The gradient [V, V] of the accuracy, by enumerating every answer."""
    leaf = policy.clone().requires_grad_(True)
    answers = every_answer()
    expected = (probabilities(leaf, answers) * answers.rewards).sum()
    return torch.autograd.grad(expected, leaf)[0]


def sample(policy: Tensor, count: int, generator: torch.Generator) -> Answers:
    """`count` answers drawn from the policy."""
    table = policy.softmax(-1)
    before = torch.full((count,), STOP)
    columns, ended = [], torch.zeros(count, dtype=torch.bool)
    for _ in range(LENGTH):
        drawn = torch.multinomial(table[before], 1, generator=generator)[:, 0]  # [B]
        before = torch.where(ended, STOP, drawn)
        ended = ended | (before == STOP)
        columns.append(before)
    return complete(torch.stack(columns, 1))
