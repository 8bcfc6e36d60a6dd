"""Every ending leaves a usable checkpoint: interrupt, NaN, a full disk, a kill."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from logra_lab.rl import checkpoint as checkpoints
from tests.rl.trainers import assert_equal, trainer_for, weights


def test_an_interrupt_ends_the_step_saves_and_says_how_to_go_on(model_folder, tmp_path):
    trainer, before = trainer_for(model_folder, folder=tmp_path), signal.getsignal(signal.SIGINT)
    result = trainer.run(on_step=lambda m: os.kill(os.getpid(), signal.SIGINT) if m["step"] == 1 else None)
    assert result.status == "interrupted" and "after step 1 of 4; resume" in result.message
    assert result.checkpoint.name == "step-000001"
    assert trainer_for(model_folder, folder=tmp_path, resume=True).run().status == "finished"
    assert signal.getsignal(signal.SIGINT) is before


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
    assert (
        result.status == "non-finite"
        and "step 2" in result.message
        and "lower the step size" in result.message
    )
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
    assert (
        result.status == "disk full" and "No space left" in result.message and "step-000002" in result.message
    )
    assert result.checkpoint.name == "step-000002"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "metrics.jsonl", "step-000002"]
    monkeypatch.undo()
    assert trainer_for(model_folder, folder=tmp_path, resume=True).run().status == "finished"


def test_checkpoints_keep_the_two_newest_and_ignore_an_unfinished_one(model_folder, tmp_path):
    trainer = trainer_for(model_folder, folder=tmp_path, checkpoint_every=1)
    trainer.run()
    assert [p.name for p in sorted(tmp_path.glob("step-*"))] == ["step-000003", "step-000004"]
    (tmp_path / ".step-000009.partial").mkdir()
    (tmp_path / "step-000008").mkdir()  # no state.json: not whole
    assert checkpoints.latest(tmp_path).name == "step-000004"


def test_a_folder_with_checkpoints_is_not_overwritten_nor_resumed_by_another_configuration(
    model_folder, tmp_path
):
    trainer_for(model_folder, folder=tmp_path).run()
    with pytest.raises(FileExistsError, match="step-000004; pass resume=True"):
        trainer_for(model_folder, folder=tmp_path)
    with pytest.raises(checkpoints.CheckpointError, match="resume with the same settings"):
        trainer_for(model_folder, folder=tmp_path, resume=True, seed=1)


KILLED = """
import sys
from tests.rl.trainers import trainer_for
trainer_for(sys.argv[1], folder=sys.argv[2], resume=True, steps=100_000, checkpoint_every=1, eval_every=100_000).run()
"""


def test_a_kill_at_any_moment_loses_only_the_steps_since_the_last_checkpoint(
    model_folder, tmp_path, repository
):
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
