"""The probe of a causal LM: the right positions, no padding, and a model left as it was."""

from __future__ import annotations

import pytest
import torch

from logra_lab.method import LoGRA, TrustRegion
from logra_lab.rl.kl import ProbeSnapshot
from logra_lab.rl.policy import LMProbe, Sampling, rollout, token_scores
from tests.rl.models import gemma3, generator, gpt2, llama, policy


def answers(model, times=3):
    p = policy(model)
    return rollout(p, p.encode(["1+2=", "45+6=", "7+88+9="] * times), Sampling(max_new_tokens=5), generator())


def probe_of(a, **options):
    return LMProbe(a.input_ids, a.attention_mask, a.generated_mask, **options)


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("rows_at_once", [1, 4])
def test_the_judged_positions_are_those_that_predict_the_sampled_tokens_in_order(make, rows_at_once):
    model = make()
    a = answers(model)
    probe = probe_of(a, temperature=0.7, rows_at_once=rows_at_once)
    tokens = a.input_ids[a.generated_mask]
    with torch.no_grad():
        features = probe.features(model)
        log_probs = probe.logits(model, features).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
        scores = token_scores(model, a.input_ids, a.attention_mask, a.generated_mask, temperature=0.7)
    assert len(features) == probe.positions == len(tokens)
    torch.testing.assert_close(log_probs, scores.log_probs, atol=1e-5, rtol=0)


def test_prompt_positions_are_not_judged():
    a = answers(llama(), times=1)
    assert probe_of(a).positions == int(a.lengths.sum())


def test_sequences_are_taken_in_order_while_they_fit():
    a = answers(llama(), times=1)
    sizes = a.attention_mask.sum(-1).tolist()
    assert probe_of(a, max_tokens=sizes[0]).positions == int(a.lengths[0])
    assert probe_of(a, max_tokens=sizes[0] + sizes[1]).positions == int(a.lengths[:2].sum())


def test_equal_lengths_share_a_pass_and_one_at_a_time_does_not(monkeypatch):
    model = llama()
    a = answers(model, times=4)
    calls = []
    model.register_forward_pre_hook(
        lambda m, args, kwargs: calls.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    probe_of(a).features(model)
    assert len(calls) == len(a.lengths) and {shape[0] for shape in calls} == {1}
    calls.clear()
    probe_of(a, rows_at_once=64).features(model)
    assert len(calls) == len({shape[1] for shape in calls}) < len(a.lengths)


@pytest.mark.parametrize("fails", [False, True])
def test_a_flash_attention_model_is_judged_with_sdpa_and_gets_its_setting_back(fails):
    model = llama()
    a = answers(model)
    model.config._attn_implementation = "flash_attention_2"
    seen = []

    def look(module, args, kwargs):
        seen.append(module.config._attn_implementation)
        if fails:
            raise RuntimeError("broken")

    model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        probe_of(a).features(model)
    except RuntimeError:
        assert fails
    assert set(seen) == {"sdpa"} and model.config._attn_implementation == "flash_attention_2"


@pytest.mark.parametrize("outer", ["flash_attention_2", "sdpa"])
def test_each_config_inside_a_config_gets_its_own_setting_back(outer):
    model, seen = gemma3(), []
    a = answers(model)
    configs = [model.config, model.config.text_config, model.config.vision_config]
    names = [outer, "flash_attention_2", "eager"]
    for config, name in zip(configs, names, strict=True):
        config._attn_implementation = name
    text = model.get_decoder().layers[0].self_attn
    text.register_forward_pre_hook(lambda m, _: seen.append(m.config._attn_implementation))
    probe_of(a).features(model)
    assert set(seen) == {"sdpa"} and [config._attn_implementation for config in configs] == names


@pytest.mark.parametrize("make", [llama])
def test_the_trust_region_predicts_the_kl_that_a_snapshot_measures(make):
    model = make()
    a = answers(model, times=8)
    region = TrustRegion(budget=1e-4, final_budget=1e-4)
    optimizer = LoGRA(model, rank=4, trust_region=region, update_ratio=3e-3)
    scores = token_scores(model, a.input_ids, a.attention_mask, a.generated_mask)
    (scores.log_probs * torch.linspace(-1, 1, len(scores.log_probs))).sum().backward()
    probe = probe_of(a, rows_at_once=8)
    snapshot = ProbeSnapshot(model, probe)
    report = optimizer.step(probe=probe, tokens=float(a.lengths.sum()))
    predicted = report.predicted_kl * report.scale**2
    assert snapshot.kl(model) == pytest.approx(predicted, rel=0.1)
    assert predicted == pytest.approx(1e-4, rel=1e-3)


def test_a_snapshot_measures_nothing_where_nothing_moved_and_refuses_bf16():
    model = llama()
    a = answers(model)
    assert ProbeSnapshot(model, probe_of(a)).kl(model) == 0.0
    with pytest.raises(ValueError, match="measured KL in torch.bfloat16.*float32"):
        ProbeSnapshot(model.bfloat16(), probe_of(a))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"chunk": 0}, "chunk=0"),
        ({"max_tokens": 3}, "max_tokens=3; raise max_tokens"),
        ({"rows_at_once": 0}, "rows_at_once=0"),
    ],
)
def test_a_probe_that_judges_nothing_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        probe_of(answers(llama()), **options)
    a = answers(llama())
    with pytest.raises(ValueError, match="marks no token"):
        LMProbe(a.input_ids, a.attention_mask, torch.zeros_like(a.generated_mask))
