"""Compare what a learner's function returned with what was expected, and say in words how they differ.

Tensors, numbers, strings and nests of them (tuples, lists, dicts). NumPy arrays count as tensors and 0-d tensors as
numbers. Devices are not compared: lessons run on one.
"""

from __future__ import annotations

import math
from decimal import Decimal
from numbers import Number, Real
from typing import Any

import numpy as np
import torch

RTOL, ATOL = 1e-4, 1e-6


def difference(
    yours: Any, expected: Any, *, rtol: float = RTOL, atol: float = ATOL, dtype: bool = True
) -> str | None:
    """How `yours` differs from `expected`, as one sentence, or None if it equals it within the tolerances.

    `dtype=False` lets tensors of another precision pass.
    """
    yours, expected = plain(yours), plain(expected)
    if yours is None or yours is Ellipsis:
        return f"it returned {yours}; {kind(expected)} was expected"
    if isinstance(expected, torch.Tensor):
        return tensor_difference(yours, expected, rtol, atol, dtype)
    if isinstance(expected, bool | str) or expected is None:
        return None if type(yours) is type(expected) and yours == expected else unequal(yours, expected)
    if isinstance(expected, Number):
        return number_difference(yours, expected, rtol, atol)
    if isinstance(expected, dict):
        return dict_difference(yours, expected, rtol, atol, dtype)
    if isinstance(expected, tuple | list):
        return sequence_difference(yours, expected, rtol, atol, dtype)
    return None if yours == expected else unequal(yours, expected)


def plain(value: Any) -> Any:
    """NumPy arrays as tensors, 0-d tensors and NumPy scalars as Python numbers, other things as they are."""
    if isinstance(value, np.ndarray):
        value = torch.as_tensor(value)
    if isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.dim() == 0):
        return value.item()
    return value


def kind(value: Any) -> str:
    """What a value is, in a few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, (Real, Decimal)):
        return "a number"
    return f"a {type(value).__name__}"


def unequal(yours: Any, expected: Any) -> str:
    """The sentence for two values that simply are not the same."""
    return f"it returned {shorten(yours)}; expected is {shorten(expected)}"


def shorten(value: Any) -> str:
    """A value in at most 60 characters."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, torch.Tensor):
        return kind(value)
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def number_difference(yours: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """As `difference`, for one number."""
    if isinstance(yours, torch.Tensor) and yours.numel() == 1:
        return f"it returned {kind(yours)}; a single number was expected"
    if not isinstance(yours, (Real, Decimal)) or isinstance(yours, bool):
        return f"it returned {kind(yours)}; a number was expected"
    mine, wanted = float(yours), float(expected)
    if yours == expected or math.isclose(mine, wanted, rel_tol=rtol, abs_tol=atol):
        return None
    if math.isnan(mine) and math.isnan(wanted):
        return None
    return unequal(yours, expected)


def tensor_difference(
    yours: Any, expected: torch.Tensor, rtol: float, atol: float, dtype: bool
) -> str | None:
    """As `difference`, for a tensor: shape first, then dtype, then values."""
    if not isinstance(yours, torch.Tensor):
        return f"it returned {kind(yours)}; {kind(expected)} was expected"
    if yours.shape != expected.shape:
        return f"its shape is {list(yours.shape)}; {list(expected.shape)} was expected"
    if dtype and yours.dtype != expected.dtype:
        return f"its dtype is {name(yours)}; {name(expected)} was expected"
    return value_difference(yours.detach().double().cpu(), expected.detach().double().cpu(), rtol, atol)


def name(tensor: torch.Tensor) -> str:
    """A dtype without `torch.` before it."""
    return str(tensor.dtype).removeprefix("torch.")


def value_difference(yours: torch.Tensor, expected: torch.Tensor, rtol: float, atol: float) -> str | None:
    """Where two float64 tensors of one shape differ most."""
    close = torch.isclose(yours, expected, rtol=rtol, atol=atol, equal_nan=True)
    if bool(close.all()):
        return None
    strange = ~torch.isfinite(yours) & torch.isfinite(expected)
    if bool(strange.any()):
        return f"{int(strange.sum())} of its {yours.numel()} values are NaN or infinite"
    gap = torch.where(close, torch.zeros_like(yours), (yours - expected).abs().nan_to_num(math.inf))
    place = [int(i) for i in torch.unravel_index(gap.argmax(), gap.shape)]
    return (
        f"{int((~close).sum())} of its {close.numel()} values are off; the worst at {place}: "
        f"{yours[tuple(place)].item():.6g}, expected {expected[tuple(place)].item():.6g}"
    )


def sequence_difference(yours: Any, expected: Any, rtol: float, atol: float, dtype: bool) -> str | None:
    """As `difference`, for a tuple or a list (either is accepted for the other)."""
    if not isinstance(yours, tuple | list):
        return f"it returned {kind(yours)}; {len(expected)} values were expected"
    if len(yours) != len(expected):
        return f"it returned {len(yours)} values; {len(expected)} were expected"
    for number, (mine, wanted) in enumerate(zip(yours, expected)):
        found = difference(mine, wanted, rtol=rtol, atol=atol, dtype=dtype)
        if found:
            return f"value {number}: {found}"
    return None


def dict_difference(yours: Any, expected: dict, rtol: float, atol: float, dtype: bool) -> str | None:
    """As `difference`, for a dict: keys first, then values."""
    if not isinstance(yours, dict):
        return f"it returned {kind(yours)}; a dict was expected"
    if yours.keys() != expected.keys():
        return f"its keys are {sorted(map(str, yours))}; expected are {sorted(map(str, expected))}"
    for key, wanted in expected.items():
        found = difference(yours[key], wanted, rtol=rtol, atol=atol, dtype=dtype)
        if found:
            return f"under {key!r}: {found}"
    return None
