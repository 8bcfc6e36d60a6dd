"""The Triton projection equals its torch twin, P = X signs(A)ᵀ, over shapes, strides and types."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logra_lab.kernels import plain
from logra_lab.method.projection import projection_key, signs

QUICK = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SHAPES = {
    "tokens": st.integers(1, 150),
    "columns": st.integers(1, 200),
    "rank": st.integers(1, 140),
    "seed": st.integers(0, 2**31),
}


def integers(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Small whole numbers: their sums are exact, so that two ways of adding must agree bit for bit."""
    return torch.randint(-8, 9, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def projected(interpreter, x: torch.Tensor, key: tuple[int, int], rank: int) -> torch.Tensor:
    return interpreter.call("logra_lab.kernels", "project", x, key, rank)[0]


@QUICK
@given(**SHAPES)
def test_whole_numbers_are_projected_bit_for_bit(interpreter, tokens, columns, rank, seed):
    x, key = integers(seed, tokens, columns), projection_key(seed, 3, "layer")
    assert torch.equal(projected(interpreter, x, key, rank), plain.project(x, key, rank))


@QUICK
@given(**SHAPES, dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_real_numbers_are_projected_to_rounding(interpreter, tokens, columns, rank, seed, dtype):
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(seed)).to(dtype)
    key = projection_key(seed, 0, "layer")
    exact = x.double() @ signs(key, rank, columns, dtype=torch.float64).T
    bound = x.double().abs().sum(1, keepdim=True) * (columns * 2.0**-24)  # of an fp32 sum, in any order
    if dtype == torch.bfloat16:
        bound = bound + exact.abs() * 2.0**-8
    error = (projected(interpreter, x, key, rank).double() - exact).abs()
    assert bool((error <= bound).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "layout", ["transposed", "every second column", "a slice of rows", "three dimensions"]
)
def test_strides_and_leading_dimensions_do_not_matter(interpreter, layout, dtype):
    base = integers(5, 70, 70, dtype=dtype)
    x = {
        "transposed": base.T,
        "every second column": base[:, ::2],
        "a slice of rows": base[3:40, 1:66],
        "three dimensions": base.view(7, 10, 70)[:, 2:9],
    }[layout]
    key = projection_key(1, 2, "layer")
    result = projected(interpreter, x, key, 9)
    assert result.shape == (*x.shape[:-1], 9) and result.dtype == dtype
    assert torch.equal(result, plain.project(x.contiguous(), key, 9))


def test_a_half_is_rounded_to_the_nearest_even_not_cut(interpreter):
    x = torch.tensor(
        [[256.0, 1.0], [256.0, 3.0], [-256.0, -1.0]]
    ).bfloat16()  # sums of 257 and 259 lie half-way
    key = projection_key(0, 0, "layer")
    assert torch.equal(projected(interpreter, x, key, 16), plain.project(x, key, 16))


def test_a_value_that_is_not_finite_does_not_vanish(interpreter):
    for poison in (float("nan"), float("inf"), float("-inf")):
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.ones(2, 40, dtype=dtype)
            x[1, 33] = poison
            result = projected(interpreter, x, (1, 2), 5)
            assert bool(result[0].isfinite().all()) and not bool(result[1].isfinite().any())


def test_no_tokens_give_an_empty_projection(interpreter):
    assert projected(interpreter, torch.ones(0, 12), (1, 2), 3).shape == (0, 3)


def test_keys_above_two_to_the_31_wrap_as_unsigned_words(interpreter):
    x = torch.eye(70)
    for key in ((0, 0), (2**32 - 1, 2**32 - 1), (2**31, 1), (1, 2**31 - 1), (16, 2**32 - 16)):
        assert torch.equal(projected(interpreter, x, key, 40), signs(key, 40, 70).T)
