"""P = X signs(A)ᵀ in one pass over X; the signs are made in registers and A never exists in memory.

The floor is one read of X: at r = 64 its products take a fraction of that time. Left out: splitting the sum
over k among programs, which would fill a large GPU at small T but make the order of sums depend on it.

Shapes: X [T, k], P [T, r].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .hashing import exact_dot, nearest_even, sign_tile

INTERPRETED = triton.knobs.runtime.interpret
COLUMNS = 64
"""Columns of X per pass of the loop: fixed, so that every configuration adds up in the same order."""

# Only what leaves the order of sums alone may be tuned: a resumed run must not round differently. (Tiles of
# fewer than 64 rows would also use another matrix instruction on Hopper.)
CONFIGS = [
    triton.Config({"BLOCK_T": 64}, num_warps=4, num_stages=4),
    triton.Config({"BLOCK_T": 128}, num_warps=8, num_stages=3),
]


@triton.jit(do_not_specialize=["key0", "key1", "T"])
def project_kernel(
    x, p, T, k, r, stride_t, stride_k, key0, key1,
    PARTS: tl.constexpr, TENSOR_CORES: tl.constexpr, HALF: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """One tile of P [BLOCK_T, BLOCK_R]."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    first = tl.program_id(1) * BLOCK_R
    acc = tl.zeros((BLOCK_T, BLOCK_R), tl.float32)
    for start in range(0, k, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        where = t.to(tl.int64)[:, None] * stride_t + j.to(tl.int64)[None, :] * stride_k
        tile = tl.load(x + where, mask=(t[:, None] < T) & (j[None, :] < k), other=0.0)  # [BLOCK_T, BLOCK_K]
        signs = sign_tile(key0, key1, first, start // 32, BLOCK_R, BLOCK_K // 32)  # [BLOCK_K, BLOCK_R]
        if HALF and TENSOR_CORES:
            acc = tl.dot(tile, signs.to(tl.bfloat16), acc)
        else:
            acc = exact_dot(tile.to(tl.float32), signs, acc, PARTS, TENSOR_CORES)
    i = first + tl.arange(0, BLOCK_R)
    where = t.to(tl.int64)[:, None] * r + i[None, :]
    inside = (t[:, None] < T) & (i[None, :] < r)
    if HALF:
        tl.store(p + where, nearest_even(acc.to(tl.int32, bitcast=True)), mask=inside)
    else:
        tl.store(p + where, acc, mask=inside)


_tuned = triton.autotune(CONFIGS[:1] if INTERPRETED else CONFIGS, key=["k", "r", "HALF"], cache_results=True)(
    project_kernel
)


def project(x: Tensor, key: tuple[int, int], rank: int) -> Tensor:
    """X signs(A)ᵀ: [..., k] → [..., r] in X's type (bf16 or fp32), summed in fp32 (method.md §1).

    X may have any strides. The plain twin is `x @ signs(key, rank, k).T`.
    """
    flat = x.reshape(-1, x.shape[-1])  # [T, k]
    count, columns = flat.shape
    result = torch.empty(*x.shape[:-1], rank, device=x.device, dtype=x.dtype)
    half = x.dtype == torch.bfloat16
    if result.numel():
        block_r = max(16, min(128, triton.next_power_of_2(rank)))

        def grid(meta: dict) -> tuple[int, int]:
            return triton.cdiv(count, meta["BLOCK_T"]), triton.cdiv(rank, block_r)

        _tuned[grid](
            flat, result.view(torch.int16) if half else result, count, columns, rank, *flat.stride(),
            signed(key[0]), signed(key[1]),
            PARTS=1 if half else 3, TENSOR_CORES=not INTERPRETED, HALF=half, BLOCK_R=block_r, BLOCK_K=COLUMNS,
        )  # fmt: skip
    return result


def signed(word: int) -> int:
    """A 32-bit word as the int32 with the same bits, so that a kernel is compiled once for all keys."""
    return word - (1 << 32) if word >= 1 << 31 else word
