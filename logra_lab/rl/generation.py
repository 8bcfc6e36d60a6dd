"""Sampling answers: our own loop over a key/value cache, and the same samples through Hugging Face's `generate`.

Both draw a token as the argmax of `logits / temperature - log(e)` with e ~ Exp(1) from the given generator, which is
an exact sample of the softmax. So a run depends on its generator alone, the global seed is never touched, and the
two samplers can be compared token by token. Temperature 0 is greedy (evaluation).

    B  sequences      L  prompt length      N  new tokens, at most `max_new_tokens`      V  vocabulary

Left out: beams, penalties, top-k and top-p. A checkpoint's own generation settings are ignored on purpose.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, LogitsProcessorList

from logra_lab.rl.logprobs import CausalLM, accepted, cache_argument, position_ids


@dataclass(frozen=True)
class Sampling:
    """How answers are sampled. `top_k` and `top_p` exist to be refused: scoring would need the same cut."""

    temperature: float = 1.0
    max_new_tokens: int = 8
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(
                f"temperature={self.temperature} is negative; use 1.0, or 0 for greedy evaluation"
            )
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} samples nothing; use at least 1")
        if self.top_k:
            raise ValueError(
                f"top_k={self.top_k} samples from a cut distribution that is not scored; leave it None"
            )
        if self.top_p is not None and self.top_p < 1:
            raise ValueError(
                f"top_p={self.top_p} samples from a cut distribution that is not scored; leave it None"
            )


class Sampled(NamedTuple):
    """`tokens` and `log_probs` [B, N], `lengths` [B] with the stop token, `finished` [B] (false: cut at the limit)."""

    tokens: Tensor
    log_probs: Tensor
    lengths: Tensor
    finished: Tensor


class Sampler(Protocol):
    """Whoever samples: `sample_tokens`, `generate_tokens`, or the `sample` of an engine (`scale/engines.py`)."""

    def __call__(
        self,
        model: CausalLM,
        input_ids: Tensor,
        attention_mask: Tensor,
        sampling: Sampling,
        stop_ids: Sequence[int],
        pad: int,
        generator: torch.Generator,
        /,
    ) -> Sampled:
        """Answers to left-padded prompts [B, L], with the log-prob of each token as it was sampled."""


@contextlib.contextmanager
def evaluation_mode(model: CausalLM) -> Iterator[None]:
    """The model in evaluation mode with its cache on; each module's mode and the cache setting come back afterwards."""
    modes = {module: module.training for module in model.modules()}
    config = model.config.get_text_config()
    use_cache = getattr(config, "use_cache", None)
    try:
        model.eval()
        config.use_cache = True
        yield
    finally:
        config.use_cache = use_cache
        for module, training in modes.items():
            module.training = training


@torch.no_grad()
def sample_tokens(
    model: CausalLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    sampling: Sampling,
    stop_ids: Sequence[int],
    pad: int,
    generator: torch.Generator,
    *,
    everywhere: Callable[[bool], bool] = bool,
) -> Sampled:
    """Sample up to `max_new_tokens` after left-padded prompts [B, L]; stops early when every answer has ended.

    `everywhere` turns "ended here" into "ended in all processes", where all must run the model equally often.
    """
    stops = torch.tensor(stop_ids, device=input_ids.device)
    finished = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
    mask, ids, cache = attention_mask.long(), input_ids, DynamicCache(config=model.config)
    cache_name = cache_argument(model)
    columns: list[Tensor] = []
    scores, alive = [], []
    with evaluation_mode(model):
        while len(columns) < sampling.max_new_tokens and not everywhere(bool(finished.all())):
            inputs = {
                "input_ids": ids, "attention_mask": mask, "position_ids": position_ids(mask)[:, -ids.shape[1] :],
                cache_name: cache, "use_cache": True, "logits_to_keep": 1,
            }  # fmt: skip
            logits = model(**accepted(model, inputs)).logits[:, -1]  # [B, V]
            chosen, log_prob = choose(logits, sampling.temperature, generator)  # [B], [B]
            ids = torch.where(finished, pad, chosen)[:, None]  # [B, 1]
            columns.append(ids[:, 0])
            scores.append(log_prob)
            alive.append(~finished)
            finished = finished | torch.isin(chosen, stops)
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], -1)
    lengths = torch.stack(alive, -1).sum(-1)
    return Sampled(torch.stack(columns, -1), torch.stack(scores, -1), lengths, finished)


@torch.no_grad()
def generate_tokens(
    model: CausalLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    sampling: Sampling,
    stop_ids: Sequence[int],
    pad: int,
    generator: torch.Generator,
) -> Sampled:
    """The twin of `sample_tokens` through `model.generate`: the same tokens from the same generator."""
    chooser = _Chooser(sampling.temperature, generator)
    settings = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens, do_sample=False, eos_token_id=list(stop_ids), pad_token_id=pad
    )
    with evaluation_mode(model), _without_defaults(model):
        output = model.generate(
            input_ids=input_ids, attention_mask=attention_mask.long(), generation_config=settings,
            logits_processor=LogitsProcessorList([chooser]),
        )  # fmt: skip
    tokens = output[:, input_ids.shape[1] :]  # [B, N]
    is_stop = torch.isin(tokens, torch.tensor(stop_ids, device=tokens.device))
    before = is_stop.long().cumsum(-1) - is_stop.long()  # stops before this column
    return Sampled(tokens, torch.stack(chooser.log_probs, -1), (before == 0).sum(-1), is_stop.any(-1))


def choose(logits: Tensor, temperature: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` [B, V], and its log-prob [B] under the distribution it was sampled from."""
    if temperature == 0:
        chosen = logits.argmax(-1)
        return chosen, torch.zeros_like(chosen, dtype=torch.float32)
    log_probs = (logits.float() / temperature).log_softmax(-1)  # [B, V]
    noise = torch.empty(log_probs.shape, device=generator.device).exponential_(generator=generator)
    chosen = (log_probs - noise.to(log_probs.device).log()).argmax(-1)  # [B]
    return chosen, log_probs.gather(-1, chosen[:, None])[:, 0]


@contextlib.contextmanager
def _without_defaults(model: CausalLM) -> Iterator[None]:
    """`generate` fills what is unset from the checkpoint's settings (penalties, top-p): hide them for a while."""
    own = model.generation_config
    try:
        model.generation_config = GenerationConfig()
        yield
    finally:
        model.generation_config = own


class _Chooser(LogitsProcessor):
    """Makes greedy `generate` pick our sample by leaving one finite score per row."""

    def __init__(self, temperature: float, generator: torch.Generator) -> None:
        self.temperature, self.generator = temperature, generator
        self.log_probs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        chosen, log_prob = choose(scores, self.temperature, self.generator)
        self.log_probs.append(log_prob)
        return torch.full_like(scores, -torch.inf).scatter(-1, chosen[:, None], 0.0)
