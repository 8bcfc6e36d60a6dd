"""Exported weights carry the full precision under the usual names."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from logra_lab.method import LoGRA
from logra_lab.method.export import full_state_dict, save_weights
from tests.method.worlds import llama, loss_of, tokens


def trained(precision: str) -> tuple[torch.nn.Module, LoGRA]:
    model = llama(tied=True)
    model = model if precision == "fp32" else model.bfloat16()
    optimizer = LoGRA(model, rank=8, precision=precision, update_ratio=1e-3)
    for seed in range(3):
        loss_of(model, tokens(4, seed=seed)).backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_the_fp32_export_holds_the_full_value_and_tied_names_stay_tied(precision):
    model, optimizer = trained(precision)
    exported = full_state_dict(optimizer)
    assert set(exported) == set(model.state_dict())
    for target in optimizer.targets:
        assert torch.equal(exported[f"{target.name}.weight"], optimizer.weight(target.name))
    assert exported["lm_head.weight"].data_ptr() == exported["model.embed_tokens.weight"].data_ptr()
    if precision == "split":  # the halves really were joined
        name = f"{optimizer.targets[0].name}.weight"
        assert not torch.equal(exported[name], model.state_dict()[name].float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_file_loads_into_a_fresh_model(tmp_path, dtype):
    model, optimizer = trained("split")
    path = save_weights(optimizer, tmp_path / "model.safetensors", dtype)
    assert list(tmp_path.iterdir()) == [path]
    fresh = llama(seed=9, tied=True).to(dtype)
    missing, unexpected = fresh.load_state_dict(load_file(path), strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight", "model.embed_tokens.weight"}
    fresh.tie_weights()
    name = optimizer.targets[-1].name
    assert torch.equal(fresh.get_submodule(name).weight, optimizer.weight(name).to(dtype))


def test_hugging_face_saves_the_exported_weights_in_its_own_format(tmp_path):
    model, optimizer = trained("split")
    model.save_pretrained(tmp_path, state_dict=full_state_dict(optimizer))
    loaded = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    name = optimizer.targets[0].name
    assert torch.equal(loaded.get_submodule(name).weight, optimizer.weight(name))


def test_another_type_is_refused():
    _, optimizer = trained("fp32")
    with pytest.raises(ValueError, match="dtype=torch.float16: choose torch.float32"):
        full_state_dict(optimizer, torch.float16)
