"""The play widget `rank_memory`: model, method, rank, precision, GPUs, context → where bytes go, whether they fit.

`rank_memory` is the pure callback: the same choices give the same picture, its sentence and its alt text.
`rank_memory_text` is the same as a table, for who prefers to read, and `show` puts the widget into a notebook.
Left out: what the planner leaves out (memory/planner.py); all settings that have no control stay at `RUN`'s.
"""

from __future__ import annotations

from typing import Any

from logra_lab.lab.plots import Picture, new_figure
from logra_lab.memory import (
    CARDS,
    CLASSES,
    METHODS,
    MODELS,
    NAMES,
    PRECISIONS,
    Plan,
    Settings,
    gib,
    plan,
    size,
    suggest,
)
from logra_lab.memory.report import draw_stacks
from logra_lab.memory.units import table

ALL = "all methods"
USUAL = "usual"
RANKS = (4, 8, 16, 32, 64, 128, 256)
GPUS = (1, 2, 4, 8)
CONTEXTS = (512, 1024, 2048, 4096)
RUN = Settings(
    batch=4, checkpointing=True, rollout="transformers", rollouts=16, probe_tokens=2048, padded=True
)
START = {
    "model": "Qwen2.5-Math-7B", "method": ALL, "rank": 64, "precision": USUAL, "gpus": 1, "context": 1024,
    "card": "48 GB",
}  # fmt: skip


def plans(model: str, method: str, rank: int, precision: str, gpus: int, context: int) -> dict[str, Plan]:
    """One plan per chosen method, by its name; FSDP where there are several GPUs.

    A precision that a method does not have gives its usual one. Raises ValueError for what `plan` refuses.
    """
    chosen = METHODS if method == ALL else (method,)
    made = {}
    for name in chosen:
        kept = precision if precision in PRECISIONS.get(name, ()) else None
        probe = RUN.probe_tokens if name == "logra" else 0
        settings = RUN.but(
            method=name, rank=rank, precision=kept, rest=None, gpus=gpus, context=context, probe_tokens=probe,
            sharding="fsdp" if gpus > 1 else "replicated",
        )  # fmt: skip
        made[NAMES.get(name, name)] = plan(model, settings)
    return made


def rank_memory(
    model: str, method: str, rank: int, precision: str, gpus: int, context: int, card: str
) -> Picture:
    """Stacked bars per method against the cards' capacities, with the sentence that says what fits and why."""
    made = plans(model, method, rank, precision, gpus, context)
    figure, axes = new_figure(9.6, 1.9 + 0.42 * len(METHODS))
    draw_stacks(axes, {name: one.peak for name, one in made.items()}, list(CARDS.values()))
    if len(made) == 1:
        axes.set_ylim(1.5, -1.5)  # one bar is no wall: as thick as among others, or nearly so
    axes.set_title(f"{model}, peak of a step per GPU", pad=22)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Picture(figure, alt_text(made), caption(made, card))


def caption(made: dict[str, Plan], card: str) -> str:
    """The sentence: for one method in full, with a remedy; for several what each leaves or lacks on the card."""
    if len(made) == 1:
        one = next(iter(made.values()))
        remedy = "" if one.fits(card) else f" {suggest(one, card)}"
        return one.sentence(card) + remedy
    margins = {name: one.margin(card) for name, one in made.items()}
    fit = [f"{name} ({size(margin)} left)" for name, margin in margins.items() if margin >= 0]
    short = [f"{name} (by {size(-margin)})" for name, margin in margins.items() if margin < 0]
    parts = [f"{', '.join(fit)} fit" if len(fit) > 1 else f"{fit[0]} fits" if fit else "No method fits"]
    if short and fit:
        parts.append(f"{', '.join(short)} {'do' if len(short) > 1 else 'does'} not fit")
    elif short:
        parts.append(f"what is missing: {', '.join(short)}")
    logra = made.get(NAMES["logra"])
    why = (
        ""
        if logra is None
        else f" LoGRA's largest part is {_largest(logra)}; dense AdamW's {_largest(made[NAMES['adamw']])}."
    )
    return f"On a {card} card: {'; '.join(parts)}.{why}"


def _largest(made: Plan) -> str:
    name, bytes_ = made.peak.largest(1)[0]
    return f"{name}, {size(bytes_)}"


def alt_text(made: dict[str, Plan]) -> str:
    """The bars in words."""
    bars = [
        f"{name} {gib(one.peak.total):.1f} GiB ({_largest(one)} the largest part)"
        for name, one in made.items()
    ]
    cards = ", ".join(f"{card.name} at {gib(card.capacity):.1f} GiB" for card in CARDS.values())
    return f"Stacked bars of memory per GPU: {'; '.join(bars)}. Dashed lines mark cards: {cards}."


def rank_memory_text(
    model: str, method: str, rank: int, precision: str, gpus: int, context: int, card: str
) -> str:
    """The picture as a table of GiB by class and method, and its sentence below."""
    made = plans(model, method, rank, precision, gpus, context)
    filled = [name for name in CLASSES if any(one.peak[name] for one in made.values())]
    rows = [[name, *(f"{gib(one.peak[name]):.2f}" for one in made.values())] for name in filled]
    rows.append(["all", *(f"{gib(one.peak.total):.2f}" for one in made.values())])
    return table([f"{model}, GiB per GPU", *made], rows) + "\n" + caption(made, card)


def controls() -> dict[str, Any]:
    """The widget's controls by the callback's argument names."""
    from logra_lab.lab.widgets import Choice, Slider

    methods = [(ALL, ALL), *((NAMES[name], name) for name in METHODS)]
    options = {
        "model": Choice("model", tuple(MODELS), START["model"]),
        "method": Choice("method", tuple(methods), START["method"]),
        "rank": Slider("rank r", RANKS, START["rank"]),
        "precision": Choice(
            "precision", (USUAL, "fp32", "split", "stochastic", "nearest"), START["precision"]
        ),
        "gpus": Slider("GPUs", GPUS, START["gpus"]),
        "context": Slider("context", CONTEXTS, START["context"]),
        "card": Choice("card", tuple(CARDS), START["card"]),
    }
    return options


def show() -> Any:
    """Show the widget in a notebook."""
    from logra_lab.lab.widgets import play

    return play(rank_memory, **controls())
