"""The probe of a causal LM: the positions at which the trust region judges a step (method.md §3).

`features` walks the sequences without their padding, few at a time, so that math attention stays small and padding
can't leak in; `logits` applies the head to a chunk of positions, divided by the temperature. Both are plain
differentiable code: the trust region runs them under forward-mode AD.

    n  judged positions      D  hidden size      V  vocabulary      B, L  sequences, padded length
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from logra_lab.rl.logprobs import CausalLM, apply_head, check_masks, check_temperature, hidden_states


class LMProbe:
    """Positions of a padded batch whose next token was sampled.

    `input_ids`, `attention_mask`, `generated_mask` [B, L]: `generated_mask[b, t]` is true where token t was sampled,
    and the KL is taken at the position before it. Sequences are taken in order while they have at most `max_tokens`
    tokens in all; `rows_at_once` sequences of equal length may share a pass (1 keeps memory smallest).
    ValueError for masks that don't fit, an empty probe, or a first sequence longer than `max_tokens`.
    """

    def __init__(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        generated_mask: Tensor,
        temperature: float = 1.0,
        chunk: int = 64,
        *,
        max_tokens: int = 4096,
        rows_at_once: int = 1,
    ) -> None:
        check_temperature(temperature)
        check_masks(input_ids, attention_mask, generated_mask)
        for name, value in (("chunk", chunk), ("max_tokens", max_tokens), ("rows_at_once", rows_at_once)):
            if value < 1:
                raise ValueError(f"{name}={value} judges nothing; use at least 1")
        self.temperature, self.chunk, self.rows_at_once = temperature, chunk, rows_at_once
        self._rows = _unpadded(input_ids, attention_mask.bool(), generated_mask, max_tokens)

    @property
    def positions(self) -> int:
        """How many positions are judged (n)."""
        return sum(int(generated[1:].sum()) for _, generated in self._rows)

    def features(self, model: CausalLM) -> Tensor:
        """Hidden states [n, D] at the judged positions, one pass per sequence (or per group of equal lengths)."""
        pieces: dict[int, Tensor] = {}
        with forward_mode_attention(model):
            for rows in self._passes():
                hidden = hidden_states(model, torch.stack([self._rows[i][0] for i in rows]))  # [rows, len, D]
                for row, states in zip(rows, hidden, strict=True):
                    pieces[row] = states[:-1][self._rows[row][1][1:]]  # [judged here, D]
        return torch.cat([pieces[row] for row in sorted(pieces)])

    def logits(self, model: CausalLM, chunk: Tensor) -> Tensor:
        """Logits [c, V] of a chunk of features [c, D], divided by the temperature."""
        return apply_head(model, chunk) / self.temperature

    def _passes(self) -> Iterator[list[int]]:
        by_length: dict[int, list[int]] = {}
        for row, (ids, _) in enumerate(self._rows):
            by_length.setdefault(len(ids), []).append(row)
        for rows in by_length.values():
            for start in range(0, len(rows), self.rows_at_once):
                yield rows[start : start + self.rows_at_once]


@contextlib.contextmanager
def forward_mode_attention(model: CausalLM) -> Iterator[None]:
    """Flash-attention models compute with SDPA inside (flash has no forward-mode rule); the settings are restored."""
    settings = [(config, config._attn_implementation) for config in _configs(model)]
    if not any("flash" in (name or "") for _, name in settings):
        yield
        return
    try:
        model.set_attn_implementation("sdpa")
        yield
    finally:
        for config, name in settings:  # an outer config sets its inner ones too, so they come after it
            config._attn_implementation = name


def _configs(model: CausalLM) -> list[PreTrainedConfig]:
    """The configs of the model and of the models in it (text, vision), each once, outer ones first."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


def _unpadded(
    ids: Tensor, attended: Tensor, generated: Tensor, max_tokens: int
) -> list[tuple[Tensor, Tensor]]:
    rows, used = [], 0
    for tokens, real, sampled in zip(ids, attended, generated, strict=True):
        used += int(real.sum())
        if used > max_tokens:
            break
        if bool(sampled.any()):
            rows.append((tokens[real], sampled[real]))
    if not rows:
        raise ValueError(
            f"no sequence with a sampled token fits in max_tokens={max_tokens}; raise max_tokens"
        )
    return rows
