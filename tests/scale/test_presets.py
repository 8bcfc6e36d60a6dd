"""Presets, the device's choice, fitting by the planner, and loading with its refusals. No GPU and no network."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from logra_lab.memory import CARDS, Card, card_of, plan, shape_of
from logra_lab.scale import device as devices
from logra_lab.scale import loading
from logra_lab.scale.device import choose_device
from logra_lab.scale.fitting import TooLarge, dense_verdict, fitted
from logra_lab.scale.loading import CannotLoad, check_targets, load
from logra_lab.scale.presets import HUB, ScaleConfig, preset, preset_for
from tests.rl.models import llama

GIB = 2**30


@pytest.fixture
def tiny_math(repository):
    return repository / "data" / "tiny-math"


@pytest.fixture
def copy(tiny_math, tmp_path):
    return shutil.copytree(tiny_math, tmp_path / "model")


def test_the_preset_follows_the_card():
    names = [preset_for(Card("x", "x", gib * GIB)).name for gib in (8, 24, 79, 140)]
    assert names == ["1.5B", "1.5B", "7B", "27B"]
    for card in CARDS.values():  # the one that is chosen fits
        chosen = preset_for(card)
        assert fitted(chosen, shape_of(chosen.name), card)[1].fits(card)


@pytest.mark.parametrize(("name", "billions"), [("1.5B", 1.54), ("7B", 7.62), ("27B", 27.0)])
def test_each_preset_is_a_named_model_whose_shape_is_counted(name, billions):
    shape = shape_of(name)
    assert preset(name).run.model == HUB[name] and HUB[name].count("/") == 1
    assert HUB[name].split("/")[1].lower().startswith(shape.name.lower())
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=5e-3)
    for halves, lower in (("device", 2), ("host", 0)):  # two bytes more for each target on the card
        made = plan(shape, preset(name, precision="split", halves=halves).memory("bf16"))
        expected = 2 * shape.parameters + lower * shape.target_parameters
        assert made.peak["weights"] == pytest.approx(expected, rel=2e-3)


def test_without_a_card_the_twin_is_chosen(monkeypatch):
    monkeypatch.setattr("logra_lab.scale.presets.card_here", lambda: None)
    assert preset_for().name == "tiny"


def test_any_other_name_is_a_model():
    config = preset("some/model", steps=7, rank=16, halves="host")
    assert (config.run.model, config.run.steps, config.run.arm.rank) == ("some/model", 7, 16)
    assert config.options["halves"] == "host"
    assert (
        config.but(arm_name="adamw").run.arm.name == "adamw" and config.but(name="x").run.arm.name == "logra"
    )


def test_a_configuration_survives_json():
    config = preset("7B", targets=("q_proj", "v_proj"), chat=True)
    again = ScaleConfig.from_json(json.loads(json.dumps(config.to_json())))
    assert again == config and again.hash() == config.hash() != preset("7B").hash()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: preset("tiny", colour="blue"), "'colour' is no setting"),
        (lambda: preset("tiny", engine="fast"), "engine='fast' is unknown; use one of transformers"),
        (lambda: preset("tiny", sharding="zero3"), "sharding='zero3' is unknown"),
        (lambda: preset("tiny", rollouts=0), "rollouts=0 does nothing"),
        (lambda: preset(" "), "name is ' '"),
        (lambda: ScaleConfig.from_json({"size": 1}), "unknown settings"),
    ],
)
def test_wrong_settings_are_named(change, words):
    with pytest.raises((ValueError, TypeError), match=words):
        change()


@pytest.mark.parametrize(
    ("device", "dtype", "words"),
    [
        ("auto", "fp16", "needs a scaled loss"),
        ("auto", "int8", "dtype='int8' is unknown"),
        ("cuda", "auto", "sees no CUDA GPU; use device='cpu'"),
        ("mps", "auto", "no Apple GPU"),
    ],
)
def test_impossible_devices_are_refused(device, dtype, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match=words):
        choose_device(device, dtype)


@pytest.mark.parametrize(
    ("capability", "dtype", "precision"), [((9, 0), "bf16", "split"), ((7, 5), "fp32", "fp32")]
)
def test_a_card_without_bf16_computes_in_fp32_and_says_why(monkeypatch, capability, dtype, precision):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Card X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    choice = choose_device(local_rank=1)
    assert (str(choice.device), choice.name, choice.precision) == ("cuda:1", dtype, precision)
    assert "Card X" in choice.because
    if dtype == "fp32":
        with pytest.raises(ValueError, match="no bf16 in hardware.*Use dtype='fp32'"):
            choose_device(dtype="bf16")
    with pytest.raises(ValueError, match="there are 2 GPUs here"):
        choose_device(local_rank=2)


def test_on_a_cpu_bf16_is_there_on_request():
    assert choose_device("cpu").name == "fp32"
    assert choose_device("cpu", "bf16").precision == "split"
    assert devices.bf16_support(torch.device("cpu"))[0]


@pytest.mark.parametrize(
    ("model", "card"), [("1.5B", "24 GB"), ("7B", "24 GB"), ("7B", "80 GB"), ("27B", "80 GB")]
)
def test_a_fitted_run_fits_and_learns_the_same(model, card):
    config, made = fitted(preset(model), shape_of(model), card_of(card))
    assert made.fits(card)
    same = ("prompts", "answers", "max_new_tokens", "probe_tokens")
    assert all(getattr(config.run, name) == getattr(preset(model).run, name) for name in same)
    assert config.run.arm.rank == preset(model).run.arm.rank


def test_27b_on_80_gb_needs_its_halves_on_the_host_and_dense_training_does_not_fit():
    config, made = fitted(preset("27B"), shape_of("27B"), card_of("80 GB"))
    assert config.options["halves"] == "host" and made.host > 40 * GIB
    fits, sentence = dense_verdict(config, shape_of("27B"), card_of("141 GB"))
    assert not fits and "does not fit" in sentence


def test_a_card_too_small_is_an_error_with_the_planners_advice():
    with pytest.raises(TooLarge, match="does not fit by .*smaller model, or more GPUs"):
        fitted(preset("27B"), shape_of("27B"), card_of("24 GB"))


def test_loading_the_twin(tiny_math):
    loaded = load(preset("tiny", model=str(tiny_math)), choose_device("cpu"))
    assert loaded.policy.model.dtype == torch.float32 and loaded.config.options["precision"] == "fp32"
    assert "cpu computing in fp32" in loaded.notes[0] and not loaded.policy.model.training


def test_loading_in_bf16_with_checkpointing_on_a_card(tiny_math):
    config = preset("tiny", model=str(tiny_math), checkpointing=True).but(precision="split")
    loaded = load(config, choose_device("cpu", "bf16"), card=card_of("24 GB"))
    assert (
        loaded.policy.model.dtype == torch.bfloat16 and loaded.plan is not None and loaded.plan.fits("24 GB")
    )
    assert loaded.policy.model.training and loaded.policy.model.is_gradient_checkpointing


def test_a_card_too_small_is_found_before_weights_are_read(tiny_math, monkeypatch):
    monkeypatch.setattr(loading, "load_policy", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(TooLarge):
        load(
            preset("tiny", model=str(tiny_math)), choose_device("cpu"), card=Card("small", "small", GIB // 2)
        )


def test_a_hub_that_can_not_be_reached_is_told_with_the_remedy():
    with pytest.raises(
        CannotLoad,
        match="'nobody/nothing-here' is no folder here, and the hub can't be reached.*pass its path",
    ):
        load(preset("nobody/nothing-here"), choose_device("cpu"))


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(CannotLoad, match="holds no model that can be read"):
        load(preset(str(tmp_path)), choose_device("cpu"))


def test_a_model_without_a_tokenizer(copy):
    for file in copy.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(CannotLoad, match="has no tokenizer.*save_pretrained"):
        load(preset(str(copy)), choose_device("cpu"))


def test_a_missing_chat_template(tiny_math):
    with pytest.raises(CannotLoad, match="has no chat template.*use chat=False"):
        load(preset(str(tiny_math), chat=True), choose_device("cpu"))


def test_missing_and_corrupt_weights(copy):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CannotLoad, match="holds no model that can be read.*save_pretrained"):
        load(preset("tiny", model=str(copy)), choose_device("cpu"))
    weights.unlink()
    with pytest.raises(CannotLoad, match="model.safetensors"):
        load(preset("tiny", model=str(copy)), choose_device("cpu"))


def test_quantised_weights_are_refused(copy):
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CannotLoad, match="quantised weights"):
        load(preset(str(copy)), choose_device("cpu"))


def test_a_full_card_while_weights_are_read_is_too_large(tiny_math, monkeypatch):
    def full(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB")

    monkeypatch.setattr(loading, "load_policy", full)
    with pytest.raises(
        TooLarge, match="the weights of .* alone don't fit on cpu.*smaller model.*sharding='fsdp'"
    ):
        load(preset("tiny", model=str(tiny_math)), choose_device("cpu"))


def test_missing_flash_attention_is_told_with_the_remedy(tiny_math):
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attention is installed here, so nothing is missing.")
    for attention in ("flash_attention_2", "flash_attention_3"):
        config = preset("tiny", model=str(tiny_math), attention=attention)
        with pytest.raises(
            CannotLoad, match=f"attention='{attention}' needs a package that is missing.*Use attention='sdpa'"
        ):
            load(config, choose_device("cpu"))


def test_a_large_model_without_a_gpu_is_refused_unless_the_cpu_is_asked_for(copy, monkeypatch):
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 40_000}), encoding="utf-8")
    monkeypatch.setattr(loading, "load_policy", lambda *_, **__: pytest.fail("weights were read"))
    with pytest.raises(
        CannotLoad,
        match="no GPU was found.*billion parameters .* GiB .*nvidia-smi.*preset 'tiny'.*device='cpu'",
    ):
        load(preset(str(copy)), choose_device("cpu"))
    with pytest.raises(pytest.fail.Exception, match="weights were read"):
        load(preset(str(copy), device="cpu", precision="fp32"), choose_device("cpu"))


def test_bf16_weights_need_bf16_compute(tiny_math):
    with pytest.raises(ValueError, match="precision='split' keeps bf16 weights"):
        load(preset("tiny", model=str(tiny_math)).but(precision="split"), choose_device("cpu"))


def test_a_model_without_the_target_names_lists_its_own_and_proposes():
    model = torch.nn.ModuleDict({"query_key_value": torch.nn.Linear(4, 12), "lm_head": torch.nn.Linear(4, 4)})
    with pytest.raises(
        CannotLoad,
        match=r"Its linear layers are query_key_value, lm_head: pass targets=\('query_key_value', 'dense'",
    ):
        check_targets(model, ("q_proj",))
    gpt2 = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=8))
    with pytest.raises(CannotLoad, match="lm_head: it has none that could be sketched"):
        check_targets(gpt2, ("q_proj",))


def test_another_tower_with_the_same_names_is_left_alone():
    text, tower = llama(), llama()
    model = torch.nn.ModuleDict({"language_model": text, "vision_tower": tower})
    names = check_targets(model, ("q_proj",))
    assert names and all(name.startswith("language_model.") for name in names)
    assert check_targets(text, ("q_proj",)) == ("q_proj",)
