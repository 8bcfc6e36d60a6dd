"""Exercises of lesson 09: the hash, the tiled projection, the floors, and the grid that covers a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from logra_lab.kernels import plain
from logra_lab.lab.checks import Case, Law, Slip, exercise
from logra_lab.lab.kernel_bytes import Speed, project_floors
from logra_lab.method import projection
from logra_lab.method.projection import MASK, signs

# ---------------------------------------------------------------- the hash


def few_words() -> tuple[Tensor]:
    """The words 0 to 7."""
    return (torch.arange(8),)


def many_words() -> tuple[Tensor]:
    """A thousand words over the whole range of 32 bits."""
    return (torch.randint(0, 2**32, (1000,), generator=torch.Generator().manual_seed(9)),)


def flips_half_the_bits(function) -> bool | str:
    """One changed bit of the input changes each bit of the output about half the time."""
    (words,) = many_words()
    changed = (function(words.clone()) ^ function(words ^ 1)) & MASK
    share = sum(int(((changed >> bit) & 1).sum()) for bit in range(32)) / (32 * len(words))
    return True if 0.47 < share < 0.53 else f"it changes {share:.0%} of them"


FACTORS = (0x85EBCA6B, 0xC2B2AE35)
UNCUT = "the products are not cut to 32 bits: `& MASK` after each of the two."


def mixed(
    x: Tensor, *, first: int = 16, middle: int = 13, last: int = 16, mask_between: bool = True,
    mask_after: bool = True, add: bool = False, factors: tuple[int, int] = FACTORS,
) -> Tensor:  # fmt: skip
    """fmix32 with a fault or two."""
    between, after = MASK if mask_between else -1, MASK if mask_after else -1
    x = x + (x >> first) if add else x ^ (x >> first)
    x = (x * factors[0]) & between
    x = x ^ (x >> middle)
    x = (x * factors[1]) & between
    return (x ^ (x >> last)) & after if last else x & after


@exercise(
    "fmix32",
    Case(
        "mixes the words 0 to 7",
        few_words,
        "shift and xor, multiply, shift and xor, multiply, shift and xor.",
        rtol=0.0,
        atol=0.0,
        dtype=False,
    ),
    Case(
        "mixes a thousand words of all 32 bits",
        many_words,
        "after each product keep the lowest 32 bits.",
        rtol=0.0,
        atol=0.0,
        dtype=False,
    ),
    Law("flips half of the output's bits when one input bit flips", flips_half_the_bits),
    slips=(
        Slip(UNCUT, lambda x: mixed(x, mask_between=False)),
        Slip(UNCUT, lambda x: mixed(x, mask_between=False, mask_after=False)),
        Slip("the shift in the middle is by 13.", lambda x: mixed(x, middle=16)),
        Slip("the two factors have changed places.", lambda x: mixed(x, factors=FACTORS[::-1])),
        Slip("the last `x ^ (x >> 16)` is missing.", lambda x: mixed(x, last=0)),
        Slip("the first shift is by 16.", lambda x: mixed(x, first=13)),
        Slip("the last shift is by 16.", lambda x: mixed(x, last=13)),
        Slip("the first line adds where it should xor.", lambda x: mixed(x, add=True)),
    ),
)
def fmix32(x: Tensor) -> Tensor:
    return projection.fmix32(x)


# ---------------------------------------------------------------- the projection


def numbers(tokens: int, columns: int, rank: int, whole: bool = True) -> tuple[Tensor, tuple[int, int], int]:
    """Activations, a key and a rank; whole numbers add up exactly in any order."""
    random = torch.Generator().manual_seed(tokens + columns + rank)
    x = torch.randint(-8, 9, (tokens, columns), generator=random).float()
    return (x if whole else torch.randn(tokens, columns, generator=random)), (2**31 + 5, 2**32 - 3), rank


def by_tiles(fault: str):
    """X signs(A)ᵀ over tiles of 64 columns, with one fault."""

    def project(x: Tensor, key: tuple[int, int], rank: int) -> Tensor:
        total, every = torch.zeros(len(x), rank), signs(key, rank, x.shape[1])
        for start in range(0, x.shape[1], 64):
            if fault == "skips the rest" and start + 64 > x.shape[1]:
                continue
            here = slice(0, 64) if fault == "same tile" else slice(start, start + 64)
            tile = x[:, here]
            part = tile @ (every[:, : tile.shape[1]] if fault == "same signs" else every[:, here]).T
            total = part if fault == "keeps the last" else total + part
        return total

    return project


@exercise(
    "tiled_project",
    Case(
        "projects one tile: 32 × 64, rank 16",
        lambda: numbers(32, 64, 16),
        "load a tile of X [t, j], make its signs [j, i], tl.dot, store.",
    ),
    Case(
        "adds up several tiles of columns: k = 192",
        lambda: numbers(32, 192, 16),
        "acc grows in the loop; j runs from start.",
    ),
    Case(
        "covers a partial tile: 5 × 33, rank 7",
        lambda: numbers(5, 33, 7),
        "mask rows, columns and the store; load with other=0.0, or what lies outside may be anything.",
    ),
    Case(
        "covers odd sizes in all directions: 70 × 130, rank 20",
        lambda: numbers(70, 130, 20),
        "mask with T, k and r.",
    ),
    Case("projects real numbers", lambda: numbers(40, 100, 9, whole=False), "accumulate in fp32.", atol=1e-4),
    slips=(
        Slip("every step loads the same columns: j begins at start.", by_tiles("same tile")),
        Slip("the last partial tile of columns is left out.", by_tiles("skips the rest")),
        Slip("only the last tile of columns arrives: add to acc.", by_tiles("keeps the last")),
        Slip("each tile needs its own signs: pass the columns j of the tile.", by_tiles("same signs")),
        Slip(
            "this is divided by √r; the kernel leaves the scale to its caller.",
            lambda x, key, r: plain.project(x, key, r) * r**-0.5,
        ),
        Slip("the signs are turned round.", lambda x, key, r: -plain.project(x, key, r)),
        Slip(
            "the two halves of the key have changed places.", lambda x, key, r: plain.project(x, key[::-1], r)
        ),
    ),
)
def tiled_project(x: Tensor, key: tuple[int, int], rank: int) -> Tensor:
    return plain.project(x, key, rank)


# ---------------------------------------------------------------- the floors

ROUND = (1000, 100, 10, 2, 1e6, 1e9)


def parts(
    tokens: int, columns: int, rank: int, size: int, bandwidth: float, peak: float
) -> tuple[float, float]:
    """The two floors."""
    return project_floors(tokens, columns, rank, Speed("", bandwidth, peak), size)


@exercise(
    "floor_seconds",
    Case(
        "is the time of the bytes at a small rank",
        lambda: ROUND,
        "X is read once and P written once: size · (T k + T r).",
        atol=0.0,
    ),
    Case(
        "is the time of the operations at a large rank",
        lambda: (1000, 100, 10, 2, 1e9, 1e6),
        "2 · T · k · r operations.",
        atol=0.0,
    ),
    Case("holds for a real card", lambda: (16384, 4096, 64, 2, 3.35e12, 989e12), atol=0.0),
    Case(
        "holds for fp32 activations",
        lambda: (16384, 4096, 64, 4, 3.35e12, 989e12),
        "`size` is bytes per number.",
        atol=0.0,
    ),
    slips=(
        Slip("the two overlap in time: take the larger, not the sum.", lambda *a: sum(parts(*a))),
        Slip("take the larger of the two floors: a kernel has to respect both.", lambda *a: min(parts(*a))),
        Slip(
            "P is missing: T · r numbers are written.",
            lambda t, k, r, s, b, p: max(s * t * k / b, 2 * t * k * r / p),
        ),
        Slip(
            "a multiplication and an addition are two operations: 2 · T · k · r.",
            lambda t, k, r, s, b, p: max(s * t * (k + r) / b, t * k * r / p),
        ),
        Slip(
            "A moves no byte: it is made where it is used.",
            lambda t, k, r, s, b, p: max(s * (t * k + t * r + r * k) / b, 2 * t * k * r / p),
        ),
        Slip(
            "these are numbers, not bytes: multiply by `size`.",
            lambda t, k, r, s, b, p: max((t * k + t * r) / b, 2 * t * k * r / p),
        ),
    ),
)
def floor_seconds(tokens: int, columns: int, rank: int, size: int, bandwidth: float, peak: float) -> float:
    return max(parts(tokens, columns, rank, size, bandwidth, peak))


# ---------------------------------------------------------------- the grid


@exercise(
    "merge_grid",
    Case(
        "covers whole tiles: 128 × 256 in tiles of 64 × 128",
        lambda: (128, 256, 64, 128),
        "two down, two across: no program is idle.",
    ),
    Case(
        "covers a rest in both directions: 200 × 300",
        lambda: (200, 300, 64, 128),
        "a rest of a tile needs a program of its own.",
    ),
    Case("covers large rests: 120 × 250", lambda: (120, 250, 64, 128), "round up, whatever the rest."),
    Case("covers a matrix smaller than a tile: 10 × 20", lambda: (10, 20, 64, 128), "one program, not none."),
    Case("covers a rest of one", lambda: (65, 257, 64, 128), "round up, always."),
    slips=(
        Slip(
            "this rounds to the nearest; a small rest is still left out.",
            lambda d, k, a, b: (round(d / a), round(k / b)),
        ),
        Slip(
            "this is rounded down: what does not fill a tile is never visited.",
            lambda d, k, a, b: (d // a, k // b),
        ),
        Slip(
            "one too many where the tiles fit exactly: round up instead of adding 1.",
            lambda d, k, a, b: (d // a + 1, k // b + 1),
        ),
        Slip("rows and columns have changed places.", lambda d, k, a, b: (-(-k // b), -(-d // a))),
        Slip("the columns are still rounded down.", lambda d, k, a, b: (-(-d // a), k // b)),
        Slip("the rows are still rounded down.", lambda d, k, a, b: (d // a, -(-k // b))),
    ),
)
def merge_grid(rows: int, columns: int, block_rows: int, block_columns: int) -> tuple[int, int]:
    return -(-rows // block_rows), -(-columns // block_columns)
