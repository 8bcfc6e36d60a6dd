"""Will it fit? The planner asked before anything is loaded, and what to lower until it does.

Each rung lowers one thing that costs memory, in order of what it costs in time. Nothing that changes what is learnt is
touched (rank, budget, batch): if the last rung doesn't fit either, that is an error with the planner's own suggestions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from logra_lab.memory import Card, ModelShape, Plan, plan, size, suggest
from logra_lab.scale.presets import ScaleConfig


class TooLarge(RuntimeError):
    """The run doesn't fit the card; the message says by how much and what would help."""


def rungs(config: ScaleConfig) -> Iterator[dict[str, Any]]:
    """Changes to try one after another, each with all before it."""
    answers = config.run.prompts * config.run.answers
    yield {}
    yield from ({"rollouts": count} for count in (64, 32, 16) if count < (config.rollouts or answers))
    if not config.checkpointing:
        yield {"checkpointing": True}
    yield from ({"micro_batch": count} for count in (4, 2, 1) if count < (config.run.micro_batch or answers))
    if config.options.get("precision", "split") == "split" and config.options.get("halves") != "host":
        yield {"halves": "host"}
    yield from ({"rollouts": count} for count in (8, 4) if count < (config.rollouts or answers))


def fitted(
    config: ScaleConfig, shape: ModelShape, card: Card, dtype: str = "bf16", gpus: int = 1
) -> tuple[ScaleConfig, Plan]:
    """`config` lowered until it fits `card`, and its plan.

    Raises:
        TooLarge: if nothing here makes it fit.
    """
    changes: dict[str, Any] = {}
    for rung in rungs(config):
        changes |= rung
        if "halves" in changes and dtype != "bf16":
            changes.pop("halves")
            continue
        tried = config.but(**changes)
        made = plan(shape, tried.memory(dtype, gpus))
        if made.fits(card):
            return tried, made
    raise TooLarge(
        f"{made.sentence(card)} {suggest(made, card)} "
        "Or take a smaller model, or more GPUs with sharding='fsdp'."
    )


def dense_verdict(
    config: ScaleConfig, shape: ModelShape, card: Card, dtype: str = "bf16", gpus: int = 1
) -> tuple[bool, str]:
    """Whether dense AdamW with the same settings would fit the card, and the planner's sentence."""
    made = plan(shape, config.memory(dtype, gpus, method="adamw"))
    return made.fits(card), made.sentence(card)


def room(made: Plan, card: Card) -> str:
    """One line: the peak, the card, what is left."""
    left = made.margin(card)
    words = f"{size(left)} to spare" if left >= 0 else f"{size(-left)} too much"
    return f"{size(made.peak.total)} at the peak ({made.peak_phase}), {card.name}: {words}"
