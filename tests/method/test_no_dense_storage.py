"""Between forward and commit nothing of a target's full shape is made: seen by a dispatch mode."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from logra_lab.method import LoGRA, TrustRegion
from tests.method.worlds import TokenProbe, llama, loss_of, tokens

# Every size differs from the others, from their halves (row blocks) and from T = 5 · 11, so that a shape tells
# what it belongs to.
SIZES = dict(
    hidden_size=48, intermediate_size=88, num_attention_heads=4, num_key_value_heads=1, vocab_size=50
)
RANK = 9


class NewStorages(TorchDispatchMode):
    """Collects the shapes of results that live in storage no input had."""

    def __init__(self, forbidden: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.forbidden, self.caught = forbidden, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        old = {storage_of(leaf) for leaf in tree_leaves((args, kwargs)) if torch.is_tensor(leaf)}
        for leaf in tree_leaves(result):
            if torch.is_tensor(leaf) and tuple(leaf.shape) in self.forbidden:
                if storage_of(leaf) not in old | {None}:
                    self.caught.append((str(function), tuple(leaf.shape)))
        return result


def storage_of(tensor: torch.Tensor) -> int | None:
    """Where a tensor's memory is; None for the symbolic zeros of forward mode, which have none."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None


def forbidden_shapes(model: torch.nn.Module) -> set[tuple[int, ...]]:
    shapes = {tuple(m.weight.shape) for n, m in model.named_modules() if n.endswith("_proj")}
    return shapes | {shape[::-1] for shape in shapes}


@pytest.mark.parametrize("rule", ["paper", "lr"])
@pytest.mark.parametrize("precision", ["fp32", "split", "stochastic", "nearest"])
def test_a_whole_step_makes_no_storage_of_a_targets_shape(rule, precision):
    model = llama(**SIZES)
    if precision != "fp32":
        model = model.bfloat16()
    forbidden, ids = forbidden_shapes(model), tokens(5, 11)
    optimizer = LoGRA(model, rank=RANK, rule=rule, precision=precision, trust_region=TrustRegion(budget=1e-3))
    with NewStorages(forbidden) as watch:
        loss_of(model, ids).backward()
        proposal = optimizer.propose(tokens=50)
        verdict = optimizer.judge(proposal, TokenProbe(ids[:2]))
        with optimizer.preview(proposal, verdict.scale):
            model(input_ids=ids[:2])
        optimizer.commit(proposal, verdict.scale)
    assert verdict.predicted_kl > 0
    assert watch.caught == []


def test_clipping_and_decay_make_none_either():
    model, ids = llama(**SIZES), tokens(5, 11)
    optimizer = LoGRA(model, rank=RANK, rule="lr", lr=1e-3, weight_decay=0.1, max_grad_norm=0.1)
    with NewStorages(forbidden_shapes(model)) as watch:
        loss_of(model, ids).backward()
        assert optimizer.step().status == "updated"
    assert watch.caught == []


def test_the_dense_arm_trips_the_same_test():
    model, ids = llama(**SIZES), tokens(5, 11)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with NewStorages(forbidden_shapes(model)) as watch:
        loss_of(model, ids).backward()
        optimizer.step()
    assert {shape for _, shape in watch.caught} & forbidden_shapes(model)
