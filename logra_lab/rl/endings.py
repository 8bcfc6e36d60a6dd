"""How a run ends: all steps done, Ctrl-C, a gradient that is not finite, or a full disk.

Whatever happens, the result says it in a sentence and names the checkpoint to go on from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logra_lab.rl import checkpoint as checkpoints
from logra_lab.rl.interrupt import StopRequest

if TYPE_CHECKING:
    from logra_lab.rl.training import Trainer


@dataclass(frozen=True)
class RunResult:
    """How a run ended: `status` (finished, interrupted, non-finite, disk full) and a `message` with what to do."""

    status: str
    message: str
    history: list[dict[str, Any]]
    checkpoint: Path | None


def run_to_the_end(
    trainer: Trainer, stop: StopRequest, on_step: Callable[[dict[str, Any]], None] | None
) -> RunResult:
    """Steps, evaluations and checkpoints on schedule, until one of the endings."""
    try:
        return _steps(trainer, stop, on_step)
    except checkpoints.CheckpointError as error:
        return _result(trainer, "disk full", str(error), _last(trainer))
    except OSError as error:
        return _result(
            trainer, "disk full", f"could not write metrics: {error}; free space and resume", _last(trainer)
        )


def _steps(trainer: Trainer, stop: StopRequest, on_step) -> RunResult:
    config = trainer.config
    if trainer.step == 0:
        untrained = {"step": 0, **trainer.evaluate(config.eval_problems)}
        if not trainer.log.history:  # a run stopped before its first checkpoint has the line already
            trainer.log.append(untrained)
    while trainer.step < config.steps:
        metrics = trainer.train_step()
        last = trainer.step == config.steps
        if last or trainer.step % config.eval_every == 0:
            metrics |= trainer.evaluate(None if last else config.eval_problems)
        trainer.log.append(metrics)
        if on_step is not None:
            on_step(metrics)
        if metrics["status"] == "non-finite":
            message = f"step {trainer.step}: {metrics['message']}; lower the step size or look at the data, then resume"
            return _result(trainer, "non-finite", message, trainer.save())
        if stop.requested and not last:
            message = f"interrupted after step {trainer.step} of {config.steps}; resume to go on"
            return _result(trainer, "interrupted", message, trainer.save())
        if last or trainer.step % config.checkpoint_every == 0:
            trainer.save()
    return _result(trainer, "finished", f"all {config.steps} steps done", _last(trainer))


def _result(trainer: Trainer, status: str, message: str, checkpoint: Path | None) -> RunResult:
    return RunResult(status, message, trainer.log.history, checkpoint)


def _last(trainer: Trainer) -> Path | None:
    return checkpoints.latest(trainer.folder) if trainer.folder is not None else None
