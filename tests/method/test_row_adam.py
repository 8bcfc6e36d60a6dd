"""The row rule against float64 references and its own invariants."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from logra_lab.method.row_adam import (
    lr_factor,
    next_row_moment,
    paper_factor,
    paper_scale,
    row_rms,
    row_scale,
)
from tests.method.worlds import reference_row_adam_lr, reference_row_adam_paper

BETA2, EPS = 0.95, 1e-8


def random_sketches(steps: int, rows: int, rank: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = torch.logspace(-6, 1, rows)[:, None]
    return [torch.randn(rows, rank, generator=generator) * scale for _ in range(steps)]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_rule_lr_equals_the_slow_reference_over_25_steps(decay):
    sketches = random_sketches(25, 6, 4)
    generator = torch.Generator().manual_seed(1)
    projections = [torch.randn(4, 9, generator=generator) for _ in sketches]
    weight = torch.randn(6, 9, generator=generator)
    expected = reference_row_adam_lr(weight, sketches, projections, 0.01, decay, BETA2, EPS)
    moment = torch.zeros(6)
    for step, (sketch, projection) in enumerate(zip(sketches, projections, strict=True), 1):
        moment = next_row_moment(moment, sketch, BETA2)
        weight = weight * (1 - 0.01 * decay) - 0.01 * lr_factor(sketch, moment, step, BETA2, EPS) @ projection
    assert torch.allclose(weight.double(), expected, rtol=1e-5, atol=1e-6)


def test_rule_paper_equals_the_slow_reference_over_25_steps():
    generator = torch.Generator().manual_seed(1)
    names, ratio = {"a": (6, 9), "b": (3, 5)}, 1e-2
    weights = {name: torch.randn(*shape, generator=generator) for name, shape in names.items()}
    steps = [
        {name: torch.randn(shape[0], 4, generator=generator) for name, shape in names.items()}
        for _ in range(25)
    ]
    bases = [
        {name: torch.randn(4, shape[1], generator=generator) for name, shape in names.items()} for _ in steps
    ]
    counts = [float(10 + 7 * (i % 4)) for i in range(25)]
    expected = reference_row_adam_paper(weights, steps, bases, counts, ratio, BETA2, EPS)
    moments = {name: torch.zeros(shape[0]) for name, shape in names.items()}
    for step, (sketches, projections, count) in enumerate(zip(steps, bases, counts, strict=True), 1):
        factors = {}
        for name in names:
            scaled = sketches[name] / count
            moments[name] = next_row_moment(moments[name], scaled, BETA2)
            factors[name] = paper_factor(scaled, moments[name], step, BETA2, EPS)
        changes = {name: factors[name] @ projections[name] for name in names}
        size = sum(float(w.square().sum()) for w in weights.values())
        c = paper_scale(size, sum(float(x.square().sum()) for x in changes.values()), ratio)
        weights = {name: weights[name] - c * changes[name] for name in names}
    for name in names:
        assert torch.allclose(weights[name].double(), expected[name], rtol=1e-5, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 12), rank=st.integers(1, 8), step=st.integers(1, 400), exponent=st.integers(-15, 8),
    zeros=st.integers(0, 3), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_paper_factor_keeps_the_layers_norm_and_stays_finite(rows, rank, step, exponent, zeros, seed):
    generator = torch.Generator().manual_seed(seed)
    sketch = torch.randn(rows, rank, generator=generator) * 10.0**exponent
    sketch[: min(zeros, rows)] = 0
    moment = next_row_moment(torch.zeros(rows), sketch, BETA2)
    factor = paper_factor(sketch, moment, step, BETA2, EPS)
    assert factor.isfinite().all()
    assert math.isclose(factor.double().norm(), sketch.double().norm(), rel_tol=1e-4, abs_tol=1e-30)
    assert (factor[: min(zeros, rows)] == 0).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 99), factor=st.floats(1e-3, 1e3))
def test_the_paper_factor_scales_with_the_sketch_and_its_history(seed, factor):
    generator = torch.Generator().manual_seed(seed)
    sketch, moment = torch.randn(5, 3, generator=generator), torch.rand(5, generator=generator) + 0.1
    once = paper_factor(sketch, moment, 3, BETA2, EPS)
    scaled = paper_factor(sketch * factor, moment * factor**2, 3, BETA2, EPS)
    assert torch.allclose(scaled, once * factor, rtol=1e-4)


def test_the_row_scale_has_rms_one_and_favours_quiet_rows():
    moment = torch.tensor([1e-6, 1.0, 100.0])
    scale = row_scale(moment, 10, BETA2, EPS)
    assert math.isclose(float(scale.square().mean()), 1.0, rel_tol=1e-6)
    assert scale[0] > scale[1] > scale[2]


def test_the_bias_correction_makes_the_first_moment_estimate_the_sketch_itself():
    sketch = torch.tensor([[3.0, -3.0], [0.5, 0.5]])
    moment = next_row_moment(torch.zeros(2), sketch, BETA2)
    assert torch.allclose(row_rms(moment, 1, BETA2), torch.tensor([3.0, 0.5]).double(), rtol=1e-6)
    uncorrected = moment.sqrt()
    assert not torch.allclose(uncorrected.double(), torch.tensor([3.0, 0.5]).double(), rtol=0.1)


def test_rule_lr_moves_every_element_by_about_the_learning_rate():
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(40, 200, generator=generator) * torch.logspace(-4, 2, 40)[:, None]
    a = torch.randint(0, 2, (16, 200), generator=generator) * 2.0 - 1
    a /= 4.0
    sketch = g @ a.T
    moment = next_row_moment(torch.zeros(40), sketch, BETA2)
    change = lr_factor(sketch, moment, 1, BETA2, EPS) @ a
    assert 0.9 < float(change.square().mean().sqrt()) < 1.1  # method.md §2: Adam's learning rates carry over


def test_the_paper_scale_makes_the_step_a_fixed_fraction_of_the_weights():
    assert math.isclose(paper_scale(4.0, 25.0, 6e-5), 6e-5 * 2 / 5)
    assert paper_scale(4.0, 0.0, 6e-5) == 0.0


def test_a_layer_without_any_signal_moves_nothing_and_makes_no_nan():
    zero = torch.zeros(4, 3)
    assert torch.equal(paper_factor(zero, torch.zeros(4), 1, BETA2, EPS), zero)
    assert torch.equal(lr_factor(zero, torch.zeros(4), 1, BETA2, EPS), zero)
    assert torch.equal(paper_factor(zero, torch.ones(4), 9, BETA2, EPS), zero)
