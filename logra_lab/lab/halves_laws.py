"""What the two halves of an fp32 number must do, as laws that an exercise of lesson 05 tries an answer on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from logra_lab.method.merge import join_halves


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbers() -> Tensor:
    """fp32 numbers of every size, both signs, and ties between two bf16 numbers."""
    ties = torch.tensor([0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001], dtype=torch.int32).view(
        torch.float32
    )
    return torch.cat(
        [normal(200) * 0.03, normal(200, seed=1) * 10.0 ** normal(200, seed=2), ties, -ties, torch.zeros(1)]
    )


def as_bits(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Both halves as int32, so that they compare bit for bit."""
    return pair[0].view(torch.int16).int(), pair[1].int()


def rejoins(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> bool | str:
    """Whether joining gives every bit back."""
    value = numbers()
    upper, lower = function(value)
    if upper.dtype != torch.bfloat16 or lower.dtype != torch.int16:
        return f"the halves are {upper.dtype} and {lower.dtype}; torch.bfloat16 and torch.int16 were expected"
    wrong = int((join_halves(upper, lower).view(torch.int32) != value.view(torch.int32)).sum())
    return True if wrong == 0 else f"{wrong} of {len(value)} numbers come back with other bits"


def unbiased(function: Callable[[Tensor], tuple[Tensor, Tensor]]) -> bool | str:
    """Whether the upper half is rounded: its mean size is that of the numbers."""
    value = normal(20000) * 0.03
    shrink = 1 - (function(value)[0].float().abs().mean() / value.abs().mean()).item()
    if abs(shrink) < 5e-4:
        return True
    if not abs(shrink) < 0.01:
        return "the upper halves are other numbers altogether"
    if shrink < 0:
        return f"the upper halves are {-shrink:.2%} larger than the numbers: they are rounded up, not to the nearest"
    return f"the upper halves are {shrink:.2%} smaller than the numbers: they are cut off, not rounded"


def converted(value: Tensor) -> tuple[Tensor, Tensor]:
    """The integer of the upper half made a bf16 number by conversion instead of by its bits."""
    bits = value.contiguous().view(torch.int32)
    upper = (bits + 0x8000) >> 16
    return upper.to(torch.bfloat16), (bits - (upper << 16)).to(torch.int16)


def truncated(value: Tensor) -> tuple[Tensor, Tensor]:
    """Cut the bits in two without rounding; the lower half wraps into int16."""
    bits = value.contiguous().view(torch.int32)
    return (bits >> 16).to(torch.int16).view(torch.bfloat16), (bits & 0xFFFF).to(torch.int16)
