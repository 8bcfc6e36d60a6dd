"""How a run at scale ends early: Ctrl-C and SIGTERM end all processes after one step, a full card with advice."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from logra_lab.rl import checkpoint
from logra_lab.rl.endings import RunResult, run_to_the_end
from logra_lab.rl.interrupt import StopRequest
from logra_lab.scale.world import World

if TYPE_CHECKING:
    from logra_lab.scale.trainer import ScaleTrainer


class HalfUpdated(RuntimeError):
    """An update was interrupted midway: some weights have moved, others not."""

    def __init__(self) -> None:
        super().__init__(
            "the last update was interrupted midway, so the weights are of no step; go on from the newest "
            "checkpoint: prepare(…, resume=True)"
        )


class AgreedStop(StopRequest):
    """A stop that all processes see after the same step; SIGTERM, which schedulers send, counts as Ctrl-C."""

    def __init__(self, world: World) -> None:
        self.world, self._here = world, False
        super().__init__()

    @property
    def requested(self) -> bool:
        """Whether any process was asked to stop; every process must look equally often."""
        return self.world.anywhere(self._here)

    @requested.setter
    def requested(self, value: bool) -> None:
        self._here = value

    def __enter__(self) -> AgreedStop:
        super().__enter__()
        with contextlib.suppress(ValueError):  # not the main thread
            self._term = signal.signal(signal.SIGTERM, self._on_interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        with contextlib.suppress(ValueError, AttributeError):
            signal.signal(signal.SIGTERM, self._term)

    def _on_interrupt(self, *_: object) -> None:
        if self._here:
            raise KeyboardInterrupt
        self._here = True


def run(trainer: ScaleTrainer, on_step: Callable[[dict[str, Any]], None] | None) -> RunResult:
    """All remaining steps of `trainer`, ended together.

    A card that runs out of memory ends a run of one process with the status "out of memory" and advice; of several,
    the others wait in a collective, so the error goes on to torchrun, which ends them.
    """
    try:
        with AgreedStop(trainer.world) as stop:
            return run_to_the_end(trainer, stop, on_step)
    except torch.OutOfMemoryError as error:
        if trainer.world.size > 1:
            raise
        trainer.arm.zero_grad()
        kept = checkpoint.latest(trainer.folder) if trainer.folder is not None else None
        message = (
            f"out of memory in step {trainer.step + 1}: {str(error).splitlines()[0].rstrip('.')}. Lower micro_batch or "
            "rollouts, or set checkpointing=True or halves='host', and resume; nvidia-smi shows who else is on the card"
        )
        return RunResult("out of memory", message, trainer.log.history, kept)
