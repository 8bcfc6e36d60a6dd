"""Judging a proposal: predicted KL against the budget, and the optional measurement that verifies it.

The formulas are in `trust_region.py`; this is their order (method.md §3). Nothing here changes the
optimizer. Replicas agree: sums over positions are reduced before any decision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .distributed import Reduce
from .trust_region import (
    Probe,
    TrustRegion,
    effective_budget,
    kl_budget,
    measure_kl,
    next_mismatch,
    predict_kl,
    predict_kl_central,
    step_scale,
)
from .values import Mismatch, Proposal, Verdict

if TYPE_CHECKING:
    from .inspection import Inspection
    from .optimizer import LoGRA


def judge(optimizer: LoGRA, proposal: Proposal, probe: Probe, mismatch: float | Mismatch | None) -> Verdict:
    """The verdict on `proposal`; see `LoGRA.judge`."""
    region = optimizer.trust_region
    if region is None:
        raise ValueError(
            "this LoGRA has no trust region to judge by: construct it with trust_region=TrustRegion()"
        )
    if proposal.decay:
        raise ValueError(
            f"the proposal decays the weights by {proposal.decay}, which α can't scale: set weight_decay to 0"
        )
    delta = kl_budget(optimizer.updates, region.budget, region.final_budget, region.schedule_steps)
    if not proposal.has_signal:
        return Verdict(
            0.0, effective_budget(delta, optimizer.mismatch, region.budget_floor), 1.0, optimizer.mismatch
        )
    average = next_mismatch(optimizer.mismatch, _agreed(optimizer, mismatch), region.mismatch_decay)
    allowed = effective_budget(delta, average, region.budget_floor)
    values = _predicted(optimizer, region, proposal, probe)
    predicted = _mean(optimizer.reduce, values)
    two_sided = optimizer.config["rule"] == "paper" if region.two_sided is None else region.two_sided
    scale = step_scale(predicted, allowed, region.alpha_max, two_sided)
    measured = None
    if region.verify:
        scale, measured = _fit(optimizer, region, proposal, probe, allowed, scale)
    worst = float(values.float().quantile(0.99)) if len(values) else None
    return Verdict(predicted, allowed, scale, average, measured, worst)


def measure(optimizer: Inspection, proposal: Proposal, probe: Probe, scale: float) -> float:
    """Mean KL(π_old ‖ π_new) over the probe at `scale`, nothing committed; see `LoGRA.measure`."""
    values = measure_kl(optimizer.model, probe, lambda: optimizer.preview(proposal, scale))
    return _mean(optimizer.reduce, values)


def _predicted(optimizer: LoGRA, region: TrustRegion, proposal: Proposal, probe: Probe) -> Tensor:
    arguments = (optimizer.model, optimizer.targets, proposal.factors, optimizer.projections, probe)
    if region.estimator == "central":
        return predict_kl_central(*arguments, difference=region.difference)
    return predict_kl(*arguments)


def _fit(
    optimizer: LoGRA, region: TrustRegion, proposal: Proposal, probe: Probe, allowed: float, scale: float
) -> tuple[float, float]:
    """Shrink the scale until the measured KL fits; 0 if it still doesn't after `max_passes` measurements.

    KL grows about as α², so each pass aims at 95 % of the root and the loop nearly always ends at the second.
    """
    if torch.is_autocast_enabled() or torch.is_autocast_enabled("cpu"):
        raise ValueError(
            "verify=True under autocast would measure the rounding of half precision, not the step: "
            "leave autocast for the step, or set verify=False"
        )
    for _ in range(region.max_passes):
        measured = measure(optimizer, proposal, probe, scale)
        if measured <= allowed:
            return scale, measured
        step_scale(measured, allowed, 1.0, False)  # refuses NaN and infinity
        scale *= min(0.95 * (allowed / measured) ** 0.5, 0.9)
    return 0.0, 0.0


def _mean(reduce: Reduce, values: Tensor) -> float:
    """The mean over the positions of all replicas.

    Raises:
        ValueError: if there are none.
    """
    sums = torch.tensor([float(values.sum()), float(len(values))], dtype=torch.float64)
    total, count = reduce.total(sums).tolist()
    if count == 0:
        raise ValueError(
            "the probe has no position to judge at: mark at least one generated token; nothing was changed"
        )
    return total / count


def _agreed(optimizer: LoGRA, mismatch: float | Mismatch | None) -> float | None:
    """m̂ over the tokens of all replicas: sums and counts are added, so a replica counts by its tokens.

    Raises:
        ValueError: for plain numbers that differ between replicas; how many tokens each stands for isn't known.
    """
    sums = [0.0] * 5  # total and tokens of pairs; sum, count and squares of plain numbers
    if isinstance(mismatch, Mismatch):
        sums[:2] = float(mismatch.total), float(mismatch.tokens)
    elif mismatch is not None:
        sums[2:] = float(mismatch), 1.0, float(mismatch) ** 2
    reduced = optimizer.reduce.total(torch.tensor(sums, dtype=torch.float64))
    total, tokens, plain, count, squares = reduced.tolist()
    if not count:
        return total / tokens if tokens else None
    mean = plain / count
    if tokens or abs(squares / count - mean**2) > 1e-12 * squares:
        raise ValueError(
            f"mismatch is a plain number that differs between processes (here {mismatch}, {mean} on average): "
            "pass Mismatch.of(differences), so that each process counts by its tokens; nothing was changed"
        )
    return mean
