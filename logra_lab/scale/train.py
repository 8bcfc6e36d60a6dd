"""Train at any size, from a notebook or under torchrun: plan, load, evaluate, train, evaluate, save.

    logra-train --model tiny --folder runs/first                      # or python -m logra_lab.scale.train
    logra-train --model 7B --folder runs/7b --save models/7b
    logra-train --model 7B --folder runs/7b --resume                  # at this or another number of processes
    torchrun --nproc-per-node 8 -m logra_lab.scale.train --model 7B --sharding fsdp --folder runs/7b

`prepare`, `first_passes` and `carry_out` are for notebooks; `main` is the command line around them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logra_lab.memory import Card
from logra_lab.rl.endings import RunResult
from logra_lab.rl.reading import as_table, read_json
from logra_lab.rl.tasks import Task
from logra_lab.scale.command_line import Progress, configuration, make_engine, parser, print_plan
from logra_lab.scale.data import task_for
from logra_lab.scale.device import choose_device
from logra_lab.scale.engines import Engine
from logra_lab.scale.loading import load
from logra_lab.scale.presets import ScaleConfig
from logra_lab.scale.saving import save_pretrained
from logra_lab.scale.trainer import ScaleTrainer
from logra_lab.scale.world import World, check_run, start_world


@dataclass(frozen=True)
class Outcome:
    """What a run came to: Pass@1 and Pass@k before and after, how it ended, and where the model was saved."""

    before: dict[str, float]
    after: dict[str, float]
    result: RunResult
    saved: Path | None


def prepare(
    config: ScaleConfig,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    task: Task | None = None,
    engine: Engine | Callable[[ScaleTrainer], Engine | None] | None = None,
    card: Card | None = None,
    force: bool = False,
    world: World | None = None,
) -> ScaleTrainer:
    """Plan, load, and make the trainer; nothing is trained and no older run is touched.

    Args:
        folder: receives metrics, configuration and checkpoints; on all machines the same, if there are several.
        engine: instead of the one that `config.engine` names.
        card, force: see `loading.load`.

    Raises:
        CannotLoad, TooLarge, WrongWorld, ConnectionError, CheckpointError: each with the remedy.
    """
    choice = choose_device(config.device, config.dtype)
    world = world or start_world(choice.device.type)
    if choice.device.type == "cuda" and world.size > 1:
        choice = choose_device("cuda", config.dtype, local_rank=world.local_rank)
    check_run(config, world, getattr(engine, "name", config.engine))  # before weights are read
    task = task or task_for(config.run.task, **dict(config.run.task_options))
    loaded = load(config, choice, card=card, gpus=world.size, force=force)
    return ScaleTrainer(loaded, task=task, world=world, engine=engine, folder=folder, resume=resume)


def carry_out(
    trainer: ScaleTrainer,
    *,
    save: str | Path | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
) -> Outcome:
    """Pass@k, all remaining steps, Pass@k, and the model saved in Hugging Face's format if the run finished."""
    before = first_passes(trainer)
    result = trainer.run(on_step)
    if result.status != "finished":
        return Outcome(before, {}, result, None)
    after = trainer.evaluate_passes()
    optimizer = trainer.arm.optimizer if trainer.arm.name == "logra" else None
    saved = None if save is None else save_pretrained(trainer.policy, optimizer, save, trainer.world)
    return Outcome(before, after, result, saved)


def first_passes(trainer: ScaleTrainer) -> dict[str, float]:
    """Pass@k of the untrained model, kept beside the checkpoints so that a resumed run still knows it."""
    file = trainer.folder and trainer.folder / "before.json"
    if file and file.exists():
        return as_table(read_json(file), file.name)
    if trainer.step:
        return {}
    found = trainer.evaluate_passes()
    if file and trainer.world.first:
        partial = file.with_suffix(".partial")
        partial.write_text(json.dumps(found), encoding="utf-8")
        partial.replace(file)  # whole or not there, whenever it is interrupted
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if the run finished, 1 if it ended early, 2 for bad input; the reason stands on the last line."""
    options = parser().parse_args(arguments)
    try:
        config = configuration(options)
        if options.plan:
            return print_plan(config)
        trainer = prepare(
            config, folder=options.folder, resume=options.resume, force=options.force,
            engine=lambda made: make_engine(options, made.policy.model, made.scale, made.world),
        )  # fmt: skip
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        print(f"logra-train: {error}", file=sys.stderr)
        return 2
    say = print if trainer.world.first else _silent
    for note in trainer.loaded.notes:
        say(note)
    outcome = carry_out(trainer, save=options.save or options.folder / "model", on_step=Progress(trainer))
    trainer.engine.close()
    say(f"\n{outcome.result.status}: {outcome.result.message}; checkpoint: {outcome.result.checkpoint}")
    for when, found in (("before", outcome.before), ("after", outcome.after)):
        if found:
            say(
                when
                + ": "
                + ", ".join(f"{name} {value:.3f}" for name, value in found.items() if name != "problems")
            )
    if outcome.saved:
        say(f"saved: {outcome.saved}")
    _leave(trainer.world)
    return 0 if outcome.result.status == "finished" else 1


def _silent(*_: object) -> None:
    """Other processes than the first say nothing."""


def _leave(world: World) -> None:
    if world.size > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
