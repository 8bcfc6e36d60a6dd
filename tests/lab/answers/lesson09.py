"""Answers to the exercises of lesson 09; those in Triton are tried where Triton is installed."""

from __future__ import annotations

import math

import torch

from logra_lab.lab.triton_play import TRITON, projection_function, tl, word_function
from logra_lab.method.projection import signs
from tests.lab.answers import Answers

MASK = 0xFFFFFFFF


def with_remainders(x):
    """Products cut by a remainder instead of a mask."""
    x = (x ^ (x // 65536)) * 0x85EBCA6B % 2**32
    x = (x ^ (x // 8192)) * 0xC2B2AE35 % 2**32
    return x ^ (x // 65536)


def word_by_word(x):
    """Python's own integers."""

    def mix(word):
        word ^= word >> 16
        word = word * 0x85EBCA6B & MASK
        word ^= word >> 13
        word = word * 0xC2B2AE35 & MASK
        return word ^ word >> 16

    return torch.tensor([mix(word) for word in x.tolist()])


def uncut(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


def shifted(x, middle, first=0x85EBCA6B, second=0xC2B2AE35):
    x = (x ^ (x >> 16)) * first & MASK
    x = (x ^ (x >> middle)) * second & MASK
    return x ^ (x >> 16)


def without_the_end(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B & MASK
    return (x ^ (x >> 13)) * 0xC2B2AE35 & MASK


def one_product(x):
    return (x ^ (x >> 16)) * 0x85EBCA6B & MASK


def mix(x):
    """In Triton: uint32 wraps by itself."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


def mix_signed(x):
    """In Triton, with the arithmetic shift of a signed number."""
    x = x.to(tl.int32)
    x = x ^ (x >> 16)
    x = x * -2048144789
    x = x ^ (x >> 13)
    x = x * -1028477387
    return (x ^ (x >> 16)).to(tl.uint32)


def by_tiles(x, key, rank):
    """Torch, tile by tile."""
    total, all_signs = torch.zeros(len(x), rank), signs(key, rank, x.shape[1])
    for start in range(0, x.shape[1], 64):
        total += x[:, start : start + 64] @ all_signs[:, start : start + 64].T
    return total


def whole(x, key, rank):
    return torch.einsum("tk,rk->tr", x, signs(key, rank, x.shape[1]))


def sign_tile(key0, key1, i, j):
    word = mix(
        mix((j // 32).to(tl.uint32) + key0.to(tl.uint32))[:, None]
        ^ mix(i.to(tl.uint32) + key1.to(tl.uint32))[None, :]
    )
    return tl.where(((word >> (j % 32).to(tl.uint32)[:, None]) & 1) == 1, 1.0, -1.0)


def kernel(x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr):
    """Right, with tl.full for the sum."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.full((BLOCK_T, BLOCK_R), 0.0, tl.float32)
    for start in range(0, k, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        tile = tl.load(x + t[:, None] * k + j[None, :], mask=(t[:, None] < T) & (j[None, :] < k), other=0.0)
        acc = tl.dot(tile, sign_tile(key0, key1, i, j), acc)
    tl.store(p + t[:, None] * r + i[None, :], acc, mask=(t[:, None] < T) & (i[None, :] < r))


def kernel_skips(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Leaves the last partial tile out."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.full((BLOCK_T, BLOCK_R), 0.0, tl.float32)
    for start in range(0, k // BLOCK_K * BLOCK_K, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        tile = tl.load(x + t[:, None] * k + j[None, :], mask=t[:, None] < T, other=0.0)
        acc = tl.dot(tile, sign_tile(key0, key1, i, j), acc)
    tl.store(p + t[:, None] * r + i[None, :], acc, mask=(t[:, None] < T) & (i[None, :] < r))


def kernel_of_one_tile(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Loads the first columns again and again."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.full((BLOCK_T, BLOCK_R), 0.0, tl.float32)
    for _start in range(0, k, BLOCK_K):
        j = tl.arange(0, BLOCK_K)
        tile = tl.load(x + t[:, None] * k + j[None, :], mask=(t[:, None] < T) & (j[None, :] < k), other=0.0)
        acc = tl.dot(tile, sign_tile(key0, key1, i, j), acc)
    tl.store(p + t[:, None] * r + i[None, :], acc, mask=(t[:, None] < T) & (i[None, :] < r))


def kernel_with_a_typo(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Its error is shown with its own line."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    tl.store(p + t, undefined_tile, mask=t < T)  # noqa: F821


def kernel_without_masks(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Loads and stores whatever lies there."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.full((BLOCK_T, BLOCK_R), 0.0, tl.float32)
    for start in range(0, k, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        acc = tl.dot(tl.load(x + t[:, None] * k + j[None, :]), sign_tile(key0, key1, i, j), acc)
    tl.store(p + t[:, None] * r + i[None, :], acc)


def kernel_without_other(
    x, p, T, k, r, key0, key1, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr
):
    """Right in the interpreter, and left open on a GPU."""
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    i = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    acc = tl.full((BLOCK_T, BLOCK_R), 0.0, tl.float32)
    for start in range(0, k, BLOCK_K):
        j = start + tl.arange(0, BLOCK_K)
        tile = tl.load(x + t[:, None] * k + j[None, :], mask=(t[:, None] < T) & (j[None, :] < k))
        acc = tl.dot(tile, sign_tile(key0, key1, i, j), acc)
    tl.store(p + t[:, None] * r + i[None, :], acc, mask=(t[:, None] < T) & (i[None, :] < r))


def both_floors(tokens, columns, rank, size, bandwidth, peak):
    read, written = tokens * columns * size, tokens * rank * size
    memory, arithmetic = (read + written) / bandwidth, tokens * columns * rank / (peak / 2)
    return memory if memory > arithmetic else arithmetic


def in_tensors(tokens, columns, rank, size, bandwidth, peak):
    both = torch.tensor([size * tokens * (columns + rank) / bandwidth, 2.0 * tokens * columns * rank / peak])
    return both.double().max()


def floors(tokens, columns, rank, size, bandwidth, peak):
    return size * tokens * (columns + rank) / bandwidth, 2 * tokens * columns * rank / peak


ANSWERS = {
    "fmix32": Answers(
        right=(with_remainders, word_by_word, *([word_function(mix)] if TRITON else [])),
        wrong=(
            (lambda x: uncut(x) & MASK, "not cut to 32 bits"),
            (without_the_end, "`x ^ (x >> 16)` is missing"),
            (uncut, "not cut to 32 bits"),
            (lambda x: shifted(x, 16), "middle is by 13"),
            (lambda x: shifted(x, 13, 0xC2B2AE35, 0x85EBCA6B), "two factors have changed places"),
            (one_product, "values are off"),
            (lambda x: with_remainders(x.roll(1)), "values are off"),
            *([(word_function(mix_signed), "values are off")] if TRITON else []),
        ),
    ),
    "tiled_project": Answers(
        right=(by_tiles, whole, *([projection_function(kernel)] if TRITON else [])),
        wrong=(
            (lambda x, key, r: whole(x, key, r) * r**-0.5, "divided by √r"),
            (lambda x, key, r: -whole(x, key, r), "turned round"),
            (lambda x, key, r: whole(x, key[::-1], r), "changed places"),
            (lambda x, key, r: whole(x, key, r).T, "shape"),
            *(
                [
                    (projection_function(kernel_skips), "partial tile of columns is left out"),
                    (projection_function(kernel_without_masks), "mask the store"),
                    (projection_function(kernel_without_other), "load with other=0.0"),
                    (projection_function(kernel_of_one_tile), "j begins at start"),
                    (projection_function(kernel_with_a_typo), "(at `tl.store(p + t, undefined_tile"),
                ]
                if TRITON
                else []
            ),
        ),
    ),
    "floor_seconds": Answers(
        right=(both_floors, in_tensors),
        wrong=(
            (lambda *a: sum(floors(*a)), "take the larger, not the sum"),
            (lambda *a: min(floors(*a)), "respect both"),
            (lambda t, k, r, s, b, p: max(s * t * k / b, 2 * t * k * r / p), "P is missing"),
            (lambda t, k, r, s, b, p: max(s * t * (k + r) / b, t * k * r / p), "two operations"),
            (
                lambda t, k, r, s, b, p: max(s * (t * (k + r) + r * k) / b, 2 * t * k * r / p),
                "A moves no byte",
            ),
        ),
    ),
    "merge_grid": Answers(
        right=(
            lambda d, k, a, b: (math.ceil(d / a), math.ceil(k / b)),
            lambda d, k, a, b: [(d + a - 1) // a, (k + b - 1) // b],
        ),
        wrong=(
            (lambda d, k, a, b: (d // a, k // b), "rounded down"),
            (lambda d, k, a, b: (d // a + 1, k // b + 1), "one too many"),
            (lambda d, k, a, b: (round(d / a), round(k / b)), "nearest"),
            (lambda d, k, a, b: (-(-d // a), k // b), "columns are still rounded down"),
            (lambda d, k, a, b: (-(-k // b), -(-d // a)), "changed places"),
        ),
    ),
}
