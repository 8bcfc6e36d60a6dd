"""The path from plan to saved model, in every precision; the command line; Pass@k; derived rates."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

from logra_lab.memory import card_of, shape_of
from logra_lab.rl.tasks import sums
from logra_lab.scale import command_line
from logra_lab.scale.device import choose_device
from logra_lab.scale.fitting import fitted
from logra_lab.scale.loading import load
from logra_lab.scale.passes import pass_at
from logra_lab.scale.presets import preset
from logra_lab.scale.rates import derive
from logra_lab.scale.train import carry_out, main, prepare
from logra_lab.scale.trainer import SCALE_METRICS, ScaleTrainer

SMALL = dict(
    steps=2, prompts=16, micro_batch=8, eval_every=2, eval_problems=8, checkpoint_every=1, pass_problems=8
)


@pytest.fixture
def tiny_math(repository):
    return str(repository / "data" / "tiny-math")


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("bf16", {"precision": "split"}),
        ("bf16", {"precision": "split", "halves": "host", "checkpointing": True}),
        ("bf16", {"precision": "stochastic"}),
        ("bf16", {"precision": "fp32"}),
        ("fp32", {"precision": "fp32", "attention": "eager", "rollouts": 5}),
    ],
)
def test_every_way_to_keep_weights_trains(tiny_math, dtype, options):
    config = preset("tiny", **SMALL | {"model": tiny_math} | options)
    made = ScaleTrainer(load(config, choose_device("cpu", dtype)), task=sums(largest=20))
    optimizer = made.arm.optimizer
    before = {target.name: optimizer.weight(target.name).clone() for target in optimizer.targets}
    metrics = made.train_step()
    assert metrics["status"] == "updated" and 0 < metrics["predicted_kl"] <= metrics["budget"] * 1.001
    assert set(SCALE_METRICS) <= set(metrics)
    assert all(not torch.equal(before[name], optimizer.weight(name)) for name in before)
    kept = torch.float32 if options["precision"] == "fp32" else torch.bfloat16
    assert made.policy.model.dtype == kept


def test_fp32_weights_compute_in_bf16_where_asked(tiny_math):
    config = preset("tiny", **SMALL | {"model": tiny_math, "precision": "fp32"})
    made = ScaleTrainer(load(config, choose_device("cpu", "bf16")), task=sums(largest=20))
    with made.compute():
        assert made.policy.model(torch.tensor([[4, 5]])).logits.dtype == torch.bfloat16
    plain = ScaleTrainer(load(config, choose_device("cpu")), task=sums(largest=20))
    with plain.compute():
        assert plain.policy.model(torch.tensor([[4, 5]])).logits.dtype == torch.float32


def test_a_dense_arm_takes_the_same_path(tiny_math, tmp_path):
    config = preset(
        "tiny", **SMALL | {"model": tiny_math, "arm_name": "adamw", "control": "none", "lr": 1e-4}
    )
    outcome = carry_out(
        prepare(config, folder=tmp_path / "run", task=sums(largest=20)), save=tmp_path / "model"
    )
    assert outcome.result.status == "finished" and (tmp_path / "model" / "model.safetensors").exists()
    again = prepare(config, folder=tmp_path / "run", task=sums(largest=20), resume=True)
    assert again.step == 2


def arguments(tiny_math, folder, *more):
    settings = [f"{name}={value}" for name, value in SMALL.items()] + [f"model={json.dumps(tiny_math)}"]
    return ["--model", "tiny", "--folder", str(folder), *more, "--set", *settings]


def test_the_command_trains_saves_and_resumes(tiny_math, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(arguments(tiny_math, folder)) == 0
    told = capsys.readouterr().out
    assert "cpu computing in fp32" in told and "finished: all 2 steps done" in told
    assert "before: pass@1" in told and "after: pass@1" in told
    assert (folder / "model" / "model.safetensors").exists()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2] and "accuracy" in lines[-1]

    assert main(arguments(tiny_math, folder)) == 2
    assert "already holds step-000002; pass resume=True or use another folder" in capsys.readouterr().err
    assert main(arguments(tiny_math, folder, "--resume", "--save", str(tmp_path / "again"))) == 0
    assert "before: pass@1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--model", "nobody/nothing", "--task", "sums"], "the hub can't be reached"),
        (["--device", "cuda"], "no CUDA GPU"),
        (["--set", "rank"], "write NAME=VALUE"),
        (["--set", "colour=1"], "'colour' is no setting"),
        (["--task", "riddles"], "unknown task 'riddles'"),
        (["--engine", "worker"], "needs --worker-folder"),
        (["--precision", "split"], "keeps bf16 weights"),
    ],
)
def test_bad_input_ends_with_one_line_and_writes_no_checkpoint(tmp_path, monkeypatch, capsys, more, words):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    options = more if "--model" in more else ["--model", "tiny", *more]
    assert main(["--folder", str(tmp_path / "run"), *options]) == 2
    told = capsys.readouterr().err
    assert words in told and told.startswith("logra-train: ")
    assert not list((tmp_path / "run").glob("step-*"))


def test_the_plan_is_printed_without_loading(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command_line, "card_here", lambda: None)
    assert main(["--folder", str(tmp_path), "--model", "27B", "--plan"]) == 0
    told = capsys.readouterr().out
    assert "80 GB: 1" in told and '"halves": "host"' in told and "dense: Gemma-3-27B with dense AdamW" in told
    assert not list(tmp_path.iterdir())


def test_a_configuration_can_come_from_a_file(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(preset("7B", rank=16).to_json()), encoding="utf-8")
    parsed = command_line.parser().parse_args(
        ["--folder", "x", "--config", str(file), "--set", "chat=true", 'targets=["q_proj"]']
    )
    config = command_line.configuration(parsed)
    assert (config.name, config.run.arm.rank, config.chat, config.options["targets"]) == (
        "7B",
        16,
        True,
        ("q_proj",),
    )


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_pass_at_k_counts_all_choices_of_k(k):
    right = torch.tensor([0.0, 1.0, 2.0, 4.0])
    expected = 0.0
    for count in right.int().tolist():
        marks = [1] * count + [0] * (4 - count)
        chosen = list(itertools.combinations(marks, k))
        expected += sum(any(some) for some in chosen) / len(chosen) / len(right)
    assert pass_at(right, 4, k) == pytest.approx(expected)


def test_pass_at_more_than_was_answered_is_refused():
    with pytest.raises(ValueError, match="Pass@5 of 4 answers"):
        pass_at(torch.ones(2), 4, 5)


def test_derived_rates_follow_what_they_are_derived_from():
    shape, card = shape_of("7B"), card_of("80 GB")
    config, _ = fitted(preset("7B"), shape, card)
    rate = derive(shape, config, card)
    assert rate.seconds == pytest.approx(rate.rollout + rate.training + rate.probe + rate.commit)
    assert rate.hours_per_100 * 36 == pytest.approx(rate.seconds)
    assert derive(shape, config.but(halves="host"), card).commit > rate.commit
    assert derive(shape, config.but(checkpointing=True), card).training == pytest.approx(1.5 * rate.training)
    assert derive(shape, config.but(rollouts=16), card).rollout > 2 * rate.rollout
    assert derive(shape_of("1.5B"), config, card).seconds < rate.seconds
