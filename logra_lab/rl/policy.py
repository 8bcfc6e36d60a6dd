"""The policy: a causal language model with its tokenizer, from prompts to scored answers.

    P  prompts of a step      G  answers per prompt      B = P*G sequences      L  padded length      T  sampled tokens

Whatever is sampled here is scored as it was sampled: the temperature divides the logits in both places, dropout is
off in both, and top-k / top-p are refused (they would cut the sampled distribution but not the scored one).
Which tokens count is decided by lengths, never by token values, so a padding token that equals the stop token is
harmless. `load_policy` trusts no remote code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from logra_lab.data_files import located
from logra_lab.rl.generation import Sampler, Sampling, sample_tokens
from logra_lab.rl.logprobs import (
    CausalLM,
    Scores,
    apply_head,
    decoder_body,
    hidden_states,
    plain_score_tokens,
    score_tokens,
    token_scores,
)
from logra_lab.rl.probe import LMProbe

__all__ = [
    "LMProbe", "Policy", "Rollout", "Sampling", "Scores", "apply_head", "decoder_body", "encode_prompts",
    "hidden_states", "load_policy", "pad_left", "plain_score_tokens",
    "rollout", "score_tokens", "token_scores",
]  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """A model and its tokenizer. `chat=None` uses the chat template where the tokenizer has one."""

    model: CausalLM
    tokenizer: Any  # a Hugging Face tokenizer
    chat: bool | None = None
    prefill: str = ""

    @property
    def device(self) -> torch.device:
        """Where the model's first parameter lives."""
        return next(self.model.parameters()).device

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Every token that ends an answer: the tokenizer's and those of the generation settings."""
        configured = self.model.generation_config.eos_token_id
        configured = configured if isinstance(configured, (list, tuple)) else [configured]
        return tuple(sorted({i for i in (self.tokenizer.eos_token_id, *configured) if i is not None}))

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt (see `encode_prompts`)."""
        return encode_prompts(self.tokenizer, prompts, chat=self.chat, prefill=self.prefill)


@dataclass(frozen=True)
class Rollout:
    """Sampled answers, padded: prompts to the left, answers to the right.

    `input_ids`, `attention_mask`, `generated_mask` [B, L]; `log_probs` [T] of the sampled tokens as they were sampled,
    in the order of `generated_mask.nonzero()`; `lengths` [B] with the stop token; `finished` [B]; `texts` without it.
    """

    input_ids: Tensor
    attention_mask: Tensor
    generated_mask: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor
    texts: tuple[str, ...]


def load_policy(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    chat: bool | None = None,
    prefill: str = "",
    attention: str = "sdpa",
) -> Policy:
    """The causal LM at `path` (a folder or a hub id) with its tokenizer, in evaluation mode and without dropout.

    A relative folder is looked for from here, then among the kit's data, so "data/tiny-math" works in notebooks.

    ValueError where the model's logits aren't its head applied to its body (then chunked scoring would be wrong) or
    where there is no stop token.
    """
    path = located(path).as_posix()
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    model: CausalLM = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation=attention, trust_remote_code=False
    )
    policy = Policy(model.to(device).eval(), tokenizer, chat, prefill)
    if not policy.stop_ids:
        raise ValueError(f"{path!r} names no stop token; set tokenizer.eos_token, or answers never end")
    switch_dropout_off(model)
    check_head(model)
    return policy


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], *, chat: bool | None = None, prefill: str = ""
) -> list[list[int]]:
    """Token ids of each prompt; a chat template is rendered to text first and that text encoded.

    `chat=True` without a template and an empty prompt are errors. `prefill` begins the answer.
    """
    has_template = getattr(tokenizer, "chat_template", None) is not None
    if chat and not has_template:
        raise ValueError(
            "chat=True but the tokenizer has no chat template; use chat=False or set tokenizer.chat_template"
        )
    use_chat = has_template if chat is None else chat
    texts = [_render(tokenizer, prompt) if use_chat else prompt for prompt in prompts]
    # a rendered template already holds its special tokens
    encoded = [tokenizer(text + prefill, add_special_tokens=not use_chat)["input_ids"] for text in texts]
    for prompt, ids in zip(prompts, encoded, strict=True):
        if not ids:
            raise ValueError(f"the prompt {prompt!r} has no tokens; every prompt needs at least one")
    return encoded


def pad_left(
    prompts: Sequence[Sequence[int]], pad: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Prompts as ids [B, longest] padded on the left, and the mask [B, longest] of what is real."""
    longest = max(len(ids) for ids in prompts)
    ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts], device=device)  # [B, longest]
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    return ids, torch.arange(longest, device=device) >= longest - lengths[:, None]


def rollout(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    generator: torch.Generator,
    *,
    sampler: Sampler = sample_tokens,
) -> Rollout:
    """Sample one answer to each encoded prompt (repeat a prompt to get a group); the model is left as it was."""
    pad = policy.tokenizer.pad_token_id if policy.tokenizer.pad_token_id is not None else policy.stop_ids[0]
    ids, mask = pad_left(prompts, pad, policy.device)
    sampled = sampler(policy.model, ids, mask, sampling, policy.stop_ids, pad, generator)
    real = torch.arange(sampled.tokens.shape[1], device=ids.device) < sampled.lengths[:, None]  # [B, new]
    return Rollout(
        input_ids=torch.cat([ids, sampled.tokens], -1),  # [B, L]
        attention_mask=torch.cat([mask, real], -1),
        generated_mask=torch.cat([torch.zeros_like(mask), real], -1),
        log_probs=sampled.log_probs[real],  # [T]
        lengths=sampled.lengths,
        finished=sampled.finished,
        texts=_decode(policy.tokenizer, sampled.tokens, sampled.lengths, sampled.finished),
    )


def switch_dropout_off(model: nn.Module) -> None:
    """Set every dropout to 0 for good: what is scored in training mode is then what was sampled in evaluation mode."""
    modules: list[Any] = list(model.modules())
    for module in modules:
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0


@torch.no_grad()
def check_head(model: CausalLM) -> None:
    """ValueError unless the model's own logits equal its head applied to its body, on four tokens."""
    ids = torch.arange(1, 5, device=next(model.parameters()).device)[None]  # [1, 4]
    own = model(input_ids=ids, use_cache=False).logits.float()
    ours = apply_head(model, hidden_states(model, ids)).float()
    gap = (own - ours).abs().max().item()
    if gap > 1e-2 * max(1.0, own.abs().max().item()):
        raise ValueError(
            f"{type(model).__name__}: its logits differ by {gap:.3g} from head(body(x)); "
            "add its scaling to logra_lab.rl.logprobs.apply_head"
        )


def _render(tokenizer: Any, prompt: str) -> str:
    message = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)


def _decode(tokenizer, tokens: Tensor, lengths: Tensor, finished: Tensor) -> tuple[str, ...]:
    ends = (lengths - finished.long()).tolist()  # the stop token is no text
    rows = [row[:end] for row, end in zip(tokens.tolist(), ends, strict=True)]
    return tuple(tokenizer.batch_decode(rows, skip_special_tokens=True))
