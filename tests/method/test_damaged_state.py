"""A LoGRA state of which any place is damaged is refused in words, or taken as it stands; never half taken."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from logra_lab.method import LoGRA
from logra_lab.method.state_check import StateError, load_native
from tests.damage import damaged_value
from tests.method.worlds import same, snapshot, stack


def world(precision: str) -> tuple[nn.Module, LoGRA]:
    """Two layers and a bias moved by AdamW, one update done."""
    model = stack((9, 5), (5, 9), bias=True)
    model = model if precision == "fp32" else model.bfloat16()
    native = torch.optim.AdamW([layer["q_proj"].bias for layer in model.layers], lr=1e-3)
    optimizer = LoGRA(model, rank=3, seed=1, precision=precision, native=native)
    model(torch.ones(4, 5, dtype=next(model.parameters()).dtype)).sum().backward()
    assert optimizer.step(tokens=4).status == "updated"
    return model, optimizer


@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_five_hundred_damaged_states_each_are_refused_in_words_or_taken_whole(precision: str) -> None:
    model, optimizer = world(precision)
    good, dice = optimizer.state_dict(), random.Random(precision)
    before = snapshot(model, optimizer)
    refused = 0
    for _ in range(500):
        bad = damaged_value(good, dice)
        try:
            optimizer.load_state_dict(bad)
        except ValueError as error:
            assert len(str(error)) > 20 and same(before, snapshot(model, optimizer)), error
            refused += 1
        else:
            own, taken = bad["logra"], optimizer.state_dict()["logra"]
            assert (own["updates"], own["mismatch"]) == (taken["updates"], taken["mismatch"])
            assert all(torch.equal(own["moments"][name].float(), m) for name, m in taken["moments"].items())
            for key in ("", "extra", "Step"):  # a setting of some scheduler may stay in a group
                optimizer.param_groups[0].pop(key, None)
            optimizer.load_state_dict(good)
            assert same(before, snapshot(model, optimizer))
    assert refused > 250


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("updates", -1, "updates=-1 can't be counted from 0"),
        ("updates", 2**63, "can't be counted from 0"),
        ("updates", "ten", "the state's part 'updates' is of type str"),
        ("updates", True, "the state's part 'updates' is of type bool"),
        ("mismatch", float("nan"), "mismatch=nan is not finite"),
        ("moments", {}, "the row moment of layers.0.q_proj is missing or of another shape"),
        (
            "moments",
            {"layers.0.q_proj": 3},
            "the row moment of layers.0.q_proj is int, not a tensor of floats",
        ),
        ("targets", {"layers.0.q_proj": [9]}, "target layers.0.q_proj is list, not .rows, columns, group."),
        ("precision", {}, "what the precision keeps for layers.0.q_proj is missing or no tensors"),
        ("native", {"x": 1}, "the native optimizer can't load its part"),
        ("config", {1: 2}, "the state's part 'config' has a key of type int"),
        ("config", {"rank": torch.ones(2)}, "the state's config has rank of type Tensor"),
    ],
)
def test_a_part_that_can_not_be_is_named_with_the_remedy(part: str, value: object, message: str) -> None:
    model, optimizer = world("fp32")
    state = optimizer.state_dict()
    state["logra"][part] = value
    before = snapshot(model, optimizer)
    with pytest.raises(StateError, match=message):
        optimizer.load_state_dict(state)
    assert same(before, snapshot(model, optimizer))


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (None, "the state has NoneType parameter groups, 1 are needed"),
        ([], "the state has 0 parameter groups, 1 are needed"),
        ([7], "parameter group 0 is int, not settings by name"),
        ([{}], "parameter group 0 has no 'lr'"),
        ([{"lr": -1.0, "weight_decay": 0.0}], "parameter group 0 has lr=-1.0"),
        ([{"lr": float("inf"), "weight_decay": 0.0}], "parameter group 0 has lr=inf"),
        ([{"lr": "1e-3", "weight_decay": 0.0}], "parameter group 0 has lr='1e-3'"),
    ],
)
def test_parameter_groups_that_can_not_be_are_named(groups: object, message: str) -> None:
    _, optimizer = world("fp32")
    with pytest.raises(StateError, match=message):
        optimizer.load_state_dict(optimizer.state_dict() | {"param_groups": groups})


def test_lower_halves_of_another_shape_are_refused() -> None:
    model, optimizer = world("split")
    state = optimizer.state_dict()
    state["logra"]["precision"]["layers.0.q_proj"] = {"lower": torch.zeros(2, 2, dtype=torch.int16)}
    with pytest.raises(ValueError, match=r"lower halves of layers.0.q_proj are not int16 \[9, 5\]"):
        optimizer.load_state_dict(state)


def test_a_native_optimizer_that_fails_half_way_is_put_back() -> None:
    weight = nn.Parameter(torch.ones(2))
    native = torch.optim.SGD([weight], lr=0.5)
    with pytest.raises(StateError, match="the native optimizer can't load its part"):
        load_native(native, {"state": {}, "param_groups": [{"params": [0, 1], "lr": 9.0}]})
    assert native.param_groups[0]["lr"] == 0.5
