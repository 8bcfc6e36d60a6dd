"""Which implementation runs: Triton for CUDA tensors where it is installed, torch for everything else.

`LOGRA_KERNELS=torch` or `triton` forces either. Triton on a CPU tensor needs its interpreter
(`TRITON_INTERPRET=1`, set before the first import), which is for tests and lessons: its times mean nothing.
Triton is imported when it is first used, so that a machine without it loses nothing.

Shapes: T token positions, d output rows, k input columns, r rank.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable

import torch
from torch import Tensor

VARIABLE = "LOGRA_KERNELS"


def triton_available() -> bool:
    """True if Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def merge_kinds() -> tuple[str, ...]:
    """The precisions that `merge` knows (method.md §6)."""
    return ("fp32", "split", "stochastic", "nearest")


def backend(tensor: Tensor) -> str:
    """ "triton" or "torch", for an operation on `tensor`.

    Raises:
        ValueError: if LOGRA_KERNELS holds another word.
        RuntimeError: if it asks for Triton where Triton can't run.
    """
    forced = os.environ.get(VARIABLE, "")
    if forced not in ("", "torch", "triton"):
        raise ValueError(f"{VARIABLE}={forced!r} is neither 'torch' nor 'triton': choose one, or unset it")
    if forced == "torch" or tensor.dtype not in (torch.float32, torch.bfloat16):
        return "torch"
    if forced == "triton":
        _refuse_where_triton_cannot_run(tensor)
        return "triton"
    return "triton" if tensor.is_cuda and triton_available() else "torch"


def project(
    x: Tensor, key: tuple[int, int], rank: int, *, plain: Callable[[], Tensor] | None = None
) -> Tensor:
    """P = X signs(A)ᵀ, [..., k] → [..., r] in X's type (method.md §1); not differentiable.

    Args:
        key: of `projection_key`.
        rank: r.
        plain: what to do where torch is chosen, by one who holds the signs already. Default: make them.
    """
    if backend(x) == "triton":
        from . import triton_project

        return triton_project.project(x.detach(), key, rank)
    if plain is not None:
        return plain()
    from . import plain as twin

    return twin.project(x, key, rank)


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
    plain: Callable[[], None] | None = None,
) -> None:
    """W ← (1 − decay) W − F A in place, with A = signs/√r (method.md §6).

    Args:
        weight: W [d, k], fp32 for kind "fp32", bf16 for the others.
        factor: F [d, r], fp32.
        key: of `projection_key`, which makes A.
        kind: one of `merge_kinds()`.
        lower: the lower halves [d, k], int16, of kind "split".
        decay: taken off before the update.
        noise_key: of kind "stochastic".
        offset: the global number of the first row, for the noise.
        plain: what to do where torch is chosen, by one who holds the signs already. Default: make them.

    Raises:
        ValueError: if the kind is unknown, or "split" comes without lower halves.
        TypeError: if the weight's type doesn't belong to the kind.
    """
    _refuse_mismatch(weight, kind, lower)
    if backend(weight) == "triton":
        from . import triton_merge

        run = triton_merge.merge
    elif plain is not None:
        return plain()
    else:
        from . import plain as twin

        run = twin.merge
    run(weight, factor, key, kind=kind, lower=lower, decay=decay, noise_key=noise_key, offset=offset)


def _refuse_where_triton_cannot_run(tensor: Tensor) -> None:
    if not triton_available():
        raise RuntimeError(f"{VARIABLE}=triton, but Triton is not installed: install it, or unset {VARIABLE}")
    import triton

    if not tensor.is_cuda and not triton.knobs.runtime.interpret:
        raise RuntimeError(
            f"{VARIABLE}=triton, but the tensor is on {tensor.device}: set TRITON_INTERPRET=1 before Python "
            f"starts to run the kernels in the interpreter, or unset {VARIABLE}"
        )


def _refuse_mismatch(weight: Tensor, kind: str, lower: Tensor | None) -> None:
    if kind not in merge_kinds():
        raise ValueError(f"kind={kind!r} is unknown: choose one of {', '.join(merge_kinds())}")
    stored = torch.float32 if kind == "fp32" else torch.bfloat16
    if weight.dtype != stored:
        raise TypeError(
            f'kind="{kind}" merges into {stored} weights, but this one is {weight.dtype}: convert it'
        )
    if kind == "split" and lower is None:
        raise ValueError('kind="split" needs the lower halves: pass lower=, int16 and shaped as the weight')
