"""How fast a run ought to go on a card, derived, not measured: tokens per second and hours per 100 updates.

Generation is bound by memory: each new token of a batch of answers reads every weight and the cache once. Training is
bound by arithmetic: 2 FLOPs a weight and token forward, 2 for the inputs' gradients, 2 more to recompute under
checkpointing, and next to nothing for the sketches. Halves on the host cross the bus twice at each commit.

Left out: kernel launches, padding, Python, sampling noise and math attention in the probe; `transformers` in process
reaches a fraction of what memory allows, hence `ASSUMED`. Expect a factor of two either way until it is measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from logra_lab.memory import Card, ModelShape
from logra_lab.scale.presets import PROMPT_TOKENS, ScaleConfig


@dataclass(frozen=True)
class Speed:
    """A card's memory bandwidth in bytes/s and dense bf16 arithmetic in FLOP/s, from its data sheet."""

    bandwidth: float
    flops: float


SPEEDS = {
    "24 GB": Speed(1.01e12, 165e12),
    "48 GB": Speed(0.86e12, 362e12),
    "80 GB": Speed(3.35e12, 989e12),
    "141 GB": Speed(4.8e12, 989e12),
}


@dataclass(frozen=True)
class Assumed:
    """What is assumed where nothing was measured: shares of the data sheet reached, the bus, the mean answer."""

    bandwidth_share: float = 0.35
    flops_share: float = 0.35
    bus: float = 25e9
    answer_tokens: int = 400


ASSUMED = Assumed()


@dataclass(frozen=True)
class Rate:
    """Seconds of one update by part, and the sampled tokens in it."""

    rollout: float
    training: float
    probe: float
    commit: float
    tokens: int

    @property
    def seconds(self) -> float:
        """Of one update."""
        return self.rollout + self.training + self.probe + self.commit

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens per second of the whole step."""
        return self.tokens / self.seconds

    @property
    def hours_per_100(self) -> float:
        """Hours for 100 updates."""
        return self.seconds * 100 / 3600


def derive(shape: ModelShape, config: ScaleConfig, card: Card, assumed: Assumed = ASSUMED) -> Rate:
    """The rate of `config` on one `card`. ValueError for a card without a data sheet here."""
    if card.name not in SPEEDS:
        raise ValueError(f"no data sheet for {card.name!r}; known are {', '.join(SPEEDS)}")
    speed, run = SPEEDS[card.name], config.run
    answers = run.prompts * run.answers
    at_once = min(config.rollouts or answers, answers)
    context = PROMPT_TOKENS + assumed.answer_tokens / 2  # the mean length of the cache while it grows
    cache = 2 * 2 * shape.kv_width * shape.cached_tokens(round(context)) * at_once
    reads = 2 * shape.parameters + cache
    longest = min(run.max_new_tokens, 2 * assumed.answer_tokens)  # a batch runs until its longest answer ends
    rounds = -(-answers // at_once) * longest
    positions = answers * (PROMPT_TOKENS + assumed.answer_tokens)
    passes = 3 if config.checkpointing else 2
    compute = speed.flops * assumed.flops_share
    halves = 2 * 2 * shape.target_parameters if config.options.get("halves") == "host" else 0
    merged = 8 * shape.target_parameters / (speed.bandwidth * assumed.bandwidth_share)
    return Rate(
        rollout=rounds * reads / (speed.bandwidth * assumed.bandwidth_share),
        training=passes * 2 * shape.parameters * positions / compute,
        probe=3 * 2 * shape.parameters * run.probe_tokens / compute,
        commit=merged + halves / assumed.bus,
        tokens=answers * assumed.answer_tokens,
    )
