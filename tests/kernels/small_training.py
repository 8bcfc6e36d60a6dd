"""A few steps of a small model, to be run once by the kernels and once by torch."""

from __future__ import annotations

import torch

from logra_lab.method import LoGRA
from tests.method.worlds import llama, loss_of, tokens


def train(precision: str, steps: int = 3) -> dict[str, dict[str, torch.Tensor]]:
    """Sketches of the first step, and the full-precision weights after the last, by target."""
    model = llama()
    if precision != "fp32":
        model = model.bfloat16()
    optimizer = LoGRA(model, rank=5, rule="lr", lr=1e-3, weight_decay=0.1, precision=precision)
    first = {}
    for step in range(steps):
        loss_of(model, tokens(4, seed=step)).backward()
        first = first or {name: sketch.clone() for name, sketch in optimizer.sketches.items()}
        optimizer.step()
    weights = {target.name: optimizer.weight(target.name).clone() for target in optimizer.targets}
    return {
        "sketches": first,
        "weights": weights,
        "kept": {"signs": torch.tensor(optimizer.projections.nbytes())},
    }
