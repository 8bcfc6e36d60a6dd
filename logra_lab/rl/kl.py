"""How far a step really moved the policy: the KL between before and after, at a probe's positions, in fp32.

`ProbeSnapshot(model, probe)` is taken before the step; `.kl(model)` afterwards is mean KL(pi_old || pi_new) per token,
in float64 from fp32 logits. It works for every optimizer, since it only looks at the model.

Cost: two more passes over the probe, and [n, V] log-probs held in between: keep the probe small where V is large.
In bf16 the result is mostly rounding (method.md §8.2), so it is refused there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from logra_lab.method.trust_region import Probe


class ProbeSnapshot:
    """The policy's log-probs [n, V] at the probe's positions, at the time of construction."""

    def __init__(self, model: nn.Module, probe: Probe) -> None:
        dtype = next(model.parameters()).dtype
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"measured KL in {dtype} is rounding, not signal; load the model in float32, or don't measure"
            )
        self.probe = probe
        self.log_probs = self._log_probs(model)

    @torch.no_grad()
    def kl(self, model: nn.Module) -> float:
        """Mean KL(pi_old || pi_new) per position, in nats."""
        old, new = self.log_probs.double(), self._log_probs(model).double()
        return (old.exp() * (old - new)).sum(-1).mean().item()

    @torch.no_grad()
    def _log_probs(self, model: nn.Module) -> Tensor:
        chunks = self.probe.features(model).split(self.probe.chunk)
        return torch.cat([self.probe.logits(model, c).double().log_softmax(-1).float() for c in chunks])
