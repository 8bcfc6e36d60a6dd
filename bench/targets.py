"""The hard figures and the aims that a run is held to, and whether they hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One claim about a run: `value` must not exceed `limit`. An aim that is missed is no failure."""

    name: str
    value: float
    limit: float
    hard: bool = True

    @property
    def holds(self) -> bool:
        """True if the claim is met."""
        return self.value <= self.limit

    def to_json(self) -> dict:
        """Plain values, with the outcome."""
        return asdict(self) | {"holds": self.holds}


def figures(arms: dict[str, dict]) -> list[Figure]:
    """All claims, from the arms' medians and paired ratios (`race.summarise`)."""
    r16, r64, judged = arms["logra r16"], arms["logra r64"], arms["logra r16 probe"]
    light = arms["logra r16 checkpointing"]
    rivals = {"r16": ("sgd", "galore r16", "apollo r16", "lora r16"), "r64": ("lora r64",)}
    result = [
        Figure("step time, r16 / dense AdamW", r16["time_ratio"]["median"], 0.60),
        Figure("step time, r16 / dense AdamW (aim)", r16["time_ratio"]["median"], 0.55, hard=False),
        Figure("step time, r64 / dense AdamW", r64["time_ratio"]["median"], 0.63),
        Figure("peak memory, r16 / dense AdamW", r16["peak_ratio"]["median"], 0.48),
        Figure("peak memory, r16 / dense AdamW (aim)", r16["peak_ratio"]["median"], 0.40, hard=False),
    ]
    for rank, names in rivals.items():
        mine = arms[f"logra {rank}"]
        result += [
            Figure(f"step time, {rank} / {name}", mine["seconds"] / arms[name]["seconds"], 1.0)
            for name in names
        ]
    full_weights = [name for name in rivals["r16"] if name != "lora r16"]
    result += [
        Figure(f"peak memory, r16 / {name}", r16["peak"] / arms[name]["peak"], 1.0) for name in full_weights
    ]
    dense_light = arms["adamw checkpointing"]
    return result + [
        Figure("propose + commit, share of a step, r16", update_share(r16), 0.06),
        Figure("propose + commit, share of a step, r64", update_share(r64), 0.06),
        Figure("KL probe on 1/16 of the tokens, share of a step", judged["judge"] / judged["seconds"], 0.06),
        Figure("with checkpointing, step time / dense AdamW", light["seconds"] / dense_light["seconds"], 1.0),
        Figure("with checkpointing, peak memory / dense AdamW", light["peak"] / dense_light["peak"], 1.0),
    ]


def update_share(arm: dict) -> float:
    """(propose + commit) / step."""
    return (arm["propose"] + arm["commit"]) / arm["seconds"]
