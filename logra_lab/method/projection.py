"""The random projection A, made from integers only, so that every device draws the same signs.

    A in {+1/√r, −1/√r}^(r×k),  E[AᵀA] = I                                  method.md §1

A is a pure function of (seed, update number, projection group, row, column). One 32-bit hash word holds
the signs of 32 neighbouring columns of one row. Nothing is ever stored: not in a checkpoint, not in a
packet. Integer arithmetic has no rounding, so a CPU, any GPU and a Triton kernel agree bit for bit.

Left out: other distributions (a Gaussian A can't be drawn bit-equal on every device) and the fused
version that never writes A to memory (`logra_lab.kernels`). The cost: A exists as r·k numbers while used.

Shapes: d output rows of a weight, k its input columns, r rank, T token positions.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
BITS = 32


def projection_key(seed: int, update: int, group: str) -> tuple[int, int]:
    """Two 32-bit keys for one projection group at one update (method.md §1).

    A cryptographic digest keeps neighbouring seeds, updates and group names unrelated; it runs once per
    group and update, on the host.
    """
    digest = hashlib.blake2b(f"{seed}/{update}/{group}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def fmix32(x: Tensor) -> Tensor:
    """Mix 32-bit integers held in int64 (the finaliser of MurmurHash3, Appleby 2011); any shape.

    int64 holds each value below 2³², so products wrap as uint32 arithmetic does once masked.
    """
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & MASK
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)


def sign_words(
    key: tuple[int, int], rank: int, columns: int, *, device: torch.device | str = "cpu"
) -> Tensor:
    """Hash words, int32 [r, ⌈k/32⌉]: bit j of word w in row i decides the sign of column 32·w + j.

    word(i, w) = fmix32(fmix32(k₀ + w) ^ fmix32(k₁ + i)). It depends on neither r nor k, so a smaller A
    is the corner of a larger one, up to the factor 1/√r.
    """
    words = torch.arange(-(-columns // BITS), device=device, dtype=torch.int64)
    rows = torch.arange(rank, device=device, dtype=torch.int64)
    column_keys = fmix32((words + key[0]) & MASK)  # [⌈k/32⌉]
    row_keys = fmix32((rows + key[1]) & MASK)  # [r]
    return fmix32(row_keys[:, None] ^ column_keys[None, :]).to(torch.int32)  # [r, ⌈k/32⌉]


def signs(
    key: tuple[int, int],
    rank: int,
    columns: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The signs of A as ±1 [r, k]; exact in every floating type."""
    words = sign_words(key, rank, columns, device=device)
    shifts = torch.arange(BITS, device=device, dtype=torch.int32)
    bits = (words[:, :, None] >> shifts) & 1  # [r, ⌈k/32⌉, 32]
    flat = bits.reshape(rank, -1)[:, :columns]  # [r, k]
    return flat.to(dtype).mul_(2).sub_(1)


def rademacher(
    seed: int,
    update: int,
    group: str,
    rank: int,
    columns: int,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The projection A [r, k] of one group at one update, entries ±1/√r (method.md §1).

    Raises:
        ValueError: if the rank is not positive.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}, but a projection needs at least one row: choose rank ≥ 1")
    key = projection_key(seed, update, group)
    return signs(key, rank, columns, device=device, dtype=dtype).mul_(rank**-0.5)


def project(x: Tensor, projection: Tensor) -> Tensor:
    """x Aᵀ: [..., k] → [..., r]."""
    return x @ projection.T  # [..., r]


def lift(sketch: Tensor, projection: Tensor) -> Tensor:
    """Ĝ = S A [d, k], an unbiased estimate of the gradient that was sketched (method.md §1).

    For lessons and tests: the method itself never builds it.
    """
    return sketch @ projection  # [d, k]


def gram(projection: Tensor) -> Tensor:
    """A Aᵀ [r, r], all that is needed to measure a lifted sketch (method.md §1)."""
    return projection @ projection.T  # [r, r]


def lifted_square(sketch: Tensor, projection_gram: Tensor) -> Tensor:
    """‖S A‖² = ⟨S (A Aᵀ), S⟩, a scalar, without a d×k product (method.md §1)."""
    return (sketch @ projection_gram).mul_(sketch).sum()
