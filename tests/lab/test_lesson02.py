"""The small world is what it says, estimators behave there as lesson 02 claims, and its pictures say it in words."""

from __future__ import annotations

import pytest
import torch

from logra_lab.lab import lesson02, lesson02_play
from logra_lab.lab import small_world as world
from logra_lab.lab.exercises import lesson02 as exercises
from logra_lab.lab.exercises.lesson02_advantages import group_advantages, running_advantages
from logra_lab.lab.plots import png

POLICY = world.start(4)
TRUTH = world.true_gradient(POLICY)
LOSS = exercises.policy_gradient_loss


def estimates(rule=running_advantages, loss=LOSS, **settings) -> torch.Tensor:
    """A cloud of estimates [n, D]."""
    return lesson02.estimates(POLICY, rule, loss, **settings)


def standard_errors_off(found: torch.Tensor, scale: float = 1.0) -> float:
    """How many standard errors the mean of a cloud is from scale · truth, in the worst coordinate."""
    error = found.std(0) / len(found) ** 0.5
    return ((found.mean(0) - scale * TRUTH.flatten()).abs() / error).max().item()


def test_every_answer_is_listed_once_and_their_probabilities_add_up() -> None:
    every = world.every_answer()
    assert len({world.text(row) for row in every.ids}) == len(every) == 31
    assert world.probabilities(POLICY, every).sum().item() == pytest.approx(1, abs=1e-5)
    right = {world.text(row) for row, reward in zip(every.ids, every.rewards) if reward}
    assert right == {"1.", "10.", "01.", "100.", "010.", "001."}


def test_sampled_answers_come_as_often_as_their_probability_says() -> None:
    drawn = world.sample(POLICY, 20_000, torch.Generator().manual_seed(0))
    assert drawn.rewards.mean().item() == pytest.approx(world.accuracy(POLICY), abs=0.01)
    assert drawn.lengths.float().mean().item() == pytest.approx(world.mean_length(POLICY), abs=0.03)
    every = world.every_answer()
    likely = int(world.probabilities(POLICY, every).argmax())
    share = (drawn.ids == every.ids[likely]).all(1).float().mean().item()
    assert share == pytest.approx(world.probabilities(POLICY, every)[likely].item(), abs=0.01)


def test_the_true_gradient_is_that_of_finite_differences() -> None:
    step, policy = 1e-4, POLICY.double()
    for i in range(world.TOKENS):
        nudge = torch.zeros_like(policy)
        nudge[i, 1] = step
        slope = (world.accuracy(policy + nudge) - world.accuracy(policy - nudge)) / (2 * step)
        assert slope == pytest.approx(TRUTH[i, 1].item(), abs=1e-5)


def test_the_losses_of_learner_and_library_have_the_enumerated_gradient() -> None:
    every = world.every_answer()
    weighted = world.probabilities(POLICY, every) * every.rewards * len(every)
    for loss in (LOSS, lesson02.library_loss("constant")):
        assert torch.allclose(lesson02.direction(POLICY, every, weighted, loss), TRUTH, atol=1e-6)


def test_a_baseline_changes_the_noise_and_not_the_mean() -> None:
    without, with_mean = estimates(lesson02.no_baseline, bonus=1.0), estimates(bonus=1.0)
    assert standard_errors_off(without) < 3.5 and standard_errors_off(with_mean) < 3.5
    noise = [lesson02.Cloud.of(found, TRUTH.flatten()).noise for found in (without, with_mean)]
    assert noise[0] > 2 * noise[1]
    assert torch.allclose(
        estimates(bonus=1.0), estimates(bonus=5.0), atol=0.05
    )  # the baseline takes the bonus off


def test_groups_point_the_right_way_and_their_own_length_denominator_does_not() -> None:
    groups = lesson02.Cloud.of(estimates(lesson02.in_groups(group_advantages)), TRUTH.flatten())
    assert groups.cosine > 0.995 and groups.slope > 1.5
    biased = estimates(loss=lesson02.library_loss("own_length"))
    cloud = lesson02.Cloud.of(biased, TRUTH.flatten())
    assert cloud.cosine < 0.97
    assert standard_errors_off(biased, cloud.slope) > 10


def test_the_caption_of_the_signature_figure_reads_the_clouds() -> None:
    clouds = {
        "good": estimates(count=40),
        "bad": estimates(loss=lesson02.library_loss("own_length"), count=40),
    }
    picture = lesson02.draw_estimates(TRUTH, clouds, control="bad")
    noise = lesson02.Cloud.of(clouds["good"], TRUTH.flatten()).noise
    assert f"noise {noise:.2f}; bad" in picture.caption and "bad" in picture.alt


def test_without_its_stop_token_a_run_grows_into_the_limit_and_falls() -> None:
    right = lesson02.train(POLICY, LOSS, world.answer_mask, lesson02.no_baseline)
    faulty = lesson02.train(POLICY, LOSS, exercises.faulty_mask, lesson02.no_baseline)
    assert right.accuracy[-1] > 0.9
    assert faulty.accuracy[-1] < max(faulty.accuracy) - 0.2 and faulty.length[-1] > 3.5
    picture = lesson02.draw_runs({"right": right, "faulty": faulty})
    assert f"faulty: best {max(faulty.accuracy):.2f}" in picture.caption


def test_the_masks_of_the_world_and_of_the_exercise_agree() -> None:
    ids = world.every_answer().ids
    assert torch.equal(world.answer_mask(ids), exercises.answer_mask(ids))


def test_the_picture_of_silent_groups_says_what_was_measured_and_what_was_expected() -> None:
    picture = lesson02.draw_no_signal(exercises.no_signal_share, (2, 8), 0.5, 0.25, answers=2)
    assert "25% of its groups of 2" in picture.caption and "50%" in picture.caption


def test_the_widget_gives_the_same_picture_for_the_same_choice() -> None:
    draw = lesson02_play.explorer(POLICY, {"running mean": running_advantages}, LOSS)
    one, again, other = draw("running mean", 8, 1), draw("running mean", 8, 1), draw("running mean", 32, 1)
    assert png(one.figure) == png(again.figure) != png(other.figure)
    assert one.caption.startswith("Estimator: running mean; 8 answers a step, 1 added to every reward")
    assert one.caption != other.caption and "bonus 1" in one.alt
