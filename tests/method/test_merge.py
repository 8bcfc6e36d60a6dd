"""Four merge precisions: what each keeps of an update, bit by bit and on average."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logra_lab.method import merge
from logra_lab.method.merge import (
    FP32,
    PRECISIONS,
    Nearest,
    Split,
    Stochastic,
    fingerprint,
    join_halves,
    rounding_noise,
    row_blocks,
    split_halves,
    stochastic_round,
)
from logra_lab.method.projection import projection_key, signs


@settings(max_examples=200, deadline=None)
@given(bits=st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50))
def test_halves_rebuild_every_fp32_pattern_but_nan_payloads(bits):
    value = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    value = value[value.abs() < 3.38e38]  # beyond, the upper half rounds to infinity
    assert torch.equal(join_halves(*split_halves(value)).view(torch.int32), value.view(torch.int32))


def test_halves_rebuild_four_million_patterns_and_round_half_up():
    bits = torch.arange(-(2**31), 2**31 - 1, 1021, dtype=torch.int64).to(torch.int32)
    value = bits.view(torch.float32)
    keep = value.isfinite() & (value.abs() < 3.38e38)
    upper, lower = split_halves(value[keep])
    assert torch.equal(join_halves(upper, lower).view(torch.int32), bits[keep])
    error = (upper.float() - value[keep]).abs()
    nearest = (value[keep].to(torch.bfloat16).float() - value[keep]).abs()
    assert torch.equal(error, nearest)  # never further than rounding to nearest


def test_truncating_instead_would_shrink_the_forward_weight_by_a_quarter_percent():
    w = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    truncated = (w.view(torch.int32) & -65536).view(torch.float32)
    assert 0.002 < 1 - float(truncated.abs().mean() / w.abs().mean()) < 0.0035
    assert abs(1 - float(split_halves(w)[0].float().abs().mean() / w.abs().mean())) < 1e-4


def random_updates(count: int, d: int, k: int, r: int, size: float):
    generator = torch.Generator().manual_seed(3)
    for update in range(count):
        yield (
            update,
            torch.randn(d, r, generator=generator) * size,
            signs(projection_key(0, update, "g"), r, k),
        )


@pytest.mark.parametrize("halves", ["device", "host"])
@pytest.mark.parametrize("decay", [0.0, 1e-4])
def test_split_equals_an_fp32_master_bit_for_bit_over_300_random_steps(halves, decay, monkeypatch):
    monkeypatch.setattr(merge, "BLOCK", 40)  # several row blocks, the last one short
    d, k, r = 13, 17, 4
    start = torch.randn(d, k, generator=torch.Generator().manual_seed(0)).bfloat16()
    master, upper = start.float(), start.clone()
    fp32, split = FP32(), Split(halves=halves)
    split.adopt("w", upper)
    for update, factor, sign in random_updates(300, d, k, r, 1e-5):
        fp32.add_low_rank("w", master, factor, sign, decay, update)
        split.add_low_rank("w", upper, factor, sign, decay, update)
        if update == 150:  # through save and load
            saved = {key: value.clone() for key, value in split.state("w").items()}
            split = Split(halves=halves)
            split.check_state("w", upper, saved)
            split.load("w", upper, saved)
    assert torch.equal(split.read("w", upper), master)
    assert torch.equal(upper, split_halves(master)[0])
    assert not torch.equal(master, start.float())


def test_stochastic_rounding_is_unbiased_within_five_standard_errors():
    value = torch.randn(200, generator=torch.Generator().manual_seed(0))
    draws, total = 4000, torch.zeros(200, dtype=torch.float64)
    for update in range(draws):
        noise = rounding_noise(projection_key(0, update, "rounding/w"), torch.arange(1), 200)[0]
        total += stochastic_round(value, noise).double()
    gap = torch.exp2(value.abs().log2().floor() - 7).double()  # between bf16 neighbours
    assert ((total / draws - value).abs() < 5 * gap / 2 / math.sqrt(draws)).all()


def test_rounding_noise_is_uniform_and_differs_between_rows_updates_and_names():
    noise = rounding_noise(projection_key(0, 1, "rounding/w"), torch.arange(64), 512)
    assert noise.min() >= 0 and noise.max() < 2**16
    count = noise.numel()
    assert abs(float(noise.double().mean()) - (2**16 - 1) / 2) < 5 * 2**16 / math.sqrt(12 * count)
    assert not torch.equal(noise, rounding_noise(projection_key(0, 2, "rounding/w"), torch.arange(64), 512))
    assert not torch.equal(noise[0], noise[1])
    shifted = rounding_noise(projection_key(0, 1, "rounding/w"), torch.arange(10, 20), 512)
    assert torch.equal(shifted, noise[10:20])  # a shard rounds as the whole would


@pytest.mark.parametrize("name", list(PRECISIONS))
def test_a_thousand_small_steps_on_ones_arrive_in_all_but_nearest(name):
    # F A = 1e-4 everywhere: rank 1 with the signs folded into the factor's single column.
    d, k = 8, 64
    precision = PRECISIONS[name](0)
    weight = torch.ones(d, k, dtype=torch.float32 if name == "fp32" else torch.bfloat16)
    precision.adopt("w", weight)
    for update in range(1000):
        precision.add_low_rank("w", weight, torch.full((d, 1), 1e-4), torch.ones(1, k), 0.0, update)
    moved = 1.0 - float(precision.read("w", weight).double().mean())
    if name == "nearest":
        assert moved == 0.0
    else:
        assert abs(moved - 0.1) < 0.01


def test_nearest_loses_most_of_a_small_displacement_and_split_keeps_it():
    d, k, r = 64, 128, 8
    start = (torch.randn(d, k, generator=torch.Generator().manual_seed(0)) * 0.03).bfloat16()
    kept = {}
    for name in PRECISIONS:
        precision, weight = PRECISIONS[name](0), start.float() if name == "fp32" else start.clone()
        precision.adopt("w", weight)
        drift = torch.randn(d, r, generator=torch.Generator().manual_seed(9)) * 2e-6
        sign = signs(projection_key(0, 0, "g"), r, k)
        for update in range(300):
            precision.add_low_rank("w", weight, drift, sign, 0.0, update)
        kept[name] = precision.read("w", weight) - start.float()
    share = {n: float((kept[n] * kept["fp32"]).sum() / kept["fp32"].square().sum()) for n in kept}
    assert share["split"] == pytest.approx(1.0, abs=1e-6)
    assert share["stochastic"] == pytest.approx(1.0, abs=0.1)
    assert share["nearest"] < 0.5


@pytest.mark.parametrize("name", list(PRECISIONS))
@pytest.mark.parametrize("shape", [(1, 7), (2, 5), (33, 9), (5, 1)])
def test_the_merge_equals_the_explicit_product(name, shape, monkeypatch):
    monkeypatch.setattr(merge, "BLOCK", 20)
    d, k = shape
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(d, k, generator=generator).bfloat16()
    weight = weight.float() if name == "fp32" else weight
    precision, factor = PRECISIONS[name](0), torch.randn(d, 3, generator=generator)
    sign = signs(projection_key(0, 0, "g"), 3, k)
    expected = 0.9 * weight.double() - factor.double() @ (sign.double() / 3**0.5)
    precision.adopt("w", weight)
    pointer = weight.data_ptr()
    precision.add_low_rank("w", weight, factor, sign, 0.1, 0)
    tolerance = {"fp32": 1e-6, "split": 1e-6}.get(name, 2**-7)
    assert weight.data_ptr() == pointer
    assert torch.allclose(precision.read("w", weight).double(), expected, rtol=tolerance, atol=1e-6)
    assert float(precision.square("w", weight)) == pytest.approx(
        float(precision.read("w", weight).double().square().sum()), rel=1e-6
    )


def test_reading_returns_a_copy_and_measuring_leaves_the_weight_alone():
    weight, precision = torch.randn(4, 4), FP32()
    before = weight.clone()
    precision.read("w", weight).zero_()
    precision.square("w", weight)
    assert torch.equal(weight, before)


@given(rows=st.integers(0, 50), columns=st.integers(1, 50), block=st.integers(1, 400))
def test_row_blocks_cover_every_row_once_and_never_the_whole_of_several(rows, columns, block):
    before, merge.BLOCK = merge.BLOCK, block
    try:
        blocks = list(row_blocks(rows, columns))
    finally:
        merge.BLOCK = before
    assert [i for b in blocks for i in range(b.start, b.stop)] == list(range(rows))
    assert rows < 2 or len(blocks) >= 2


def test_lower_halves_are_refused_for_other_weights():
    weight = torch.randn(4, 6).bfloat16()
    split = Split()
    split.adopt("w", weight)
    saved = split.state("w")
    other = weight.clone()
    other[2, 3] += 1
    with pytest.raises(ValueError, match="lower halves of w belong to other weights"):
        split.check_state("w", other, saved)
    assert torch.equal(fingerprint(weight), saved["fingerprint"])


@pytest.mark.parametrize(
    ("precision", "dtype", "remedy"),
    [
        (FP32(), torch.bfloat16, "choose precision='split'"),
        (Split(), torch.float32, "load the model in bf16"),
        (Stochastic(), torch.float32, "load the model in bf16"),
        (Nearest(), torch.float64, "load the model in bf16"),
    ],
)
def test_a_weight_of_the_wrong_type_is_refused_with_the_remedy(precision, dtype, remedy):
    with pytest.raises(TypeError, match=remedy):
        precision.check("w", torch.zeros(2, 2, dtype=dtype))
