"""What lesson 03 shows is what the mathematics says, and its pictures say it in words."""

from __future__ import annotations

import math

import pytest
import torch

from logra_lab.lab import gradients, lesson03, lesson03_play, lesson03_price
from logra_lab.lab.exercises.lesson03 import faulty_estimate, repaired_estimate
from logra_lab.lab.plots import png
from logra_lab.method import LoGRA
from logra_lab.rl import losses
from logra_lab.rl.policy import token_scores


@pytest.fixture(scope="module")
def view() -> gradients.GradientStudy:
    """A small gradient of tiny-math."""
    return gradients.study(prompts=24, answers=4)


@pytest.fixture
def gradient() -> torch.Tensor:
    """A random gradient [d, k]."""
    return torch.randn(12, 80, generator=torch.Generator().manual_seed(0))


def test_the_mean_over_every_projection_there_is_is_exactly_the_gradient() -> None:
    g = torch.tensor([[3.0, -1.0, 0.0, 2.0]])
    every = lesson03.all_projections(2, 4)
    assert len({tuple(a.flatten().tolist()) for a in every}) == 256
    assert torch.allclose(sum(g @ a.T @ a for a in every) / 256, g, atol=1e-5)


def test_too_many_projections_are_refused() -> None:
    with pytest.raises(ValueError, match="rank 3 × 6"):
        lesson03.all_projections(3, 6)


def test_measured_error_and_cosine_lie_on_the_theory(gradient) -> None:
    measured = lesson03.against_rank(gradient, (4, 16), 60)
    for column, rank in enumerate((4, 16)):
        noise = (80 - 1) / rank
        assert measured["error"][:, column].square().mean().item() == pytest.approx(noise, rel=0.1)
        assert measured["cosine"][:, column].mean().item() == pytest.approx(1 / math.sqrt(1 + noise), rel=0.1)


def test_the_mean_of_refreshed_sketches_improves_and_that_of_one_projection_does_not(gradient) -> None:
    fresh = lesson03.mean_estimates(gradient, 4, 64)
    fixed = lesson03.mean_estimates(gradient, 4, 64, refresh=False)
    first, last = (lesson03.relative_error(fresh[i], gradient) for i in (0, -1))
    assert last < first / 5
    assert torch.allclose(fixed[0], fixed[-1], atol=1e-4) and torch.equal(fixed[0], fresh[0])


def test_the_rivals_are_what_they_are_called(gradient) -> None:
    assert torch.equal(lesson03.first_coordinates(gradient, 5)[:, :5], gradient[:, :5])
    assert lesson03.first_coordinates(gradient, 5)[:, 5:].abs().sum() == 0
    best = lesson03.best_of_rank(gradient, 5)
    assert torch.linalg.matrix_rank(best) == 5
    assert (best - gradient).norm() < (lesson03.first_coordinates(gradient, 5) - gradient).norm()
    assert torch.allclose(lesson03.best_of_rank(gradient, 12), gradient, atol=1e-4)


def test_off_diagonal_sees_only_what_is_off_the_diagonal() -> None:
    assert lesson03.off_diagonal(torch.diag(torch.arange(4.0))) == 0
    assert lesson03.off_diagonal(torch.ones(4, 4)) == pytest.approx(1)


def test_two_studies_are_equal(view) -> None:
    again = gradients.study(prompts=24, answers=4)
    assert all(torch.equal(view.dense[name], again.dense[name]) for name in view.dense)


def test_the_dense_gradient_sketched_is_what_the_optimizer_collects(view) -> None:
    policy = gradients.tiny_policy()
    optimizer = LoGRA(policy.model, rank=4)
    sampled, mask = view.batch.rollout, view.batch.rollout.generated_mask
    advantages = losses.per_token(losses.group_advantages(view.batch.rewards.view(-1, 4)).flatten(), mask)
    scores = token_scores(policy.model, sampled.input_ids, sampled.attention_mask, mask)
    losses.reinforce_loss(
        scores.log_probs, sampled.log_probs, advantages, losses.token_weights(mask)[mask]
    ).backward()
    for name, dense in view.dense.items():
        expected = dense @ optimizer.projection(name).T
        assert torch.allclose(optimizer.sketches[name], expected, atol=1e-5 * expected.abs().max().item())


def test_measuring_a_step_puts_the_weights_back_also_after_an_error(view) -> None:
    before = [target.weight.detach().clone() for target in view.targets]
    assert gradients.measured_kl(view, lesson03_price.scaled(view.dense, 0.0)) == pytest.approx(0, abs=1e-9)
    assert gradients.measured_kl(view, lesson03_price.scaled(view.dense, 1e-2)) > 1e-7
    with pytest.raises(KeyError):
        gradients.measured_kl(view, {view.targets[0].name: view.dense[view.targets[0].name]})
    assert all(torch.equal(target.weight, kept) for target, kept in zip(view.targets, before))


def test_both_kinds_of_noise_promise_no_improvement_and_have_the_same_length(view) -> None:
    noise = lesson03_price.sketch_noise(view, 4, 0)
    scores = lesson03_price.orthogonal(gradients.score_noise(view, 0), view.dense)
    control = lesson03_price.alike(scores, noise)
    for family in (noise, control):
        assert abs(gradients.inner(family, view.dense)) < 1e-3 * view.square
    assert all(
        control[name].norm().item() == pytest.approx(noise[name].norm().item(), rel=1e-4) for name in noise
    )


def test_sketch_noise_is_cheaper_in_kl_than_in_norm_and_than_noise_along_the_scores(view) -> None:
    costs = {name: values.mean().item() for name, values in lesson03_price.price(view, (4,), 3).items()}
    assert costs["norm"] > 5 * costs["sketch"]
    assert costs["control"] > 2 * costs["sketch"]


def test_the_widget_gives_the_same_picture_for_the_same_choice_and_says_what_it_shows(gradient) -> None:
    draw = lesson03_play.explorer(gradient)
    one, other = draw(8, 1), draw(16, 1)
    assert png(one.figure) == png(draw(8, 1).figure) != png(other.figure)
    assert one.caption.startswith("Rank 8, one sketch: relative error")
    assert "theory 3.14" in one.caption and "S takes 0.375 KiB instead of 3.75 KiB (10.0%)" in one.caption
    assert "128 KiB instead of 64 MiB" in one.caption and "1 MiB instead of 64 MiB" in draw(64, 1).caption
    assert "the mean of 4 sketches" in draw(8, 4).caption and "rank 8" in one.alt


def test_rank_times_steps_decides_the_expected_error() -> None:
    assert lesson03_play.expected_error(4, 100, 16) == lesson03_play.expected_error(64, 100, 1)


def test_the_faulty_estimate_is_right_at_rank_one_and_grows_with_the_root_of_the_rank(gradient) -> None:
    faulty = lesson03_play.mean_slopes(faulty_estimate, gradient, (1, 16), 200)
    assert faulty == pytest.approx([1, 4], rel=0.15)
    assert lesson03_play.mean_slopes(repaired_estimate, gradient, (1, 16), 200) == pytest.approx(
        [1, 1], rel=0.15
    )
    picture = lesson03_play.draw_slopes({"colleague": faulty}, (1, 16))
    assert f"{faulty[1]:.2f} at rank 16" in picture.caption


@pytest.mark.parametrize("count, words", [(512, "0.5 KiB"), (3 * 2**20, "3 MiB")])
def test_bytes_are_told_in_words(count, words) -> None:
    assert lesson03_play.size(count) == words
