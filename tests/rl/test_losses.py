"""Losses against enumerated truth: on a world of three tokens every answer can be listed, so means are exact."""

from __future__ import annotations

import itertools

import pytest
import torch

from logra_lab.rl import losses

VOCABULARY, LONGEST, STOP = 3, 3, 0


class TinyWorld:
    """A policy with one row of logits per prefix; every answer ends with STOP or at the length limit."""

    def __init__(self, seed: int = 0, scale: float = 1.0):
        generator = torch.Generator().manual_seed(seed)
        prefixes = [p for n in range(LONGEST) for p in itertools.product(range(1, VOCABULARY), repeat=n)]
        self.row = {prefix: i for i, prefix in enumerate(prefixes)}
        self.logits = (
            scale * torch.randn(len(prefixes), VOCABULARY, generator=generator, dtype=torch.float64)
        ).requires_grad_()

    def answers(self):
        for n in range(LONGEST):
            yield from ((*p, STOP) for p in itertools.product(range(1, VOCABULARY), repeat=n))
        yield from itertools.product(range(1, VOCABULARY), repeat=LONGEST)

    def log_probs(self, answer):
        table = self.logits.log_softmax(-1)
        return torch.stack([table[self.row[answer[:t]], token] for t, token in enumerate(answer)])

    def gradient(self, value):
        return torch.autograd.grad(value, self.logits, retain_graph=True)[0]


def reward(answer) -> float:
    return float(sum(answer) % 2) + 0.3 * len(answer)


def expected_gradient(world, loss_of_answer, sampled_from=None):
    """The mean over all answers, weighted by their probability, of the gradient of `loss_of_answer`."""
    source = sampled_from or world
    total = torch.zeros_like(world.logits)
    for answer in world.answers():
        probability = source.log_probs(answer).sum().exp().detach()
        total += probability * world.gradient(loss_of_answer(answer))
    return total


def true_gradient(world):
    return world.gradient(sum(world.log_probs(a).sum().exp() * reward(a) for a in world.answers()))


def test_the_worlds_probabilities_sum_to_one():
    world = TinyWorld()
    assert sum(world.log_probs(a).sum().exp() for a in world.answers()).item() == pytest.approx(1)


@pytest.mark.parametrize("baseline", [0.0, 0.7])
def test_the_mean_of_reinforce_is_the_true_policy_gradient_whatever_the_baseline(baseline):
    world = TinyWorld()

    def loss(answer):
        lp = world.log_probs(answer)
        ones = torch.ones_like(lp)  # denominator "constant" for one sequence, constant 1
        return losses.reinforce_loss(lp, lp.detach(), (reward(answer) - baseline) * ones, ones)

    torch.testing.assert_close(-expected_gradient(world, loss), true_gradient(world))


def test_the_mean_of_grpo_on_policy_is_the_true_policy_gradient():
    world = TinyWorld(1)

    def loss(answer):
        lp = world.log_probs(answer)
        return losses.grpo_loss(lp, lp.detach(), reward(answer) * torch.ones_like(lp), torch.ones_like(lp))

    torch.testing.assert_close(-expected_gradient(world, loss), true_gradient(world))


def test_the_token_mean_of_one_answer_is_not_the_true_gradient():
    world = TinyWorld()

    def loss(answer):
        lp = world.log_probs(answer)
        return losses.reinforce_loss(
            lp, lp.detach(), reward(answer) * torch.ones_like(lp), torch.ones_like(lp) / len(lp)
        )

    assert not torch.allclose(-expected_gradient(world, loss), true_gradient(world), rtol=0.05)


def test_group_advantages_without_std_have_the_true_gradient_times_one_minus_one_over_g():
    world, group = TinyWorld(), 2
    answers = list(world.answers())
    total = torch.zeros_like(world.logits)
    for pair in itertools.product(answers, repeat=group):
        probability = sum(world.log_probs(a).sum() for a in pair).exp().detach()
        rewards = torch.tensor([[reward(a) for a in pair]])
        advantages = losses.group_advantages(rewards, use_std=False)[0].double()
        score = (
            sum(a * world.log_probs(answer).sum() for a, answer in zip(advantages, pair, strict=True)) / group
        )
        total += probability * world.gradient(score)
    torch.testing.assert_close(total, true_gradient(world) * (1 - 1 / group), rtol=1e-5, atol=1e-7)


def test_importance_weights_correct_one_token_answers_sampled_from_another_policy():
    world, other = TinyWorld(), TinyWorld(0)
    with torch.no_grad():
        other.logits += 0.1 * torch.randn(
            other.logits.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
        )
    table, source = world.logits[0].log_softmax(-1), other.logits[0].log_softmax(-1).detach()
    rewards = torch.tensor([0.0, 1.0, 0.4], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    mean = sum(
        source[v].exp()
        * world.gradient(losses.reinforce_loss(table[v : v + 1], source[v : v + 1], rewards[v] * one, one))
        for v in range(VOCABULARY)
    )
    torch.testing.assert_close(-mean, world.gradient((table.exp() * rewards).sum()))


def test_importance_weights_are_truncated_and_carry_no_gradient_of_their_own():
    log_probs = torch.tensor([-1.0, -1.0], requires_grad=True)
    rollout = torch.tensor([-4.0, -0.5])  # ratios e^3 and e^-0.5
    losses.reinforce_loss(log_probs, rollout, torch.ones(2), torch.ones(2)).backward()
    torch.testing.assert_close(log_probs.grad, -torch.tensor([2.0, torch.tensor(-0.5).exp()]))


def test_grpo_stops_pushing_a_token_whose_ratio_has_left_the_clip_range_the_good_way():
    log_probs = torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    rollout = log_probs.detach() - torch.tensor([0.5, 0.5, -0.5, -0.5])  # ratio 1.65, 1.65, 0.61, 0.61
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    losses.grpo_loss(log_probs, rollout, advantages, torch.ones(4), clip=0.2).backward()
    assert log_probs.grad[0] == 0 and log_probs.grad[3] == 0
    assert log_probs.grad[1] > 0 and log_probs.grad[2] < 0


def next_token_kl(world, reference, kind):
    """KL of the next token at every prefix, weighted by how often the prefix comes up (held fixed)."""
    ours, theirs = world.logits.log_softmax(-1), reference.logits.log_softmax(-1).detach()
    kl = {
        "reverse": (ours.exp() * (ours - theirs)).sum(-1),
        "forward": (theirs.exp() * (theirs - ours)).sum(-1),
    }[kind]
    reach = [world.log_probs(p).sum().exp().detach() if p else torch.tensor(1.0) for p in world.row]
    return (torch.stack([r.double() for r in reach]) * kl).sum()


@pytest.mark.parametrize("kind", ["reverse", "forward"])
def test_the_reference_kl_has_the_gradient_that_its_name_says(kind):
    world, reference = TinyWorld(2), TinyWorld(3)

    def loss(answer):
        lp = world.log_probs(answer)
        return losses.reference_kl_loss(lp, reference.log_probs(answer).detach(), torch.ones_like(lp), kind)

    torch.testing.assert_close(
        expected_gradient(world, loss), world.gradient(next_token_kl(world, reference, kind))
    )


def test_the_two_reference_kls_are_told_apart_by_the_enumeration():
    world, reference = TinyWorld(2), TinyWorld(3)
    reverse, forward = (
        world.gradient(next_token_kl(world, reference, kind)) for kind in ("reverse", "forward")
    )
    assert not torch.allclose(reverse, forward, rtol=0.1)


def test_equal_rewards_give_exactly_no_advantage_though_their_mean_rounds():
    rewards = torch.full((2, 8), 0.35)
    for use_std in (True, False):
        assert (losses.group_advantages(rewards, use_std=use_std) == 0).all()


def test_group_advantages_are_centred_and_with_std_have_unit_spread():
    rewards = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    plain, scaled = (losses.group_advantages(rewards, use_std=s) for s in (False, True))
    torch.testing.assert_close(plain.sum(-1), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(scaled.std(-1), torch.ones(5), atol=1e-3, rtol=0)


def test_the_running_mean_starts_at_zero_and_moves_by_its_weight():
    first = losses.next_baseline(0.0, torch.tensor([1.0, 0.0]))
    assert first == pytest.approx(0.05)
    assert losses.next_baseline(first, torch.tensor([1.0, 1.0])) == pytest.approx(0.9 * 0.05 + 0.1)
    torch.testing.assert_close(losses.baseline_advantages(torch.tensor([1.0]), 0.25), torch.tensor([0.75]))
