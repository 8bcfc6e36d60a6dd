"""The moments of a step that can be the peak of a phase, each as bytes by class.

Backward is taken at its ends: all activations and no gradients, then all gradients and one block's activations. In
between both change in proportion to the blocks done, so the peak is at an end. Left out: overlap of communication
with computation beyond two gathered blocks under FSDP.
"""

from __future__ import annotations

from . import activations as act
from .holdings import Holdings, step_projection_bytes, step_transients
from .presets import ModelShape
from .settings import Settings
from .units import Bytes


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
    return 2 * shape.cached_tokens(s.context) * shape.kv_width * act.compute_bytes(s) * s.answers


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
    return (
        2 * (shape.target_parameters if whole else shape.target_parameters / shape.layers)
        + 2 * shape.embedding_parameters
    )


def forward(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """At the loss, with everything saved, or (under checkpointing) inside the last block."""
    earlier = held.gradients if s.micro_batches > 1 else 0
    base = _base(shape, s, held) + {
        "weights": _casts(shape, s, backward=False) + _gathered(shape, s),
        "gradients": earlier,
    }
    at_loss = base + {
        "saved activations": act.saved_bytes(shape, s) + act.head_slopes(shape, s),
        "logits": act.logits_bytes(shape, s, backward=act.head_is_frozen(s)),
    }
    in_block = base + {
        "saved activations": act.blocks_bytes(shape, s),
        "other": act.forward_transients(shape, s),
    }
    return max(at_loss, in_block, key=lambda b: b.total) if s.checkpointing else at_loss


def backward(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The highest of the moments that can be the peak, from the head down to the embedding."""
    weights = _casts(shape, s, backward=True) + _gathered(shape, s)
    earlier = held.gradients if s.micro_batches > 1 else 0
    base = _base(shape, s, held) + {"weights": weights, "gradients": _unsharded_gradients(shape, s, held)}
    start = base + {"gradients": earlier}
    moments = [*_at_the_head(shape, s, start), _in_the_last_block(shape, s, start)]
    moments += [
        _in_the_first_block(shape, s, held, base, earlier),
        _at_the_embedding(shape, s, held, base, earlier),
    ]
    return max(moments, key=lambda b: b.total)


def _table_gradient(shape: ModelShape, s: Settings) -> int:
    """One gradient [V, h] of a trained table."""
    return s.weight_bytes * shape.embedding_parameters if s.rest == "native" else 0


def _at_the_head(shape: ModelShape, s: Settings, start: Bytes) -> list[Bytes]:
    """All that was saved is there: in the loss, at the table's gradient, at the final norm.

    A chunked head adds each chunk's table gradient to the sum so far, out of place: three tables at a time. A frozen
    head has no logits any more: its gradient was made on the way forward.
    """
    table, saved = _table_gradient(shape, s), {"saved activations": act.saved_bytes(shape, s)}
    hidden = s.tokens * act.residual_bytes(s) * shape.width
    adding = (3 if s.loss_positions(shape.vocab) < s.tokens else 1) * table
    logits = 0 if act.head_is_frozen(s) else act.logits_bytes(shape, s, backward=True)
    return [
        start + saved + {"logits": logits, "other": hidden},
        start + saved + {"other": adding + hidden},
        start + saved + {"other": table + act.norm_backward(shape, s)},
    ]


def _in_the_last_block(shape: ModelShape, s: Settings, start: Bytes) -> Bytes:
    """The head is done, the last block's MLP is at its widest; its activations are computed again if need be."""
    saved = act.blocks_bytes(shape, s) + act.recomputed_bytes(shape, s)
    return start + {
        "saved activations": saved,
        "other": _table_gradient(shape, s) + act.mlp_backward(shape, s),
    }


def _in_the_first_block(shape: ModelShape, s: Settings, held: Holdings, base: Bytes, earlier: float) -> Bytes:
    """The gradients of all later blocks are there, and one block's activations."""
    tables = _table_gradient(shape, s) * (1 if shape.tied else 2) / s.shards
    blocks = (held.gradients - tables) * (1 - 1 / shape.layers)
    saved = act.block_bytes(shape, s)
    transient = _table_gradient(shape, s) + act.mlp_backward(shape, s)
    return base + {"gradients": max(blocks, earlier), "saved activations": saved, "other": transient}


def _at_the_embedding(shape: ModelShape, s: Settings, held: Holdings, base: Bytes, earlier: float) -> Bytes:
    """All gradients exist. A tied table adds the embedding's share to the head's, out of place."""
    pending = (2 if shape.tied else 1) * _table_gradient(shape, s) + (
        _table_gradient(shape, s) if earlier else 0
    )
    hidden = 2 * s.tokens * act.residual_bytes(s) * shape.width
    return base + {"gradients": held.gradients, "other": pending + hidden}


def _unsharded_gradients(shape: ModelShape, s: Settings, held: Holdings) -> float:
    """FSDP: two blocks' gradients before they are reduced and cut."""
    if s.sharding != "fsdp" or not held.gradients or s.method in ("lora", "logra"):
        return 0
    return 2 * act.compute_bytes(s) * shape.target_parameters / shape.layers


def step(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The optimizer's own temporaries. LoGRA: S, S/N and U, or S, U and αU, stand side by side; moments twice."""
    signs = step_projection_bytes(shape, s) - held.projections
    moments = 4 * shape.target_rows if s.method == "logra" else 0
    return _base(shape, s, held) + {
        "gradients": held.gradients, "sketches": 2 * held.sketches, "projections": max(signs, 0),
        "optimizer state": moments, "other": step_transients(shape, s),
    }  # fmt: skip


def probe(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """The KL probe: value and tangent of one sequence in plain attention; U waits beside S."""
    signs = step_projection_bytes(shape, s) - held.projections
    return _base(shape, s, held) + {
        "weights": _gathered(shape, s), "sketches": held.sketches, "projections": max(signs, 0),
        "optimizer state": 4 * shape.target_rows, "gradients": held.gradients, "KL probe": act.probe_bytes(shape, s),
    }  # fmt: skip


def rollout(shape: ModelShape, s: Settings, held: Holdings) -> Bytes:
    """Generation in process, at its end or at the prompt (half the context), where a block's temporaries are largest.

    At the end torch.cat holds the old and the new cache of one layer, and sampling four [B, V] in fp32.
    """
    base = _base(shape, s, held)
    if s.rollout == "vllm":
        return base
    prompt = s.context // 2
    cache = kv_bytes(shape, s)
    end = {"KV cache": cache * (1 + 1 / shape.layers), "logits": 4 * 4 * s.answers * shape.vocab}
    start = {
        "KV cache": cache * prompt / s.context,
        "other": act.rollout_block(shape, s, s.answers * prompt),
    }
    casts = {"weights": _gathered(shape, s) + (2 * shape.parameters / shape.layers if s.autocast else 0)}
    return max(base + end + casts, base + start + casts, key=lambda b: b.total)
