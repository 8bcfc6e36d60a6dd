"""Denominators, micro-batches and what is refused."""

from __future__ import annotations

import pytest
import torch

from logra_lab.rl import losses

MASK = torch.tensor([[0, 1, 1, 1, 1], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    ("denominator", "per_row"),
    [("batch_tokens", [1 / 7] * 3), ("own_length", [1 / 12, 1 / 6, 1 / 3]), ("constant", [1 / 24] * 3)],
)
def test_each_denominator_weighs_tokens_as_its_name_says(denominator, per_row):
    weights = losses.token_weights(MASK, denominator, constant=8)
    torch.testing.assert_close(weights, MASK * torch.tensor(per_row)[:, None])


def test_the_length_weight_is_1024_over_the_own_length():
    weights = losses.token_weights(MASK, "batch_tokens", length_weight=True)
    torch.testing.assert_close(weights, MASK / 7 * torch.tensor([256.0, 512.0, 1024.0])[:, None])


@pytest.mark.parametrize("size", [1, 2, 4, 7])
@pytest.mark.parametrize("denominator", losses.DENOMINATORS)
@pytest.mark.parametrize("loss", [losses.reinforce_loss, losses.grpo_loss])
def test_a_batch_cut_into_micro_batches_has_the_same_gradient(size, denominator, loss):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, 6, (7,), generator=generator)
    mask = torch.arange(6) < lengths[:, None]
    weights = losses.token_weights(mask, denominator, constant=6)
    advantages = torch.randn(7, generator=generator)
    parameter = torch.randn(7, 6, generator=generator).log_softmax(-1).requires_grad_()

    def gradient(size):
        total = torch.zeros_like(parameter)
        for start in range(0, 7, size):
            rows = slice(start, start + size)
            lp = parameter[rows][mask[rows]]
            value = loss(
                lp,
                lp.detach() - 0.05,
                losses.per_token(advantages[rows], mask[rows]),
                weights[rows][mask[rows]],
            )
            total += torch.autograd.grad(value, parameter)[0]
        return total

    torch.testing.assert_close(gradient(size), gradient(7), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("denominator", losses.DENOMINATORS)
def test_a_batch_without_sampled_tokens_gives_zero_and_not_nan(denominator):
    mask = torch.zeros(2, 3, dtype=torch.bool)
    weights = losses.token_weights(mask, denominator, constant=4, length_weight=True)
    assert (weights == 0).all()
    empty = torch.zeros(0, requires_grad=True)
    assert losses.reinforce_loss(empty, empty.detach(), empty.detach(), weights[mask]) == 0
    impossible = torch.full((6,), -torch.inf, requires_grad=True)
    value = losses.reinforce_loss(impossible, torch.zeros(6), torch.ones(6), weights.flatten())
    value.backward()
    assert value == 0 and (impossible.grad == 0).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: losses.group_advantages(torch.ones(4, 1)), "group of 1.*answers >= 2"),
        (lambda: losses.group_advantages(torch.ones(4)), r"rewards are \[4\]"),
        (lambda: losses.token_weights(MASK, "mean"), "denominator='mean'"),
        (lambda: losses.token_weights(MASK, "constant"), "positive constant, got None"),
        (
            lambda: losses.reference_kl_loss(torch.ones(1), torch.ones(1), torch.ones(1), "k3"),
            "'k3'.*reverse",
        ),
        (
            lambda: losses.grpo_loss(torch.ones(1), torch.ones(1), torch.ones(1), torch.ones(1), clip=0),
            "clip=0",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_with_value_and_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
