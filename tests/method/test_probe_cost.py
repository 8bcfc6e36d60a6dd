"""The probe multiplies once by each weight, value and tangent together, and forward mode adds nothing of its own."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from logra_lab.method import LoGRA, TrustRegion, trust_region
from tests.method.worlds import TokenProbe, llama, loss_of, tokens


class WeightProducts(TorchDispatchMode):
    """Counts matrix products by a weight of one of the given shapes."""

    def __init__(self, shapes: set[tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes, self.count = shapes, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.count += any(torch.is_tensor(a) and tuple(a.shape) in self.shapes for a in args)
        return function(*args, **(kwargs or {}))


@pytest.fixture(params=[False, True], ids=["no bias", "bias"])
def step(request):
    model = llama(attention_bias=request.param, mlp_bias=request.param)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    optimizer = LoGRA(model, rank=5, trust_region=TrustRegion())
    loss_of(model, tokens()).backward()
    return model, optimizer, optimizer.propose()


def test_value_and_tangent_share_one_product_per_linear_layer(step):
    model, optimizer, proposal = step
    linears = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    shapes = {tuple(m.weight.shape) for m in linears} | {tuple(m.weight.shape)[::-1] for m in linears}
    probe = TokenProbe(tokens(2, length=11))  # 22 rows: no activation is shaped like a weight
    with WeightProducts(shapes) as products:
        optimizer.judge(proposal, probe)
    chunks = -(-probe.ids.numel() // probe.chunk)
    assert products.count == len(linears) - 1 + chunks


def test_the_prediction_is_that_of_forward_mode_left_to_itself(step, monkeypatch):
    model, optimizer, proposal = step
    probe = TokenProbe(tokens(2, length=11))  # 22 rows: no activation is shaped like a weight
    lean = optimizer.judge(proposal, probe).predicted_kl
    monkeypatch.setattr(trust_region, "constant_weights", lambda *_: nullcontext())
    assert optimizer.judge(proposal, probe).predicted_kl == pytest.approx(lean, rel=1e-6)


def test_hooks_are_gone_after_the_probe_even_if_it_fails(step):
    model, optimizer, proposal = step
    before = {
        module: (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    }

    class Broken(TokenProbe):
        def logits(self, model, chunk):
            raise OSError("the probe broke")

    with pytest.raises(OSError, match="the probe broke"):
        optimizer.judge(proposal, Broken(tokens(2)))
    after = {
        module: (len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    }
    assert after == before and not any("forward" in vars(module) for module in model.modules())


def test_a_forward_that_someone_else_put_on_a_layer_is_called_and_stays(step):
    model, optimizer, proposal = step
    layer = model.model.layers[0].mlp.up_proj
    plain = optimizer.judge(proposal, TokenProbe(tokens(2))).predicted_kl
    own, seen = layer.forward, []

    def watched(x):
        seen.append(x.shape)
        return own(x)

    layer.forward = watched
    assert optimizer.judge(proposal, TokenProbe(tokens(2))).predicted_kl == pytest.approx(plain, rel=1e-5)
    assert seen and layer.forward is watched
