"""The typed values that pass between the phases of a step: propose → judge → commit.

All are frozen. Dropping one needs no repair, since nothing was changed to make it.

Shapes: d output rows, r rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor


class NonFiniteSketch(ValueError):
    """A sketch holds NaN or infinity: some gradient of this step was not finite."""


class StaleProposal(ValueError):
    """A proposal made from a state that the optimizer has left since."""


@dataclass(frozen=True, eq=False)
class Proposal:
    """What one step would do, before anything is changed.

    Attributes:
        update: the number of updates done when it was made.
        factors: U or lr·D [d, r] by target name; the step is W ← (1 − decay) W − α U A. Empty without signal.
        moments: the row moments [d] that the optimizer adopts if the proposal is committed.
        decay: lr · weight decay.
        sketch_norm: ‖S A‖ over all targets, before clipping.
        clip: the factor that clipping applied, 1 if none.
        ticket: ties the proposal to the state it came from.
    """

    update: int
    factors: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]
    decay: float
    sketch_norm: float
    clip: float
    ticket: object = field(repr=False)

    @property
    def has_signal(self) -> bool:
        """False if every sketch was zero: then a commit changes nothing but the count of such steps."""
        return bool(self.factors)


class Mismatch(NamedTuple):
    """m̂ so that processes can add theirs: log π_rollout − log π_train summed over `tokens` (method.md §3)."""

    total: float
    tokens: int

    @classmethod
    def of(cls, difference: Tensor) -> Mismatch:
        """From the differences [T] at this process's tokens of finished answers, possibly none."""
        return cls(float(difference.double().sum()), difference.numel())


@dataclass(frozen=True)
class Verdict:
    """What the trust region says of a proposal.

    Attributes:
        predicted_kl: q, the mean KL per probe position that the unscaled proposal would cause.
        budget: δ_eff, what is allowed.
        scale: α, what to commit the proposal with.
        mismatch: the running average m that a commit adopts.
        measured_kl: the KL measured at `scale` (verified regions only).
        worst_kl: the 99th percentile of the predicted KL over positions, which a mean hides.
    """

    predicted_kl: float
    budget: float
    scale: float
    mismatch: float
    measured_kl: float | None = None
    worst_kl: float | None = None


@dataclass(frozen=True, eq=False)
class Update:
    """A committed step as it can travel: W ← (1 − decay) W − F A.

    Attributes:
        update: the number of updates done before it.
        factors: F = αU [d, r] by target name, rounded to the optimizer's `factor_dtype`.
        decay: lr · weight decay.
    """

    update: int
    factors: Mapping[str, Tensor]
    decay: float


@dataclass(frozen=True)
class StepReport:
    """What `step()` did.

    Attributes:
        status: "updated", "no signal" (every sketch zero) or "non-finite" (a gradient was NaN or infinite).
        update: the number of updates done after it.
        message: a sentence for a log.
        sketch_norm: ‖S A‖ before clipping, None where it is not finite.
        predicted_kl, measured_kl, budget, scale, mismatch, worst_kl: as in `Verdict`; None without one.
    """

    status: str
    update: int
    message: str
    sketch_norm: float | None = None
    predicted_kl: float | None = None
    measured_kl: float | None = None
    budget: float | None = None
    scale: float | None = None
    mismatch: float | None = None
    worst_kl: float | None = None
