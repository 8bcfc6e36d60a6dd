"""A planner that predicts: the ledger's classes at each phase's peak, from a config alone.

`plan` adds up holdings.py (what lives between steps) and activations.py (what a step needs for a while) at the
moments that can be the peak of a phase (peaks.py). Nothing is built, so a 27B plan takes a millisecond on a laptop.

Left out: the CUDA context (about half a GiB) and the allocator's fragmentation; `Plan.fits` keeps a reserve for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import peaks
from .holdings import holdings
from .presets import Card, ModelShape, card_of, shape_of
from .settings import NAMES, RANKED, SETTING_NAMES, Settings
from .units import GIB, PHASES, Bytes, size

CONTEXT = int(0.5 * GIB)  # CUDA context and libraries
FRAGMENTATION = 0.04  # of the card: what the caching allocator holds in pieces that nothing fits


@dataclass(frozen=True)
class Plan:
    """A prediction: bytes by class at the peak of each phase, on each GPU, and on the host beside it."""

    shape: ModelShape
    settings: Settings
    phases: dict[str, Bytes]
    host: int = 0

    @property
    def peak_phase(self) -> str:
        """The phase with the highest peak."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def peak(self) -> Bytes:
        """Bytes by class at the highest peak."""
        return self.phases[self.peak_phase]

    def margin(self, gpu: Card | str | float) -> int:
        """Bytes left on the card after the peak and the reserve; negative if it does not fit."""
        card = card_of(gpu)
        return card.capacity - reserve(card) - self.peak.total

    def fits(self, gpu: Card | str | float) -> bool:
        """Whether the peak and the reserve fit the card."""
        return self.margin(gpu) >= 0

    def sentence(self, gpu: Card | str | float) -> str:
        """ "Fits" or "does not fit", by how much, and because of what."""
        card, margin = card_of(gpu), self.margin(gpu)
        parts = ", ".join(f"{name} {size(value)}" for name, value in self.peak.largest())
        verdict = f"fits with {size(margin)} to spare" if margin >= 0 else f"does not fit by {size(-margin)}"
        return (
            f"{self.shape.name} with {describe(self.settings)} {verdict} on a {card.name} card "
            f"({size(card.capacity)}, of which {size(reserve(card))} are kept for the CUDA context and "
            f"fragmentation), because its peak in the {self.peak_phase} phase is {size(self.peak.total)}: {parts}."
        )


def reserve(card: Card) -> int:
    """Bytes of a card that a plan leaves alone."""
    return CONTEXT + int(FRAGMENTATION * card.capacity)


def describe(s: Settings) -> str:
    """The settings in a few words."""
    words = [NAMES[s.method] + (f" r={s.rank}" if s.method in RANKED else ""), f"{s.precision} weights"]
    words += ["halves on the host"] if s.halves == "host" else []
    words += ["a native rest"] if s.method in ("lora", "logra") and s.rest == "native" else []
    words += ["a frozen rest"] if s.method not in ("lora", "logra") and s.rest == "frozen" else []
    words += ["checkpointing"] if s.checkpointing else []
    words += [f"{s.gpus} GPUs, {s.sharding}"] if s.gpus > 1 else []
    return f"{', '.join(words)}, {s.batch} × {s.context} tokens"


def plan(model: object, method: str | Settings = "logra", **settings: Any) -> Plan:
    """Predict the memory of a training run on each GPU.

    Args: a preset's name, a config, a live model or a `ModelShape`; the method, or whole `Settings`; single settings by
    name (see `Settings`).
    Raises ValueError for unknown names and impossible values, TypeError for a setting that does not exist.
    """
    if unknown := [name for name in settings if name not in SETTING_NAMES]:
        raise TypeError(f"Unknown setting {unknown[0]!r}; the settings are {', '.join(SETTING_NAMES)}.")
    shape = shape_of(model)
    s = method.but(**settings) if isinstance(method, Settings) else Settings(method=method, **settings)
    s.check(shape)
    held = holdings(shape, s)
    phases = {
        "rollout": peaks.rollout(shape, s, held) if s.rollout != "none" else None,
        "forward": peaks.forward(shape, s, held),
        "backward": peaks.backward(shape, s, held),
        "step": peaks.step(shape, s, held),
        "probe": peaks.probe(shape, s, held) if s.method == "logra" and s.probe_tokens else None,
    }
    found = {name: peak for name in PHASES if (peak := phases[name]) is not None}
    return Plan(shape, s, found, round(held.host))
