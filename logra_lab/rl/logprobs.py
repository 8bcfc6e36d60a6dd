"""Log-probabilities of sampled tokens, with the output head applied to a few positions at a time.

The logits of a whole batch, [T, V], are the largest tensor of an RL step: 4096 positions x 150,000 words in fp32 are
2.4 GB, and backward wants them again. Here the head sees `chunk` positions at a time, so only [chunk, V] ever exists.
`plain_score_tokens` is the twin that keeps everything. Under a trained head each chunk is recomputed in backward; under
a frozen one each position's gradient [D] is made with its log-prob, since backward only scales it: two products by
the head instead of three.

    T  positions scored (flat over the batch)      D  hidden size      V  vocabulary      B, L  sequences, padded length

Left out: heads split over devices, and heads that look at more than one position.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logra_lab.method.sketch import is_sketched

CausalLM = Any  # a transformers causal LM, bare or inside peft; nn.Module would hide what they offer
CHUNK_ELEMENTS = 2**24  # logits of one chunk: 64 MiB in fp32


class Scores(NamedTuple):
    """Per scored position: the log-prob of its token [T] (with gradient) and the entropy there [T] (without)."""

    log_probs: Tensor
    entropy: Tensor


def decoder_body(model: CausalLM) -> nn.Module:
    """The part of a causal LM below its head: `model.model`, `model.transformer`, … (through peft's wrapper)."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    body = getattr(inner, getattr(inner, "base_model_prefix", ""), None)
    if body is None or body is inner:
        raise ValueError(
            f"{type(inner).__name__} has no body below its head; use a causal LM (AutoModelForCausalLM)"
        )
    return body


def apply_head(model: CausalLM, hidden: Tensor) -> Tensor:
    """Logits [..., V] of hidden states [..., D], with the scalings that some model families put after the head."""
    config = model.config.get_text_config()
    head = model.get_output_embeddings()
    logits = head(hidden)  # [..., V]
    if scale := getattr(config, "logit_scale", None):
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):
        logits = logits / scaling
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


def position_ids(attention_mask: Tensor) -> Tensor:
    """Positions [B, L] that count real tokens only, so padding shifts nothing."""
    return (attention_mask.long().cumsum(-1) - 1).clamp(min=0)


def hidden_states(model: CausalLM, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """The body's last hidden states [B, L, D], in one pass through the root's forward.

    Through the root, so that wrappers and sharding hooks see the call they expect; the head is asked for one position.
    """
    inputs = {"input_ids": input_ids, "use_cache": False, "logits_to_keep": 1}
    if attention_mask is not None:
        inputs |= {"attention_mask": attention_mask, "position_ids": position_ids(attention_mask)}
    caught: list[Tensor] = []
    handle = decoder_body(model).register_forward_hook(
        lambda _module, _args, output: caught.append(output[0])
    )
    try:
        model(**accepted(model, inputs))
    finally:
        handle.remove()
    return caught[0]


def score_tokens(
    hidden: Tensor, targets: Tensor, model: CausalLM, temperature: float, chunk: int | None
) -> Scores:
    """Log-probs and entropies of `targets` [T] given `hidden` [T, D], `chunk` positions at a time.

    `chunk=None` takes as many as keep a chunk's logits within 64 MiB (at least 64).
    """
    check_temperature(temperature)
    chunk = chunk or positions_per_chunk(model.config.get_text_config().vocab_size)
    if hidden.requires_grad and torch.is_grad_enabled() and head_is_frozen(model):
        return Scores(*_FrozenHead.apply(hidden, targets, model, temperature, chunk))
    pieces = [
        checkpoint(
            _score_chunk, rows, tokens, model, temperature, use_reentrant=False, preserve_rng_state=False
        )
        for rows, tokens in zip(hidden.split(chunk), targets.split(chunk), strict=True)
    ]
    return Scores(*(torch.cat(column) for column in zip(*pieces, strict=True)))


def head_is_frozen(model: CausalLM) -> bool:
    """True if backward through the head has nothing to do but the gradient of its input."""
    head = model.get_output_embeddings()
    return not is_sketched(head) and not any(parameter.requires_grad for parameter in head.parameters())


def plain_score_tokens(
    hidden: Tensor, targets: Tensor, model: CausalLM, temperature: float, chunk: int | None = None
) -> Scores:
    """The plain twin of `score_tokens`: the same numbers from whole [T, V] logits."""
    check_temperature(temperature)
    return Scores(*_score_chunk(hidden, targets, model, temperature))


def token_scores(
    model: CausalLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    generated_mask: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    score: Callable[..., Scores] = score_tokens,
) -> Scores:
    """Scores of the generated tokens [T] of a padded batch [B, L], in the order of `generated_mask.nonzero()`.

    A token is scored at the position before it, as it was sampled: the same temperature, no top-k or top-p.
    A generated token in the first column has no position before it and is refused.
    """
    check_masks(input_ids, attention_mask, generated_mask)
    hidden = hidden_states(model, input_ids, attention_mask)  # [B, L, D]
    predicts = generated_mask[:, 1:]
    return score(hidden[:, :-1][predicts], input_ids[:, 1:][predicts], model, temperature, chunk)  # T of each


def check_masks(input_ids: Tensor, attention_mask: Tensor, generated_mask: Tensor) -> None:
    """Refuse masks that don't fit the tokens: wrong shape, generated padding, a generated first token, none at all."""
    for name, mask in (("attention_mask", attention_mask), ("generated_mask", generated_mask)):
        if mask.shape != input_ids.shape:
            raise ValueError(
                f"{name} is {list(mask.shape)} but input_ids are {list(input_ids.shape)}; make them alike"
            )
    if generated_mask.dtype != torch.bool:
        raise ValueError(
            f"generated_mask is {generated_mask.dtype}; make it bool, true where a token was sampled"
        )
    if bool((generated_mask & ~attention_mask.bool()).any()):
        raise ValueError("generated_mask marks padding as sampled; build both masks from the lengths")
    before = torch.nn.functional.pad(attention_mask.bool(), (1, 0))[:, :-1]
    if bool((generated_mask & ~before).any()):
        raise ValueError(
            "a sampled token has nothing before it to predict it; prompts need at least one token"
        )
    if not bool(generated_mask.any()):
        raise ValueError("generated_mask marks no token; there is nothing to score")


def check_temperature(temperature: float) -> None:
    """Refuse a temperature that divides by zero or turns the distribution round."""
    if not temperature > 0:
        raise ValueError(
            f"temperature={temperature} is not a distribution; use a number above 0 (greedy is for evaluation)"
        )


def positions_per_chunk(vocabulary: int) -> int:
    """Positions whose fp32 logits fit in 64 MiB, at least 64."""
    return max(64, CHUNK_ELEMENTS // vocabulary)


def accepted(model: CausalLM, inputs: dict) -> dict:
    """`inputs` without what the model's forward doesn't know (some models take no position_ids)."""
    known, optional = _arguments(model), ("position_ids", "logits_to_keep")
    return {name: value for name, value in inputs.items() if name in known or name not in optional}


def cache_argument(model: CausalLM) -> str:
    """What this model's forward calls its key/value cache: "cache" in newer transformers, else "past_key_values"."""
    return "cache" if "cache" in _arguments(model) else "past_key_values"


def _arguments(model: CausalLM) -> frozenset[str]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return _arguments_of(type(inner).forward)


@functools.cache
def _arguments_of(forward: Callable[..., object]) -> frozenset[str]:
    return frozenset(inspect.signature(forward).parameters)


def _score_chunk(
    hidden: Tensor, targets: Tensor, model: CausalLM, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = apply_head(model, hidden).float() / temperature  # [chunk, V]
    normaliser = logits.logsumexp(-1)  # [chunk]
    log_probs = logits.gather(-1, targets[:, None])[:, 0] - normaliser
    with torch.no_grad():
        entropy = normaliser - (logits.softmax(-1) * logits).sum(-1)
    return log_probs, entropy


class _FrozenHead(torch.autograd.Function):
    """`_score_chunk` over chunks, with ∂ log-prob/∂ hidden [T, D] made on the way: positions don't mix in a head."""

    @staticmethod
    def forward(ctx, hidden: Tensor, targets: Tensor, model: CausalLM, temperature: float, chunk: int):
        slopes, log_probs, entropies = [], [], []
        for rows, tokens in zip(hidden.split(chunk), targets.split(chunk), strict=True):
            with torch.enable_grad():
                leaf = rows.detach().requires_grad_()
                score, entropy = _score_chunk(leaf, tokens, model, temperature)
                score.sum().backward()
            slopes.append(leaf.grad)  # [chunk, D]
            log_probs.append(score.detach())
            entropies.append(entropy)
        ctx.save_for_backward(torch.cat(slopes))
        entropy = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy)
        return torch.cat(log_probs), entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor, _entropy: Tensor | None):
        (slopes,) = ctx.saved_tensors
        return slopes * grad[:, None].to(slopes.dtype), None, None, None, None
