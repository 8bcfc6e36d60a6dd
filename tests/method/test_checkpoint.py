"""Resume: six steps equal three, a new process, and three more, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from logra_lab.method import LoGRA, TrustRegion
from tests.method.worlds import TokenProbe, llama, loss_of, same, snapshot, tokens

ROOT = Path(__file__).resolve().parents[2]


def build(precision: str, rule: str) -> tuple[torch.nn.Module, LoGRA]:
    """A Llama whose second layer shares its MLP input weights with the first, and its optimizer."""
    model = llama(tied=True)
    model.model.layers[1].mlp.up_proj.weight = model.model.layers[0].mlp.up_proj.weight
    model = model if precision == "fp32" else model.bfloat16()
    options = {"lr": 1e-3, "max_grad_norm": 1.0} if rule == "lr" else {"update_ratio": 1e-3}
    region = TrustRegion(budget=1e-3, schedule_steps=5)
    return model, LoGRA(model, rank=8, rule=rule, precision=precision, trust_region=region, **options)


def train(model: torch.nn.Module, optimizer: LoGRA, first: int, last: int) -> None:
    for step in range(first, last):
        loss_of(model, tokens(4, seed=step)).backward()
        report = optimizer.step(
            probe=TokenProbe(tokens(2, seed=100 + step)), tokens=44 + step, mismatch=1e-5 * step
        )
        assert report.status == "updated"


def resume_and_finish(folder: str, precision: str, rule: str) -> None:
    """What the new process runs."""
    model, optimizer = build(precision, rule)
    model.load_state_dict(torch.load(Path(folder) / "model.pt"))
    optimizer.load_state_dict(torch.load(Path(folder) / "optimizer.pt"))
    train(model, optimizer, 3, 6)
    torch.save(model.state_dict(), Path(folder) / "model.pt")
    torch.save(optimizer.state_dict(), Path(folder) / "optimizer.pt")


@pytest.mark.parametrize("rule", ["paper", "lr"])
@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_three_steps_a_new_process_and_three_more_equal_six(tmp_path, precision, rule):
    model, optimizer = build(precision, rule)
    train(model, optimizer, 0, 3)
    torch.save(model.state_dict(), tmp_path / "model.pt")
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    train(model, optimizer, 3, 6)
    script = (
        "from tests.method.test_checkpoint import resume_and_finish as f; "
        f"f({str(tmp_path)!r}, {precision!r}, {rule!r})"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=120)
    assert same(dict(model.state_dict()), dict(torch.load(tmp_path / "model.pt")))
    assert same(optimizer.state_dict(), torch.load(tmp_path / "optimizer.pt"))


def test_row_moments_stay_fp32_under_a_bf16_model_through_save_and_load(tmp_path):
    model, optimizer = build("split", "lr")
    train(model, optimizer, 0, 2)
    torch.save(optimizer.state_dict(), tmp_path / "o.pt")
    second = build("split", "lr")
    second[0].load_state_dict(model.state_dict())
    second[1].load_state_dict(torch.load(tmp_path / "o.pt"))
    for name, moment in second[1].moments.items():
        assert moment.dtype == torch.float32 and torch.equal(moment, optimizer.moments[name])


def test_saving_in_the_middle_neither_shares_memory_nor_changes_the_run(tmp_path):
    model, optimizer = build("fp32", "paper")
    train(model, optimizer, 0, 1)
    state = optimizer.state_dict()
    frozen = {name: moment.clone() for name, moment in state["logra"]["moments"].items()}
    other, resumed = build("fp32", "paper")
    other.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    train(other, resumed, 1, 2)
    assert all(torch.equal(frozen[name], optimizer.moments[name]) for name in frozen)


def test_a_scheduler_and_the_optimizer_resume_together():
    runs = []
    for interrupted in (False, True):
        model, optimizer = build("fp32", "lr")
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(4):
            if interrupted and step == 2:
                saved = optimizer.state_dict(), scheduler.state_dict(), model.state_dict()
                model, optimizer = build("fp32", "lr")
                model.load_state_dict(saved[2])
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
                optimizer.load_state_dict(saved[0])
                scheduler.load_state_dict(saved[1])
            train(model, optimizer, step, step + 1)
            scheduler.step()
        runs.append((dict(model.state_dict()), optimizer.param_groups[0]["lr"]))
    assert runs[0][1] == runs[1][1] and same(runs[0][0], runs[1][0])


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"rank": 4}, "rank=8 in the checkpoint but 4 here"),
        ({"seed": 1}, "seed=42 in the checkpoint but 1 here"),
        ({"rule": "lr"}, "rule='paper' in the checkpoint but 'lr' here"),
        ({"shared": False}, "shared=True in the checkpoint but False here"),
        ({"refresh": False}, "refresh=True"),
        ({"beta2": 0.9}, "beta2=0.95"),
        ({"targets": ["q_proj"]}, "target model.layers.0.mlp.down_proj is"),
        ({"factor_dtype": torch.bfloat16}, "factor_dtype='torch.float32'"),
    ],
)
def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference_named(change, named):
    model = llama()
    optimizer = LoGRA(model, rank=8)
    loss_of(model, tokens(2)).backward()
    optimizer.step()
    state = optimizer.state_dict()
    optimizer.detach()
    other = LoGRA(model, **({"rank": 8} | change))
    before = snapshot(model, other)
    with pytest.raises(ValueError, match=named):
        other.load_state_dict(state)
    assert same(before, snapshot(model, other))


def test_split_halves_are_refused_when_the_model_holds_other_weights():
    model, optimizer = build("split", "paper")
    train(model, optimizer, 0, 1)
    state = optimizer.state_dict()
    fresh, other = build("split", "paper")
    before = snapshot(fresh, other)
    with pytest.raises(ValueError, match="load the model weights saved with this optimizer state first"):
        other.load_state_dict(state)
    assert same(before, snapshot(fresh, other))


def test_a_foreign_or_newer_state_is_refused():
    optimizer = LoGRA(llama(), rank=8)
    with pytest.raises(ValueError, match="this is no LoGRA state"):
        optimizer.load_state_dict({"state": {}, "param_groups": []})
    state = optimizer.state_dict()
    state["logra"]["version"] = 99
    with pytest.raises(ValueError, match="format 99"):
        optimizer.load_state_dict(state)


def test_a_native_optimizers_state_travels_under_its_own_key(tmp_path):
    def make():
        model = llama()
        norms = [p for n, p in model.named_parameters() if "norm" in n]
        return model, LoGRA(model, rank=8, rule="lr", lr=1e-3, native=torch.optim.AdamW(norms, lr=1e-2))

    def go(model, optimizer, steps):
        for step in steps:
            loss_of(model, tokens(4, seed=step)).backward()
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = make()
    go(model, optimizer, range(2))
    torch.save([model.state_dict(), optimizer.state_dict()], tmp_path / "both.pt")
    go(model, optimizer, range(2, 4))
    second, resumed = make()
    weights, state = torch.load(tmp_path / "both.pt")
    second.load_state_dict(weights)
    resumed.load_state_dict(state)
    go(second, resumed, range(2, 4))
    assert same(dict(model.state_dict()), dict(second.state_dict()))
