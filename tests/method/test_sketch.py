"""Sketches out of backward: equal to the projected dense gradient under everything a trainer does."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils.checkpoint import checkpoint

from logra_lab.method import LoGRA
from logra_lab.method.sketch import Projections, Sketcher
from logra_lab.method.targets import find_targets
from tests.method.worlds import Stack, dense_gradients, llama, loss_of, same, stack, tokens


def expect_projected(model: nn.Module, optimizer: LoGRA, gradients: dict, tolerance: float = 1e-5) -> None:
    for name, sketch in optimizer.sketches.items():
        expected = gradients[name].double() @ optimizer.projection(name).double().T
        assert (sketch - expected).norm() <= tolerance * expected.norm(), name


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_the_sketch_is_the_projected_dense_gradient_over_micro_batches(parts, shared):
    model, ids = llama(), tokens(8)
    total = ids[:, 1:].numel()
    gradients = dense_gradients(model, lambda m: loss_of(m, ids).backward())
    optimizer = LoGRA(model, rank=8, shared=shared)
    for part in ids.chunk(parts):
        loss_of(model, part, total).backward()
    expect_projected(model, optimizer, gradients)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("reentrant", [None, True, False])
def test_gradient_checkpointing_gives_the_same_sketch(reentrant):
    model, ids = llama(), tokens(4)
    gradients = dense_gradients(model, lambda m: loss_of(m, ids).backward())
    if reentrant is not None:
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    optimizer = LoGRA(model, rank=8)
    loss_of(model, ids).backward()
    expect_projected(model, optimizer, gradients)


def first_block_input_asks(model: nn.Module, ids: torch.Tensor) -> bool:
    asked = []
    handle = model.model.layers[0].register_forward_pre_hook(
        lambda _, args: asked.append(args[0].requires_grad)
    )
    loss_of(model, ids).backward()
    handle.remove()
    return asked[0]


def test_a_model_that_does_not_checkpoint_is_spared_the_gradient_behind_its_first_block():
    ids = tokens(4)
    spared, asking = llama(), llama()
    optimizers = [LoGRA(model, rank=4) for model in (spared, asking)]
    asking.enable_input_require_grads()
    assert not first_block_input_asks(spared, ids) and first_block_input_asks(asking, ids)
    for name, sketch in optimizers[0].sketches.items():
        assert sketch.equal(optimizers[1].sketches[name])


def test_a_copy_or_a_checkpointing_model_asks_for_it():
    model, ids = llama(), tokens(4)
    LoGRA(model, rank=4)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        hooks = [hook for module in other.modules() for hook in module._forward_hooks.values()]
        assert all(getattr(hook, "model", None) is None for hook in hooks)  # no second model travels along
    model.activation_checkpointing_enable({"use_reentrant": True})
    assert first_block_input_asks(model.train(), ids)


@pytest.mark.parametrize("how", list(CheckpointImpl))
def test_torch_s_checkpoint_wrappers_around_the_blocks_give_the_same_sketch(how):
    model, ids = llama().train(), tokens(4)
    gradients = dense_gradients(model, lambda m: loss_of(m, ids).backward())
    model.config.use_cache = False  # a block that runs twice would write its keys twice
    optimizer = LoGRA(model, rank=8)
    for number, block in enumerate(model.model.layers):
        model.model.layers[number] = checkpoint_wrapper(block, checkpoint_impl=how)
    loss_of(model, ids).backward()
    expect_projected(model, optimizer, gradients)


@pytest.mark.parametrize("reentrant", [True, False])
def test_plain_checkpointing_of_a_stack_works_too(reentrant):
    model = stack((12, 20), (9, 12))
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(0), requires_grad=reentrant)
    gradients = dense_gradients(model, lambda m: m(x).square().sum().backward())
    optimizer = LoGRA(model, rank=3)
    checkpoint(model, x, use_reentrant=reentrant).square().sum().backward()
    expect_projected(model, optimizer, gradients)


@pytest.mark.parametrize("shape", [(40, 6), (6, 40), (1, 20), (20, 1), (7, 7)])
@pytest.mark.parametrize("rank", [1, 5, 64])
@pytest.mark.parametrize("bias", [True, False])
def test_tall_wide_one_row_and_overfull_ranks_are_sketched_exactly(shape, rank, bias):
    model = stack(shape, bias=bias)
    x = torch.randn(3, 5, shape[1], generator=torch.Generator().manual_seed(0))
    gradients = dense_gradients(model, lambda m: m(x).square().sum().backward())
    optimizer = LoGRA(model, rank=rank)
    model(x).square().sum().backward()
    expect_projected(model, optimizer, gradients)


def test_a_weight_shared_by_two_modules_gets_one_sketch_that_sums_both():
    model = stack((10, 10), (10, 10))
    model.layers[1]["q_proj"].weight = model.layers[0]["q_proj"].weight
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    gradients = dense_gradients(model, lambda m: m(x).square().sum().backward())
    optimizer = LoGRA(model, rank=4)
    assert [target.name for target in optimizer.targets] == ["layers.0.q_proj"]
    model(x).square().sum().backward()
    expect_projected(model, optimizer, gradients)


def test_bf16_autocast_sketches_what_autocast_would_have_given_as_gradient():
    model, ids = llama(), tokens(8)

    def run(m):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(m, ids)
        loss.backward()

    gradients = dense_gradients(model, run)
    optimizer = LoGRA(model, rank=8)
    run(model)
    assert all(sketch.dtype == torch.float32 for sketch in optimizer.sketches.values())
    expect_projected(model, optimizer, gradients, tolerance=0.02)  # bf16 keeps eight bits of P and of G


def test_a_bf16_model_accumulates_its_sketch_in_fp32():
    model, ids = llama().bfloat16(), tokens(8)
    gradients = dense_gradients(llama().bfloat16().float(), lambda m: loss_of(m, ids).backward())
    optimizer = LoGRA(model, rank=8, precision="nearest")
    loss_of(model, ids).backward()
    assert all(sketch.dtype == torch.float32 for sketch in optimizer.sketches.values())
    for name, sketch in optimizer.sketches.items():
        expected = gradients[name] @ optimizer.projection(name).T
        assert torch.cosine_similarity(sketch.flatten(), expected.flatten(), dim=0) > 0.98, name


def test_a_compiled_model_gives_the_same_two_updates_as_an_eager_one():
    results = []
    for compiled in (False, True):
        model = stack((12, 20), (9, 12))
        optimizer = LoGRA(model, rank=4, rule="lr", lr=1e-2)
        run = torch.compile(model, backend="aot_eager") if compiled else model
        x = torch.randn(6, 20, generator=torch.Generator().manual_seed(0))
        for _ in range(2):
            run(x).square().sum().backward()
            assert optimizer.step().status == "updated"
        results.append([optimizer.weight(target.name) for target in optimizer.targets])
    for eager, traced in zip(*results, strict=True):
        assert torch.allclose(eager, traced, rtol=1e-6, atol=1e-7)


def test_siblings_that_read_one_input_project_it_once_and_keep_one_copy():
    model, ids = llama(), tokens(2)
    counts, sizes = {}, {}
    for shared in (True, False):
        optimizer = LoGRA(model, rank=8, shared=shared)
        kept: dict[int, int] = {}

        def pack(tensor, kept=kept):
            if tensor.ndim == 3 and tensor.shape[-1] == 8:
                kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, ids)
        counts[shared], sizes[shared] = len(kept), sum(kept.values())
        loss.backward()
        optimizer.detach()
    assert counts == {True: 2 * 4, False: 2 * 7}  # per layer q+k+v, o, gate+up, down, against seven


def test_backward_keeps_the_projected_input_in_place_of_the_input():
    model, ids = llama(), tokens(4)

    def saved_bytes() -> int:
        storages = {}
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}

        def pack(tensor):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, ids)
        loss.backward()
        return sum(size for pointer, size in storages.items() if pointer not in weights)

    dense = saved_bytes()
    optimizer = LoGRA(model, rank=2)
    assert saved_bytes() < 0.9 * dense
    optimizer.detach()


def test_without_gradients_the_hooks_do_nothing():
    model, ids = llama(), tokens(2)
    optimizer = LoGRA(model, rank=4)
    with torch.no_grad():
        model(input_ids=ids)
    assert optimizer.projections.nbytes() == 0
    assert not optimizer.sketcher.touched


def test_a_deep_copy_computes_alike_and_leaves_the_originals_sketches_alone():
    model, ids = llama(), tokens(2)
    optimizer = LoGRA(model, rank=4)
    twin = copy.deepcopy(model)
    for parameter in twin.parameters():
        parameter.requires_grad_(True)
    loss_of(twin, ids).backward()
    assert twin.model.layers[0].mlp.up_proj.weight.grad is not None
    assert all(not sketch.any() for sketch in optimizer.sketches.values())
    second = LoGRA(twin, rank=4)  # the copied hooks don't count as another LoGRA's
    loss_of(twin, ids).backward()
    assert all(sketch.any() for sketch in second.sketches.values())
    assert all(not sketch.any() for sketch in optimizer.sketches.values())


def test_a_model_with_hooks_can_be_saved_whole_and_its_names_stay():
    model = stack((12, 20), (9, 12))
    names = list(model.state_dict())
    optimizer = LoGRA(model, rank=4)
    assert list(model.state_dict()) == names
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    x = torch.ones(1, 20)
    assert torch.equal(loaded(x), model(x).detach())
    assert optimizer.sketches["layers.0.q_proj"].sum() == 0


def test_after_detach_the_model_is_what_it_was_and_free_of_hooks():
    model, untouched, ids = llama(), llama(), tokens(2)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    optimizer = LoGRA(model, rank=4)
    loss_of(model, ids).backward()
    optimizer.detach()
    assert all(not module._forward_hooks for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert same(dict(model.state_dict()), dict(untouched.state_dict()))
    loss_of(model, ids).backward()
    loss_of(untouched, ids).backward()
    for mine, its in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(mine.grad, its.grad)
    pickle.dumps(model)


def test_saving_a_hugging_face_model_under_logra_keeps_the_usual_names(tmp_path):
    model = llama()
    names = set(model.state_dict())
    LoGRA(model, rank=4)
    model.save_pretrained(tmp_path)
    assert set(type(model).from_pretrained(tmp_path).state_dict()) == names


def test_sketches_follow_a_model_that_is_moved_or_retyped_later():
    model = stack((6, 5))
    sketcher = Sketcher(model, find_targets(model, ["q_proj"]), Projections(0, 2, True))
    sketcher.sketches["layers.0.q_proj"].fill_(3.0)
    sketcher.sketches.place()
    assert (sketcher.sketches["layers.0.q_proj"] == 3.0).all()


def test_a_target_called_twice_in_one_forward_counts_both_calls():
    class Twice(Stack):
        def forward(self, x):
            layer = self.layers[0]["q_proj"]
            return layer(torch.tanh(layer(x))) + layer(x)

    torch.manual_seed(0)
    model = Twice((8, 8))
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    gradients = dense_gradients(model, lambda m: m(x).square().sum().backward())
    optimizer = LoGRA(model, rank=3)
    model(x).square().sum().backward()
    expect_projected(model, optimizer, gradients)


def test_an_input_overwritten_between_siblings_is_projected_again():
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.q_proj, self.k_proj = nn.Linear(6, 4, bias=False), nn.Linear(6, 4, bias=False)

        def forward(self, x):
            y = self.q_proj(x)
            x.mul_(2)
            return y + self.k_proj(x)

    torch.manual_seed(0)
    model = Overwriting()
    data = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    optimizer = LoGRA(model, rank=3)
    model(data.clone()).sum().backward()
    a, h = optimizer.projection("k_proj"), torch.ones(5, 4)
    assert torch.allclose(optimizer.sketches["k_proj"], h.T @ (2 * data) @ a.T, rtol=1e-5)
    assert torch.allclose(optimizer.sketches["q_proj"], h.T @ data @ a.T, rtol=1e-5)
