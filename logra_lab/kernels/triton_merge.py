"""W ← (1 − λ) W − F A with one read and one write of W, at each precision; A never exists in memory.

The floor is that read and write. Tiles have one fixed size and ranks are summed in one order, so that fp32
and split weights stay bit-equal, and a replica equals its trainer. For the same reason nothing is tuned.

Shapes: W [d, k], lower halves [d, k], F [d, r].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .hashing import exact_dot, is_finite, kept, nearest_even, rounding_noise, sign_tile
from .triton_project import INTERPRETED, signed

FP32, SPLIT, STOCHASTIC, NEAREST = (tl.constexpr(number) for number in range(4))
KINDS = {"fp32": FP32, "split": SPLIT, "stochastic": STOCHASTIC, "nearest": NEAREST}
BLOCK_D, BLOCK_K = 64, 128


@triton.jit(do_not_specialize=["key0", "key1", "noise0", "noise1", "offset"])
def merge_kernel(
    w, lower, f, d, k, r, stride_d, stride_k, lower_d, lower_k, key0, key1, noise0, noise1, offset, keep, scale,
    KIND: tl.constexpr, TENSOR_CORES: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One tile of W [BLOCK_D, BLOCK_K]."""
    i = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    first = tl.program_id(1) * BLOCK_K
    j = first + tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_D, BLOCK_K), tl.float32)
    for start in range(0, r, BLOCK_R):
        n = start + tl.arange(0, BLOCK_R)
        rows = tl.load(f + i[:, None] * r + n[None, :], mask=(i[:, None] < d) & (n[None, :] < r), other=0.0)
        signs = tl.trans(
            sign_tile(key0, key1, start, first // 32, BLOCK_R, BLOCK_K // 32)
        )  # [BLOCK_R, BLOCK_K]
        acc = exact_dot(rows, signs, acc, 3, TENSOR_CORES)
    inside = (i[:, None] < d) & (j[None, :] < k)
    at = w + i.to(tl.int64)[:, None] * stride_d + j.to(tl.int64)[None, :] * stride_k
    beside = lower + i.to(tl.int64)[:, None] * lower_d + j.to(tl.int64)[None, :] * lower_k
    if KIND == FP32:
        value = tl.load(at, mask=inside)
    else:
        bits = tl.load(at, mask=inside).to(tl.int32) << 16
        if KIND == SPLIT:
            bits += tl.load(beside, mask=inside).to(tl.int32)
        value = bits.to(tl.float32, bitcast=True)
    value = value * keep - acc * scale
    bits = value.to(tl.int32, bitcast=True)
    if KIND == FP32:
        tl.store(at, value, mask=inside)
    elif KIND == SPLIT:
        upper = (bits + 0x8000) >> 16
        tl.store(at, upper.to(tl.int16), mask=inside)
        tl.store(beside, (bits - (upper << 16)).to(tl.int16), mask=inside)
    elif KIND == STOCHASTIC:
        up = (bits + rounding_noise(noise0, noise1, i + offset, j)) >> 16
        tl.store(at, tl.where(is_finite(bits), up, kept(bits)).to(tl.int16), mask=inside)
    else:
        tl.store(at, nearest_even(bits), mask=inside)


def merge(
    weight: Tensor,
    factor: Tensor,
    key: tuple[int, int],
    *,
    kind: str,
    lower: Tensor | None = None,
    decay: float = 0.0,
    noise_key: tuple[int, int] = (0, 0),
    offset: int = 0,
) -> None:
    """W ← (1 − decay) W − F A in place, A = signs/√r from `key` (method.md §6).

    Args:
        weight: [d, k] with any strides, fp32 for kind "fp32" and bf16 for the others.
        factor: F [d, r], fp32.
        kind: "fp32", "split" (with `lower`, int16 [d, k]), "stochastic" or "nearest".
        noise_key, offset: of the stochastic rounding; `offset` is the global number of the first row.
    """
    rows, columns = weight.shape
    rank = factor.shape[1]
    if not weight.numel():
        return
    stored = weight if kind == "fp32" else weight.view(torch.int16)
    beside = stored if lower is None else lower
    merge_kernel[triton.cdiv(rows, BLOCK_D), triton.cdiv(columns, BLOCK_K)](
        stored, beside, factor.contiguous(), rows, columns, rank, *stored.stride(), *beside.stride(),
        *map(signed, (*key, *noise_key)), offset, 1.0 - decay, rank**-0.5,
        KIND=KINDS[kind], TENSOR_CORES=not INTERPRETED, BLOCK_D=BLOCK_D, BLOCK_K=BLOCK_K,
        BLOCK_R=max(16, min(64, triton.next_power_of_2(rank))),
    )  # fmt: skip
