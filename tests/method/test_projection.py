"""The signs of A: the right bits, the right statistics, nothing repeated."""

from __future__ import annotations

import math
import statistics
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logra_lab.method.projection import (
    gram,
    lift,
    lifted_square,
    project,
    projection_key,
    rademacher,
    sign_words,
    signs,
)

M = 0xFFFFFFFF
GOLDEN = {  # (seed, update, group, rank, columns) → the first words of rows 0 and 1; stored, never recomputed
    (42, 0, "model.layers.0.mlp.down_proj", 2, 64): [1274172766, -1517724056, -434013178, 664547485],
    (7, 300, "a", 2, 64): [1896212872, -103496496, 1187693387, 1435509841],
}


def mixed(x: int) -> int:
    """MurmurHash3's finaliser on a Python integer."""
    x ^= x >> 16
    x = (x * 0x85EBCA6B) & M
    x ^= x >> 13
    x = (x * 0xC2B2AE35) & M
    return x ^ (x >> 16)


@pytest.mark.parametrize("case", list(GOLDEN))
def test_the_bits_are_those_stored_when_the_format_was_fixed(case):
    seed, update, group, rank, columns = case
    words = sign_words(projection_key(seed, update, group), rank, columns)
    assert words.flatten().tolist() == GOLDEN[case]


@settings(max_examples=40, deadline=None)
@given(
    key=st.tuples(st.integers(0, M), st.integers(0, M)), rank=st.integers(1, 9), columns=st.integers(1, 100)
)
def test_every_sign_is_the_documented_bit_of_plain_integer_arithmetic(key, rank, columns):
    matrix = signs(key, rank, columns)
    assert matrix.shape == (rank, columns)
    for i in range(rank):
        for j in range(columns):
            word = mixed(mixed((key[0] + j // 32) & M) ^ mixed((key[1] + i) & M))
            assert matrix[i, j] == (1.0 if word >> (j % 32) & 1 else -1.0)


def test_a_smaller_projection_is_the_corner_of_a_larger_one():
    key = projection_key(1, 2, "g")
    assert torch.equal(signs(key, 16, 200)[:5, :70], signs(key, 5, 70))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_signs_are_the_same_in_every_type(dtype):
    key = projection_key(3, 1, "g")
    assert torch.equal(signs(key, 8, 77, dtype=dtype).float(), signs(key, 8, 77))


def test_signs_are_fair_and_rows_and_columns_uncorrelated():
    a = signs(projection_key(0, 0, "g"), 256, 4096)
    n = a.numel()
    assert abs(a.mean()) < 5 / math.sqrt(n)  # five standard errors
    rows = (a @ a.T / a.shape[1]).fill_diagonal_(0)
    columns = (a.T @ a / a.shape[0]).fill_diagonal_(0)
    # the largest of m correlations of n signs stays below √(2 ln m / n) plus a margin
    assert rows.abs().max() < math.sqrt(2 * math.log(rows.numel()) / a.shape[1]) * 1.3
    assert columns.abs().max() < math.sqrt(2 * math.log(columns.numel()) / a.shape[0]) * 1.3
    assert abs(rows.square().mean() * a.shape[1] - 1) < 0.05  # as many chance correlations as chance has
    third = (a[:, :-2] * a[:, 1:-1] * a[:, 2:]).mean()  # no structure in neighbouring bits
    assert abs(third) < 5 / math.sqrt(n)


def test_a_gram_matrix_is_near_the_identity_scaled_by_columns_over_rank():
    a = rademacher(42, 0, "g", 16, 4096)
    near = gram(a) * 16 / 4096
    assert torch.allclose(near.diagonal(), torch.ones(16), atol=1e-5)
    assert (near - torch.eye(16)).abs().max() < 5 / math.sqrt(4096)


def test_no_projection_repeats_between_groups_updates_or_seeds():
    seen = {}
    for seed in range(4):
        for update in range(12):
            for group in ("layers.0.mlp.down_proj", "layers.1.mlp.down_proj", "layers.10.mlp.down_proj"):
                for row in sign_words(projection_key(seed, update, group), 8, 1024).tolist():
                    assert tuple(row) not in seen, (seed, update, group, seen[tuple(row)])
                    seen[tuple(row)] = (seed, update, group)
    words = [word for row in seen for word in row]
    expected = len(words) ** 2 / 2**33  # birthday collisions of fair 32-bit words
    assert len(words) - len(set(words)) < expected + 5 * math.sqrt(expected) + 5


def test_projections_of_neighbouring_updates_are_uncorrelated():
    first, second = (signs(projection_key(42, u, "g"), 64, 1024) for u in (0, 1))
    assert abs((first * second).mean()) < 5 / math.sqrt(first.numel())


def test_a_full_size_projection_is_made_in_milliseconds():
    rademacher(0, 0, "warm", 64, 4096)
    seconds = []
    for update in range(7):
        start = time.perf_counter()
        rademacher(0, update, "g", 64, 4096)
        seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < 0.03


@pytest.mark.parametrize(("rank", "columns"), [(4, 48), (16, 48), (48, 16)])
def test_the_lifted_sketch_is_unbiased_with_the_stated_norm_and_second_moment(rank, columns):
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(3, columns, generator=generator) * torch.tensor([[1.0], [3.0], [0.2]])
    total, ratios, squares, draws = torch.zeros_like(g), [], [], 4000
    for update in range(draws):
        a = rademacher(5, update, "g", rank, columns)
        sketch = project(g, a)  # [3, r], as S = G Aᵀ
        total += lift(sketch, a)
        ratios.append(float(lifted_square(sketch, gram(a)) / g.square().sum()))
        squares.append(sketch.square().mean(1))
    # each entry of the mean has standard error ≈ ‖g_i‖/√(r·draws); five of them
    error = g.norm(dim=1, keepdim=True) / math.sqrt(rank * draws)
    assert ((total / draws - g).abs() < 5 * error).all()
    expected = (columns + rank - 1) / rank  # method.md §1
    spread = statistics.stdev(ratios) / math.sqrt(draws)
    assert abs(statistics.mean(ratios) - expected) < 5 * spread
    moments = torch.stack(squares)
    expected_square = g.square().sum(1) / rank  # method.md §2
    standard_error = moments.std(0) / math.sqrt(draws)
    assert ((moments.mean(0) - expected_square).abs() < 5 * standard_error).all()


def test_the_gram_form_of_the_lifted_norm_equals_the_explicit_product():
    a = rademacher(1, 1, "g", 7, 90, dtype=torch.float64)
    sketch = torch.randn(11, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.isclose(lifted_square(sketch, gram(a)), lift(sketch, a).square().sum(), rtol=1e-12)


def test_a_rank_below_one_is_refused_with_its_value():
    with pytest.raises(ValueError, match="rank is 0.*choose rank"):
        rademacher(0, 0, "g", 0, 8)
