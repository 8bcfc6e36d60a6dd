"""What one can read of a LoGRA without changing it: sketches, projections, weights, previews, bytes.

Shapes: d output rows of a target, k its input columns, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from . import guards
from .describe import Description, describe
from .distributed import Reduce
from .judge import measure
from .merge import FP32
from .side_branch import side_branch
from .sketch import Projections, Sketcher
from .targets import Target
from .trust_region import Probe
from .values import Proposal, StaleProposal
from .weights import WeightStore


class Inspection:
    """The reading half of `LoGRA`; the phases of a step are in `optimizer.py`."""

    model: nn.Module
    targets: Sequence[Target]
    sketcher: Sketcher
    projections: Projections
    weights: WeightStore
    precision: FP32
    moments: dict[str, Tensor]
    native: torch.optim.Optimizer | None
    reduce: Reduce
    updates: int
    _ticket: object

    @property
    def sketches(self) -> Mapping[str, Tensor]:
        """S [d, r] by target name, as collected in this process since the last clear."""
        return self.sketcher.sketches

    def projection(self, name: str) -> Tensor:
        """A [r, k] of the target, as the current update uses it; built on call."""
        target = guards.named(self.targets, name)
        sketch = self.sketches[name]
        return self.projections.signs(target, sketch.device, sketch.dtype) * self.projections.scale

    def weight(self, name: str) -> Tensor:
        """The full-precision value [d, k] of the target (its local rows under sharding), as a copy."""
        return self.weights.read(guards.named(self.targets, name))

    @contextmanager
    def preview(self, proposal: Proposal, scale: float = 1.0) -> Iterator[None]:
        """Within it the model computes as if the proposal were committed; the weights don't move."""
        self._refuse_stale(proposal)
        factors, decay = proposal.factors, proposal.decay
        targets = self.targets if proposal.has_signal else ()
        with side_branch(targets, factors, self.projections, scale, decay):
            yield

    def measure(self, proposal: Proposal, probe: Probe, scale: float = 1.0) -> float:
        """The measured KL(π_old ‖ π_new) of the proposal at `scale`, a mean over the probe, in nats."""
        return measure(self, proposal, probe, scale)

    def describe(self) -> Description:
        """What is sketched, native and frozen, with the bytes of each."""
        return describe(self)

    def _refuse_stale(self, proposal: Proposal) -> None:
        if proposal.ticket is not self._ticket:
            raise StaleProposal(
                f"the proposal was made at update {proposal.update} from a state that is gone (the optimizer "
                f"is at update {self.updates}): call propose() again after the next backward"
            )
