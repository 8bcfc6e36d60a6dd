"""Lesson 06: the step it looks at, the pictures, the widget, and what its recorded runs must show."""

from __future__ import annotations

import json

import pytest
import torch

from logra_lab.lab import kl_drift, kl_figures, kl_recorded, trust_step
from logra_lab.lab.exercises import lesson06
from logra_lab.rl.tasks import sums


@pytest.fixture(scope="module")
def step() -> trust_step.Step:
    return trust_step.one_step(trust_step.fresh_policy(), sums(), seed=0, prompts=24)


def test_a_proposed_step_leaves_the_policy_as_it_was(step):
    fresh = trust_step.fresh_policy().model.state_dict()
    assert all(torch.equal(value, fresh[name]) for name, value in step.policy.model.state_dict().items())


def test_the_whole_tangent_gives_the_packages_forecast(step):
    forecast = lesson06.half_variance(*trust_step.logits_and_tangent(step)).mean().item()
    judged = step.optimizer.judge(step.proposal, step.probe)
    assert forecast == pytest.approx(judged.predicted_kl, rel=1e-6) and judged.scale == 1.0


def test_the_forecast_is_measured_for_small_steps_and_bf16_has_a_floor(step):
    forecast = step.optimizer.judge(step.proposal, step.probe).predicted_kl
    sweep = trust_step.sweep(step, forecast, torch.tensor([1e-6, 1e-3], dtype=torch.float64))
    assert torch.allclose(sweep.measured, sweep.predicted, rtol=0.05)
    assert sweep.half[0] > 10 * sweep.predicted[0]


def test_values_on_the_grid_stand_before_their_tokens(step):
    every = trust_step.every_position(step.batch.rollout)
    grid = trust_step.on_grid(torch.arange(1.0, every.sum() + 1), every)
    where = lesson06.judged_positions(step.batch.rollout.attention_mask, step.batch.rollout.generated_mask)
    assert torch.equal((grid > 0)[:, :-1], every[:, 1:])
    values = lesson06.half_variance(
        *trust_step.logits_and_tangent(step, trust_step.probe_of(step.batch.rollout, every))
    )
    mean = trust_step.on_grid(values, every)[where].mean().item()
    assert mean == pytest.approx(step.optimizer.judge(step.proposal, step.probe).predicted_kl, rel=1e-5)


def test_the_recorded_grid_is_whole_and_names_how_it_was_made():
    recorded = kl_recorded.load("kl_drift")
    for settings in zip(kl_recorded.STEP_SIZES, kl_recorded.RANKS, kl_recorded.BUDGETS):
        assert len(kl_drift.chosen_run(recorded, *settings)["predicted"]) == kl_recorded.STEPS
    grid = len(kl_recorded.STEP_SIZES) * len(kl_recorded.RANKS) * len(kl_recorded.BUDGETS)
    assert (
        len(recorded["runs"]) == grid
        and "kl_recorded" in recorded["command"]
        and recorded["versions"]["torch"]
    )


def test_the_recorded_runs_belong_to_the_model_that_ships():
    shipped = json.loads((trust_step.MODEL / "recipe.json").read_text(encoding="utf-8"))["hash"]
    for name in ("kl_drift", "free_estimate"):
        assert kl_recorded.load(name)["config"]["model"] == shipped


def test_under_a_budget_the_recorded_forecast_is_close_to_what_was_measured():
    for run in kl_recorded.load("kl_drift")["runs"]:
        pairs = [(p, m) for p, m in zip(run["predicted"], run["measured"]) if m]
        if run["budget"] is not None:
            assert all(p <= 1.001 * run["budget"] for p, _ in pairs)
            assert sum(p for p, _ in pairs) == pytest.approx(
                sum(m for _, m in pairs),
                rel=0.1 if run["budget"] <= 1e-3 and run["step_size"] > 1e-3 else 0.25,
            )


def test_the_free_estimate_is_too_high_on_its_own_batch_and_right_on_fresh_answers():
    runs = kl_recorded.load("free_estimate")["runs"]
    for size in kl_figures.batch_sizes(runs):
        assert kl_figures.middle(runs, size, "own") > 1.3
        assert kl_figures.middle(runs, size, "own_over_fresh") > 1.5
        assert 0.7 < kl_figures.middle(runs, size, "fresh") < 1.4


def test_the_widgets_caption_changes_with_each_control():
    recorded = kl_recorded.load("kl_drift")
    start = {"step_size": 3e-3, "rank": 8, "budget": 1e-2}
    captions = {kl_drift.draw(recorded, **start).caption}
    for change in ({"step_size": 3e-2}, {"rank": 32}, {"budget": None}):
        captions.add(kl_drift.draw(recorded, **start | change).caption)
    assert len(captions) == 4 and all("predicted" in caption and "α" in caption for caption in captions)


def test_no_budget_can_be_chosen_and_then_nothing_is_scaled():
    option = kl_drift.controls()["budget"].values()[-1]
    caption = kl_drift.draw(kl_recorded.load("kl_drift"), 3e-2, 8, option).caption
    assert option is not None and "no budget" in caption and "α always 1" in caption


def test_a_setting_that_was_not_recorded_is_refused_by_name():
    with pytest.raises(KeyError, match="rank 7"):
        kl_drift.draw(kl_recorded.load("kl_drift"), 3e-3, 7, 1e-2)


def test_a_step_without_signal_leaves_a_gap_and_no_error():
    run = {"step_size": 1.0, "rank": 1, "budget": None, "right": [0.0, 0.5]}
    run |= {"predicted": [None, 0.5], "measured": [None, 0.4], "scale": [None, 1.0]}
    assert "predicted 0.5" in kl_drift.draw({"runs": [run]}, 1.0, 1, None).caption


def test_the_run_is_a_function_of_its_settings():
    first, second = (kl_recorded.drift_run(3e-3, 8, 1e-2, steps=1) for _ in range(2))
    assert first == second and first["predicted"][0] == pytest.approx(1e-2, rel=1e-3)
