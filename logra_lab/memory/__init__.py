"""Where every byte goes: a ledger that measures, a planner that predicts, and the words they share.

    plan("7B", "logra", rank=64, checkpointing=True).sentence("24 GB")   # arithmetic, offline, a millisecond
    measure(shape, method="logra", dtype="fp32")                          # a real step on the CPU, by class and phase
    with Ledger(model, optimizer).phase("forward"): ...                    # the same for a model of your own

All figures are in GiB (2^30 bytes). The trial and the report, which need the rest of the kit, are imported on use.
"""

from __future__ import annotations

from typing import Any

from .gpu import card_here, free_bytes, nearest_preset
from .ledger import Ledger
from .planner import Plan, plan
from .presets import ALIASES, CARDS, MODELS, Card, ModelShape, card_of, shape_of
from .published import published_rows, published_table
from .replay import Phase
from .settings import METHODS, NAMES, PRECISIONS, RANKED, Settings
from .suggestions import Suggestion, suggest
from .units import CLASSES, GB, GIB, MIB, PHASES, Bytes, gib, size

_LATER = {
    "measure": "trial",
    "Measured": "trial",
    "plan_table": "report",
    "measured_table": "report",
    "comparison_table": "report",
    "draw_stacks": "report",
    "draw_timeline": "report",
    "card_table": "cards",
    "card_rows": "cards",
    "layouts_27b": "published",
}

__all__ = [
    "ALIASES", "CARDS", "CLASSES", "GB", "GIB", "METHODS", "MIB", "MODELS", "NAMES", "PHASES", "PRECISIONS", "RANKED",
    "Bytes", "Card", "Ledger", "ModelShape", "Phase", "Plan", "Settings", "Suggestion", "card_here", "card_of",
    "free_bytes", "gib", "nearest_preset", "plan", "published_rows", "published_table", "shape_of", "size", "suggest",
    *_LATER,
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _LATER:
        from importlib import import_module

        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
