"""The loop: micro-batches add up, resume is bit-identical, and every ending leaves a usable checkpoint."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from logra_lab.rl import checkpoint as checkpoints
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.metrics import STEP_METRICS, MetricsLog, clock, progress_line, read_metrics
from logra_lab.rl.tasks import sums
from logra_lab.rl.tokenizer import character_tokenizer
from logra_lab.rl.training import Trainer
from tests.rl.models import llama


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    llama().save_pretrained(folder)
    character_tokenizer().save_pretrained(folder)
    return str(folder)


PAPER = ArmConfig(lr=3e-3, rank=4, budget=1e-2, final_budget=1e-3)
ARMS = {
    "reinforce, logra paper": dict(arm=PAPER),
    "grpo, logra lr": dict(arm=ArmConfig(lr=3e-4, rank=4, rule="lr"), algorithm="grpo", prompts=6, answers=4),
    "reinforce, adamw": dict(arm=ArmConfig("adamw", lr=1e-3, control="none")),
    "reinforce, adamw feedback": dict(arm=ArmConfig("adamw", lr=1e-3, control="feedback")),
    "reinforce, lora": dict(arm=ArmConfig("lora", lr=1e-3, rank=2, control="none")),
    "reinforce, galore": dict(arm=ArmConfig("galore", lr=1e-3, rank=2, control="none")),
    "reinforce, apollo": dict(arm=ArmConfig("apollo", lr=1e-3, rank=2, control="none")),
    "reinforce, row adam": dict(arm=ArmConfig("row_adam", lr=1e-3, control="none")),
}
PACKAGES = {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}


def config_for(model_folder, steps=4, **options) -> RunConfig:
    small = dict(prompts=24, probe_sequences=8, eval_every=2, eval_problems=16, checkpoint_every=2, max_new_tokens=4)
    return RunConfig(**(small | dict(model=model_folder, task_options=(("largest", 12),), steps=steps) | options))


def trainer_for(model_folder, arm="reinforce, logra paper", **options) -> Trainer:
    settings = ARMS[arm]
    if package := PACKAGES.get(settings["arm"].name):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'logra-lab[race]'")
    folder, resume = options.pop("folder", None), options.pop("resume", False)
    trainer = Trainer(config_for(model_folder, **(settings | options)), folder=folder, resume=resume)
    trainer.task = Easy.of(trainer.task)
    return trainer


class Easy:
    """A score that an untrained model meets about half the time: the answer's length is odd."""

    @staticmethod
    def of(task):
        import dataclasses

        return dataclasses.replace(task, score=lambda text, problem: float(len(text) % 2), needs_stop=False)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


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
    batches = [trainer_for(model_folder, arm)._rollout() for arm in ("reinforce, logra paper", "reinforce, adamw")]
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
    import dataclasses

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


def test_an_interrupt_ends_the_step_saves_and_says_how_to_go_on(model_folder, tmp_path):
    trainer = trainer_for(model_folder, folder=tmp_path)
    result = trainer.run(on_step=lambda m: os.kill(os.getpid(), signal.SIGINT) if m["step"] == 1 else None)
    assert result.status == "interrupted" and "after step 1 of 4; resume" in result.message
    assert result.checkpoint.name == "step-000001"
    assert trainer_for(model_folder, folder=tmp_path, resume=True).run().status == "finished"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_interrupt_stops_at_once(model_folder):
    def twice(metrics):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer_for(model_folder).run(on_step=twice)


@pytest.mark.parametrize("arm", ["reinforce, adamw", "reinforce, logra paper"])
def test_a_gradient_that_is_not_finite_ends_the_run_with_the_last_good_weights(model_folder, tmp_path, arm):
    trainer = trainer_for(model_folder, arm, folder=tmp_path)
    trainer.train_step()
    good = weights(trainer)
    original = trainer._loss
    trainer._loss = lambda log_probs, micro: original(log_probs, micro) * torch.nan
    result = trainer.run()
    assert result.status == "non-finite" and "step 2" in result.message and "lower the step size" in result.message
    assert_equal(weights(trainer), good)
    assert result.checkpoint.name == "step-000002"
    assert trainer_for(model_folder, arm, folder=tmp_path, resume=True).run().status == "finished"


def test_a_full_disk_ends_the_run_and_leaves_the_older_checkpoint(model_folder, tmp_path, monkeypatch):
    trainer = trainer_for(model_folder, folder=tmp_path)
    written = []

    def full_after_one(*args, **kwargs):
        written.append(1)
        if len(written) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    real = checkpoints.save_model
    monkeypatch.setattr(checkpoints, "save_model", full_after_one)
    result = trainer.run()
    assert result.status == "disk full" and "No space left" in result.message and "step-000002" in result.message
    assert result.checkpoint.name == "step-000002"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "metrics.jsonl", "step-000002"]
    monkeypatch.undo()
    assert trainer_for(model_folder, folder=tmp_path, resume=True).run().status == "finished"


KILLED = """
import sys
from tests.rl.test_training import trainer_for
trainer_for(sys.argv[1], folder=sys.argv[2], resume=True, steps=100_000, checkpoint_every=1, eval_every=100_000).run()
"""


def test_a_kill_at_any_moment_loses_only_the_steps_since_the_last_checkpoint(model_folder, tmp_path, repository):
    reached = 0
    for wait in (0.05, 0.11, 0.02):  # after the first checkpoint is there
        child = subprocess.Popen([sys.executable, "-c", KILLED, model_folder, str(tmp_path)], cwd=repository)
        deadline = time.monotonic() + 120
        while not any(p.name > f"step-{reached:06d}" for p in tmp_path.glob("step-*")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(wait)
        child.send_signal(signal.SIGKILL if hasattr(signal, "SIGKILL") else signal.SIGTERM)
        child.wait()
        resumed = trainer_for(
            model_folder, folder=tmp_path, resume=True, steps=100_000, checkpoint_every=1, eval_every=100_000
        )
        assert resumed.step > reached
        assert all(torch.isfinite(value).all() for value in weights(resumed).values())
        reached = resumed.step


def test_checkpoints_keep_the_two_newest_and_ignore_an_unfinished_one(model_folder, tmp_path):
    trainer = trainer_for(model_folder, folder=tmp_path, checkpoint_every=1)
    trainer.run()
    assert [p.name for p in sorted(tmp_path.glob("step-*"))] == ["step-000003", "step-000004"]
    (tmp_path / ".step-000009.partial").mkdir()
    (tmp_path / "step-000008").mkdir()  # no state.json: not whole
    assert checkpoints.latest(tmp_path).name == "step-000004"


def test_a_folder_with_checkpoints_is_not_overwritten_nor_resumed_by_another_configuration(model_folder, tmp_path):
    trainer_for(model_folder, folder=tmp_path).run()
    with pytest.raises(FileExistsError, match="step-000004; pass resume=True"):
        trainer_for(model_folder, folder=tmp_path)
    with pytest.raises(checkpoints.CheckpointError, match="resume with the same settings"):
        trainer_for(model_folder, folder=tmp_path, resume=True, seed=1)


def test_a_metrics_file_cut_in_the_middle_of_a_line_is_read_and_continued(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste', encoding="utf-8")
    log = MetricsLog(path, keep_steps=1)
    log.append({"step": 2, "again": True})
    assert read_metrics(path) == [{"step": 1}, {"step": 2, "again": True}]


def test_the_progress_line_shows_step_bar_and_time_left():
    line = progress_line({"step": 50, "right": 0.5, "accuracy": 0.61}, steps=100, elapsed=30.0, steps_here=50)
    assert "50/100" in line and "[##########          ]" in line and "held-out 0.61" in line and "0:30 left" in line
    assert clock(3723) == "1:02:03"


def test_a_configuration_survives_json_and_its_hash_names_it():
    config = RunConfig(arm=ArmConfig("lora", options=(("lora_alpha", 4),), control="none"), task_options=(("largest", 9),))
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
