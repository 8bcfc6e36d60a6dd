"""Every long cell of the full-scale notebook, interrupted and run again: the result is as if it never was."""

from __future__ import annotations

import signal

import pytest
import torch

from logra_lab.lab import lesson10, lesson10_trainers
from logra_lab.rl.tasks import sums
from logra_lab.scale import checkpoints, loading
from logra_lab.scale.presets import preset
from logra_lab.scale.saving import save_pretrained
from logra_lab.scale.stopping import HalfUpdated
from logra_lab.scale.train import first_passes, prepare

SMALL = dict(
    steps=3, prompts=16, micro_batch=8, eval_every=3, eval_problems=8, checkpoint_every=1, pass_problems=8
)
SAME = ("step", "reward", "right", "predicted_kl", "scale", "budget", "sketch_norm", "accuracy")


def press_again(*_, **__):
    """The stop button for the second time: it doesn't wait any more."""
    raise KeyboardInterrupt


def at_call(number: int, function, press):
    """`function`, with `press` at one of its calls."""
    count = iter(range(1, 10**6))

    def wrapped(*arguments, **options):
        if next(count) == number:
            press()
        return function(*arguments, **options)

    return wrapped


@pytest.fixture
def made(repository):
    """The notebook's `prepare`, on the twin."""
    config = preset("tiny", **SMALL | {"model": str(repository / "data" / "tiny-math")})
    return lambda folder=None, **options: prepare(config, folder=folder, task=sums(largest=20), **options)


def weights(trainer) -> dict[str, torch.Tensor]:
    optimizer = trainer.arm.optimizer
    return {target.name: optimizer.weight(target.name).clone() for target in optimizer.targets}


def lines(history) -> list[dict]:
    return [{name: line.get(name) for name in SAME} for line in history]


@pytest.fixture(scope="module")
def whole(repository, tmp_path_factory) -> dict:
    """The run that nobody interrupts."""
    config = preset("tiny", **SMALL | {"model": str(repository / "data" / "tiny-math")})
    trainer = prepare(config, folder=tmp_path_factory.mktemp("whole") / "run", task=sums(largest=20))
    before = first_passes(trainer)
    result = trainer.run()
    return {
        "before": before, "history": lines(result.history), "weights": weights(trainer),
        "after": trainer.evaluate_passes(),
    }  # fmt: skip


def assert_as_if_never_interrupted(trainer, result, whole) -> None:
    assert result.status == "finished" and lines(result.history) == whole["history"]
    assert all(torch.equal(value, whole["weights"][name]) for name, value in weights(trainer).items())
    assert trainer.evaluate_passes() == whole["after"]


def test_loading_interrupted_leaves_nothing_and_works_the_second_time(made, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loading, "load_policy", press_again)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert made(tmp_path / "run").step == 0


def test_the_first_passes_interrupted_are_taken_again_and_then_kept(made, whole, tmp_path):
    trainer = made(tmp_path / "run")
    sampler = trainer.sampler
    trainer.sampler = at_call(1, sampler, press_again)
    with pytest.raises(KeyboardInterrupt):
        first_passes(trainer)
    assert not (tmp_path / "run" / "before.json").exists()
    assert first_passes(trainer) == whole["before"]
    trainer.run()
    resumed = made(tmp_path / "run", resume=True)
    resumed.sampler = press_again  # nothing is sampled for them again
    assert first_passes(resumed) == whole["before"] != whole["after"]


def test_one_press_ends_after_the_step_and_the_resume_cell_ends_as_an_uninterrupted_run(
    made, whole, tmp_path
):
    trainer = made(tmp_path / "run")
    trainer._loss = at_call(2, trainer._loss, lambda: signal.raise_signal(signal.SIGINT))
    result = trainer.run()
    assert result.status == "interrupted" and result.message.startswith("interrupted after step 1 of 3")
    assert result.checkpoint.name == "step-000001"
    trainer = made(tmp_path / "run", resume=True)
    assert trainer.step == 1
    assert_as_if_never_interrupted(trainer, trainer.run(), whole)


def press_in(trainer, where: str, patch) -> None:
    """Press stop twice in step 2: while sampling, in backward, with half of the weights moved, or while saving."""
    if where == "sampling":
        trainer.sampler = at_call(4, trainer.sampler, press_again)  # the evaluation at the start takes two
    elif where == "backward":
        trainer._loss = at_call(4, trainer._loss, press_again)
    elif where == "update":
        precision = trainer.arm.optimizer.precision
        precision.add_low_rank = at_call(20, precision.add_low_rank, press_again)  # 14 weights a step
    else:
        patch.setattr(checkpoints.dcp, "save", at_call(2, checkpoints.dcp.save, press_again))


@pytest.mark.parametrize("where", ["sampling", "backward", "update", "checkpoint"])
def test_pressed_twice_anywhere_in_a_step_the_resume_cell_ends_as_an_uninterrupted_run(
    made, whole, tmp_path, monkeypatch, where
):
    trainer = made(tmp_path / "run")
    with monkeypatch.context() as patch:
        press_in(trainer, where, patch)
        with pytest.raises(KeyboardInterrupt):
            trainer.run()
    assert trainer.step == (2 if where == "checkpoint" else 1)
    if where == "update":
        with pytest.raises(HalfUpdated, match="interrupted midway.*prepare.*resume=True"):
            trainer.run()
    trainer = made(tmp_path / "run", resume=True)
    assert trainer.step == 1  # of a checkpoint that was being written nothing is taken
    assert_as_if_never_interrupted(trainer, trainer.run(), whole)


@pytest.mark.parametrize("where", ["sampling", "backward"])
def test_pressed_twice_before_the_update_the_same_cell_can_simply_run_again(made, whole, where, monkeypatch):
    trainer = made()
    press_in(trainer, where, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert_as_if_never_interrupted(trainer, trainer.run(), whole)


def test_pressed_twice_before_the_first_checkpoint_the_run_begins_anew_without_double_lines(
    made, whole, tmp_path
):
    trainer = made(tmp_path / "run")
    trainer._loss = at_call(1, trainer._loss, press_again)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    trainer = made(tmp_path / "run", resume=True)
    assert_as_if_never_interrupted(trainer, trainer.run(), whole)


def test_saving_interrupted_leaves_no_folder_and_works_the_second_time(made, tmp_path, monkeypatch):
    trainer = made()
    arguments = (trainer.policy, trainer.arm.optimizer, tmp_path / "model", trainer.world)
    with monkeypatch.context() as patch:
        patch.setattr(type(trainer.policy.tokenizer), "save_pretrained", press_again)
        with pytest.raises(KeyboardInterrupt):
            save_pretrained(*arguments)
    assert not (tmp_path / "model").exists()
    assert (save_pretrained(*arguments) / "model.safetensors").exists()


def test_the_dense_arm_interrupted_can_be_tried_again(made, repository):
    config = preset("tiny", **SMALL | {"model": str(repository / "data" / "tiny-math")})
    dense = config.but(arm_name="adamw", lr=1e-4, control="none")
    trainers = []

    def interrupted():
        trainers.append(prepare(dense, task=sums(largest=20)))
        trainers[-1]._loss = at_call(3, trainers[-1]._loss, press_again)
        return trainers[-1]

    with pytest.raises(KeyboardInterrupt):
        lesson10.dense_steps(interrupted)
    told = lesson10.dense_steps(lambda: prepare(dense, task=sums(largest=20)))
    assert told.startswith("dense AdamW holds weights")


def test_another_trainer_interrupted_gives_its_output_back_and_can_be_tried_again(capsys):
    pytest.importorskip("accelerate", reason="accelerate is missing: pip install 'logra-lab[scale]'")
    with pytest.raises(KeyboardInterrupt):
        lesson10_trainers.try_trainer(press_again)
    print("heard again")
    assert capsys.readouterr().out == "heard again\n"


def test_the_ledger_interrupted_measures_the_same_afterwards(monkeypatch):
    first = lesson10.ledger_twin()
    with monkeypatch.context() as patch:
        patch.setattr("torch.nn.functional.scaled_dot_product_attention", press_again)
        with pytest.raises(KeyboardInterrupt):
            lesson10.ledger_twin()
    assert lesson10.ledger_twin() == first
