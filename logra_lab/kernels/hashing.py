"""The counter hash inside Triton: the signs of A and rounding noise, bit for bit those of `method/`.

    word(i, w) = fmix32(fmix32(k₀ + w) ^ fmix32(k₁ + i)),   sign of A[i, j] = bit (j mod 32) of word(i, ⌊j/32⌋)

uint32 products wrap by themselves, so no mask is needed here. One word serves 32 columns: a tile of signs
costs three integer operations per sign and 1/32 of a hash.

`exact_dot` multiplies fp32 numbers by signs on bf16 tensor cores without losing a bit of either: ±1 is exact
in bf16, and an fp32 number is the exact sum of three bf16 numbers (3 · 8 significant bits). The cost: three
products instead of one, on units that are more than ten times as fast as fp32's own. Sums are fp32.

Shapes: r rank, k columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

MIX_1 = tl.constexpr(0x85EBCA6B)
MIX_2 = tl.constexpr(0xC2B2AE35)
UPPER = tl.constexpr(-0x10000)  # the 16 upper bits of an int32: what bf16 keeps


@triton.jit
def fmix32(x):
    """MurmurHash3's finaliser on uint32 (Appleby 2011); any shape."""
    x = x ^ (x >> 16)
    x = x * tl.full((), MIX_1, tl.uint32)
    x = x ^ (x >> 13)
    x = x * tl.full((), MIX_2, tl.uint32)
    return x ^ (x >> 16)


@triton.jit
def sign_tile(key0, key1, first_row, first_word, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """±1 in fp32 [32 · WORDS, ROWS], a transposed tile of signs: columns of A run down, rows of A across."""
    words = (first_word + tl.arange(0, WORDS)).to(tl.uint32) + key0.to(tl.uint32)
    rows = (first_row + tl.arange(0, ROWS)).to(tl.uint32) + key1.to(tl.uint32)
    word = fmix32(fmix32(words)[:, None] ^ fmix32(rows)[None, :])  # [WORDS, ROWS]
    shift = tl.arange(0, 32).to(tl.uint32)
    bit = ((word[:, None, :] >> shift[None, :, None]) & 1).to(tl.int32)  # [WORDS, 32, ROWS]
    bits = (0x3F800000 | ((1 - bit) << 31)).to(tl.int32)  # +1.0 or −1.0
    return tl.reshape(bits, (32 * WORDS, ROWS)).to(tl.float32, bitcast=True)


@triton.jit
def rounding_noise(key0, key1, rows, columns):
    """Uniform integers < 2¹⁶ [rows, columns], int32, from global row and column numbers."""
    row_keys = fmix32(rows.to(tl.uint32) + key1.to(tl.uint32))
    column_keys = fmix32(columns.to(tl.uint32) + key0.to(tl.uint32))
    return (fmix32(row_keys[:, None] ^ column_keys[None, :]) & 0xFFFF).to(tl.int32)


@triton.jit
def upper_part(x):
    """The fp32 number cut to bf16's eight significant bits, still fp32: x − upper_part(x) is exact."""
    return (x.to(tl.int32, bitcast=True) & UPPER).to(tl.float32, bitcast=True)


@triton.jit
def exact_dot(x, signs, acc, PARTS: tl.constexpr, TENSOR_CORES: tl.constexpr):
    """acc + x @ signs with fp32 sums; `x` fp32 in PARTS bf16 parts: 3 for any fp32 number, 1 if it is a bf16.

    The interpreter's bf16 product is wrong, so that without TENSOR_CORES each part is multiplied in fp32.
    """
    for _ in tl.static_range(PARTS):
        part = upper_part(x)
        if TENSOR_CORES:
            acc = tl.dot(part.to(tl.bfloat16), signs.to(tl.bfloat16), acc)
        else:
            acc = tl.dot(part, signs, acc, input_precision="ieee")
        x = x - part
    return acc


@triton.jit
def nearest_even(bits):
    """The upper half (int16) of fp32 bits rounded to the nearest bf16, ties to even; infinity and NaN are kept."""
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(is_finite(bits), rounded, kept(bits)).to(tl.int16)


@triton.jit
def is_finite(bits):
    """True where fp32 bits are neither infinity nor NaN."""
    return (bits & 0x7F800000) != 0x7F800000


@triton.jit
def kept(bits):
    """The upper half of infinity or NaN as int32; a NaN stays one even if its payload lay in the lower half."""
    return (bits >> 16) | tl.where((bits & 0x7FFFFF) != 0, 0x40, 0)
