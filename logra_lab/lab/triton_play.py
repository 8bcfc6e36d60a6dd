"""Lesson 09's workbench: kernels written in a notebook, run by Triton's interpreter on CPU tensors.

Set `TRITON_INTERPRET=1` before anything imports Triton (the lesson's first cell does). Where Triton is not installed
`triton` and `tl` are stand-ins that let a kernel be defined and read; running one raises NotImplementedError, so that
an exercise counts as not written and the lesson goes on with torch.

Left out: speed. The interpreter runs one program after the other in NumPy; its times mean nothing.

    T  token positions      k  input columns      d  output rows      r  rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logra_lab.kernels import triton_available

TRITON = triton_available()
if TRITON:
    import triton
    import triton.language as tl
    from triton.runtime import interpreter
else:
    triton = SimpleNamespace(jit=lambda function: function, cdiv=lambda a, b: -(-a // b))
    tl = SimpleNamespace(constexpr=object)

BLOCK_T, BLOCK_K, BLOCK_R = 32, 64, 16
BLOCK_D, BLOCK_C = 64, 128
UNTOUCHED = -12345.0


def interpreted(kernel: Any) -> Any:
    """`kernel` as the interpreter runs it, whether or not it was decorated and whatever the environment says."""
    if not TRITON:
        raise NotImplementedError("Triton is not installed here")
    if isinstance(kernel, interpreter.InterpretedFunction):
        return kernel
    return interpreter.InterpretedFunction(getattr(kernel, "fn", kernel))


def signed(word: int) -> int:
    """A 32-bit word as the int32 with the same bits: how a key is passed to a kernel."""
    return word - (1 << 32) if word >= 1 << 31 else word


def reference_mix(x):
    """MurmurHash3's finaliser on a block of uint32, in Triton."""
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    return x ^ (x >> 16)


def written(mix: Any) -> bool:
    """True if `mix` is the right hash: then the lesson's kernels may be built on it."""
    from logra_lab.lab import checks

    return TRITON and checks.judge("fmix32", word_function(mix)).right


# ---------------------------------------------------------------- launchers: from a kernel to a function of tensors


def map_words(x, out, n, MIX: tl.constexpr, BLOCK: tl.constexpr):
    """out = MIX(x) on uint32 words, one program per block."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(x + i, mask=i < n, other=0).to(tl.uint32)
    tl.store(out + i, MIX(word).to(tl.int64), mask=i < n)


def word_function(mix: Any) -> Callable[[Tensor], Tensor]:
    """`mix`, written in Triton for a block of uint32, as a function of an int64 tensor of 32-bit words."""

    def run(x: Tensor) -> Tensor:
        out = torch.full_like(x, -1)
        launch(
            map_words, (-(-x.numel() // 64),), x.contiguous(), out, x.numel(), MIX=interpreted(mix), BLOCK=64
        )
        return out

    return run


def projection_function(kernel: Any) -> Callable[[Tensor, tuple[int, int], int], Tensor]:
    """A projection kernel as `project(x [T, k], key, rank) -> [T, r]`; a grid of row blocks times rank blocks.

    X and P lie between guards, so that a load without a mask shows as NaN and a stray store is caught. So does a load
    with a mask and without `other`, whose value outside the mask a GPU leaves open.
    """

    def run(x: Tensor, key: tuple[int, int], rank: int) -> Tensor:
        (count, columns), grid = x.shape, (-(-len(x) // BLOCK_T), -(-rank // BLOCK_R))
        extra = 4 * (count + BLOCK_T) * (columns + rank + BLOCK_K)  # whatever strides a kernel mixes up
        source, _ = guarded(x, float("nan"), extra)
        out, guards = guarded(x.new_full((count, rank), UNTOUCHED), UNTOUCHED, extra)
        with nothing_is_nan():
            launch(
                kernel, grid, source, out, count, columns, rank, signed(key[0]), signed(key[1]),
                BLOCK_T=BLOCK_T, BLOCK_K=BLOCK_K, BLOCK_R=BLOCK_R,
            )  # fmt: skip
        if not all(bool((guard == UNTOUCHED).all()) for guard in guards):
            raise IndexError("the kernel stored beyond the end of P: mask the store")
        if bool((out == UNTOUCHED).all()):
            raise NotImplementedError("the kernel stored nothing")
        return torch.where(out == UNTOUCHED, float("nan"), out)

    return run


@contextmanager
def nothing_is_nan() -> Iterator[None]:
    """Within it, a masked load of floats without `other` gives NaN outside its mask (the interpreter's own is 0)."""
    if not TRITON:
        yield
        return
    builder = interpreter.interpreter_builder
    load = builder.create_masked_load

    def strict(pointers, mask, other, *rest):
        found = load(pointers, mask, other, *rest)
        if other is None and np.issubdtype(found.data.dtype, np.floating):
            found.data = np.where(mask.data, found.data, np.nan).astype(found.data.dtype)
        return found

    builder.create_masked_load = strict
    try:
        yield
    finally:
        builder.create_masked_load = load


def guarded(x: Tensor, fill: float, extra: int) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """A copy of `x` with `extra` numbers `fill` before and behind it in memory, and the two guards."""
    room = x.new_full((x.numel() + 2 * extra,), fill)
    inner = room[extra : extra + x.numel()].view_as(x)
    inner.copy_(x)
    return inner, (room[:extra], room[extra + x.numel() :])


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel in the interpreter and raise what went wrong in it, at its own line.

    A helper that returns nothing counts as not written.
    """
    try:
        interpreted(kernel)[grid](*arguments, **constants)
    except interpreter.InterpreterError as error:
        if "NoneType" in str(error) or "ellipsis" in str(error).lower():
            raise NotImplementedError("a part of it is still to be written, or lacks its `return`") from error
        cause: BaseException = error
        while isinstance(cause, interpreter.InterpreterError) and cause.__cause__ is not None:
            cause = cause.__cause__
        raise cause from None


def merge_on_grid(weight: Tensor, factor: Tensor, key: tuple[int, int], grid: Callable[..., tuple]) -> Tensor:
    """W − F A [d, k] by the package's fp32 merge kernel, launched on `grid(d, k, BLOCK_D, BLOCK_C)`.

    Without Triton the same tiles are merged one by one by torch.
    """
    (rows, columns), result = weight.shape, weight.clone()
    down, across = grid(rows, columns, BLOCK_D, BLOCK_C)
    if not TRITON:
        return merge_tiles(result, factor, key, down, across)
    from logra_lab.kernels import triton_merge

    kernel = interpreted(triton_merge.merge_kernel)
    kernel[(down, across)](
        result, result, factor.contiguous(), rows, columns, factor.shape[1], *result.stride(), *result.stride(),
        signed(key[0]), signed(key[1]), 0, 0, 0, 1.0, factor.shape[1] ** -0.5,
        KIND=triton_merge.KINDS["fp32"], TENSOR_CORES=False, BLOCK_D=BLOCK_D, BLOCK_K=BLOCK_C, BLOCK_R=16,
    )  # fmt: skip
    return result


def merge_tiles(result: Tensor, factor: Tensor, key: tuple[int, int], down: int, across: int) -> Tensor:
    """The first `down` × `across` tiles of W merged by torch, in place."""
    from logra_lab.kernels import plain

    whole = result.clone()
    plain.merge(whole, factor, key, kind="fp32")
    rows, columns = slice(0, down * BLOCK_D), slice(0, across * BLOCK_C)
    result[rows, columns] = whole[rows, columns]
    return result


# ---------------------------------------------------------------- counting what a kernel loads and stores


@dataclass
class Counted:
    """Bytes that kernels asked for, and the distinct bytes among them: what must cross the memory bus at least."""

    asked: int = 0
    loaded: set[int] = field(default_factory=set, repr=False)
    stored: set[int] = field(default_factory=set, repr=False)
    sizes: dict[int, int] = field(default_factory=dict, repr=False)

    @property
    def distinct(self) -> int:
        """Each address loaded counts once, and each address stored once."""
        return sum(self.sizes[address] for touched in (self.loaded, self.stored) for address in touched)

    def note(self, touched: set[int], pointers: np.ndarray, mask: np.ndarray, size: int) -> None:
        """One load or store of a block of pointers."""
        addresses = np.broadcast_to(pointers, np.broadcast_shapes(pointers.shape, mask.shape))[
            np.broadcast_to(mask, np.broadcast_shapes(pointers.shape, mask.shape))
        ]
        self.asked += addresses.size * size
        fresh = addresses.tolist()
        touched.update(fresh)
        self.sizes.update(dict.fromkeys(fresh, size))


@contextmanager
def counting() -> Iterator[Counted]:
    """Within it, every load and store of an interpreted kernel is counted; needs Triton 3."""
    counted, builder = Counted(), interpreter.interpreter_builder
    load, store = builder.create_masked_load, builder.create_masked_store

    def counted_load(pointers, mask, *rest):
        counted.note(
            counted.loaded, pointers.data, mask.data, pointers.get_element_ty().primitive_bitwidth // 8
        )
        return load(pointers, mask, *rest)

    def counted_store(pointers, value, mask, *rest):
        counted.note(
            counted.stored, pointers.data, mask.data, pointers.get_element_ty().primitive_bitwidth // 8
        )
        return store(pointers, value, mask, *rest)

    builder.create_masked_load, builder.create_masked_store = counted_load, counted_store
    try:
        yield counted
    finally:
        del builder.create_masked_load, builder.create_masked_store
