"""What lives between steps: weights, gradients, optimizer state, sketches, projections, per GPU.

The arithmetic of each method stands in one function, in bytes. "Master" copies and moments follow what the libraries
allocate, found with the ledger:
    - torch's AdamW keeps its moments in the weight's own type (bf16 weights: bf16 moments)
    - galore-torch in fp32 keeps a *view* of the SVD's factor, so the whole factor [m, m], m = min(d, k), stays alive
      until the next refresh, not the [r, m] that the method needs
    - adapters injected by peft have the base's type, and so have their moments (its `get_peft_model` widens them to
      fp32, and the input of every adapter with them)
    - LoGRA's row moments are fp32 [d]; S [d, r] lives in one flat fp32 buffer, also between steps
"""

from __future__ import annotations

from dataclasses import dataclass

from .presets import ModelShape
from .settings import Settings

EIGHT_BIT = 1 + 4 / 256  # bytes of one 8-bit moment: a byte and its share of one fp32 scale per block of 256


@dataclass(frozen=True)
class Holdings:
    """Bytes per GPU of what lives between steps; `gradients` is the full set after a backward."""

    weights: float
    gradients: float
    state: float
    sketches: float = 0.0
    projections: float = 0.0
    host: float = 0.0


def trained_parameters(shape: ModelShape, s: Settings) -> int:
    """Parameters with a dense gradient."""
    rest = shape.rest_parameters if s.rest == "native" else 0
    own = {"lora": adapter_parameters(shape, s.rank), "logra": 0}.get(s.method, shape.target_parameters)
    return own + rest


def adapter_parameters(shape: ModelShape, rank: int) -> int:
    """LoRA's two factors for every target."""
    return shape.layers * sum(rank * (m.d + m.k) for m in shape.targets)


def holdings(shape: ModelShape, s: Settings) -> Holdings:
    """What `s` keeps between steps on one GPU. Sketches and projections are replicated, FSDP shards the rest."""
    wb, adapters = s.weight_bytes, adapter_parameters(shape, s.rank) if s.method == "lora" else 0
    halves = 2 * shape.target_parameters if s.precision == "split" else 0
    on_host = s.halves == "host" and s.device == "cuda"  # on a CPU the host is the device
    weights = wb * (shape.parameters + adapters) + (0 if on_host else halves)
    gradients = wb * trained_parameters(shape, s)
    state = _state(shape, s)
    sketches = 4 * s.rank * shape.target_rows if s.method == "logra" else 0
    return Holdings(
        weights / s.shards, gradients / s.shards, state / s.shards, sketches, projection_bytes(shape, s),
        (halves if on_host else 0) / s.shards,
    )  # fmt: skip


def projection_bytes(shape: ModelShape, s: Settings) -> int:
    """LoGRA's signs cached within an update, in the compute type; none where the kernels regenerate them."""
    if s.method != "logra" or s.projections == "regenerated":
        return 0
    return s.rank * shape.group_columns(s.shared) * (2 if s.dtype == "bf16" else 4)


def step_projection_bytes(shape: ModelShape, s: Settings) -> int:
    """During a step the Gram matrices and the merge read the signs in fp32 as well."""
    if s.method != "logra" or s.projections == "regenerated":
        return 0
    return s.rank * shape.group_columns(s.shared) * (2 + 4 if s.dtype == "bf16" else 4)


def _state(shape: ModelShape, s: Settings) -> float:
    rest = shape.rest_parameters if s.rest == "native" else 0
    moments = 2 * s.weight_bytes  # of AdamW, in the weight's own type
    if s.method == "adamw":
        per_weight = 12 if s.precision == "master" else moments
        return per_weight * (shape.target_parameters + rest)
    if s.method == "adam8bit":
        return 2 * EIGHT_BIT * (shape.target_parameters + rest)
    if s.method == "lora":
        return moments * (adapter_parameters(shape, s.rank) + rest)
    if s.method == "logra":
        return 4 * shape.target_rows + moments * rest
    return shape.layers * sum(_projected_state(m.d, m.k, s) for m in shape.targets) + moments * rest


def _projected_state(d: int, k: int, s: Settings) -> int:
    """GaLore's or APOLLO's two low-rank moments and its projector, for one target."""
    wide, narrow, wb = max(d, k), min(d, k), s.weight_bytes
    whole = s.method == "galore" and wb == 4  # see the header
    return 2 * s.rank * wide * wb + (narrow * narrow if whole else s.rank * narrow) * wb


def step_transients(shape: ModelShape, s: Settings) -> float:
    """Short-lived tensors of the optimizer's step, per GPU: the widest parameter's share of the update rule.

    Dense AdamW on GPUs is taken as `fused=True`, which needs none; torch's default there ("foreach") would need as much
    as all parameters together.
    """
    widest_target = max(m.d * m.k for m in shape.targets)
    table = shape.embedding_parameters if s.rest == "native" else 0
    wb, fused = s.weight_bytes, s.device == "cuda"
    if s.method in ("adamw", "adam8bit", "lora"):
        own = 0 if s.method == "lora" else widest_target
        widening = 4 * max(own, table) if s.precision == "master" else 0
        rule = 0 if fused else 2 * max(own, table) * (4 if s.precision == "master" else wb)
        return (widening + rule) / s.shards
    if s.method == "logra":
        blocks = 0 if s.precision == "fp32" else 5 * 4 * min(1 << 20, -(-widest_target // 2))
        return max(blocks, 0 if fused else 2 * wb * table / s.shards)
    copies = (
        2 if s.method == "apollo" else 1
    )  # the scaled gradient and its limited copy, or the lifted update
    return wb * max(copies * widest_target, 2 * table) / s.shards
