"""What a forward keeps for backward, tensor by tensor, and what a backward needs for moments: arithmetic per token.

Every line was written down from what the ledger found in the blocks of transformers' Llama and Qwen2 (fp32, bf16 and
autocast), not from what a paper says ought to be kept. Legend: T tokens of a micro-batch, h width, q and kv columns of
the query and key heads, f MLP width, V vocabulary, r rank, c bytes of a number in the compute type.

The finds that arithmetic alone would miss:
    - a norm in bf16 keeps an fp32 copy of its input: 4 bytes a number, not 2
    - the gated MLP keeps gate, silu(gate) and up even if no weight is trained; only the product goes
    - under autocast, layers that share an input keep a bf16 copy each
    - LoRA keeps what dense training keeps, and X Aᵀ besides
    - with padding, SDPA repeats the grouped key heads before it keeps them, and each layer keeps its own [C, C] mask
"""

from __future__ import annotations

from dataclasses import dataclass

from .presets import ModelShape
from .settings import Settings

PROBE_CHUNK = 64  # positions that a probe puts through the head at one time (method.md §3)


@dataclass(frozen=True)
class Kept:
    """One tensor kept for backward: its name and its bytes per token."""

    name: str
    bytes: int


def compute_bytes(s: Settings) -> int:
    """c: bytes of one number of the compute type."""
    return 2 if s.dtype == "bf16" else 4


def residual_bytes(s: Settings) -> int:
    """Bytes of one number of the residual stream (fp32 under autocast)."""
    return 4 if s.weight_bytes == 4 else 2


def block_keeps(shape: ModelShape, s: Settings) -> list[Kept]:
    """What one block keeps, per token."""
    c, f = compute_bytes(s), shape.ffn
    kv = shape.q_width if s.padded and shape.heads > shape.kv_heads else shape.kv_width
    return [
        *_norms(shape, s),
        *_linear_inputs(shape, s),
        Kept("queries, keys, values", c * (shape.q_width + 2 * kv)),
        Kept("attention output", c * shape.q_width + 4 * shape.heads),
        Kept("gate, silu(gate), up", 3 * c * f),
        *(
            [Kept("inputs of query and key norms", 4 * (shape.q_width + shape.kv_width))]
            if shape.head_norms
            else []
        ),
        *([Kept("attention mask as numbers", c * s.context)] if s.padded else []),
    ]


def _norms(shape: ModelShape, s: Settings) -> list[Kept]:
    """Inputs of the norms in fp32, and their normalised values where the norm's weight is trained."""
    kept = [Kept("norm inputs (fp32)", shape.block_norms * 4 * (shape.width + 1))]
    if s.rest == "native":
        kept.append(Kept("normalised values", shape.block_norms * residual_bytes(s) * shape.width))
    return kept


def _linear_inputs(shape: ModelShape, s: Settings) -> list[Kept]:
    """X where the weight's gradient is dense, X and X Aᵀ for LoRA, only X Aᵀ for LoGRA."""
    c, h, f, r = compute_bytes(s), shape.width, shape.ffn, s.rank
    if s.method == "logra":
        groups = 4 if s.shared else 7
        return [Kept("projected inputs X Aᵀ", groups * r * c)]
    # The attention output is o_proj's input and is kept by SDPA already.
    inputs = [Kept("linear inputs", c * ((5 if s.autocast else 2) * h + f))]
    return inputs + ([Kept("adapters' X Aᵀ", 7 * r * c)] if s.method == "lora" else [])


def block_bytes(shape: ModelShape, s: Settings) -> int:
    """All that one block keeps for backward, in bytes, for one micro-batch."""
    return s.tokens * sum(kept.bytes for kept in block_keeps(shape, s))


def blocks_bytes(shape: ModelShape, s: Settings) -> int:
    """What all blocks keep: everything, or only their inputs under checkpointing."""
    return shape.layers * (
        s.tokens * residual_bytes(s) * shape.width if s.checkpointing else block_bytes(shape, s)
    )


def saved_bytes(shape: ModelShape, s: Settings) -> int:
    """All that waits for backward after the forward: blocks, final norm, the head's input, attention mask."""
    return blocks_bytes(shape, s) + _outside_blocks(shape, s)


def recomputed_bytes(shape: ModelShape, s: Settings) -> int:
    """With checkpointing: the one block that backward computes again."""
    return block_bytes(shape, s) if s.checkpointing else 0


def _outside_blocks(shape: ModelShape, s: Settings) -> int:
    h, t = shape.width, s.tokens
    final_norm = 4 * h + (residual_bytes(s) * h if s.rest == "native" else 0)
    head_input = residual_bytes(s) * h
    embedding = residual_bytes(s) * h if s.weight_bytes == 2 or s.checkpointing else 0
    mask = s.batch * s.context**2 if s.padded else 0  # one boolean [B, 1, C, C] for all layers
    return t * (final_norm + head_input + embedding) + mask


def logits_bytes(shape: ModelShape, s: Settings, *, backward: bool = False) -> int:
    """Logits of one chunk of the kit's loss, all fp32: logits and two temporaries of the entropy; five in backward."""
    return s.loss_positions(shape.vocab) * shape.vocab * 4 * (5 if backward else 3)


def head_is_frozen(s: Settings) -> bool:
    """True where the head is not trained: its backward is then done on the way forward, chunk by chunk."""
    return s.rest != "native"


def head_slopes(shape: ModelShape, s: Settings) -> int:
    """∂ log-prob/∂ hidden [T, h] of a frozen head, beside the hidden states while the loss is made."""
    return s.tokens * residual_bytes(s) * shape.width if head_is_frozen(s) else 0


def forward_transients(shape: ModelShape, s: Settings) -> int:
    """Short-lived tensors in a block's forward that no backward waits for; they matter under checkpointing only."""
    c = compute_bytes(s)
    return s.tokens * (3 * c * shape.ffn + 2 * residual_bytes(s) * shape.width)


def mlp_backward(shape: ModelShape, s: Settings) -> int:
    """Gradients inside the last block's MLP (product, silu, up) and of its output: the widest point of a block."""
    c = compute_bytes(s)
    return s.tokens * (3 * c * shape.ffn + residual_bytes(s) * shape.width)


def norm_backward(shape: ModelShape, s: Settings) -> int:
    """Five fp32 temporaries of a norm's backward."""
    return s.tokens * 5 * 4 * shape.width


def rollout_block(shape: ModelShape, s: Settings, tokens: int) -> int:
    """Short-lived tensors of a block while `tokens` prompt positions pass through it without gradients."""
    c = compute_bytes(s)
    return tokens * (3 * c * shape.ffn + 4 * residual_bytes(s) * shape.width)


def probe_bytes(shape: ModelShape, s: Settings) -> int:
    """The KL probe by forward-mode AD: the widest of plain attention, the MLP and a chunk of logits, on one sequence.

    Attention without a fused kernel has its [C, C] scores in fp32, value and tangent: five such tensors per head at the
    softmax's tangent. The variance is taken in float64: five [chunk, V] of 8 bytes beside logits and tangent.
    """
    c, h, length = compute_bytes(s), shape.width, min(s.context, s.probe_tokens)
    features = 2 * c * h * s.probe_tokens  # value and tangent at every position judged
    attention = 4 * length**2 * (5 * shape.heads + 1) + 4 * length * (10 * shape.q_width + 5 * h)
    mlp = c * length * (6 * shape.ffn + 6 * h)
    head = min(PROBE_CHUNK, s.probe_tokens) * shape.vocab * (40 + 2 * c)
    return features + max(attention, mlp, head)
