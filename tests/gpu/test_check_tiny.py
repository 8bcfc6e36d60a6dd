"""The GPU script runs on a CPU in its tiny form, says what it skips, and fails where something is wrong."""

from __future__ import annotations

import json

import pytest
import torch

from tests.gpu import check, correctness
from tests.gpu.context import Context, Skip


def test_every_section_runs_tiny_on_a_cpu_and_the_result_is_json(tmp_path, capsys):
    status = check.main(["--device", "cpu", "--tiny", "--out", str(tmp_path / "gpu.json")])
    results = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert status == 0 and results["failed"] == {} and results["skipped"] == {}
    assert set(results["sections"]) == set(check.SECTIONS)
    assert json.loads(capsys.readouterr().out) == results
    step = results["sections"]["step_27B"]
    assert step["seconds"] > 0 and step["generated_tokens_per_s"] > 0 and step["hours_per_100_updates"] >= 0


def test_only_names_sections_or_groups_and_refuses_others(capsys):
    results = check.run(Context(torch.device("cpu"), True), ["ceilings"], 60)
    assert list(results["sections"]) == ["ceilings"]
    with pytest.raises(SystemExit):
        check.main(["--only", "nothing"])
    assert "there is no section nothing" in capsys.readouterr().err


def test_without_time_left_a_section_is_skipped_with_the_reason():
    results = check.run(Context(torch.device("cpu"), True), ["sketch"], 1.0)
    assert "time left" in results["skipped"]["sketch"]


def test_a_wrong_method_fails_the_check(monkeypatch):
    right = correctness.dense_gradients
    monkeypatch.setattr(
        correctness, "dense_gradients", lambda m, run: {n: 1.1 * g for n, g in right(m, run).items()}
    )
    results = check.run(Context(torch.device("cpu"), True), ["sketch"], 60)
    assert "S differs from G Aᵀ" in results["failed"]["sketch"]


def test_a_section_may_ask_for_time(monkeypatch):
    context = Context(torch.device("cpu"), True)
    context.begin(1.0)
    with pytest.raises(Skip, match="needs about 100 s"):
        context.need(100, "a step")
