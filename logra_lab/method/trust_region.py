"""The trust region: how far a proposed step would move the policy, and how far it may (method.md §3).

    q = mean over probe positions of ½ Var_{v∼π}(ż_v / τ),     α = min(α_max, √(δ_eff / q))

ż is the directional derivative of the logits along ΔW = −U A, taken by one forward-mode pass with the
update as a tangent side branch; no ΔW is built and cross-layer terms are included. Functions here judge
and never step.

Left out: anything about tokens and prompts. A probe brings the positions to judge. The quadratic form is
local: accurate to KL ≈ 3e-3, 18 % off at 0.33; `measure_kl` is there for the rest.

Shapes: n probe positions, D features, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .row_adam import wide
from .side_branch import constant_weights, side_branch, tangent_branch
from .sketch import Projections
from .targets import Target


class Probe(Protocol):
    """The positions at which a step is judged. `chunk` positions pass through the head at a time."""

    chunk: int

    def features(self, model: nn.Module) -> Tensor:
        """The head's inputs at the judged positions [n, D], one pass through the model."""

    def logits(self, model: nn.Module, chunk: Tensor) -> Tensor:
        """Logits [c, V] of some features [c, D], divided by the sampling temperature."""


@dataclass(frozen=True)
class TrustRegion:
    """How a step is judged (method.md §3). KL is per token, in nats.

    Attributes:
        budget: δ_0, the KL allowed to the first update.
        final_budget: δ_T, allowed from update `schedule_steps` on.
        schedule_steps: H of the cosine between the two.
        alpha_max: the largest scale of a two-sided region.
        two_sided: True: α may exceed 1 (the paper); False: only a brake. None: by the optimizer's rule.
        verify: also measure the scaled step's KL and shrink it until it fits (fp32 only).
        max_passes: measurements at most when verifying.
        estimator: "forward" (forward-mode AD) or "central" (a difference that keeps fused attention).
        difference: ε of the central difference, in steps.
        mismatch_decay: how much of the mismatch average is kept each time.
        budget_floor: the part of the budget that mismatch can't take.
    """

    budget: float = 2e-4
    final_budget: float = 2e-5
    schedule_steps: int = 300
    alpha_max: float = 3.0
    two_sided: bool | None = None
    verify: bool = False
    max_passes: int = 6
    estimator: str = "forward"
    difference: float = 10.0
    mismatch_decay: float = 0.7
    budget_floor: float = 0.5

    def __post_init__(self) -> None:
        for field in ("budget", "final_budget", "schedule_steps", "alpha_max", "max_passes", "difference"):
            value = getattr(self, field)
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"TrustRegion({field}={value}): choose a positive, finite number")
        for field in ("mismatch_decay", "budget_floor"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"TrustRegion({field}={getattr(self, field)}): choose a number from 0 to 1")
        if self.estimator not in ("forward", "central"):
            raise ValueError(f'TrustRegion(estimator={self.estimator!r}): choose "forward" or "central"')


def kl_budget(updates: int, budget: float, final_budget: float, schedule_steps: int) -> float:
    """δ(u), a half cosine from δ_0 at u = 0 updates done to δ_T from u = H − 1 on (method.md §3)."""
    progress = min(updates / (schedule_steps - 1), 1.0) if schedule_steps > 1 else 1.0
    return final_budget + 0.5 * (budget - final_budget) * (1 + math.cos(math.pi * progress))


def next_mismatch(mismatch: float, measured: float | None, decay: float) -> float:
    """m ← decay · m + (1 − decay) · max(0, m̂); m stays where nothing was measured (method.md §3)."""
    return mismatch if measured is None else decay * mismatch + (1 - decay) * max(0.0, measured)


def effective_budget(delta: float, mismatch: float, floor: float) -> float:
    """δ_eff = max(δ − m, floor · δ) (method.md §3)."""
    return max(delta - mismatch, floor * delta)


def step_scale(predicted_kl: float, delta: float, alpha_max: float, two_sided: bool) -> float:
    """α = min(α_max or 1, √(δ_eff / q)); 1 where q = 0, since nothing moves anyway (method.md §3).

    Raises:
        ValueError: if q is NaN, infinite or negative.
    """
    if not math.isfinite(predicted_kl) or predicted_kl < 0:
        raise ValueError(
            f"the predicted KL is {predicted_kl}, which no step can be scaled by: look for non-finite "
            "weights or logits; nothing was changed"
        )
    if predicted_kl == 0:
        return 1.0
    return min(alpha_max if two_sided else 1.0, math.sqrt(delta / predicted_kl))


def half_variance(logits: Tensor, tangent: Tensor) -> Tensor:
    """½ Var_{v∼π}(ż_v) per position [c], from z and ż [c, V], in float64 (method.md §3)."""
    policy = wide(logits).softmax(-1)
    tangent = wide(tangent)
    centred = tangent - (policy * tangent).sum(-1, keepdim=True)
    return 0.5 * (policy * centred.square()).sum(-1)  # [c]


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off inside; every module's own training flag restored after, also after an error."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in flags:
            module.training = flag


@torch.no_grad()
def predict_kl(
    model: nn.Module,
    targets: Sequence[Target],
    factors: Mapping[str, Tensor],
    projections: Projections,
    probe: Probe,
) -> Tensor:
    """½ Var_π(ż/τ) at each probe position [n], float64, by one forward-mode pass (method.md §3).

    Fused attention has no forward-mode rule: SDPA runs its plain mathematics in here.
    """
    with (
        evaluation_mode(model),
        sdpa_kernel(SDPBackend.MATH),
        forward_ad.dual_level(),
        tangent_branch(targets, factors, projections),
        constant_weights(model, targets),
    ):
        features, tangent = forward_ad.unpack_dual(probe.features(model))  # [n, D] each
        tangent = torch.zeros_like(features) if tangent is None else tangent
        values = []
        for chunk, direction in zip(features.split(probe.chunk), tangent.split(probe.chunk), strict=True):
            z, z_dot = forward_ad.unpack_dual(probe.logits(model, forward_ad.make_dual(chunk, direction)))
            values.append(half_variance(z, torch.zeros_like(z) if z_dot is None else z_dot))
    return torch.cat(values) if values else features.new_zeros(0)  # [n]


@torch.no_grad()
def predict_kl_central(
    model: nn.Module,
    targets: Sequence[Target],
    factors: Mapping[str, Tensor],
    projections: Projections,
    probe: Probe,
    difference: float = 10.0,
) -> Tensor:
    """The same [n] by a central difference ż ≈ (z₊ − z₋)/2ε, for models that must keep fused attention.

    ε is in steps: about 10 in bf16, since at 1 the rounding of z is larger than the step (method.md §3).
    """
    heads, features = {}, {}
    with evaluation_mode(model):
        for sign in (+1, -1):
            with side_branch(targets, factors, projections, sign * difference):
                features[sign] = probe.features(model)  # [n, D]
        values = []
        for start in range(0, len(features[1]), probe.chunk):
            for sign in (+1, -1):
                with side_branch(targets, factors, projections, sign * difference):
                    heads[sign] = wide(probe.logits(model, features[sign][start : start + probe.chunk]))
            values.append(
                half_variance((heads[1] + heads[-1]) / 2, (heads[1] - heads[-1]) / (2 * difference))
            )
    return torch.cat(values) if values else features[1].new_zeros(0)


@torch.no_grad()
def measure_kl(model: nn.Module, probe: Probe, changed: Callable) -> Tensor:
    """KL(π_old ‖ π_new) at each probe position [n], float64; `changed()` is a context with the new policy."""
    with evaluation_mode(model):
        old = probe.features(model)  # [n, D]
        with changed():
            new = probe.features(model)
        values = []
        for before, after in zip(old.split(probe.chunk), new.split(probe.chunk), strict=True):
            log_old = wide(probe.logits(model, before)).log_softmax(-1)  # [c, V]
            with changed():
                log_new = wide(probe.logits(model, after)).log_softmax(-1)
            values.append((log_old.exp() * (log_old - log_new)).sum(-1))
    return torch.cat(values) if values else old.new_zeros(0)  # [n]
