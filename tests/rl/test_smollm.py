"""The real model on a CPU: held-out sums are never trained on, the record keeps its bounds, and a step moves it."""

from __future__ import annotations

import dataclasses
import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from logra_lab.memory.process import run_in_child
from logra_lab.rl import smollm
from logra_lab.rl.compare import final_accuracy
from logra_lab.rl.config import RunConfig, config_hash

FILE = Path(__file__).resolve().parents[2] / "data" / "runs" / "smollm.json"


def test_no_held_out_sum_is_trained_on_in_either_order():
    task = smollm.problems()
    trained = {tuple(sorted(problem.data)) for problem in task.train}
    held_out = {tuple(sorted(problem.data)) for problem in task.held_out}
    assert not trained & held_out and len(set(task.train) | set(task.held_out)) == 81
    assert len(task.held_out) == smollm.SAMPLES * len(set(task.held_out)) >= 40


@pytest.mark.parametrize(
    ("answer", "reward"),
    [(" 7.", 1.0), (" 3 + 4 = 7.", 1.0), (" 8.", 0.0), (" seven", 0.0), ("", 0.0), (" 77", 0.0)],
)
def test_the_last_number_of_an_answer_counts(answer, reward):
    problem = next(p for p in smollm.problems().train if p.answer == "7")
    assert smollm.problems().reward(answer, problem, False) == reward


def test_a_missing_package_is_an_error_that_names_the_command(monkeypatch):
    monkeypatch.setattr(smollm, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="make smollm"):
        smollm.weights_file()


def test_a_package_without_weights_is_an_error_that_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(
        smollm, "find_spec", lambda name: SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    )
    with pytest.raises(ImportError, match=r"no \.gguf file: run make smollm"):
        smollm.weights_file()


def test_the_record_is_that_of_the_code_with_its_versions():
    record = json.loads(FILE.read_text(encoding="utf-8"))
    assert record["hash"] == config_hash({f"{label}/{c.seed}": c.to_json() for label, c in smollm.RUNS})
    assert record["command"] == "python -m logra_lab.rl.smollm" and record["versions"]["torch"]
    assert [run["hash"] for run in record["runs"]] == [config.hash() for _, config in smollm.RUNS]
    for run in record["runs"]:
        assert RunConfig.from_json(run["config"]).hash() == run["hash"] and run["status"] == "finished"


def test_every_recorded_run_of_logra_gained_within_five_minutes_and_three_gigabytes():
    runs = [run for run in json.loads(FILE.read_text(encoding="utf-8"))["runs"] if run["label"] == "logra"]
    assert len({run["seed"] for run in runs}) >= 2
    for run in runs:
        assert run["seconds"] <= 300 and run["peak"] <= 3e9
        assert final_accuracy(run) - run["start"]["accuracy"] > 0.2


@pytest.mark.slow
def test_two_steps_move_the_real_model_within_three_gigabytes():
    if find_spec(smollm.PACKAGE) is None:
        pytest.skip("needs the weights of SmolLM2: make smollm")
    short = dataclasses.replace(smollm.BASE, steps=2, prompts=16, eval_every=2, eval_problems=8)
    argument = {"config": short.to_json(), "label": "short", "threads": 2}
    record = run_in_child(smollm.IN_A_CHILD, argument, timeout=1800, exact=False)
    assert record["status"] == "finished" and len(record["curves"]["right"]) == 2
    assert all(scale > 0 for scale in record["curves"]["scale"])
    assert record["peak"] <= 3e9


@pytest.mark.slow
def test_the_real_model_can_be_saved_and_read_again(tmp_path):
    if find_spec(smollm.PACKAGE) is None:
        pytest.skip("needs the weights of SmolLM2: make smollm")
    from transformers import AutoModelForCausalLM

    policy = smollm.load()
    policy.model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.state_dict().keys() == policy.model.state_dict().keys()
    weight = "model.layers.0.mlp.up_proj.weight"
    assert again.state_dict()[weight].equal(policy.model.state_dict()[weight])
