"""The target weights of one process: which rows are here, at which precision, and how an update reaches them.

Trainer and replica share this class, so that the same packet gives the same bits on both sides.

Shapes: W [d, k], of which [d', k] live here; F factor [d, r]; signs of A [r, k].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import kernels
from .distributed import Rows
from .fused import Staging, fused_merge
from .merge import FP32
from .sketch import Projections
from .targets import Target
from .values import Update


class WeightStore:
    """Reads and updates the targets' weights in place.

    Args:
        targets: from `find_targets`.
        precision: how a weight is kept (`merge.py`).
        rows: which rows live here (`distributed.py`).
    """

    def __init__(self, targets: Sequence[Target], precision: FP32, rows: Rows) -> None:
        self.targets, self.precision, self.rows = tuple(targets), precision, rows
        for target in self.targets:
            precision.adopt(target.name, self.local(target))

    def local(self, target: Target) -> Tensor:
        """The local rows [d', k] of the parameter, as writable memory; looked up anew each time."""
        return self.rows.local(target.weight)[0]

    def read(self, target: Target) -> Tensor:
        """A copy of the full-precision value of the local rows [d', k]."""
        return self.precision.read(target.name, self.local(target))

    def square(self) -> float:
        """Σ ‖W‖² over all targets and all processes."""
        parts = [self.precision.square(target.name, self.local(target)) for target in self.targets]
        return float(self.rows.total(torch.stack([part.to(parts[0].device) for part in parts]).sum()))

    @torch.no_grad()
    def merge(self, update: Update, projections: Projections) -> None:
        """W ← (1 − decay) W − F A for every target, with the A that `projections` stands at."""
        staging = Staging()
        for target in self.targets:
            weight, offset = self.rows.local(target.weight)
            dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
            factor = update.factors[target.name][offset : offset + len(weight)].to(weight.device, dtype)
            if kernels.backend(weight) == "triton":
                fused_merge(
                    self.precision, target.name, weight, factor, projections.key(target),
                    decay=update.decay, update=update.update, offset=offset, staging=staging,
                )  # fmt: skip
                continue
            signs = projections.signs(target, weight.device, dtype)
            self.precision.add_low_rank(
                target.name, weight, factor, signs, update.decay, update.update, offset
            )
        staging.finish()
