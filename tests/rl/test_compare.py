"""Races: paired, resumable run by run, and summed up without saying more than the data."""

from __future__ import annotations

import dataclasses
import json

import pytest

from logra_lab.rl import compare, panels
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.summary import interval, summarise, verdict
from logra_lab.rl.tokenizer import character_tokenizer
from tests.rl.models import llama


def record(label, seed, final, panel="p", lr=1e-3, status="finished"):
    return {
        "panel": panel, "label": label, "seed": seed, "status": status, "start": {"accuracy": 0.3},
        "memory": {"weights": 4},
        "curves": {"accuracy": [None, 0.9, None, final], "measured_kl": [None, 1e-3]}, "peak_memory": 7,
        "seconds_per_step": 0.1, "config": {"arm": {"lr": lr}},
    }  # fmt: skip


def test_differences_are_paired_by_seed_so_noise_that_seeds_share_drops_out():
    shared = [0.0, 0.1, 0.2, 0.3]
    runs = [record("logra paper", s, 0.5 + n) for s, n in enumerate(shared)]
    runs += [record("adamw", s, 0.55 + n) for s, n in enumerate(shared)]
    reference, adamw = summarise(runs)
    assert reference["verdict"] == "the reference" and reference["difference"] is None
    assert adamw["difference"]["mean"] == pytest.approx(0.05)
    assert adamw["difference"]["half_width"] < 1e-9 < adamw["final"]["half_width"]
    assert adamw["verdict"].startswith("above logra paper by 5.0")
    assert adamw["gain"]["mean"] == pytest.approx(0.4) and adamw["best"]["mean"] == pytest.approx(0.9)


def test_a_difference_within_its_interval_is_called_none_that_these_seeds_can_show():
    assert "no difference" in verdict({"mean": 0.01, "half_width": 0.02})
    assert verdict({"mean": -0.05, "half_width": 0.02}) == "below logra paper by 5.0 ± 2.0 points"
    assert verdict({"mean": 0.5, "half_width": None}) == "not compared"


def test_the_interval_is_students_t_on_the_mean():
    values = [1.0, 2.0, 3.0, 4.0]
    assert interval(values)["mean"] == 2.5
    assert interval(values)["half_width"] == pytest.approx(3.182 * 1.2909944 / 2, rel=1e-6)
    assert interval([1.0])["half_width"] is None


def test_runs_that_broke_or_collapsed_are_named():
    runs = [
        record("logra paper", 0, 0.7),
        record("logra paper", 1, 0.01),
        record("logra paper", 2, 0.7, status="non-finite"),
    ]
    assert summarise(runs)[0]["diverged"] == [1, 2]


def test_the_best_learning_rate_is_that_of_the_highest_mean_final_accuracy():
    tuned = [
        record(f"adamw {lr:.0e}", s, a, lr=lr)
        for lr, a in ((1e-4, 0.4), (1e-3, 0.8), (1e-2, 0.0))
        for s in (0, 1)
    ]
    assert panels.best_lr(tuned, "adamw") == 1e-3
    with pytest.raises(ValueError, match="no tuning run of 'lora'"):
        panels.best_lr(tuned, "lora")


def test_every_arm_of_the_race_runs_on_the_same_seeds_with_the_same_answers_per_step():
    tuned = [record(e[1], e[2].seed, 0.5, lr=e[2].arm.lr) for e in panels.tuning_panel()]
    entries = [compare.Entry(*e) for e in panels.race_panel(tuned, seeds=8)]
    by_arm = {}
    for entry in entries:
        assert entry.config.prompts * entry.config.answers == 256 and entry.config.steps == 150
        by_arm.setdefault((entry.panel, entry.label), []).append(entry.config.seed)
    assert all(seeds == list(range(8)) for seeds in by_arm.values())
    assert not set(panels.TUNING_SEEDS) & set(range(8))
    assert len({entry.key for entry in entries}) == len(entries)


def test_finished_runs_are_not_done_again_and_changed_ones_are(tmp_path):
    llama().save_pretrained(tmp_path / "model")
    character_tokenizer().save_pretrained(tmp_path / "model")
    config = RunConfig(
        model=str(tmp_path / "model"), arm=ArmConfig("adamw", lr=1e-3, control="none"), steps=2, prompts=4,
        eval_every=1, eval_problems=4, task_options=(("largest", 12),), max_new_tokens=2,
    )  # fmt: skip
    entry = compare.Entry("p", "adamw", config)
    path = tmp_path / "runs.jsonl"
    first = compare.run_all([entry], path)
    assert first[0]["status"] == "finished" and len(first[0]["curves"]["right"]) == 2
    again = compare.run_all([entry], path)
    assert again == first and len(path.read_text(encoding="utf-8").splitlines()) == 1
    with path.open("a", encoding="utf-8") as file:
        file.write('{"cut')  # a kill in the middle of a line
    assert compare.read_records(path) == first
    changed = compare.Entry("p", "adamw", dataclasses.replace(config, seed=1))
    assert compare.run_all([changed], tmp_path / "other.jsonl")[0]["key"] != first[0]["key"]
    compare.write_summary(tmp_path / "runs.json", "command", [entry], first)
    assert not path.exists() and compare.run_all([entry], path) == first  # found in the finished summary
    summary = json.loads((tmp_path / "runs.json").read_text(encoding="utf-8"))
    assert (
        summary["command"] == "command"
        and summary["table"][0]["label"] == "adamw"
        and summary["versions"]["torch"]
    )
