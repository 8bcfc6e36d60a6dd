"""Which single card trains which model: the first setting of a ladder that fits, rollouts and probe included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .planner import Plan, plan
from .presets import CARDS, Card, shape_of
from .settings import Settings
from .units import gib, table

RUN = Settings(
    rank=64, batch=8, context=1024, rollout="transformers", rollouts=64, probe_tokens=2048, padded=True,
)  # fmt: skip


@dataclass(frozen=True)
class Rung:
    """One step of the ladder: what it is called and what it sets."""

    name: str
    settings: dict[str, object]


def ladder() -> Iterator[Rung]:
    """From the most comfortable to the most frugal: dense AdamW first, then LoGRA with less and less on the card."""
    frugal = {"checkpointing": True, "batch": 1, "rollouts": 16}
    yield Rung(
        "dense AdamW, fp32 masters, checkpointing",
        {"method": "adamw", "precision": "master", "checkpointing": True},
    )
    yield Rung(
        "dense AdamW, fp32 masters, micro-batch 1, 16 rollouts at once",
        {"method": "adamw", "precision": "master", **frugal},
    )
    yield Rung("LoGRA split, no checkpointing", {"precision": "split"})
    yield Rung("LoGRA split, checkpointing", {"precision": "split", "checkpointing": True})
    yield Rung("LoGRA split, micro-batch 1, 16 rollouts at once", {"precision": "split", **frugal})
    yield Rung(
        "LoGRA split, halves on the host", {"precision": "split", "halves": "host", "checkpointing": True}
    )
    host = {"precision": "split", "halves": "host", **frugal}
    yield Rung("LoGRA split, halves on the host, micro-batch 1, 16 rollouts at once", host)
    yield Rung(
        "the same, rank 16, probe of 512 tokens", {**host, "rank": 16, "probe_tokens": 512, "rollouts": 8}
    )


def first_fit(
    model: object, card: Card, methods: tuple[str, ...] = ("adamw", "logra")
) -> tuple[Rung, Plan] | None:
    """The first rung that fits the card, among `methods`; None if none does."""
    for rung in ladder():
        method = rung.settings.get("method", "logra")
        if method not in methods:
            continue
        changes = {"method": method, "precision": None, "rest": None, **rung.settings}
        made = plan(model, RUN.but(**changes, **({"probe_tokens": 0} if method == "adamw" else {})))
        if made.fits(card):
            return rung, made
    return None


def card_rows(models: tuple[object, ...] = ("1.5B", "7B", "27B")) -> list[tuple[str, str, str, Plan | None]]:
    """(model, card, words, plan) for every model and card, for dense AdamW and for LoGRA."""
    rows = []
    for model in models:
        for card in CARDS.values():
            for name, methods in (("dense AdamW", ("adamw",)), ("LoGRA", ("logra",))):
                found = first_fit(model, card, methods)
                words = found[0].name if found else f"{name}: does not fit"
                rows.append((shape_of(model).name, card.name, words, found[1] if found else None))
    return rows


def card_table(models: tuple[object, ...] = ("1.5B", "7B", "27B")) -> str:
    """Which card takes what, as text; GiB at the peak and left over."""
    rows = [
        [model, card, words, "" if made is None else f"{gib(made.peak.total):.1f}",
         "" if made is None else f"{gib(made.margin(card)):.1f}"]
        for model, card, words, made in card_rows(models)
    ]  # fmt: skip
    return table(["model", "card", "first setting that fits", "peak, GiB", "left, GiB"], rows)
