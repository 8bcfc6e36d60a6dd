"""What a run looks like, as far as memory goes: one frozen description for the planner and for the ledger's trial.

Precision says how the trained weights are kept, dtype what the model computes in:
    fp32        fp32 weights; with dtype "bf16" autocast makes bf16 copies for each forward
    master      bf16 weights, and fp32 copies inside the optimizer (AdamW)
    split       fp32 as two 16-bit halves, the upper one being the bf16 weight (LoGRA)
    stochastic  bf16 with unbiased rounding (LoGRA)
    nearest     plain bf16
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from .presets import ModelShape

PRECISIONS = {
    "adamw": ("fp32", "master", "nearest"),
    "adam8bit": ("fp32", "nearest"),
    "lora": ("fp32", "nearest"),
    "galore": ("fp32", "nearest"),
    "apollo": ("fp32", "nearest"),
    "logra": ("fp32", "split", "stochastic", "nearest"),
}
METHODS = tuple(PRECISIONS)
RANKED = ("lora", "galore", "apollo", "logra")
NAMES = {
    "adamw": "dense AdamW",
    "adam8bit": "8-bit Adam",
    "lora": "LoRA",
    "galore": "GaLore",
    "apollo": "APOLLO",
    "logra": "LoGRA",
}
LOSS_LOGITS = 2**24  # logits of one chunk of the kit's loss (rl/logprobs.py)
CHOICES = {
    "method": METHODS,
    "dtype": ("fp32", "bf16"),
    "sharding": ("replicated", "fsdp"),
    "rollout": ("none", "transformers", "replica", "vllm"),
    "rest": ("frozen", "native"),
    "halves": ("device", "host"),
    "projections": ("cached", "regenerated"),
    "device": ("cuda", "cpu"),
}


@dataclass(frozen=True)
class Settings:
    """One training run. Sizes are per GPU where a GPU has its own (batch, rollouts).

    Attributes:
        precision: None chooses by method and dtype ("split" for LoGRA in bf16, "master" for AdamW in bf16).
        batch, context: sequences per micro-batch and tokens per sequence, prompt and answer together.
        micro_batches: how many are accumulated before a step.
        rest: what happens to parameters outside the targets: "frozen", "native" (trained by AdamW), None for the kit's
            custom: dense AdamW trains everything, the low-rank methods their targets only.
        rollout: "none" (other GPUs, or not counted), "transformers" (in process, same weights), "replica" (a second
            process on the same card with the same kind of weights), "vllm" (a second copy in bf16 on the same card).
        rollouts: answers generated at once (default: `batch`).
        chunk: positions whose logits exist at one time in the loss; None for as many as fill 64 MiB (the kit's loss), 0
            for all of them.
        probe_tokens: tokens of the KL probe, one sequence of at most `context` at a time; 0 for none.
        projections: A cached within an update, or regenerated inside the kernels.
        padded: sequences carry an attention mask (grouped key heads are then repeated by SDPA).
    """

    method: str = "logra"
    rank: int = 64
    precision: str | None = None
    dtype: str = "bf16"
    batch: int = 4
    context: int = 1024
    micro_batches: int = 1
    checkpointing: bool = False
    gpus: int = 1
    sharding: str = "replicated"
    rollout: str = "none"
    rollouts: int | None = None
    rest: str | None = None
    halves: str = "device"
    chunk: int | None = None
    probe_tokens: int = 0
    projections: str = "cached"
    shared: bool = True
    padded: bool = False
    device: str = "cuda"

    def __post_init__(self) -> None:
        for name, allowed in CHOICES.items():
            value = getattr(self, name)
            if value not in allowed and not (name == "rest" and value is None):
                raise ValueError(f"{name}={value!r} is unknown; choose {', '.join(map(repr, allowed))}.")
        for name in ("rank", "batch", "context", "micro_batches", "gpus", "rollouts"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{name}={value!r} must be a whole number of at least 1.")
        for name in ("probe_tokens", "chunk"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 0):
                raise ValueError(f"{name}={value!r} must be a whole number of at least 0.")
        self._fill()
        if self.precision not in PRECISIONS[self.method]:
            kept = ", ".join(map(repr, PRECISIONS[self.method]))
            raise ValueError(f"{NAMES[self.method]} has no precision {self.precision!r}; choose {kept}.")
        if self.dtype == "fp32" and self.precision != "fp32":
            raise ValueError(
                f'precision={self.precision!r} keeps bf16 weights; it needs dtype="bf16", not "fp32".'
            )
        if self.halves == "host" and self.precision != "split":
            raise ValueError(
                f'halves="host" moves the lower halves of "split"; precision={self.precision!r} has none.'
            )
        if self.sharding == "fsdp" and self.gpus == 1:
            raise ValueError('sharding="fsdp" needs gpus of at least 2; gpus=1 has nothing to shard over.')

    def _fill(self) -> None:
        """Choose what was left to the method (the class is frozen, hence the detour)."""
        in_bf16 = {"adamw": "master", "logra": "split"}.get(self.method, "nearest")
        choices = {
            "precision": self.precision or ("fp32" if self.dtype == "fp32" else in_bf16),
            "rest": self.rest or ("native" if self.method in ("adamw", "adam8bit") else "frozen"),
            "rollouts": self.rollouts or self.batch,
        }
        for name, value in choices.items():
            object.__setattr__(self, name, value)

    def check(self, shape: ModelShape) -> None:
        """Refuse a rank that makes nothing smaller. Raises ValueError with the largest one that does.

        A sketch S [d, r] replaces G [d, k], so LoGRA's rank is limited by k; the others factor both sides.
        """
        sides = {m.name: m.k if self.method == "logra" else min(m.d, m.k) for m in shape.targets}
        narrow = min(sides, key=sides.__getitem__)
        if self.method in RANKED and self.rank > sides[narrow]:
            raise ValueError(
                f"rank={self.rank} is above {sides[narrow]}, the width of {shape.name}'s {narrow}; "
                f"choose a rank of at most {sides[narrow]}."
            )

    def but(self, **changes: Any) -> Settings:
        """The same run with some values changed; with another method or dtype, precision and rest are chosen anew."""
        anew: dict[str, Any] = {"precision": None, "rest": None} if "method" in changes else {}
        anew |= {"precision": None} if "dtype" in changes else {}
        return replace(self, **{**anew, **changes})

    @property
    def answers(self) -> int:
        """Answers generated at once."""
        return self.rollouts or self.batch

    @property
    def tokens(self) -> int:
        """Token positions of one micro-batch."""
        return self.batch * self.context

    def loss_positions(self, vocab: int) -> int:
        """Positions whose logits the loss has at one time."""
        return min(
            self.tokens, max(64, LOSS_LOGITS // vocab) if self.chunk is None else self.chunk or self.tokens
        )

    @property
    def autocast(self) -> bool:
        """True when fp32 weights are cast to bf16 for each use."""
        return self.precision == "fp32" and self.dtype == "bf16"

    @property
    def weight_bytes(self) -> int:
        """Bytes of one weight on the device, without a second half or a master copy."""
        return 4 if self.precision == "fp32" else 2

    @property
    def shards(self) -> int:
        """Over how many GPUs a sharded tensor is cut."""
        return self.gpus if self.sharding == "fsdp" else 1


SETTING_NAMES = tuple(field.name for field in fields(Settings))
