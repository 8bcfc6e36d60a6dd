"""Every refusal names the value and the remedy, and leaves model, sketches and state bit-equal."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from logra_lab.method import LoGRA, NonFiniteSketch, TrustRegion
from tests.method.worlds import TokenProbe, llama, loss_of, same, snapshot, stack, tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank=0: choose a whole number ≥ 1"),
        ({"rank": -3}, "rank=-3"),
        ({"rank": 2.5}, "rank=2.5"),
        ({"seed": "x"}, "seed='x'"),
        ({"rule": "adam"}, 'rule=\'adam\': choose "paper" or "lr"'),
        ({"precision": "fp8"}, "precision='fp8': choose one of fp32, split, stochastic, nearest"),
        ({"targets": ["nowhere"]}, "no module is named nowhere: pass targets=.*q_proj, k_proj"),
        ({"targets": "q_proj"}, "targets='q_proj': pass a sequence"),
        ({"targets": ["self_attn"]}, "self_attn is .*LlamaAttention, not nn.Linear"),
        ({"targets": ["lm_head"], "_tied": True}, "the weight of lm_head is also used by model.embed_tokens"),
        ({"update_ratio": 0.0}, "update_ratio=0.0"),
        ({"update_ratio": math.nan}, "update_ratio=nan"),
        ({"rule": "lr", "lr": -1.0}, "lr=-1.0"),
        ({"lr": 1e-3}, 'lr=0.001 means nothing under rule="paper"'),
        ({"weight_decay": 0.1}, 'weight_decay=0.1 means nothing under rule="paper"'),
        ({"max_grad_norm": 1.0}, 'max_grad_norm=1.0 means nothing under rule="paper"'),
        ({"rule": "lr", "weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"rule": "lr", "max_grad_norm": 0.0}, "max_grad_norm=0.0"),
        ({"beta2": 1.0}, "beta2=1.0"),
        ({"eps": -1.0}, "eps=-1.0"),
        ({"halves": "disk"}, "halves='disk'"),
        ({"precision": "split"}, 'precision="split" keeps bfloat16 weights.*load the model in bf16'),
        (
            {"rule": "lr", "weight_decay": 0.1, "trust_region": TrustRegion()},
            "trust_region with weight_decay=0.1",
        ),
    ],
)
def test_a_bad_argument_is_refused_before_the_model_is_touched(arguments, message):
    arguments = dict(arguments)
    model = llama(tied=arguments.pop("_tied", False))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    flags = [parameter.requires_grad for parameter in model.parameters()]
    with pytest.raises((ValueError, TypeError), match=message):
        LoGRA(model, **arguments)
    assert same(before, dict(model.state_dict()))
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(not module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("field", "value"),
    [("budget", 0.0), ("final_budget", -1.0), ("schedule_steps", 0), ("alpha_max", math.inf), ("max_passes", 0),
     ("difference", math.nan), ("mismatch_decay", 1.5), ("budget_floor", -0.1), ("estimator", "guess")],
)  # fmt: skip
def test_a_trust_region_refuses_senseless_numbers_by_name(field, value):
    with pytest.raises(ValueError, match=f"TrustRegion\\({field}={value!r}"):
        TrustRegion(**{field: value})


def test_a_trust_region_beside_native_parameters_is_refused_with_the_reason():
    model = llama()
    native = torch.optim.AdamW([model.model.norm.weight])
    with pytest.raises(ValueError, match="native= .*unseen|native=.*unseen"):
        LoGRA(model, native=native, trust_region=TrustRegion())


def test_a_native_optimizer_that_owns_a_target_is_refused():
    model = llama()
    with pytest.raises(ValueError, match="native= owns the weight of model.layers.0.self_attn.q_proj"):
        LoGRA(model, native=torch.optim.AdamW(model.parameters()))


def test_a_second_logra_on_one_model_is_refused_until_the_first_detaches():
    model = llama()
    first = LoGRA(model, rank=4)
    with pytest.raises(ValueError, match="already fills the sketches of another LoGRA.*detach"):
        LoGRA(model, rank=4)
    first.detach()
    LoGRA(model, rank=4)


class Quantised(nn.Linear):
    """Stands in for a quantised layer: a Linear whose weight holds integers."""

    def __init__(self):
        super().__init__(4, 4)
        self.weight = nn.Parameter(torch.zeros(4, 4, dtype=torch.int8), requires_grad=False)


def quantised_by_bitsandbytes() -> nn.Module:
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="the extra `race` brings bitsandbytes")
    return nn.ModuleDict({"q_proj": bitsandbytes.nn.Linear4bit(64, 64, bias=False)})


def wrapped_by_peft() -> nn.Module:
    peft = pytest.importorskip("peft", reason="the extra `race` brings peft")
    return peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj"], r=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.ModuleDict({"q_proj": Conv1D(4, 4)}), "q_proj is .*Conv1D, not nn.Linear"),
        (lambda: nn.ModuleDict({"q_proj": nn.Conv2d(1, 1, 1)}), "q_proj is .*Conv2d, not nn.Linear"),
        (lambda: nn.ModuleDict({"q_proj": Quantised()}), "int8 weights, a quantised layer"),
        (
            quantised_by_bitsandbytes,
            "bitsandbytes.*Linear4bit, a quantised layer: load the model unquantised",
        ),
        (lambda: nn.ModuleDict({"q_proj": nn.Linear(4, 4).half()}), "float16 weights"),
        (wrapped_by_peft, "q_proj is .*peft.*wrapped by an adapter: merge and unload"),
    ],
)
def test_layers_that_cannot_be_sketched_are_refused_by_name(make, message):
    with pytest.raises(TypeError, match=message):
        LoGRA(make(), targets=["q_proj"])


def judged(model, **options):
    optimizer = LoGRA(model, rank=4, **options)
    loss_of(model, tokens(4)).backward()
    return optimizer


def poisoned(optimizer):
    next(iter(optimizer.sketches.values()))[0, 0] = math.nan
    return optimizer.propose()


class EmptyProbe(TokenProbe):
    def features(self, model):
        return super().features(model)[:0]


class BrokenProbe(TokenProbe):
    def logits(self, model, chunk):
        return super().logits(model, chunk) * math.nan


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (
            lambda o: poisoned(o),
            NonFiniteSketch,
            "the sketch of model.layers.0.self_attn.q_proj is not finite",
        ),
        (lambda o: o.propose(tokens=0), ValueError, "tokens is 0.0: pass the number"),
        (lambda o: o.propose(tokens=math.nan), ValueError, "tokens is nan"),
        (lambda o: o.judge(o.propose(), EmptyProbe(tokens(1))), ValueError, "the probe has no position"),
        (lambda o: o.judge(o.propose(), BrokenProbe(tokens(1))), ValueError, "the predicted KL is nan"),
        (lambda o: o.commit(o.propose(), math.nan), ValueError, "scale is nan"),
        (lambda o: o.commit(o.propose(), -0.5), ValueError, "scale is -0.5"),
        (lambda o: o.step(), ValueError, "step\\(\\) needs a probe"),
        (lambda o: o.projection("nothing"), KeyError, "no target is named 'nothing'; there are"),
        (lambda o: o.weight("nothing"), KeyError, "no target is named 'nothing'"),
    ],
)
def test_an_error_in_a_step_leaves_everything_as_it_was(act, error, message):
    model = llama()
    optimizer = judged(model, trust_region=TrustRegion())
    first = next(iter(optimizer.sketches.values()))
    kept = first[0, 0].clone()
    before = snapshot(model, optimizer)
    with pytest.raises(error, match=message):
        act(optimizer)
    first[0, 0] = kept
    assert same(before, snapshot(model, optimizer))
    assert optimizer.step(probe=TokenProbe(tokens(1))).status == "updated"


def test_judging_without_a_trust_region_is_refused():
    optimizer = judged(llama())
    with pytest.raises(ValueError, match="no trust region.*trust_region=TrustRegion"):
        optimizer.judge(optimizer.propose(), TokenProbe(tokens(1)))


def test_decay_set_later_behind_a_trust_regions_back_is_refused_too():
    optimizer = judged(llama(), rule="lr", trust_region=TrustRegion())
    optimizer.param_groups[0]["weight_decay"] = 0.1
    optimizer.param_groups[0]["lr"] = 1e-2
    with pytest.raises(ValueError, match="decays the weights by"):
        optimizer.judge(optimizer.propose(), TokenProbe(tokens(1)))


def test_a_model_without_any_linear_layer_is_refused_with_that_said():
    with pytest.raises(ValueError, match="of which it has none"):
        LoGRA(nn.ModuleDict({"embedding": nn.Embedding(3, 3)}))


def test_wrapper_prefixes_do_not_change_a_targets_name():
    plain = LoGRA(stack((6, 5)), rank=2)
    wrapped = LoGRA(nn.ModuleDict({"module": stack((6, 5))}), rank=2)
    compiled = LoGRA(torch.compile(stack((6, 5)), backend="eager"), rank=2)
    names = [[target.name for target in optimizer.targets] for optimizer in (plain, wrapped, compiled)]
    assert names[0] == names[1] == names[2] == ["layers.0.q_proj"]
    assert torch.equal(plain.projection("layers.0.q_proj"), compiled.projection("layers.0.q_proj"))
