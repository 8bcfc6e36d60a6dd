"""What to change when a plan does not fit: the cheapest single change that does it, else the cheapest few together.

"Cheapest" is an order, not a price: first what costs nothing but speed of generation, then what costs a part of a
step's time, then what changes what is learnt. Left out: quantised weights and tensor parallelism, which the kit does
not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .planner import Plan, plan
from .presets import Card, card_of
from .settings import NAMES, RANKED, Settings
from .units import size

Change = tuple[str, str, dict[str, object]]  # what to do, what it costs, the settings it sets
Makers = tuple[Callable[[Settings], Change | None], ...]


@dataclass(frozen=True)
class Suggestion:
    """Changes that make a plan fit (or, with `fits` false, the best that was found), and the plan they lead to."""

    changes: tuple[Change, ...]
    plan: Plan
    card: Card

    @property
    def fits(self) -> bool:
        """Whether the changed plan fits the card."""
        return self.plan.fits(self.card)

    def __str__(self) -> str:
        steps = "; ".join(f"{what} ({cost})" for what, cost, _ in self.changes) or "change nothing"
        margin = self.plan.margin(self.card)
        if margin >= 0:
            return f"To fit {self.card.name}: {steps}. Then {size(margin)} are left."
        return f"Nothing here fits {self.card.name}: after all of this ({steps}) {size(-margin)} are still missing."


def suggest(made: Plan, gpu: Card | str | float) -> Suggestion:
    """The cheapest change that makes `made` fit `gpu`, several together if no single one does, none if it fits already.

    Another method is proposed only where all that leaves the method alone is not enough.
    """
    card = card_of(gpu)
    if made.fits(card):
        return Suggestion((), made, card)
    for allowed in (CHANGES, (*CHANGES, _logra)):
        for change in changes(made.settings, allowed):
            changed = _changed(made, [change])
            if changed.fits(card):
                return Suggestion((change,), changed, card)
        found = _together(made, card, allowed)
        if found.fits:
            return found
    return found


def _together(made: Plan, card: Card, allowed: Makers) -> Suggestion:
    """Take the first change that lowers the peak, again and again, until it fits; then drop what was not needed."""
    taken: list[Change] = []
    current = made
    while not current.fits(card):
        options = ((change, _changed(current, [change])) for change in changes(current.settings, allowed))
        step = next(((c, p) for c, p in options if p.peak.total < 0.99 * current.peak.total), None)
        if step is None:
            return Suggestion(tuple(taken), current, card)
        taken.append(step[0])
        current = step[1]
    for change in list(taken):
        fewer = [other for other in taken if other is not change]
        if _still_fits(made, fewer, card):
            taken = fewer
    return Suggestion(tuple(taken), _changed(made, taken), card)


def _still_fits(made: Plan, taken: list[Change], card: Card) -> bool:
    try:
        return _changed(made, taken).fits(card)
    except ValueError:  # a later change needs the one left out (halves on the host need "split")
        return False


def _changed(made: Plan, taken: list[Change]) -> Plan:
    settings: dict[str, object] = {}
    for _, _, values in taken:
        settings |= values
    return plan(made.shape, made.settings.but(**settings))


def changes(s: Settings, allowed: Makers | None = None) -> list[Change]:
    """The changes that apply to `s`, cheapest first."""
    return [change for make in allowed or (*CHANGES, _logra) if (change := make(s)) is not None]


def _chunked_loss(s: Settings) -> Change | None:
    return ("take the loss in chunks", "a few per cent of a step", {"chunk": None}) if s.chunk == 0 else None


def _fewer_rollouts(s: Settings) -> Change | None:
    if s.rollout == "none" or s.answers == 1:
        return None
    fewer = max(1, s.answers // 4)
    return f"generate {fewer} answers at a time, not {s.answers}", "slower generation", {"rollouts": fewer}


def _in_process(s: Settings) -> Change | None:
    if s.rollout not in ("replica", "vllm"):
        return None
    return "generate in process with the same weights", "slower generation", {"rollout": "transformers"}


def _regenerate(s: Settings) -> Change | None:
    if s.method != "logra" or s.projections == "regenerated" or s.device != "cuda":
        return None
    return "make the signs of A inside the kernels", "needs Triton", {"projections": "regenerated"}


def _checkpointing(s: Settings) -> Change | None:
    if s.checkpointing:
        return None
    return "switch gradient checkpointing on", "about a third more forward time", {"checkpointing": True}


def _smaller_batch(s: Settings) -> Change | None:
    if s.batch == 1:
        return None
    count = s.micro_batches * s.batch
    settings: dict[str, object] = {"batch": 1, "micro_batches": count, "rollouts": s.answers}
    return f"micro-batches of 1 sequence, {count} of them", "a less busy card", settings


def _host_halves(s: Settings) -> Change | None:
    if s.precision != "split" or s.halves == "host":
        return None
    return "keep the lower halves on the host", "a transfer each step", {"halves": "host"}


def _lower_rank(s: Settings) -> Change | None:
    if s.method not in RANKED or s.rank <= 16:
        return None
    return f"rank {s.rank // 4}, not {s.rank}", "a noisier step", {"rank": s.rank // 4}


def _shorter_probe(s: Settings) -> Change | None:
    if s.probe_tokens <= 512:
        return None
    return f"a probe of 512 tokens, not {s.probe_tokens}", "a noisier KL", {"probe_tokens": 512}


def _logra(s: Settings) -> Change | None:
    if s.method not in ("adamw", "adam8bit", "galore", "apollo"):
        return None
    rank = s.rank if s.method in RANKED else 64
    precision = "split" if s.dtype == "bf16" else "fp32"
    words = f"LoGRA of rank {rank} instead of {NAMES[s.method]}"
    return (
        words,
        "another method",
        {"method": "logra", "precision": precision, "rest": "frozen", "rank": rank},
    )


CHANGES: Makers = (
    _chunked_loss, _fewer_rollouts, _regenerate, _checkpointing, _in_process, _smaller_batch, _host_halves,
    _shorter_probe, _lower_rank,
)  # fmt: skip
