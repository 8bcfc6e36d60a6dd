"""The "free" KL estimate from the sequences that made the step. Biased; here for lesson 06 only.

    KL per token ≈ ½ Σ_b ⟨S_b, U⟩² / tokens,     S_b the sketch of ∇ log π(sequence b)     method.md §8.1

It looks free: ⟨S_b, U⟩ is the directional derivative of a sequence's log-probability along −ΔW, and S_b comes
out of backward anyway. But U was computed from these very S_b, so each product contains its own square. On
fresh sequences the same formula is right. `LoGRA.judge` never uses it.

Shapes: S_b, U [d, r]; b counts sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from .optimizer import LoGRA
from .values import Proposal


def sequence_scores(
    optimizer: LoGRA, proposal: Proposal, log_probs: Iterable[Callable[[], Tensor]]
) -> Tensor:
    """⟨S_b, U⟩ for each sequence [b], float64; what the sketches held before is put back.

    Args:
        log_probs: one callable per sequence that runs the model and returns log π(sequence), a scalar.
    """
    flats = optimizer.sketcher.sketches.flats
    kept, touched = {place: flat.clone() for place, flat in flats.items()}, set(optimizer.sketcher.touched)
    scores = []
    try:
        for log_prob in log_probs:
            optimizer.sketcher.clear()
            with torch.enable_grad():
                log_prob().backward()
            products = [
                (optimizer.sketches[n].double() * u.double()).sum() for n, u in proposal.factors.items()
            ]
            scores.append(torch.stack(products).sum())
    finally:
        for place, flat in flats.items():
            flat.copy_(kept[place])
        optimizer.sketcher.touched.clear()
        optimizer.sketcher.touched.update(touched)
    return torch.stack(scores)


def biased_same_batch_kl(scores: Tensor, tokens: float) -> float:
    """½ Σ_b score_b² / tokens: right on fresh sequences, several times too high on those that made U."""
    return float(0.5 * scores.square().sum() / tokens)
