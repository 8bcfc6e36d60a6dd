"""The Triton merge equals its torch twin, W ← (1 − λ) W − F A, at each precision over shapes and strides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logra_lab.kernels import merge_kinds, plain
from logra_lab.method.merge import join_halves, split_halves
from logra_lab.method.projection import projection_key

from .test_triton_project import QUICK

SHAPES = {
    "rows": st.integers(1, 80),
    "columns": st.integers(1, 150),
    "rank": st.sampled_from([1, 4, 16, 64, 256]),
    "seed": st.integers(0, 2**31),
    "kind": st.sampled_from(merge_kinds()),
}


def case(
    seed: int, rows: int, columns: int, kind: str, exact: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """A weight and its lower halves. `exact`: multiples of 2⁻⁸ below 2⁴, whose sums with small ones are exact."""
    generator = torch.Generator().manual_seed(seed)
    value = torch.randn(rows, columns, generator=generator)
    if exact:
        value = value.mul(16).round().div(256)
    if kind == "fp32":
        return value, None
    if kind == "split":
        return split_halves(value)
    return value.bfloat16(), None


def merged(interpreter, weight, lower, factor, key, **options):
    """Weight and lower halves after the kernel ran on copies in the interpreter."""
    _, (after, *_), left = interpreter.call(
        "logra_lab.kernels", "merge", weight, factor, key, lower=lower, **options
    )
    return after, left["lower"]


def twin(weight, lower, factor, key, **options):
    weight, lower = weight.clone(), None if lower is None else lower.clone()
    plain.merge(weight, factor, key, lower=lower, **options)
    return weight, lower


def value_of(weight: torch.Tensor, lower: torch.Tensor | None) -> torch.Tensor:
    return weight.double() if lower is None else join_halves(weight, lower).double()


@QUICK
@given(**SHAPES)
def test_exact_sums_are_merged_bit_for_bit(interpreter, rows, columns, rank, seed, kind):
    weight, lower = case(seed, rows, columns, kind, exact=True)
    generator = torch.Generator().manual_seed(seed + 1)
    factor = torch.randint(-8, 9, (rows, rank), generator=generator) / 128  # ranks are squares: 1/√r is exact
    options = {
        "kind": kind,
        "decay": 0.5,
        "noise_key": projection_key(seed, 1, "noise"),
        "offset": seed % 1000,
    }
    after, low = merged(interpreter, weight, lower, factor, (seed, 7), **options)
    expected, expected_low = twin(weight, lower, factor, (seed, 7), **options)
    assert torch.equal(after, expected)
    assert low is None or torch.equal(low, expected_low)


@QUICK
@given(**{**SHAPES, "rank": st.integers(1, 100)})
def test_real_numbers_are_merged_to_rounding(interpreter, rows, columns, rank, seed, kind):
    weight, lower = case(seed, rows, columns, kind, exact=False)
    factor = torch.randn(rows, rank, generator=torch.Generator().manual_seed(seed + 1))
    options = {"kind": kind, "decay": 0.03, "noise_key": projection_key(seed, 1, "noise")}
    after = value_of(*merged(interpreter, weight, lower, factor, (seed, 7), **options))
    expected = value_of(*twin(weight, lower, factor, (seed, 7), **options))
    size = factor.double().abs().sum(1, keepdim=True) / rank**0.5 + expected.abs()
    step = (rank + 4) * 2.0**-24 * size  # rounding of the fp32 sums, in any order
    if kind in (
        "stochastic",
        "nearest",
    ):  # where two sums differ in a last bit, one bf16 step may lie between
        assert float(((after - expected).abs() > step).double().mean()) < 0.02
        step = step + expected.abs() * 2.0**-7
    assert bool(((after - expected).abs() <= step).all())


@pytest.mark.parametrize("kind", merge_kinds())
@pytest.mark.parametrize("layout", ["transposed", "every second row", "a slice of columns"])
def test_strides_do_not_matter_and_neighbours_are_left_alone(interpreter, kind, layout):
    view = {
        "transposed": lambda whole: whole.T,
        "every second row": lambda whole: whole[::2],
        "a slice of columns": lambda whole: whole[:, 5:61],
    }[layout]
    weight, lower = case(3, 72, 72, kind, exact=True)
    factor = torch.randint(-8, 9, (len(view(weight)), 4)) / 128
    expected, expected_low = twin(
        view(weight), None if lower is None else view(lower), factor, (3, 4), kind=kind
    )
    after, low = merged(
        interpreter, view(weight), None if lower is None else view(lower), factor, (3, 4), kind=kind
    )
    assert torch.equal(after, expected)
    assert low is None or torch.equal(low, expected_low)
    storage = after.as_strided(weight.shape, weight.stride(), 0)  # the whole of what the view lies in
    view(storage).copy_(view(weight))
    assert torch.equal(storage, weight)


def test_split_stays_bit_equal_to_fp32_over_many_merges(interpreter):
    master, _ = case(11, 33, 65, "fp32", exact=False)
    weight, lower = split_halves(master)
    for step in range(10):
        factor = torch.randn(33, 5, generator=torch.Generator().manual_seed(step)) * 1e-3
        options = {"factor": factor, "key": (step, 2**32 - step), "decay": 1e-3}
        master, _ = merged(interpreter, master, None, kind="fp32", **options)
        weight, lower = merged(interpreter, weight, lower, kind="split", **options)
        assert torch.equal(join_halves(weight, lower), master)


def test_stochastic_rounding_keeps_infinity_and_nan(interpreter):
    weight = torch.tensor([[float("inf"), float("-inf"), float("nan"), 1.0]]).bfloat16()
    after, _ = merged(
        interpreter, weight, None, torch.zeros(1, 1), (0, 0), kind="stochastic", noise_key=(5, 6)
    )
    assert torch.equal(after.nan_to_num(nan=7), weight.nan_to_num(nan=7))


def test_rows_of_a_shard_get_the_noise_of_their_global_numbers(interpreter):
    weight, _ = case(2, 40, 50, "stochastic", exact=False)
    factor = torch.randn(40, 4) * 1e-3
    options = {"kind": "stochastic", "noise_key": (8, 9)}
    whole, _ = merged(interpreter, weight, None, factor, (1, 2), **options)
    part, _ = merged(interpreter, weight[25:].clone(), None, factor[25:], (1, 2), offset=25, **options)
    assert torch.equal(part, whole[25:])
