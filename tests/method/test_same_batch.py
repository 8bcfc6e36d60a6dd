"""The free estimate is right on fresh sequences and too high on its own: both are shown, neither assumed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from logra_lab.method import LoGRA, TrustRegion
from logra_lab.method.same_batch import biased_same_batch_kl, sequence_scores
from tests.method.worlds import TokenProbe, llama, same, snapshot

START, LENGTH, COUNT = 3, 8, 48


@torch.no_grad()
def sampled(model: nn.Module, count: int, seed: int) -> torch.Tensor:
    """Sequences [count, 1 + LENGTH] sampled from the model itself."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((count, 1), START)
    for _ in range(LENGTH):
        policy = model(input_ids=ids).logits[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(policy, 1, generator=generator)], dim=1)
    return ids


def log_prob(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """log π of each sampled sequence [count]."""
    logits = model(input_ids=ids).logits[:, :-1].log_softmax(-1)
    return logits.gather(-1, ids[:, 1:, None]).squeeze(-1).sum(1)


def test_the_same_batch_estimate_is_several_times_too_high_and_right_on_fresh_sequences():
    model = llama()
    optimizer = LoGRA(model, rank=16, update_ratio=1e-4, trust_region=TrustRegion())
    own, fresh = sampled(model, COUNT, 0), sampled(model, 256, 1)
    rewards = (own[:, 1:] % 2 == 0).float().mean(1)
    advantages = rewards - rewards.mean()
    (-(advantages * log_prob(model, own)).mean() / LENGTH).backward()
    proposal = optimizer.propose()
    probe = TokenProbe(fresh[:, :-1])
    true = optimizer.measure(proposal, probe)

    def estimate(ids):
        calls = [lambda row=row: log_prob(model, row[None])[0] for row in ids]
        return biased_same_batch_kl(sequence_scores(optimizer, proposal, calls), ids[:, 1:].numel())

    before = snapshot(model, optimizer)
    on_own, on_fresh = estimate(own), estimate(fresh)
    assert same(before, snapshot(model, optimizer))
    assert on_own > 2 * true, (on_own, true)
    assert on_fresh == pytest.approx(true, rel=0.3), (on_fresh, true)  # 256 sequences: a ninth part of spread
    assert optimizer.judge(proposal, probe).predicted_kl == pytest.approx(true, rel=0.03)
