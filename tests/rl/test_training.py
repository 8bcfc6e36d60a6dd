"""The loop: micro-batches add up, resume is bit-identical, and every ending leaves a usable checkpoint."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from logra_lab.rl.config import ArmConfig
from logra_lab.rl.metrics import STEP_METRICS, read_metrics
from logra_lab.rl.tasks import sums
from logra_lab.rl.training import Trainer
from tests.rl.trainers import ARMS, assert_equal, config_for, trainer_for, weights

TIMINGS = {"seconds", "rollout_seconds", "tokens_per_second", "peak_memory"}


def without_timings(history):
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in history]


@pytest.mark.parametrize("arm", ARMS)
def test_a_resumed_run_is_bit_identical_to_one_that_was_never_stopped(model_folder, tmp_path, arm):
    whole = trainer_for(model_folder, arm, folder=tmp_path / "whole")
    expected = whole.run()
    assert expected.status == "finished"
    first = trainer_for(model_folder, arm, folder=tmp_path / "halves")
    for _ in range(2):
        first.log.append(first.train_step())
    first.save()
    first.log.append(first.train_step())  # a step that is lost again
    second = trainer_for(model_folder, arm, folder=tmp_path / "halves", resume=True)
    assert second.step == 2
    torch.rand(1)
    result = second.run()
    assert_equal(weights(second), weights(whole))
    assert without_timings(result.history)[-1] == without_timings(expected.history)[-1]
    assert [m["step"] for m in read_metrics(tmp_path / "halves" / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize("arm", ["reinforce, adamw", "grpo, logra lr", "reinforce, logra paper"])
def test_micro_batches_of_any_size_take_the_same_step(model_folder, arm):
    def after(size):
        trainer = trainer_for(model_folder, arm, micro_batch=size)
        trainer._backward(trainer._rollout())
        if trainer.arm.name == "adamw":
            return [p.grad for p in trainer.arm.parameters()]
        return list(trainer.arm.optimizer.sketches.values())

    whole = after(None)
    for size in (1, 2, 4, 7):
        for ours, reference in zip(after(size), whole, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)


def test_two_arms_of_one_seed_see_the_same_prompts_and_first_answers(model_folder):
    batches = [
        trainer_for(model_folder, arm)._rollout() for arm in ("reinforce, logra paper", "reinforce, adamw")
    ]
    assert torch.equal(batches[0].rollout.input_ids, batches[1].rollout.input_ids)
    other = trainer_for(model_folder, seed=1)._rollout()
    assert batches[0].rollout.texts != other.rollout.texts


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_moves_the_policy_and_reports_its_memory_by_class(model_folder, arm):
    trainer = trainer_for(model_folder, arm)
    before = weights(trainer)
    metrics = trainer.train_step()
    assert metrics["status"] == "updated"
    after = weights(trainer)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    memory = trainer.arm.memory()
    assert memory["weights"] > 0 and memory["gradients"] > 0 and memory["optimizer"] > 0


def test_only_dense_adamw_moves_anything_but_the_target_layers(model_folder):
    from logra_lab.method import DEFAULT_TARGETS

    for arm in ("reinforce, logra paper", "reinforce, row adam", "reinforce, adamw"):
        trainer = trainer_for(model_folder, arm)
        before = weights(trainer)
        trainer.train_step()
        moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
        only_targets = all(name.split(".")[-2] in DEFAULT_TARGETS for name in moved)
        assert moved and only_targets is (arm != "reinforce, adamw")


def test_every_metric_of_a_step_is_explained_and_written_as_it_comes(model_folder, tmp_path):
    trainer = trainer_for(model_folder, folder=tmp_path, measure_kl=True)
    seen = []
    trainer.run(on_step=lambda m: seen.append(len(read_metrics(tmp_path / "metrics.jsonl"))))
    assert seen == [2, 3, 4, 5]  # the start, and each step before its callback
    lines = read_metrics(tmp_path / "metrics.jsonl")
    names = set().union(*lines) - {"message"}
    assert names == set(STEP_METRICS)
    last = lines[-1]
    assert last["predicted_kl"] <= last["budget"] * 1.001 and last["measured_kl"] > 0
    assert 0 <= last["no_signal"] <= 1 and last["tokens_per_second"] > 0 and last["peak_memory"] > 2**20


def test_a_batch_of_equal_rewards_is_no_signal_and_changes_nothing(model_folder):
    trainer = trainer_for(model_folder, "grpo, logra lr")
    trainer.task = dataclasses.replace(trainer.task, score=lambda text, problem: 1.0)
    before = weights(trainer)
    metrics = trainer.train_step()
    assert metrics["status"] == "no signal" and metrics["no_signal"] == 1.0
    assert_equal(weights(trainer), before)


def test_shuffled_rewards_keep_their_mean_and_lose_their_answers(model_folder):
    plain, shuffled = (trainer_for(model_folder, shuffle_rewards=s)._rollout() for s in (False, True))
    assert torch.equal(plain.right, shuffled.right)
    assert shuffled.rewards.sort().values.equal(plain.rewards.sort().values)
    assert not torch.equal(shuffled.rewards, plain.rewards)


def test_a_reference_kl_has_no_pull_at_the_reference_and_pulls_back_later(model_folder):
    runs = [trainer_for(model_folder, reference_kl=kl, reference_weight=100.0) for kl in ("reverse", None)]

    def largest_gap():
        pairs = zip(*(weights(trainer).values() for trainer in runs), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    for trainer in runs:
        trainer.train_step()
    assert largest_gap() < 1e-6  # the policy is the reference at the first step
    for trainer in runs:
        trainer.train_step()
    assert largest_gap() > 1e-4


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (ArmConfig("sgd"), "unknown arm 'sgd'"),
        (ArmConfig("adamw"), "'adamw' has no trust region; use control='feedback' or 'none'"),
    ],
)
def test_an_arm_that_does_not_exist_is_refused(model_folder, arm, message):
    with pytest.raises(ValueError, match=message):
        Trainer(config_for(model_folder, arm=arm), task=sums(12))
