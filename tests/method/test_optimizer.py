"""LoGRA as trainers use it: exact rules, accumulation, schedulers, clipping, no signal, no poison."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from logra_lab.method import LoGRA, StaleProposal, TrustRegion
from logra_lab.method.sketch import Projections
from tests.method.worlds import (
    TokenProbe,
    dense_gradients,
    llama,
    loss_of,
    reference_row_adam_lr,
    reference_row_adam_paper,
    same,
    snapshot,
    stack,
    tokens,
)

X = torch.randn(24, 20, generator=torch.Generator().manual_seed(4))


def run(model: nn.Module, optimizer: LoGRA, steps: int, **arguments) -> list:
    """`steps` updates on fixed data; returns the sketches and projections that each used."""
    used = []
    for _ in range(steps):
        model(X).square().sum().backward()
        names = [target.name for target in optimizer.targets]
        used.append({n: (optimizer.sketches[n].clone(), optimizer.projection(n)) for n in names})
        assert optimizer.step(**arguments).status == "updated"
    return used


@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_rule_lr_over_25_updates_equals_the_float64_reference(decay):
    model = stack((12, 20), (9, 12))
    start = {
        f"layers.{i}.q_proj": layer["q_proj"].weight.detach().clone() for i, layer in enumerate(model.layers)
    }
    optimizer = LoGRA(model, rank=6, rule="lr", lr=3e-3, weight_decay=decay)
    used = run(model, optimizer, 25)
    for name, weight in start.items():
        sketches, projections = zip(*(step[name] for step in used), strict=True)
        expected = reference_row_adam_lr(weight, sketches, projections, 3e-3, decay, 0.95, 1e-8)
        assert torch.allclose(optimizer.weight(name).double(), expected, rtol=1e-5, atol=1e-6)


def test_rule_paper_over_25_updates_equals_the_float64_reference():
    model = stack((12, 20), (9, 12))
    start = {
        f"layers.{i}.q_proj": layer["q_proj"].weight.detach().clone() for i, layer in enumerate(model.layers)
    }
    optimizer = LoGRA(model, rank=6, update_ratio=1e-2)
    used = run(model, optimizer, 25, tokens=17)
    sketches = [{name: step[name][0] for name in start} for step in used]
    projections = [{name: step[name][1] for name in start} for step in used]
    expected = reference_row_adam_paper(start, sketches, projections, [17.0] * 25, 1e-2, 0.95, 1e-8)
    for name in start:
        assert torch.allclose(optimizer.weight(name).double(), expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_at_full_rank_with_the_identity_it_is_row_wise_adam_on_the_dense_gradient(monkeypatch, decay):
    def identity(self, target, device, dtype):  # signs are √r A
        return self.rank**0.5 * torch.eye(self.rank, target.columns, device=device, dtype=dtype)

    monkeypatch.setattr(Projections, "signs", identity)
    model = stack((12, 20), dtype=torch.float64)
    x, lr = X.double(), 1e-2
    weight, moment = model.layers[0]["q_proj"].weight.detach().clone(), torch.zeros(12, dtype=torch.float64)
    optimizer = LoGRA(model, rank=20, rule="lr", lr=lr, weight_decay=decay)
    for step in range(1, 21):
        live = weight.clone().requires_grad_(True)
        torch.tanh(x @ live.T).square().sum().backward()
        moment = 0.95 * moment + 0.05 * live.grad.square().mean(1)
        direction = live.grad / ((moment / (1 - 0.95**step)).sqrt() + 1e-8)[:, None]
        weight = (1 - lr * decay) * weight - lr * direction  # decay before the update
        model(x).square().sum().backward()
        optimizer.step()
        assert (optimizer.weight("layers.0.q_proj") - weight).abs().max() < 1e-6


@pytest.mark.parametrize("rule", ["paper", "lr"])
def test_1_2_4_and_7_micro_batches_give_one_and_the_same_update(rule):
    results = []
    for parts in (1, 2, 4, 7):
        model = llama()
        optimizer = LoGRA(
            model, rank=8, rule=rule, update_ratio=1e-3, **({"lr": 1e-3} if rule == "lr" else {})
        )
        ids = tokens(14)
        for part in ids.chunk(parts):
            loss_of(model, part, ids[:, 1:].numel()).backward()
        optimizer.step(tokens=ids[:, 1:].numel())
        results.append({target.name: optimizer.weight(target.name) for target in optimizer.targets})
    for other in results[1:]:
        for name, weight in results[0].items():
            change = weight - llama().get_submodule(name).weight
            assert (other[name] - weight).norm() < 1e-3 * change.norm()


def test_zero_grad_either_way_clears_and_never_calling_it_does_no_harm():
    weights = []
    for habit in ("optimizer", "optimizer keeping", "model", "never"):
        model = stack((12, 20), (9, 12))
        optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2)
        for _ in range(3):
            if habit == "optimizer":
                optimizer.zero_grad()
            elif habit == "optimizer keeping":
                optimizer.zero_grad(set_to_none=False)
            elif habit == "model":
                model.zero_grad()
            model(X).square().sum().backward()
            optimizer.step()
        weights.append(optimizer.weight("layers.0.q_proj"))
    assert all(torch.equal(weight, weights[0]) for weight in weights)
    model(X).square().sum().backward()
    optimizer.zero_grad()
    assert not any(sketch.any() for sketch in optimizer.sketches.values())


@pytest.mark.parametrize("rule", ["paper", "lr"])
def test_a_scheduler_scales_the_step(rule):
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule=rule, update_ratio=1e-2, **({"lr": 1e-2} if rule == "lr" else {}))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: [1.0, 0.5, 0.0][min(step, 2)])
    sizes = []
    for _ in range(3):
        before = optimizer.weight("layers.0.q_proj")
        model(X).square().sum().backward()
        proposal = optimizer.propose()
        optimizer.commit(proposal)
        scheduler.step()
        after = optimizer.weight("layers.0.q_proj")
        sizes.append(float((after - before).norm() / before.norm()))
    assert sizes[0] > 0 and sizes[2] == 0
    if rule == "paper":
        assert sizes[0] == pytest.approx(1e-2, rel=1e-4) and sizes[1] == pytest.approx(5e-3, rel=1e-4)


def test_clipping_uses_the_exact_norm_of_the_lifted_sketch_and_reports_it():
    model = stack((12, 20), (9, 12))
    plain, clipped = (
        LoGRA(m, rank=6, rule="lr", max_grad_norm=c) for m, c in ((model, None), (copy.deepcopy(model), 0.5))
    )
    for optimizer in (plain, clipped):
        optimizer.model(X).square().sum().backward()
    lifted = {n: clipped.sketches[n] @ clipped.projection(n) for n in clipped.sketches}
    norm = math.sqrt(sum(float(x.square().sum()) for x in lifted.values()))
    assert norm > 0.5
    proposal = clipped.propose()
    assert proposal.sketch_norm == pytest.approx(norm, rel=1e-5)
    assert proposal.clip == pytest.approx(0.5 / norm, rel=1e-5)
    for name, moment in plain.propose().moments.items():
        assert torch.allclose(proposal.moments[name], moment * proposal.clip**2, rtol=1e-4)
    assert clipped.step().sketch_norm == pytest.approx(norm, rel=1e-5)


def test_proposing_is_pure_and_a_dropped_proposal_leaves_everything_as_it_was():
    model = llama()
    optimizer = LoGRA(model, rank=8, trust_region=TrustRegion())
    loss_of(model, tokens(4)).backward()
    before = snapshot(model, optimizer)
    first = optimizer.propose(tokens=44)
    optimizer.judge(first, TokenProbe(tokens(2)))
    assert same(before, snapshot(model, optimizer))
    second = optimizer.propose(tokens=44)
    assert same(dict(first.factors), dict(second.factors)) and same(dict(first.moments), dict(second.moments))
    assert same(before, snapshot(model, optimizer))


def test_a_proposal_is_good_for_one_commit_of_the_state_it_came_from():
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2)
    model(X).sum().backward()
    proposal, twin = optimizer.propose(), optimizer.propose()
    optimizer.commit(proposal)
    before = snapshot(model, optimizer)
    for stale in (proposal, twin):
        with pytest.raises(
            StaleProposal, match="made at update 0.*optimizer is at update 1.*propose\\(\\) again"
        ):
            optimizer.commit(stale)
    with pytest.raises(StaleProposal):
        with optimizer.preview(proposal):
            pass
    assert same(before, snapshot(model, optimizer))


def test_step_without_backward_or_a_second_time_changes_nothing_and_says_so():
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2)
    before = snapshot(model, optimizer)
    report = optimizer.step()
    assert report.status == "no signal" and "no backward" in report.message
    model(X).sum().backward()
    assert optimizer.step().status == "updated"
    weight = optimizer.weight("layers.0.q_proj")
    assert optimizer.step().status == "no signal"
    assert torch.equal(weight, optimizer.weight("layers.0.q_proj"))
    assert not torch.equal(weight, before["weights"]["layers.0.q_proj.weight"])
    assert optimizer.updates == 1 and optimizer.no_signal_steps == 2


@pytest.mark.parametrize("rule", ["paper", "lr"])
@pytest.mark.parametrize("updates_before", [0, 1])
def test_a_step_without_signal_leaves_weights_moments_projection_budget_and_native_alone(
    rule, updates_before
):
    model = stack((12, 20), (9, 12), bias=True)
    biases = [layer["q_proj"].bias for layer in model.layers]
    native = torch.optim.AdamW(biases, lr=1e-2)
    optimizer = LoGRA(model, rank=6, rule=rule, native=native)
    for _ in range(updates_before):
        model(X).square().sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    projection = optimizer.projection("layers.0.q_proj")
    before = snapshot(model, optimizer)
    (model(X).square().sum() * 0.0).backward()  # all rewards equal: every advantage is zero
    report = optimizer.step()
    after = snapshot(model, optimizer)
    assert report.status == "no signal" and "every sketch is zero" in report.message
    assert after["state"]["logra"].pop("no_signal_steps") == 1
    assert before["state"]["logra"].pop("no_signal_steps") == 0
    assert same(before, after)
    assert torch.equal(projection, optimizer.projection("layers.0.q_proj"))
    optimizer.zero_grad()
    model(X).square().sum().backward()
    assert optimizer.step().status == "updated"


def test_a_no_signal_step_with_a_trust_region_keeps_budget_and_mismatch():
    model = llama()
    optimizer = LoGRA(model, rank=4, trust_region=TrustRegion())
    (loss_of(model, tokens(2)) * 0).backward()
    report = optimizer.step(probe=TokenProbe(tokens(2)), mismatch=1e-3)
    assert report.status == "no signal" and optimizer.mismatch == 0.0 and optimizer.updates == 0


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_a_non_finite_gradient_skips_the_update_and_loses_nothing(poison):
    model = llama()
    optimizer = LoGRA(model, rank=4, update_ratio=1e-3)
    loss_of(model, tokens(4)).backward()
    optimizer.step()
    clean = snapshot(model, optimizer)
    (loss_of(model, tokens(4)) * poison).backward()
    report = optimizer.step()
    assert (
        report.status == "non-finite"
        and "not finite" in report.message
        and "mlp" in report.message
        or "attn" in report.message
    )
    assert same(clean, snapshot(model, optimizer))
    loss_of(model, tokens(4)).backward()
    assert optimizer.step().status == "updated"


def test_one_layers_zero_rows_are_normal():
    model = stack((12, 20), (9, 12))
    with torch.no_grad():
        model.layers[1]["q_proj"].weight[:, :5] = 0  # rows 0–4 of the first layer get no gradient
    optimizer = LoGRA(model, rank=6, update_ratio=1e-2)
    before = optimizer.weight("layers.0.q_proj")
    model(X).square().sum().backward()
    optimizer.step()
    after = optimizer.weight("layers.0.q_proj")
    assert torch.equal(before[:5], after[:5]) and after.isfinite().all()
    assert (before[5:] != after[5:]).any()


def test_native_parameters_train_beside_the_sketches_and_everything_else_is_frozen():
    model = llama()
    norms = [p for n, p in model.named_parameters() if "norm" in n]
    optimizer = LoGRA(model, rank=8, rule="lr", lr=1e-3, native=torch.optim.AdamW(norms, lr=1e-2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loss_of(model, tokens(4)).backward()
    optimizer.step()
    optimizer.zero_grad()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(before[name], value)}
    targets = {f"{target.name}.weight" for target in optimizer.targets}
    assert moved == targets | {n for n, _ in model.named_parameters() if "norm" in n}
    assert all(norm.grad is None for norm in norms)
    described = optimizer.describe()
    assert {name for name, _, _ in described.sketched} == targets
    assert len(described.native) == len(norms) and "embed_tokens" in str(described.frozen)


def test_describe_counts_every_byte_once():
    model = llama(tied=True)
    optimizer = LoGRA(model, rank=8)
    text, d = str(optimizer.describe()), optimizer.describe()
    parameters = sum(p.numel() * 4 for p in model.parameters())
    assert sum(size for kind in (d.sketched, d.native, d.frozen) for _, _, size in kind) == parameters
    assert d.state["sketches"] == sum(t.rows * 8 * 4 for t in optimizer.targets)
    assert "sketched" in text and "lower halves" in text


def test_a_shared_weight_is_updated_once_with_both_gradients():
    model = stack((10, 10), (10, 10))
    model.layers[1]["q_proj"].weight = model.layers[0]["q_proj"].weight
    x = X[:, :10]
    before = model.layers[0]["q_proj"].weight.detach().clone()
    optimizer = LoGRA(model, rank=4, rule="lr", lr=1e-2)
    model(x).square().sum().backward()
    sketch, projection = (
        optimizer.sketches["layers.0.q_proj"].clone(),
        optimizer.projection("layers.0.q_proj"),
    )
    optimizer.step()
    expected = reference_row_adam_lr(before, [sketch], [projection], 1e-2, 0.0, 0.95, 1e-8)
    assert torch.allclose(model.layers[1]["q_proj"].weight.double(), expected, rtol=1e-5, atol=1e-7)
    assert len(optimizer.state_dict()["logra"]["moments"]) == 1


def test_without_refresh_the_projection_stays_and_with_it_each_update_has_its_own():
    for refresh in (True, False):
        model = stack((12, 20))
        optimizer = LoGRA(model, rank=6, rule="lr", refresh=refresh)
        first = optimizer.projection("layers.0.q_proj")
        run(model, optimizer, 1)
        assert torch.equal(first, optimizer.projection("layers.0.q_proj")) != refresh


def test_siblings_share_one_projection_and_unshared_layers_do_not():
    for shared in (True, False):
        optimizer = LoGRA(llama(), rank=4, shared=shared)
        q, k, v, o = (optimizer.projection(f"model.layers.0.self_attn.{n}_proj") for n in "qkvo")
        assert torch.equal(q, k) == torch.equal(q, v) == shared
        assert not torch.equal(q, o)
        assert not torch.equal(q, optimizer.projection("model.layers.1.self_attn.q_proj"))


def test_a_closure_is_run_with_gradients():
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2)
    with torch.no_grad():
        report = optimizer.step(lambda: model(X).square().sum().backward())
    assert report.status == "updated"


def test_a_probe_source_serves_a_bare_step():
    model = llama()
    calls = []
    source = lambda: calls.append(1) or TokenProbe(tokens(2))  # noqa: E731
    optimizer = LoGRA(model, rank=4, trust_region=TrustRegion(budget=1e-4), probe_source=source)
    loss_of(model, tokens(4)).backward()
    report = optimizer.step()
    assert calls == [1] and report.predicted_kl > 0 and report.scale > 0


def test_the_factor_is_rounded_to_what_travels_before_it_is_merged():
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2, factor_dtype=torch.bfloat16)
    before, projection = optimizer.weight("layers.0.q_proj"), optimizer.projection("layers.0.q_proj")
    model(X).square().sum().backward()
    update = optimizer.commit(optimizer.propose(), 0.37)
    factor = update.factors["layers.0.q_proj"]
    assert factor.dtype == torch.bfloat16 and update.update == 0
    assert torch.allclose(
        optimizer.weight("layers.0.q_proj"), before - factor.float() @ projection, atol=1e-7
    )


@settings(max_examples=15, deadline=None)
@given(scale=st.floats(0.0, 3.0), rank=st.integers(1, 30), ratio=st.floats(1e-6, 1e-1))
def test_the_paper_step_is_the_stated_fraction_of_the_weights_times_alpha(scale, rank, ratio):
    model = stack((12, 20), (9, 12))
    optimizer = LoGRA(model, rank=rank, update_ratio=ratio)
    before = [optimizer.weight(target.name).double() for target in optimizer.targets]
    model(X).square().sum().backward()
    optimizer.commit(optimizer.propose(tokens=100), scale)
    after = [optimizer.weight(target.name).double() for target in optimizer.targets]
    change = math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(after, before, strict=True)))
    size = math.sqrt(sum(float(b.square().sum()) for b in before))
    assert change / size == pytest.approx(scale * ratio, rel=0.02, abs=1e-7)


def test_a_float16_forward_is_refused_when_it_happens():
    model = stack((12, 20))
    LoGRA(model, rank=6)
    with torch.autocast("cpu", dtype=torch.float16), pytest.raises(TypeError, match="float16.*use bf16"):
        model(X)


def test_a_gradient_scaler_is_refused_by_name():
    model = stack((12, 20))
    optimizer = LoGRA(model, rank=6, rule="lr", lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X).square().sum()).backward()
    before = snapshot(model, optimizer)
    with pytest.raises(TypeError, match="GradScaler.*bf16"):
        scaler.step(optimizer)
    assert same(before, snapshot(model, optimizer))


def test_the_dense_gradient_is_what_rule_lr_descends_on_average():
    """Over many seeds the first step of rule "lr" points along the row-normalised dense gradient."""
    model = stack((12, 20))
    gradient = dense_gradients(model, lambda m: m(X).square().sum().backward())["layers.0.q_proj"]
    total = torch.zeros(12, 20)
    for seed in range(300):
        twin = copy.deepcopy(model)
        optimizer = LoGRA(twin, rank=4, seed=seed, rule="lr", lr=1.0)
        twin(X).square().sum().backward()
        proposal = optimizer.propose()
        total += proposal.factors["layers.0.q_proj"] @ optimizer.projection("layers.0.q_proj")
    normalised = gradient / gradient.norm(dim=1, keepdim=True)
    assert torch.cosine_similarity(total.flatten(), normalised.flatten(), dim=0) > 0.97
