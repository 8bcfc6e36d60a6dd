"""What is measured: one frozen description of a trial, which travels to a child process as JSON.

Legend: d rows and k columns of a target, r rank, T tokens of a step, V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace


@dataclass(frozen=True)
class Shape:
    """A Llama model and a batch; by default two blocks of Llama 3.2 1B with a small vocabulary, 124 M numbers."""

    width: int = 2048
    ffn: int = 8192
    heads: int = 32
    kv_heads: int = 8
    layers: int = 2
    vocab: int = 1024
    sequences: int = 8
    length: int = 128

    @property
    def tokens(self) -> int:
        """T of a step."""
        return self.sequences * self.length

    def targets(self) -> list[tuple[int, int, str]]:
        """(d, k, projection group) of the targets of one block."""
        kv = self.width // self.heads * self.kv_heads
        return [
            (self.width, self.width, "qkv"), (kv, self.width, "qkv"), (kv, self.width, "qkv"),
            (self.width, self.width, "o"), (self.ffn, self.width, "up"), (self.ffn, self.width, "up"),
            (self.width, self.ffn, "down"),
        ]  # fmt: skip

    def target_parameters(self) -> int:
        """Numbers in all targets."""
        return self.layers * sum(d * k for d, k, _ in self.targets())


@dataclass(frozen=True)
class Setting:
    """One arm: "adamw", "sgd", "galore", "apollo", "lora" or "logra", at a rank where it has one.

    A step's tokens go through the model in `micro_batches` pieces, as in an RL step that is short of memory.
    """

    arm: str
    rank: int = 0
    checkpointing: bool = False
    probe: bool = False
    micro_batches: int = 4
    shape: Shape = Shape()
    threads: int = 2

    @property
    def name(self) -> str:
        """How tables call it."""
        parts = [
            self.arm,
            f"r{self.rank}" if self.rank else "",
            "checkpointing" if self.checkpointing else "",
            "probe" if self.probe else "",
            "in one pass" if self.micro_batches == 1 else "",
        ]
        return " ".join(filter(None, parts))

    def to_json(self) -> dict:
        """Plain values."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict) -> Setting:
        """The inverse of `to_json`."""
        return Setting(**{**value, "shape": Shape(**value["shape"])})


DENSE = Setting("adamw")
DENSE_CHECKPOINTED = Setting("adamw", checkpointing=True)
DENSE_ONE_PASS = Setting("adamw", micro_batches=1)
ARMS = (
    DENSE, Setting("sgd"), Setting("galore", 16), Setting("apollo", 16), Setting("lora", 16), Setting("lora", 64),
    Setting("logra", 16), Setting("logra", 64), Setting("logra", 16, probe=True),
    DENSE_CHECKPOINTED, Setting("logra", 16, checkpointing=True),
    DENSE_ONE_PASS, Setting("logra", 16, micro_batches=1), Setting("logra", 64, micro_batches=1),
)  # fmt: skip
"""Everything that races in one run."""

SMALL = Shape(width=64, ffn=96, heads=4, kv_heads=2, layers=2, vocab=97, sequences=4, length=16)
"""Small enough for a test."""


def shrunk(settings: tuple[Setting, ...], shape: Shape, threads: int) -> tuple[Setting, ...]:
    """The same race on another model."""
    return tuple(replace(setting, shape=shape, threads=threads) for setting in settings)
