"""Exercises of lesson 02: the loss, its denominator, no signal, and a lost stop token.

P  prompts      G  answers per prompt      B  answers      L  padded length
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logra_lab.lab.checks import Case, Law, Slip, exercise

STOP = 2
Arguments = tuple[Tensor, Tensor, Tensor]


def batch(answers: int = 4, length: int = 5, *, padding: float = -9.0) -> Arguments:
    """Log-probs [B, L], advantages [B] and a mask [B, L] with answers of different lengths."""
    generator = torch.Generator().manual_seed(5)
    log_probs = -torch.rand(answers, length, generator=generator) - 0.1
    advantages = torch.randn(answers, generator=generator)
    lengths = torch.arange(answers) % length + 1
    mask = torch.arange(length) < lengths[:, None]
    return torch.where(mask, log_probs, padding), advantages, mask


def terms(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """A log π at the sampled positions [B, L], 0 elsewhere."""
    return torch.where(mask, advantages[:, None] * log_probs, 0.0)


# ---------------------------------------------------------------- the loss


def across(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The slip that pairs advantages with positions."""
    return -torch.where(mask, advantages * log_probs, 0.0).sum() / len(log_probs)


def reaches(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> bool | str:
    """Whether the loss has a gradient at the sampled log-probs, and none at the padding."""
    log_probs, advantages, mask = batch()
    value = loss(log_probs.requires_grad_(), advantages, mask)
    if not isinstance(value, Tensor) or not value.requires_grad:
        return "it has no gradient, so nothing could be learned: leave out .item(), .detach() and float()"
    moved = torch.autograd.grad(value, log_probs)[0] != 0
    return True if torch.equal(moved, mask) else "its gradient reaches other positions than the sampled ones"


@exercise(
    "policy_gradient_loss",
    Case(
        "one answer of one token: −A log π",
        lambda: (torch.tensor([[-0.5]]), torch.tensor([2.0]), torch.tensor([[True]])),
    ),
    Case(
        "answers of different lengths: padding does not count",
        batch,
        hint="The mask says which tokens were sampled. Sum the log-probs of those only.",
    ),
    Case(
        "as many answers as positions",
        lambda: batch(5, 5),
        hint="advantages[:, None] gives each answer its own.",
    ),
    Case(
        "padding of −inf stays out of it",
        lambda: batch(padding=float("-inf")),
        hint="0 · (−inf) is NaN: torch.where(mask, …, 0) is safe.",
    ),
    Law("its gradient reaches the sampled log-probs", reaches, hint="Only its gradient is ever used."),
    slips=(
        Slip(
            "The sign is turned round: a loss goes down, the reward should go up.",
            lambda p, a, m: terms(p, a, m).sum() / len(p),
        ),
        Slip(
            "You took the mean over tokens. Sum in each answer, then take the mean over answers.",
            lambda p, a, m: -terms(p, a, m).sum() / m.sum(),
        ),
        Slip(
            "You took the mean over all positions, padding too. Divide by the number of answers.",
            lambda p, a, m: -terms(p, a, m).mean(),
        ),
        Slip(
            "You took the mean within each answer: a token of a long one then counts less. Sum.",
            lambda p, a, m: -(terms(p, a, m).sum(1) / m.sum(1)).mean(),
        ),
        Slip(
            "The mask is missing: padding counts as if it had been sampled.",
            lambda p, a, m: -(a[:, None] * p).sum() / len(p),
        ),
        Slip("This is the sum over answers; take their mean.", lambda p, a, m: -terms(p, a, m).sum()),
        Slip("Advantages are paired with positions: it takes advantages[:, None].", across),
        Slip(
            "The mask is turned round: it is true where a token was sampled.",
            lambda p, a, m: -terms(p, a, ~m).sum() / len(p),
        ),
    ),
)
def policy_gradient_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """−mean over answers of A · Σ log π over sampled tokens, from [B, L], [B], [B, L]."""
    return -terms(log_probs, advantages, mask).sum() / len(log_probs)


# ---------------------------------------------------------------- micro-batches


def adds_up(function: Callable[..., Tensor]) -> bool | str:
    """Whether losses of uneven micro-batches add up to that of the whole batch."""
    p, a, m = batch(6, 5)
    whole = float(function(p, a, m, int(m.sum())))
    for cuts in ([6], [1, 5], [2, 2, 2], [1, 1, 4]):
        ends = torch.tensor(cuts).cumsum(0).tolist()
        parts = [slice(end - size, end) for size, end in zip(cuts, ends)]
        total = sum(float(function(p[s], a[s], m[s], int(m.sum()))) for s in parts)
        if abs(total - whole) > 1e-5:
            return f"cut as {cuts} the parts add up to {total:.4f}, the whole batch gives {whole:.4f}"
    return True


@exercise(
    "micro_batch_loss",
    Case("a whole batch: the token mean of −A log π", lambda: (*batch(), int(batch()[2].sum()))),
    Case(
        "a part of a larger batch",
        lambda: (*batch(), 40),
        hint="Divide by total_tokens, not by the tokens seen here.",
    ),
    Law("parts of any size add up to the whole", adds_up, hint="Each part has to divide by the same number."),
    Case(
        "padding of −inf stays out of it",
        lambda: (*batch(padding=float("-inf")), 40),
        hint="0 · (−inf) is NaN: torch.where(mask, …, 0) is safe.",
    ),
    Law("its gradient reaches the sampled log-probs", lambda f: reaches(lambda p, a, m: f(p, a, m, 40))),
    slips=(
        Slip(
            "You divide by this part's own tokens: then the sum depends on the cuts.",
            lambda p, a, m, n: -terms(p, a, m).sum() / m.sum(),
        ),
        Slip(
            "You divide by the number of answers; here it is total_tokens.",
            lambda p, a, m, n: -terms(p, a, m).sum() / len(p),
        ),
        Slip(
            "The mask is missing: padding counts as if it had been sampled.",
            lambda p, a, m, n: -(a[:, None] * p).sum() / n,
        ),
        Slip(
            "policy_gradient_loss is a mean over answers: multiply by their number, len(log_probs), first.",
            lambda p, a, m, n: -terms(p, a, m).sum() / len(p) / n,
        ),
        Slip("You divide by all positions, padding too.", lambda p, a, m, n: -terms(p, a, m).mean()),
        Slip("The sign is turned round.", lambda p, a, m, n: terms(p, a, m).sum() / n),
        Slip("This is the sum; divide it by total_tokens.", lambda p, a, m, n: -terms(p, a, m).sum()),
    ),
)
def micro_batch_loss(log_probs: Tensor, advantages: Tensor, mask: Tensor, total_tokens: int) -> Tensor:
    """−Σ A log π of this part's sampled tokens / sampled tokens of the whole batch."""
    return -terms(log_probs, advantages, mask).sum() / total_tokens


# ---------------------------------------------------------------- no signal, and the stop token


@exercise(
    "no_signal_share",
    Case("a coin, two answers: ½", lambda: (0.5, 2), hint="Both right, or both wrong."),
    Case("one in five right, eight answers", lambda: (0.2, 8), hint="All right: p^G. All wrong: what?"),
    Case("a prompt that is always right teaches nothing", lambda: (1.0, 8)),
    slips=(
        Slip("All right is one way to have no signal; all wrong is the other.", lambda p, g: p**g),
        Slip("All wrong is one way to have no signal; all right is the other.", lambda p, g: (1 - p) ** g),
        Slip("That is the share *with* signal.", lambda p, g: 1 - p**g - (1 - p) ** g),
        Slip("G answers, so the power is G.", lambda p, g: p ** (g - 1) + (1 - p) ** (g - 1)),
        Slip("The two can't happen together: add, don't multiply.", lambda p, g: p**g * (1 - p) ** g),
    ),
)
def no_signal_share(accuracy: float, answers: int) -> float:
    """P(all G rewards equal) = pᴳ + (1 − p)ᴳ."""
    return accuracy**answers + (1 - accuracy) ** answers


def faulty_mask(ids: Tensor) -> Tensor:
    """The bug of the lesson: padding is told by its value, which is the stop token's."""
    return ids != STOP


IDS = [[0, 1, 2, 2], [2, 2, 2, 2], [1, 0, 1, 0], [0, 0, 1, 2]]


def ids() -> Tensor:
    """Padded answers [B, L]: ended early, empty, cut, ended at the last position."""
    return torch.tensor(IDS)


@exercise(
    "answer_mask",
    Case(
        "an answer that stops early: its stop token counts, the padding does not",
        lambda: (ids()[:1],),
        hint="Count the stop tokens before each position.",
    ),
    Case("an empty answer is one sampled stop token", lambda: (ids()[1:2],)),
    Case("an answer that was cut counts whole", lambda: (ids()[2:3],)),
    Case("all together", lambda: (ids(),)),
    slips=(
        Slip("The bug is still there: the stop token that ended the answer was sampled too.", faulty_mask),
        Slip(
            "Everything counts: padding after the stop token was never sampled.",
            lambda i: torch.ones_like(i, dtype=torch.bool),
        ),
        Slip(
            "The stop token itself is left out: it counts if no stop comes *before* it.",
            lambda i: (i == STOP).cumsum(1) == 0,
        ),
        Slip(
            "One stop token too many: the first was sampled, the second is padding.",
            lambda i: (i == STOP).cumsum(1) <= 2,
        ),
        Slip(
            "This counts over the answers. A row is an answer: dim=1.",
            lambda i: (i == STOP).cumsum(0) - (i == STOP).long() == 0,
        ),
        Slip(
            "The mask is turned round: true where a token was sampled.",
            lambda i: (i == STOP).cumsum(1) - (i == STOP).long() > 0,
        ),
    ),
)
def answer_mask(ids: Tensor) -> Tensor:
    """True up to the first stop token, and there too, [B, L]."""
    stops = (ids == STOP).long()
    return stops.cumsum(1) - stops == 0
