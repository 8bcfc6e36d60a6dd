"""The configuration of a run: frozen, readable from JSON, with a hash that names it.

Sizes here are those of `data/tiny-math`. Step sizes and budgets at this size are larger than the paper's: a
0.24M-parameter model moves 50 times further relative to its weights (update ratio 3e-3 instead of 6e-5), and per
token it can afford a KL of 1e-2 where the paper's 1.5B models are given 2e-4.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from logra_lab.rl.generation import Sampling
from logra_lab.rl.losses import DENOMINATORS, REFERENCE_KLS, Denominator, ReferenceKL
from logra_lab.rl.reading import ReadingError, as_table, check_fields

ALGORITHMS = ("reinforce", "grpo")
CONTROLS = ("none", "trust_region", "feedback")


@dataclass(frozen=True)
class ArmConfig:
    """Which optimizer, and how large its steps are; `options` go to the optimizer itself.

    `name`: see `baselines.ARMS`. `lr`: its learning rate (LoGRA's update ratio under `rule="paper"`).
    `control` of the KL: "trust_region" (LoGRA's), "feedback" (measured, any arm) or "none"; its `budget` per token
    goes from the first number to `final_budget` over the run.
    """

    name: str = "logra"
    lr: float = 3e-3
    rank: int = 8
    rule: str = "paper"
    control: str = "trust_region"
    budget: float = 1e-2
    final_budget: float = 1e-3
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr={self.lr} is negative; use a number above 0")
        if self.control not in CONTROLS:
            raise ValueError(f"control={self.control!r} is unknown; use one of {', '.join(CONTROLS)}")
        for name in ("budget", "final_budget"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} allows no step; use a number above 0, or control='none'"
                )


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run; see each field's comment. ValueError names what doesn't fit."""

    model: str = "data/tiny-math"
    task: str = "sums"
    task_options: tuple[tuple[str, Any], ...] = ()
    arm: ArmConfig = field(default_factory=ArmConfig)
    algorithm: str = "reinforce"  # or "grpo"
    seed: int = 0
    steps: int = 150
    prompts: int = 256  # per step
    answers: int = 1  # per prompt; at least 2 for grpo
    temperature: float = 1.0
    max_new_tokens: int = 5
    reward_right: float = 1.0
    reward_wrong: float = -0.01  # the paper's
    baseline_weight: float = 0.1  # of a new batch in the running mean
    use_std: bool = True  # grpo: divide group advantages by their std
    importance_cap: float = 2.0
    clip: float = 0.2
    denominator: Denominator = "batch_tokens"
    length_weight: bool = False
    reference_kl: ReferenceKL | None = None  # or "reverse", "forward"
    reference_weight: float = 0.0
    micro_batch: int | None = None  # sequences; None takes the whole batch at once
    chunk: int | None = None  # positions per application of the head
    probe_sequences: int = 64
    probe_tokens: int = 4096
    probe_rows: int = 64  # equal-length sequences judged in one pass; 1 at full scale
    measure_kl: bool = False  # measure the KL of each step on the probe, in fp32
    eval_every: int = 10
    eval_problems: int = 512  # of the held-out ones; the last evaluation takes all
    checkpoint_every: int = 50
    shuffle_rewards: bool = False  # the control: rewards handed to the wrong answers

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm={self.algorithm!r} is unknown; use one of {', '.join(ALGORITHMS)}")
        if self.algorithm == "grpo" and self.answers < 2:
            raise ValueError(
                "algorithm='grpo' with answers=1 has nothing to compare; use answers >= 2, or 'reinforce'"
            )
        if self.denominator not in DENOMINATORS:
            raise ValueError(
                f"denominator={self.denominator!r} is unknown; use one of {', '.join(DENOMINATORS)}"
            )
        if self.reference_kl not in (None, *REFERENCE_KLS):
            raise ValueError(
                f"reference_kl={self.reference_kl!r} is unknown; use one of {', '.join(REFERENCE_KLS)}"
            )
        for name in (
            "steps",
            "prompts",
            "answers",
            "eval_every",
            "eval_problems",
            "checkpoint_every",
            "probe_sequences",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} does nothing; use at least 1")
        if self.micro_batch is not None and self.micro_batch < 1:
            raise ValueError(
                f"micro_batch={self.micro_batch} holds no sequence; use at least 1, or None for all at once"
            )
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} can't be trained on; use a number above 0")
        self.sampling()

    def sampling(self) -> Sampling:
        """The sampling settings of training."""
        return Sampling(temperature=self.temperature, max_new_tokens=self.max_new_tokens)

    def to_json(self) -> dict[str, Any]:
        """A dictionary that JSON can hold and `from_json` reads."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> RunConfig:
        """The configuration that `to_json` wrote; ReadingError for unknown names and values of another type."""
        values = as_table(values, "the configuration")
        check_fields(cls, values)
        arm = as_table(values.get("arm", {}), "arm")
        check_fields(ArmConfig, arm)
        arm["options"] = _pairs(arm.get("options", ()), "the arm's options")
        options = _pairs(values.get("task_options", ()), "task_options")
        return cls(**values | {"arm": ArmConfig(**arm), "task_options": options})

    def hash(self) -> str:
        """Twelve hex digits that name this configuration."""
        return config_hash(self.to_json())


def config_hash(values: dict[str, Any]) -> str:
    """Twelve hex digits of the SHA-256 of `values` as canonical JSON."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def _pairs(items: Any, where: str) -> tuple[tuple[str, Any], ...]:
    for item in items:
        if not (isinstance(item, (list, tuple)) and len(item) == 2 and isinstance(item[0], str)):
            raise ReadingError(f"{where}: {item!r} is no pair [name, value]: correct it")
    return tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in items)
