"""A planner that predicts: the ledger's classes at each phase's peak, from a config alone.

`plan` adds up holdings.py (what lives between steps) and activations.py (what a step needs for a while) at the moments
that can be the peak of a phase. Nothing is built, so a 27B plan takes a millisecond on a laptop.

Left out: the CUDA context (about half a GiB) and the allocator's fragmentation; `Plan.fits` keeps a reserve for them.
Backward is taken at its two ends (all activations and no gradients; all gradients and no activations): in between
both change linearly, so the peak is at an end.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from . import activations as act
from .holdings import Holdings, holdings, step_projection_bytes, step_transients
from .presets import Card, ModelShape, card_of, shape_of
from .settings import SETTING_NAMES, Settings
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
        """"Fits" or "does not fit", by how much, and because of what."""
        card, margin = card_of(gpu), self.margin(gpu)
        parts = ", ".join(f"{name} {size(value)}" for name, value in self.peak.largest())
        verdict = f"fits with {size(margin)} to spare" if margin >= 0 else f"does not fit by {size(-margin)}"
        return (
            f"{self.shape.name} with {describe(self.settings)} {verdict} on a {card.name} card ({size(card.capacity)}, of which "
            f"{size(reserve(card))} are kept for the CUDA context and fragmentation), because its peak in the "
            f"{self.peak_phase} phase is {size(self.peak.total)}: {parts}."
        )


def reserve(card: Card) -> int:
    """Bytes of a card that a plan leaves alone."""
    return CONTEXT + int(FRAGMENTATION * card.capacity)


def describe(s: Settings) -> str:
    """The settings in a few words."""
    from .settings import NAMES, RANKED

    words = [NAMES[s.method] + (f" r={s.rank}" if s.method in RANKED else ""), f"{s.precision} weights"]
    words += ["halves on the host"] if s.halves == "host" else []
    words += ["a native rest"] if s.method in ("lora", "logra") and s.rest == "native" else []
    words += ["a frozen rest"] if s.method not in ("lora", "logra") and s.rest == "frozen" else []
    words += ["checkpointing"] if s.checkpointing else []
    words += [f"{s.gpus} GPUs, {s.sharding}"] if s.gpus > 1 else []
    return f"{', '.join(words)}, {s.batch} × {s.context} tokens"


def plan(model: object, method: str | Settings = "logra", **settings: object) -> Plan:
    """Predict the memory of a training run on each GPU.

    Args: a preset's name, a config, a live model or a `ModelShape`; the method, or whole `Settings`; single settings by
    name (see `Settings`).
    Raises ValueError for unknown names and impossible values, TypeError for a setting that does not exist.
    """
    if unknown := [name for name in settings if name not in SETTING_NAMES]:
        raise TypeError(f"Unknown setting {unknown[0]!r}; the settings are {', '.join(SETTING_NAMES)}.")
    shape = shape_of(model)
    s = replace(method, **settings) if isinstance(method, Settings) else Settings(method=method, **settings)
    s.check(shape)
    held = holdings(shape, s)
    phases = {
        "rollout": _rollout(shape, s, held) if s.rollout != "none" else None,
        "forward": _forward(shape, s, held),
        "backward": _backward(shape, s, held),
        "step": _step(shape, s, held),
        "probe": _probe(shape, s, held) if s.method == "logra" and s.probe_tokens else None,
    }
    found = {name: phases[name] for name in PHASES if phases[name] is not None}
    return Plan(shape, s, found, round(held.host))


def _base(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """What is there in every phase; a second engine on the card keeps its own weights all the time."""
    engine = {"replica": s.weight_bytes * shape.parameters, "vllm": 2 * shape.parameters}.get(s.rollout, 0)
    pool = kv_bytes(shape, s) if s.rollout == "vllm" else 0  # vLLM holds its cache for good
    return Bytes({
        "weights": held.weights + engine, "optimizer state": held.state, "sketches": held.sketches,
        "projections": held.projections, "KV cache": pool,
    })  # fmt: skip


def kv_bytes(shape: ModelShape, s: Settings) -> int:
    """Keys and values of all rollouts at full length."""
    return 2 * shape.cached_tokens(s.context) * shape.kv_width * act.compute_bytes(s) * s.rollouts


def _gathered(shape: ModelShape, s: Settings, *, blocks: int = 2) -> float:
    """FSDP's unsharded weights: the root's tables for the whole pass, and two blocks (one computing, one arriving)."""
    if s.sharding != "fsdp":
        return 0
    block = (shape.parameters - shape.embedding_parameters * (1 if shape.tied else 2)) / shape.layers
    return act.compute_bytes(s) * (shape.embedding_parameters * (1 if shape.tied else 2) + blocks * block)


def _casts(shape: ModelShape, s: Settings, *, backward: bool) -> float:
    """Autocast's bf16 copies of fp32 weights: kept for backward, one block's under checkpointing, none under FSDP."""
    if not s.autocast or s.sharding == "fsdp":
        return 0
    cached = s.rest == "native" or s.method not in ("logra", "lora")  # autocast caches what is trained
    whole = not s.checkpointing or (cached and not backward)
    return 2 * (shape.target_parameters if whole else shape.target_parameters / shape.layers) + 2 * shape.embedding_parameters


def _forward(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """At the loss, with everything saved, or (under checkpointing) inside the last block."""
    earlier = held.gradients if s.micro_batches > 1 else 0
    base = _base(shape, s, held) + {"weights": _casts(shape, s, backward=False) + _gathered(shape, s), "gradients": earlier}
    at_loss = base + {"saved activations": act.saved_bytes(shape, s), "logits": act.logits_bytes(shape, s)}
    in_block = base + {"saved activations": act.blocks_bytes(shape, s), "other": act.forward_transients(shape, s)}
    return max(at_loss, in_block, key=lambda b: b.total) if s.checkpointing else at_loss


def _backward(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The highest of the moments that can be the peak, from the head down to the embedding."""
    weights = _casts(shape, s, backward=True) + _gathered(shape, s)
    earlier = held.gradients if s.micro_batches > 1 else 0
    base = _base(shape, s, held) + {"weights": weights, "gradients": _unsharded_gradients(shape, s, held)}
    start = base + {"gradients": earlier}
    moments = [*_at_the_head(shape, s, start), _in_the_last_block(shape, s, start)]
    moments += [_in_the_first_block(shape, s, held, base, earlier), _at_the_embedding(shape, s, held, base, earlier)]
    return max(moments, key=lambda b: b.total)


def _table_gradient(shape: ModelShape, s: Settings) -> int:
    """One gradient [V, h] of a trained table."""
    return s.weight_bytes * shape.embedding_parameters if s.rest == "native" else 0


def _at_the_head(shape: ModelShape, s: Settings, start: Bytes) -> list[Bytes]:
    """All that was saved is there: in the loss, at the table's gradient, at the final norm.

    A chunked head adds each chunk's table gradient to the sum so far, out of place: three tables at a time.
    """
    table, saved = _table_gradient(shape, s), {"saved activations": act.saved_bytes(shape, s)}
    hidden = s.tokens * act.residual_bytes(s) * shape.width
    adding = (3 if s.chunk and s.tokens > s.chunk else 1) * table
    return [
        start + saved + {"logits": act.logits_bytes(shape, s, backward=True), "other": hidden},
        start + saved + {"other": adding + hidden},
        start + saved + {"other": table + act.norm_backward(shape, s)},
    ]


def _in_the_last_block(shape: ModelShape, s: Settings, start: Bytes) -> Bytes:
    """The head is done, the last block's MLP is at its widest; its activations are computed again if need be."""
    saved = act.blocks_bytes(shape, s) + act.recomputed_bytes(shape, s)
    return start + {"saved activations": saved, "other": _table_gradient(shape, s) + act.mlp_backward(shape, s)}


def _in_the_first_block(shape: ModelShape, s: Settings, held: Holdings, base: Bytes, earlier: float) -> Bytes:
    """The gradients of all later blocks are there, and one block's activations."""
    tables = _table_gradient(shape, s) * (1 if shape.tied else 2) / s.shards
    blocks = (held.gradients - tables) * (1 - 1 / shape.layers)
    saved = act.block_bytes(shape, s)
    transient = _table_gradient(shape, s) + act.mlp_backward(shape, s)
    return base + {"gradients": max(blocks, earlier), "saved activations": saved, "other": transient}


def _at_the_embedding(shape: ModelShape, s: Settings, held: Holdings, base: Bytes, earlier: float) -> Bytes:
    """All gradients exist. A tied table adds the embedding's share to the head's, out of place."""
    pending = (2 if shape.tied else 1) * _table_gradient(shape, s) + (_table_gradient(shape, s) if earlier else 0)
    hidden = 2 * s.tokens * act.residual_bytes(s) * shape.width
    return base + {"gradients": held.gradients, "other": pending + hidden}


def _unsharded_gradients(shape: ModelShape, s: Settings, held: Holdings) -> float:
    """FSDP: two blocks' gradients before they are reduced and cut."""
    if s.sharding != "fsdp" or not held.gradients or s.method in ("lora", "logra"):
        return 0
    return 2 * act.compute_bytes(s) * shape.target_parameters / shape.layers


def _step(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The optimizer's own temporaries. LoGRA: S, S/N and U, or S, U and αU, stand side by side; moments twice."""
    signs = step_projection_bytes(shape, s) - held.projections
    moments = 4 * shape.target_rows if s.method == "logra" else 0
    return _base(shape, s, held) + {
        "gradients": held.gradients, "sketches": 2 * held.sketches, "projections": max(signs, 0),
        "optimizer state": moments, "other": step_transients(shape, s),
    }  # fmt: skip


def _probe(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The KL probe: value and tangent of one sequence in plain attention, and of one chunk of logits; U waits beside S."""
    from .probe import probe_bytes

    signs = step_projection_bytes(shape, s) - held.projections
    return _base(shape, s, held) + {
        "weights": _gathered(shape, s), "sketches": held.sketches, "projections": max(signs, 0),
        "optimizer state": 4 * shape.target_rows, "gradients": held.gradients, "KL probe": probe_bytes(shape, s),
    }  # fmt: skip


def _rollout(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """Generation at its end (or at the prompt, where a block's temporaries are largest)."""
    base = _base(shape, s, held)
    if s.rollout == "vllm":
        return base
    c, prompt = act.compute_bytes(s), s.context // 2
    cache = kv_bytes(shape, s)
    layer = cache / shape.layers  # torch.cat holds the old and the new cache of one layer
    sampling = 4 * s.rollouts * shape.vocab * 4
    end = {"KV cache": cache + layer, "logits": sampling}
    inside = s.rollouts * prompt * (3 * c * shape.ffn + 2 * act.residual_bytes(s) * shape.width)
    start = {"KV cache": cache * prompt / s.context, "other": inside}
    casts = {"weights": _casts(shape, s, backward=True) / shape.layers + _gathered(shape, s)}
    return max(base + end + casts, base + start + casts, key=lambda b: b.total)
