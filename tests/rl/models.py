"""Small untrained models: rotary positions (Llama), learned positions (GPT-2), models in a model (Gemma 3)."""

from __future__ import annotations

import torch
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

from logra_lab.rl.policy import Policy
from logra_lab.rl.tokenizer import character_tokenizer


def llama(seed: int = 0, vocabulary: int | None = None, hidden: int = 24, **options) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=vocabulary or len(character_tokenizer()), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=None, eos_token_id=0, pad_token_id=0, initializer_range=0.3, **options,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def gpt2(seed: int = 0) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=len(character_tokenizer()), n_embd=24, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3,
        bos_token_id=0, eos_token_id=0, pad_token_id=0, resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.2,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return GPT2LMHeadModel(config).eval()


def gemma3(seed: int = 0) -> Gemma3ForConditionalGeneration:
    """A text model and a vision tower in one, each with a config inside the model's."""
    text = dict(
        vocab_size=len(character_tokenizer()), hidden_size=24, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=8, eos_token_id=0, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    vision = dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
    )  # fmt: skip
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, image_token_index=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Gemma3ForConditionalGeneration(config).eval()


def policy(model=None) -> Policy:
    return Policy(model if model is not None else llama(), character_tokenizer())


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
