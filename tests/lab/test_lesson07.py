"""Lesson 07 reads what was recorded, and its pictures and verdicts follow from it."""

from __future__ import annotations

import pytest

from logra_lab.lab import lesson07, lesson07_play
from logra_lab.lab.exercises import lesson07 as exercises


def fake_run(
    seed: int, accuracy: list, label: str = "logra paper", panel: str = "recipes", kl: float = 1e-3
) -> dict:
    steps = len(accuracy)
    return {
        "panel": panel, "label": label, "seed": seed, "start": {"accuracy": 0.3, "greedy": 0.6}, "config": {},
        "curves": {
            "accuracy": accuracy, "right": [0.3 + 0.05 * i for i in range(steps)], "measured_kl": [kl] * steps,
            "predicted_kl": [1.1 * kl] * steps, "budget": [1e-2] * steps, "no_signal": [0.0] * steps,
            "entropy": [0.5] * steps, "length": [3.0] * steps, "sketch_norm": [1.0] * steps,
        },
    }  # fmt: skip


def fake_summary() -> dict:
    runs = [fake_run(s, [None, 0.5, None, 0.7 + 0.1 * s]) for s in range(2)]
    runs += [fake_run(s, [None, 0.4, None, 0.6], "adamw 1e-03") for s in range(2)]
    runs += [fake_run(s, [None, 0.4, None, 0.65], "adamw 3e-04") for s in range(2)]
    runs += [fake_run(0, [0.1, 0.0], "without trust region", "too large", kl=0.7)]
    runs += [fake_run(0, [0.4, 0.8], "with trust region", "too large")]
    return {"runs": runs, "command": "c", "versions": {"torch": "2"}, "hash": "h", "table": []}


def test_points_start_with_the_untrained_model_and_skip_what_was_not_measured():
    assert lesson07.points(fake_run(0, [None, 0.5, None, 0.9]), "accuracy") == ([0, 2, 4], [0.3, 0.5, 0.9])
    assert lesson07.points(fake_run(0, [None]), "entropy") == ([1], [0.5])


def test_the_best_learning_rate_is_the_one_with_the_highest_mean():
    assert lesson07.best_adamw(fake_summary()) == "adamw 3e-04"


def test_an_unknown_arm_is_an_error_that_lists_what_there_is():
    with pytest.raises(KeyError, match="no recorded run is recipes / lora; there are .*logra paper"):
        lesson07.runs_of(fake_summary(), "recipes", "lora")


def test_pictures_say_their_numbers_in_words():
    summary = fake_summary()
    learning = lesson07.learning_picture(summary, {"LoGRA": ("recipes", "logra paper")})
    assert "over 2 seeds" in learning.caption and "LoGRA 75.0%" in learning.caption
    rescue = lesson07.rescue_picture(summary)
    assert "0.0% without trust region" in rescue.caption and "80.0% with trust region" in rescue.caption


def test_the_ratio_counts_only_steps_within_the_limit():
    runs = [fake_run(0, [0.1] * 3), fake_run(1, [0.1] * 3, kl=0.5)]
    assert lesson07.kl_ratio(runs) == pytest.approx([1.1] * 3)


def test_the_widget_draws_any_pair_and_tells_the_end_of_each():
    summary = fake_summary()
    arms = lesson07_play.arms_of(summary)
    assert "too large / with trust region" in arms
    picture = lesson07_play.explorer(summary)(arms[0], arms[1], "accuracy", "0")
    assert "ends at 0.7; final accuracy 70.0%" in picture.caption
    assert picture.caption != lesson07_play.explorer(summary)(arms[0], arms[1], "entropy", "all").caption


def test_the_clues_of_a_collapse_and_of_a_healthy_run_are_told_apart():
    summary = fake_summary()
    sick = lesson07_play.clues(lesson07.runs_of(summary, "too large", "without trust region")[0])
    well = lesson07_play.clues(fake_run(0, [0.5] * 20))
    assert exercises.diagnose(sick) == "step too large" and exercises.diagnose(well) == "healthy"


def test_the_recorded_runs_are_there_with_their_provenance():
    summary = lesson07.recorded()
    assert "python -m logra_lab.rl.compare arms" in lesson07.provenance(summary)
    for panel, label in (("recipes", "logra paper"), ("too large", "with trust region")):
        assert len(lesson07.runs_of(summary, panel, label)) >= 3


def test_a_recorded_run_repeats_on_this_machine():
    run = lesson07.runs_of(lesson07.recorded(), "recipes", "logra paper")[0]
    live = lesson07.live_run(run, steps=2)
    # the first batch is sampled before any update: only rounding of another processor can change an answer
    assert abs(live[0] - run["curves"]["right"][0]) < 0.03


def test_a_larger_card_takes_a_rank_at_least_as_large():
    ranks = [
        exercises.largest_rank(lambda r, c=c: exercises.fits_7b(r, c), exercises.RANKS) for c in (24, 80)
    ]
    assert ranks[0] <= ranks[1] and ranks[1] > 0
