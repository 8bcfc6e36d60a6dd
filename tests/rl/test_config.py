"""Configuration, metrics file and progress line."""

from __future__ import annotations

import json

import pytest

from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.metrics import MetricsLog, clock, progress_line, read_metrics


def test_a_metrics_file_cut_in_the_middle_of_a_line_is_read_and_continued(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste', encoding="utf-8")
    log = MetricsLog(path, keep_steps=1)
    log.append({"step": 2, "again": True})
    assert read_metrics(path) == [{"step": 1}, {"step": 2, "again": True}]


def test_the_progress_line_shows_step_bar_and_time_left():
    line = progress_line({"step": 50, "right": 0.5, "accuracy": 0.61}, steps=100, elapsed=30.0, steps_here=50)
    assert (
        "50/100" in line
        and "[##########          ]" in line
        and "held-out 0.61" in line
        and "0:30 left" in line
    )
    assert clock(3723) == "1:02:03"


def test_a_configuration_survives_json_and_its_hash_names_it():
    config = RunConfig(
        arm=ArmConfig("lora", options=(("lora_alpha", 4),), control="none"), task_options=(("largest", 9),)
    )
    again = RunConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config and again.hash() == config.hash()
    assert RunConfig(seed=1).hash() != RunConfig(seed=2).hash()
    with pytest.raises(ValueError, match="unknown settings .'stepz'."):
        RunConfig.from_json({"stepz": 3})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunConfig(algorithm="ppo"), "algorithm='ppo'"),
        (lambda: RunConfig(algorithm="grpo"), "answers=1 has nothing to compare"),
        (lambda: RunConfig(denominator="mean"), "denominator='mean'"),
        (lambda: RunConfig(reference_kl="k3"), "reference_kl='k3'"),
        (lambda: RunConfig(steps=0), "steps=0"),
        (lambda: RunConfig(micro_batch=0), "micro_batch=0"),
        (lambda: RunConfig(temperature=0.0), "temperature=0.0"),
        (lambda: ArmConfig(control="hope"), "control='hope'"),
        (lambda: ArmConfig(budget=0.0), "budget=0.0"),
        (lambda: ArmConfig(lr=-1.0), "lr=-1.0"),
    ],
)
def test_settings_that_make_no_run_are_refused_with_value_and_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
