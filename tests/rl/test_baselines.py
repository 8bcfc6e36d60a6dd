"""Arms: one interface, each with the optimizer it names, and a controller that follows its rule."""

from __future__ import annotations

import io

import pytest
import torch

from logra_lab.method import DEFAULT_TARGETS
from logra_lab.rl.baselines import ARMS, make_arm, target_weights, tensor_bytes
from logra_lab.rl.config import ArmConfig
from logra_lab.rl.feedback import KLFeedback
from logra_lab.rl.row_adam import RowAdam
from tests.rl.models import llama

PACKAGES = {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}
IDS = torch.tensor([[3, 4, 5, 6, 7]])


def arm_of(name, model=None, **options):
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name], reason=f"needs {PACKAGES[name]}: pip install 'logra-lab[race]'")
    settings = {"lr": 1e-3, "rank": 2, "rule": "lr", "control": "none"} | options
    return make_arm(ArmConfig(name, **settings), model if model is not None else llama(), seed=0, steps=10)


def backward(model):
    model(input_ids=IDS, labels=IDS).loss.backward()


def test_row_adam_follows_its_formula_over_several_steps():
    weight = torch.nn.Parameter(torch.randn(3, 5, generator=torch.Generator().manual_seed(0)))
    reference, moment = weight.detach().double().clone(), torch.zeros(3, dtype=torch.float64)
    optimizer = RowAdam([weight], lr=0.1, beta2=0.9)
    for step in range(1, 5):
        gradient = torch.randn(3, 5, generator=torch.Generator().manual_seed(step))
        weight.grad = gradient.clone()
        optimizer.step()
        g = gradient.double()
        for i in range(3):
            moment[i] = 0.9 * moment[i] + 0.1 * sum(g[i, j] ** 2 for j in range(5)) / 5
            reference[i] -= 0.1 * g[i] / ((moment[i] / (1 - 0.9**step)).sqrt() + 1e-8)
    torch.testing.assert_close(weight.detach(), reference.float(), rtol=1e-5, atol=1e-6)


def test_the_first_row_adam_step_has_unit_rms_in_every_row():
    weight = torch.nn.Parameter(torch.zeros(4, 50))
    weight.grad = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1e-3], [1.0], [10.0], [1e4]]
    )
    RowAdam([weight], lr=0.1).step()
    torch.testing.assert_close(
        weight.detach().square().mean(-1).sqrt(), torch.full((4,), 0.1), rtol=1e-4, atol=0
    )


def test_lora_starts_as_the_model_it_is_put_on_whatever_the_global_seed():
    torch.manual_seed(1)
    plain = llama()(input_ids=IDS).logits
    first = arm_of("lora")
    torch.manual_seed(2)
    second = arm_of("lora")
    torch.testing.assert_close(first.model(input_ids=IDS).logits, plain)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert {n.split(".")[-4] for n, p in first.model.named_parameters() if p.requires_grad} == set(
        DEFAULT_TARGETS
    )


@pytest.mark.parametrize("name", ARMS)
def test_an_arms_state_survives_a_safe_load_and_the_next_step_is_the_same(name):
    first, second = arm_of(name), arm_of(name)
    for _ in range(2):
        backward(first.model)
        assert first.step().status == "updated"
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second.model.load_state_dict(first.model.state_dict())
    second.load_state_dict(torch.load(buffer, weights_only=True))
    assert second.updates == 2
    for arm in (first, second):
        backward(arm.model)
        arm.step()
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ARMS)
def test_a_step_without_gradients_or_with_nan_changes_nothing_and_says_why(name):
    arm = arm_of(name)
    before = [p.detach().clone() for p in arm.model.parameters()]
    (0.0 * arm.model(input_ids=IDS, labels=IDS).loss).backward()
    assert arm.step().status == "no signal"
    (torch.nan * arm.model(input_ids=IDS, labels=IDS).loss).backward()
    report = arm.step()
    assert report.status == "non-finite" and report.message
    assert (
        all(torch.equal(a, b) for a, b in zip(before, arm.model.parameters(), strict=True))
        and arm.updates == 0
    )


def test_logra_keeps_sketches_where_the_dense_arms_keep_gradients():
    dense, sketched = arm_of("adamw_targets").memory(), None
    arm = arm_of("logra")
    backward(arm.model)
    sketched = arm.memory()
    targets = [m.weight for n, m in arm.model.named_modules() if n.rsplit(".", 1)[-1] in DEFAULT_TARGETS]
    assert sketched["gradients"] == sum(w.shape[0] * 2 * 4 for w in targets)
    assert sketched["optimizer"] == sum(w.shape[0] * 4 for w in targets)
    assert dense["gradients"] == sum(w.numel() * 4 for w in targets)
    assert sketched["weights"] == dense["weights"]


def test_bytes_are_counted_in_nested_states():
    assert (
        tensor_bytes({"a": [torch.zeros(3), {"b": torch.zeros(2, dtype=torch.float64)}], "c": 1.0}) == 12 + 16
    )


def test_the_controller_shrinks_above_twice_the_budget_grows_below_half_and_waits_between():
    control = KLFeedback(budget=1e-2, final_budget=1e-2, schedule_steps=10)
    assert control.observe(2.1e-2, 0) == pytest.approx(1 / 1.5)
    assert control.observe(1.5e-2, 1) == pytest.approx(1 / 1.5)
    assert control.observe(0.4e-2, 2) == pytest.approx(1.0)
    falling = KLFeedback(budget=1e-2, final_budget=1e-3, schedule_steps=10)
    assert falling.delta(0) == pytest.approx(1e-2) and falling.delta(9) == pytest.approx(1e-3)


def test_the_controllers_factor_reaches_every_group_of_the_optimizer():
    arm = arm_of("adamw")
    arm.scale_steps(0.5)
    arm.scale_steps(0.5)  # a factor of the configured size, not of the last
    assert [group["lr"] for group in arm.optimizer.param_groups] == [5e-4]


def test_only_the_targets_train_in_the_arms_that_say_so():
    model = llama()
    chosen = target_weights(model)
    trainable = {n for n, p in model.named_parameters() if p.requires_grad}
    assert len(chosen) == len(trainable) and all(n.split(".")[-2] in DEFAULT_TARGETS for n in trainable)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_named_with_the_extra_that_holds_it(name, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(ImportError, match=r"pip install 'logra-lab\[race\]'"):
        make_arm(ArmConfig(name, control="none"), llama(), seed=0, steps=1)
