"""The cheap alternative to a predicted KL: measure each step's KL afterwards, and steer the next step size by it.

It is always a step late, which is what it costs beside the trust region; it needs two more passes over the probe.
"""

from __future__ import annotations

import dataclasses

from logra_lab.method.trust_region import kl_budget
from logra_lab.rl.config import ArmConfig


@dataclasses.dataclass
class KLFeedback:
    """After each step: step size / 1.5 above 2 delta, x 1.5 below delta / 2, where delta is the budget."""

    budget: float
    final_budget: float
    schedule_steps: int
    factor: float = 1.0

    def delta(self, updates: int) -> float:
        """The budget for the update after `updates` are done."""
        return kl_budget(updates, self.budget, self.final_budget, self.schedule_steps)

    def observe(self, measured_kl: float, updates: int) -> float:
        """The factor for the next step, after this one measured `measured_kl`."""
        delta = self.delta(updates)
        if measured_kl > 2 * delta:
            self.factor /= 1.5
        elif measured_kl < delta / 2:
            self.factor *= 1.5
        return self.factor


def make_feedback(config: ArmConfig, steps: int) -> KLFeedback | None:
    """The measured-KL controller where `config.control` asks for it."""
    if config.control != "feedback":
        return None
    return KLFeedback(config.budget, config.final_budget, steps)
