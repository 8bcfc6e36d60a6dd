"""RowAdam on the dense gradient: LoGRA's rule with A = I, to tell what the sketch costs from what the rule costs.

The formulas are those of `logra_lab.method.row_adam`, with the gradient G [d, k] where the sketch S [d, r] stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from logra_lab.method.row_adam import lr_factor, next_row_moment


class RowAdam(torch.optim.Optimizer):
    """W <- W - lr G / (sqrt(v / (1 - beta2^t)) + eps), one moment per output row (method.md §2, rule "lr")."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], lr: float = 1e-3, beta2: float = 0.95, eps: float = 1e-8
    ) -> None:
        if lr < 0:
            raise ValueError(f"lr={lr} is negative; use a number above 0")
        super().__init__(parameters, {"lr": lr, "beta2": beta2, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's has an overload each
        """One update of every weight that has a gradient."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                step = state.get("step", 0) + 1
                moment = state.get("moment", weight.new_zeros(len(weight), dtype=torch.float32))
                gradient = weight.grad.float()
                moment = next_row_moment(moment, gradient, group["beta2"])  # [d]
                direction = lr_factor(gradient, moment, step, group["beta2"], group["eps"])  # [d, k]
                weight.sub_(direction.to(weight.dtype), alpha=group["lr"])
                state["step"], state["moment"] = step, moment
