"""Shapes: parameters counted once, equal to what the real classes build; unknown models refused with the remedy."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MixtralConfig,
    Qwen2Config,
    Qwen3Config,
)

from logra_lab.memory import CARDS, GIB, MODELS, ModelShape, card_of, shape_of

CONFIGS = {
    "SmolLM2-135M": LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=49152, tie_word_embeddings=True,
    ),
    "Qwen2.5-Math-1.5B": Qwen2Config(
        hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
        vocab_size=151936, tie_word_embeddings=True,
    ),
    "Qwen2.5-Math-7B": Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064, tie_word_embeddings=False,
    ),
    "Gemma-3-27B": Gemma3TextConfig(
        hidden_size=5376, intermediate_size=21504, num_hidden_layers=62, num_attention_heads=32, num_key_value_heads=16,
        head_dim=128, vocab_size=262208, sliding_window=1024,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_preset_counts_exactly_the_parameters_that_the_real_class_builds(name):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(CONFIGS[name])
    assert MODELS[name].parameters == sum(p.numel() for p in model.parameters())
    assert shape_of(model).parameters == MODELS[name].parameters


@pytest.mark.parametrize("name", MODELS)
def test_a_config_gives_the_preset_of_its_name(name):
    found, preset = shape_of(CONFIGS[name]), MODELS[name]
    assert {k: v for k, v in vars(found).items() if k != "name"} == {
        k: v for k, v in vars(preset).items() if k != "name"
    }


def test_query_and_key_norms_of_qwen3_are_counted():
    config = Qwen3Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, vocab_size=128,
    )  # fmt: skip
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert shape_of(model).parameters == sum(p.numel() for p in model.parameters())


def test_a_tied_head_is_counted_once():
    untied = ModelShape("a", 2, 64, 128, 4, 4, 16, 1000, tied=False)
    tied = ModelShape("a", 2, 64, 128, 4, 4, 16, 1000, tied=True)
    assert untied.parameters - tied.parameters == 64 * 1000


def test_sliding_layers_remember_no_more_than_their_window():
    gemma = MODELS["Gemma-3-27B"]
    assert gemma.cached_tokens(1024) == 62 * 1024
    assert gemma.cached_tokens(4096) == 10 * 4096 + 52 * 1024


def test_a_hub_name_finds_its_preset():
    assert shape_of("Qwen/Qwen2.5-Math-7B") is MODELS["Qwen2.5-Math-7B"] is shape_of("7b")


def test_an_unknown_model_is_refused_with_the_names_that_are_known():
    with pytest.raises(ValueError, match="Unknown model 'GPT-9'.*Qwen2.5-Math-7B.*ModelShape"):
        shape_of("GPT-9")


def test_a_mixture_of_experts_is_refused_rather_than_counted_wrongly():
    with pytest.raises(ValueError, match="mixtral has num_experts=8.*dense decoders"):
        shape_of(MixtralConfig())


def test_a_config_that_is_no_decoder_is_refused():
    with pytest.raises(ValueError, match="Cannot read a decoder's shape from object"):
        shape_of(object())


def test_a_card_is_smaller_than_its_name_in_gib():
    assert [card_of(name).capacity < float(name.split()[0]) * GIB for name in CARDS] == [True] * 4
    assert card_of(80) is CARDS["80 GB"]
    with pytest.raises(ValueError, match="Unknown card '96 GB'; choose one of 24 GB"):
        card_of(96)
