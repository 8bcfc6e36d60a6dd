"""The hard figures and the aims that a run is held to, and whether they hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from bench.statistics import paired_ratio


@dataclass(frozen=True)
class Figure:
    """One claim about a run: `value` must not exceed `limit`. An aim that is missed is no failure."""

    name: str
    value: float
    limit: float
    hard: bool = True
    interval: tuple[float, float] | None = None
    """Of a paired ratio, what its rounds say (`statistics.paired_ratio`)."""

    @property
    def holds(self) -> bool:
        """True if the claim is met."""
        return self.value <= self.limit

    def to_json(self) -> dict:
        """Plain values, with the outcome."""
        return asdict(self) | {"holds": self.holds}


def figures(arms: dict[str, dict]) -> list[Figure]:
    """All claims, from what `race.summarise` says of every arm; ratios are paired, round by round."""
    r16, r64, judged = arms["logra r16"], arms["logra r64"], arms["logra r16 probe"]
    light, dense_light = arms["logra r16 checkpointing"], arms["adamw checkpointing"]
    dense, dense_once = arms["adamw"], arms["adamw in one pass"]
    full_weights = ("sgd", "galore r16", "apollo r16")
    rivals = {"logra r16": "lora r16", "logra r64": "lora r64"}
    return [
        ratio("step time, r16 / dense AdamW", r16, dense, 0.60),
        ratio("step time, r16 / dense AdamW (aim)", r16, dense, 0.55, hard=False),
        ratio("step time, r64 / dense AdamW", r64, dense, 0.63),
        *(
            ratio(f"step time, {rank} / dense AdamW, both in one pass", once, dense_once, limit, hard=False)
            for rank, once, limit in (
                ("r16", arms["logra r16 in one pass"], 0.60),
                ("r64", arms["logra r64 in one pass"], 0.63),
            )
        ),
        ratio("peak memory, r16 / dense AdamW", r16, dense, 0.48, what="peak"),
        ratio("peak memory, r16 / dense AdamW (aim)", r16, dense, 0.40, hard=False, what="peak"),
        *(ratio(f"step time, r16 / {name}", r16, arms[name], 1.0) for name in full_weights),
        *(ratio(f"step time, {name[6:]} / {rival}", arms[name], arms[rival], 1.0) for name, rival in rivals.items()),
        *(ratio(f"peak memory, r16 / {name}", r16, arms[name], 1.0, what="peak") for name in full_weights),
        Figure("propose + commit, share of a step, r16", update_share(r16), 0.06),
        Figure("propose + commit, share of a step, r64", update_share(r64), 0.06),
        Figure("KL probe on 1/16 of the tokens, share of a step", judged["judge"] / judged["seconds"], 0.06),
        ratio("with checkpointing, step time / dense AdamW", light, dense_light, 1.0),
        ratio("with checkpointing, peak memory / dense AdamW", light, dense_light, 1.0, what="peak"),
    ]  # fmt: skip


def ratio(
    name: str, arm: dict, reference: dict, limit: float, *, hard: bool = True, what: str = "seconds"
) -> Figure:
    """A claim on arm / reference: `what` is "seconds" or "peak", and both are paired round by round."""
    found = paired_ratio(arm["rounds"][what], reference["rounds"][what])
    return Figure(name, found.median, limit, hard, (found.low, found.high))


def update_share(arm: dict) -> float:
    """(propose + commit) / step."""
    return (arm["propose"] + arm["commit"]) / arm["seconds"]
