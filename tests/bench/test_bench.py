"""The bench measures what it says: paired ratios, counted FLOPs, and arms that really train."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bench import __main__ as command
from bench.costs import points, row
from bench.model import Ceilings, head_flops, step_flops, step_seconds
from bench.race import summarise
from bench.settings import ARMS, SMALL, Setting, Shape, shrunk
from bench.statistics import medians, paired_ratio
from bench.targets import figures
from bench.trial import Trial, build_model
from bench.worker import Worker
from logra_lab.rl.baselines import target_weights


def small(arm: str, rank: int = 0, **options) -> Setting:
    return Setting(arm, rank, shape=SMALL, threads=1, **options)


def test_a_paired_ratio_is_taken_round_by_round():
    ratio = paired_ratio(
        [1.0, 4.0, 30.0], [2.0, 4.0, 10.0]
    )  # the machine slowed down tenfold, the ratios did not
    assert (ratio.median, ratio.low, ratio.high) == (1.0, 0.5, 3.0)


@pytest.mark.parametrize(("rounds", "expected"), [(5, 0.9375), (6, 0.96875), (9, 1 - 20 / 512)])
def test_the_interval_covers_the_median_as_often_as_it_says(rounds, expected):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(4000, rounds, generator=generator).exp().tolist()  # the true median is 1
    ratios = [paired_ratio(sample, [1.0] * rounds) for sample in samples]
    covered = sum(ratio.low <= 1 <= ratio.high for ratio in ratios) / len(ratios)
    assert ratios[0].coverage == expected
    assert abs(covered - expected) < 4 * (expected * (1 - expected) / 4000) ** 0.5


@pytest.mark.parametrize(("values", "references"), [([], []), ([1.0], [1.0, 2.0])])
def test_rounds_that_do_not_pair_up_are_refused(values, references):
    with pytest.raises(ValueError, match="measure both in each round"):
        paired_ratio(values, references)


def in_place_flops(total, left, right, **_):
    """Of `total += left @ right`, which torch's counter doesn't know, from the three shapes."""
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("arm", "rank"), [("adamw", 0), ("logra", 16)])
def test_the_flop_model_counts_what_torch_counts(arm, rank, checkpointing):
    setting = small(arm, rank, checkpointing=checkpointing)
    trial = Trial(setting)
    with FlopCounterMode(display=False, custom_mapping={torch.ops.aten.addmm_: in_place_flops}) as counter:
        trial.step()
    seen = counter.get_flop_counts()["Global"]
    counted = sum(count for operation, count in seen.items() if "mm" in str(operation))
    assert counted == pytest.approx(
        step_flops(setting), rel=0.06
    )  # the last position has no target, norms use A Aᵀ


def test_logra_saves_most_of_a_third_of_the_flops_of_the_targets():
    dense, lean = Setting("adamw"), Setting("logra", 16)
    bodies = [step_flops(setting) - head_flops(setting.shape) for setting in (lean, dense)]
    assert 2 / 3 < bodies[0] / bodies[1] < 0.70


def test_the_model_grows_with_rank_tokens_and_width():
    ceilings = Ceilings(1e11, 1e10)
    base = Setting("logra", 16)
    seconds = step_seconds(base, ceilings)
    assert step_seconds(replace(base, rank=64), ceilings) > seconds
    assert step_seconds(replace(base, shape=Shape(length=512)), ceilings) > seconds
    assert step_seconds(replace(base, shape=Shape(width=4096)), ceilings) > seconds


def test_a_setting_survives_its_journey_as_json():
    for setting in ARMS:
        assert Setting.from_json(json.loads(json.dumps(setting.to_json()))) == setting
    assert len({setting.name for setting in ARMS}) == len(ARMS)


def test_the_bench_model_has_the_size_it_claims():
    shape = ARMS[0].shape
    with torch.device("meta"):
        model = build_model(ARMS[0])
    assert 75e6 <= sum(parameter.numel() for parameter in model.parameters()) <= 130e6
    assert sum(weight.numel() for weight in target_weights(model)) == shape.target_parameters()
    assert shape.tokens == 1024


@pytest.mark.parametrize("setting", shrunk(ARMS, SMALL, 1), ids=lambda setting: setting.name)
def test_every_arm_changes_its_weights_in_a_step(setting):
    pytest.importorskip(
        {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}.get(setting.arm, "torch")
    )
    trial = Trial(setting)
    before = {name: value.clone() for name, value in trial.model.state_dict().items()}
    trial.step()  # LoRA's second factor starts at zero, so that the first step moves one of the two
    result = trial.step()
    moved = [name for name, value in trial.model.state_dict().items() if not torch.equal(value, before[name])]
    assert len(moved) >= 7 * setting.shape.layers
    assert not [name for name in moved if "embed" in name or "norm" in name]
    assert result["seconds"] >= result["forward"] + result["backward"] > 0
    assert ("judge" in result) == setting.probe


def test_checkpointing_leaves_the_loss_as_it_was():
    trials = [Trial(small("logra", 4, checkpointing=flag)) for flag in (False, True)]
    losses = [trial.loss(trial.ids, trial.advantages).item() for trial in trials]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_worker_steps_in_a_process_of_its_own_and_ends():
    worker = Worker(small("logra", 4))
    worker.ready()
    assert worker.base > 0
    assert worker.step()["seconds"] > 0
    worker.close()
    assert worker._child.returncode == 0


def test_a_worker_that_fails_says_why():
    worker = Worker(small("no such arm"))
    with pytest.raises(
        RuntimeError, match="no such arm failed in its process:(.|\n)*unknown arm 'no such arm'"
    ):
        worker.ready()


def rounds_of(seconds: float, peak: float = 100.0) -> list[dict[str, float]]:
    one = {
        "seconds": seconds,
        "peak": peak,
        "propose": 0.01 * seconds,
        "commit": 0.02 * seconds,
        "judge": 0.05 * seconds,
    }
    return [one] * 3


def test_the_figures_hold_and_fail_where_they_should():
    results = {setting.name: rounds_of(1.0) for setting in ARMS}
    results |= {name: rounds_of(0.5, 40.0) for name in results if name.startswith("logra")}
    good = figures(summarise(results, "adamw"))
    assert all(figure.holds for figure in good)
    assert {figure.name for figure in good if "one pass" in figure.name and not figure.hard} == {
        "step time, r16 / dense AdamW, both in one pass", "step time, r64 / dense AdamW, both in one pass",
    }  # fmt: skip
    results["logra r16"] = rounds_of(0.61, 49.0)
    bad = {figure.name for figure in figures(summarise(results, "adamw")) if not figure.holds and figure.hard}
    assert bad == {"step time, r16 / dense AdamW", "peak memory, r16 / dense AdamW"}


def test_the_whole_command_writes_a_record_that_says_where_it_comes_from(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        command, "race", lambda settings, rounds, tell: {s.name: rounds_of(1.0) for s in settings}
    )
    out = tmp_path / "runs" / "bench.json"
    assert command.main(["--small", "--rounds", "3", "--threads", "1", "--no-costs", "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["arms"]["logra r16"]["time_ratio"] == {
        "median": 1.0,
        "low": 1.0,
        "high": 1.0,
        "coverage": 0.75,
    }
    assert record["machine"]["cores"] and record["versions"]["torch"] == torch.__version__
    assert "FAILS" in capsys.readouterr().out  # equal times are no 0.60


def test_the_curves_alone_go_into_the_record_that_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "cost_curves", lambda ceilings, options: [{"varies": "rank"}])
    out = tmp_path / "bench.json"
    out.write_text(json.dumps({"arms": {"adamw": 1}, "costs": []}), encoding="utf-8")
    assert command.main(["--only-costs", "--threads", "1", "--out", str(out)]) == 0
    record = json.loads(out.read_text(encoding="utf-8"))
    assert record["arms"] == {"adamw": 1} and record["costs"] == [{"varies": "rank"}]


def test_a_cost_point_holds_measured_and_modelled_figures():
    varies, setting = points()[0]
    point = row(varies, setting, {"logra": [1.0, 2.0, 3.0], "adamw": [4.0, 4.0, 4.0]}, Ceilings(1e11, 1e10))
    assert (point["low"], point["ratio"], point["high"]) == (0.25, 0.5, 0.75) and 0.4 < point[
        "model_ratio"
    ] < 1
    assert medians([{"a": 1.0}, {"a": 3.0}, {"a": 2.0}]) == {"a": 2.0}
