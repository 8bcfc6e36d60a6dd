"""The recorded runs of lesson 07: made by the panel in the code, and they show what the lesson says of them."""

from __future__ import annotations

import json
import statistics

import pytest

from logra_lab.rl import panels
from logra_lab.rl.compare import Entry, final_accuracy
from logra_lab.rl.config import RunConfig, config_hash
from logra_lab.rl.pretrain import PretrainConfig
from logra_lab.rl.training import Trainer


@pytest.fixture(scope="module")
def recorded():
    from pathlib import Path

    file = Path(__file__).resolve().parents[2] / "data" / "runs" / "tiny-math-arms.json"
    return json.loads(file.read_text(encoding="utf-8"))


def runs_of(recorded, label):
    return [run for run in recorded["runs"] if run["label"] == label]


def gains(runs):
    return [final_accuracy(run) - run["start"]["accuracy"] for run in runs]


def test_the_file_holds_the_panels_runs_with_the_hash_of_their_configurations(recorded):
    entries = [Entry(*entry) for entry in panels.ARMS_PANEL]
    assert recorded["hash"] == config_hash({e.key: e.config.to_json() for e in entries})
    assert [run["key"] for run in recorded["runs"]] == [e.key for e in entries]
    assert recorded["command"] == "python -m logra_lab.rl.compare arms" and recorded["versions"]["torch"]
    assert recorded["model"] == PretrainConfig().hash()
    for run in recorded["runs"]:
        assert RunConfig.from_json(run["config"]).hash() == run["hash"]
        assert run["status"] == "finished" and len(run["curves"]["right"]) == run["config"]["steps"]


@pytest.mark.parametrize("label", ["logra paper", "logra lr"])
def test_logra_gained_at_least_30_points_of_sampled_held_out_accuracy_on_each_of_three_seeds(recorded, label):
    runs = runs_of(recorded, label)
    assert [run["seed"] for run in runs] == [0, 1, 2]
    assert all(gain >= 0.30 for gain in gains(runs))


def test_logra_ends_within_6_points_of_adamw_at_its_best_learning_rate(recorded):
    means = {}
    for run in recorded["runs"]:
        means.setdefault(run["label"], []).append(final_accuracy(run))
    best = max(statistics.fmean(values) for label, values in means.items() if label.startswith("adamw"))
    assert statistics.fmean(means["logra paper"]) > best - 0.06


def test_the_step_that_is_too_large_ends_below_5_percent_without_the_trust_region_and_above_70_with_it(
    recorded,
):
    assert all(final_accuracy(run) < 0.05 for run in runs_of(recorded, "without trust region"))
    assert all(final_accuracy(run) > 0.70 for run in runs_of(recorded, "with trust region"))


def test_the_predicted_kl_is_within_15_percent_of_the_measured_one_where_it_is_small(recorded):
    pairs = [
        (predicted, measured)
        for run in runs_of(recorded, "logra paper")
        for predicted, measured in zip(
            run["curves"]["predicted_kl"], run["curves"]["measured_kl"], strict=True
        )
        if measured is not None and measured <= 0.01
    ]
    assert len(pairs) > 300
    assert 0.85 < sum(p for p, _ in pairs) / sum(m for _, m in pairs) < 1.15


def test_shuffled_rewards_teach_nothing(recorded):
    assert all(gain < 0.10 for gain in gains(runs_of(recorded, "logra paper, shuffled rewards")))


def test_twenty_live_steps_gain_30_points_on_pairs_that_were_never_seen():
    trainer = Trainer(RunConfig(arm=panels.LOGRA_PAPER, seed=7, **panels.PAPER))
    before = trainer.evaluate(512)["accuracy"]
    for _ in range(20):
        trainer.train_step()
    assert trainer.evaluate(512)["accuracy"] >= before + 0.30


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_whole_live_run_gains_30_points_on_every_held_out_pair(seed):
    trainer = Trainer(RunConfig(arm=panels.LOGRA_PAPER, seed=seed, **panels.PAPER))
    before = trainer.evaluate()["accuracy"]
    assert trainer.run().history[-1]["accuracy"] >= before + 0.30
