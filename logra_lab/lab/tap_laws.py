"""What a tap and a hook must do, as laws: the exercises of lesson 04 try the learner's functions on them.

Shapes: T token positions, d output rows and k input columns, r rank. H [T, d], X [T, k], A [r, k], P [T, r].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from logra_lab.lab.cases import NOTHING

MakeHook = Callable[[Tensor, Tensor], Callable]
Tap = Callable[[Tensor, Tensor, Tensor], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers, the same at every call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def tapped(tap: Tap, sketch: Tensor, weight: Tensor) -> tuple[Tensor, Tensor | None]:
    """Send an output y [5, 3] through `tap`, multiply by `weight` [5, 3] and go back: (P, gradient of y)."""
    y, projected = normal(5, 3).requires_grad_(), normal(5, 2, seed=1)
    out = written(tap(y, projected, sketch))
    try:
        (out * weight).sum().backward()
    except RuntimeError as error:
        if "number of gradients" not in str(error):
            raise
        raise ValueError("backward has to return three values, one for each input of forward") from error
    return projected, y.grad


def written(value: Any) -> Any:
    """`value`, unless it shows that the function is still its stub."""
    if value is None or value is ...:
        raise NotImplementedError(NOTHING.format(value))
    return value


def closest(got: Tensor, wanted: Tensor, faults: dict[str, Tensor]) -> bool | str:
    """True if `got` is `wanted`; else the sentence of the fault that gives `got`, or what was seen."""
    if got is None:
        return "nothing arrived"
    if got.shape != wanted.shape:
        return f"its shape is {list(got.shape)}; {list(wanted.shape)} was expected"
    if torch.allclose(got, wanted, rtol=1e-4, atol=1e-5):
        return True
    for words, other in faults.items():
        if got.shape == other.shape and torch.allclose(got, other, rtol=1e-4, atol=1e-5):
            return words
    return f"it is {(got.norm() / wanted.norm()).item():.2f} times as large, or points elsewhere"


def output_passes(tap: Tap) -> bool | str:
    """Whether the forward is the identity."""
    y, projected = normal(5, 3).requires_grad_(), normal(5, 2, seed=1)
    out = written(tap(y, projected, torch.zeros(3, 2)))
    return closest(out.detach(), y.detach(), {})


def gradient_passes(tap: Tap) -> bool | str:
    """Whether the layers below still get their gradient."""
    weight = normal(5, 3, seed=4)
    _, grad = tapped(tap, torch.zeros(3, 2), weight)
    if grad is None:
        return "nothing arrives: the layers below get no gradient. Return grad as the first of three"
    return closest(grad, weight, {"what arrives is zero": torch.zeros(5, 3)})


def sketch_adds(tap: Tap) -> bool | str:
    """Whether two backwards add Hᵀ P each."""
    weight, sketch = normal(5, 3, seed=4), torch.zeros(3, 2)
    projected, _ = tapped(tap, sketch, weight)
    tapped(tap, sketch, weight)
    once = weight.T @ projected
    faults = {
        "nothing was added to the sketch; add in place: sketch.add_(…) or sketch += …": torch.zeros(3, 2),
        "after two backwards it holds the last one only: add, don't overwrite": once,
        "it is a mean over the tokens; S is their sum": 2 * once / 5,
        "the sign is turned round: the minus comes with the update": -2 * once,
    }
    return closest(sketch, 2 * once, faults)


def projected_is_saved(tap: Tap) -> bool | str:
    """Whether P, and nothing else, is kept through ctx.save_for_backward."""
    seen: list[tuple[int, ...]] = []
    y, projected = normal(5, 3).requires_grad_(), normal(5, 2, seed=1)

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        written(tap(y, projected, torch.zeros(3, 2)))
    if (5, 2) not in seen:
        return "P was not saved. With ctx.save_for_backward, checkpointing can drop it; an attribute of ctx stays"
    return (
        True
        if seen == [(5, 2)]
        else f"more than P is kept: tensors of shapes {[list(shape) for shape in seen]}"
    )


class World:
    """One hooked layer [4, 6] and the dense gradient that its sketch must agree with."""

    def __init__(self, make_hook: MakeHook) -> None:
        self.projection, self.sketch = normal(3, 6, seed=9), torch.zeros(4, 3)
        self.layer = nn.Linear(6, 4, bias=False)
        self.layer.weight.data = normal(4, 6, seed=8)
        hook = written(make_hook(self.projection, self.sketch))
        self.layer.register_forward_hook(hook)

    def loss(self, seed: int, checkpointed: bool = False, uses: int = 1) -> Tensor:
        """A loss of one micro-batch; the layer is used `uses` times, within checkpointing or not."""
        inputs = [normal(5, 6, seed=seed + 50 * use).requires_grad_() for use in range(uses)]

        def block(*xs: Tensor) -> Tensor:
            return torch.cat([torch.tanh(self.layer(x)) for x in xs])

        out = checkpoint(block, *inputs, use_reentrant=False) if checkpointed else block(*inputs)
        return out.square().sum()

    def verdict(self) -> bool | str:
        """Whether the sketch is G Aᵀ."""
        gradient = self.layer.weight.grad
        if gradient is None:
            return "no gradient came through the layer: hand the output on"
        wanted = gradient @ self.projection.T
        if torch.allclose(self.sketch, wanted, rtol=1e-4, atol=1e-4):
            return True
        if torch.allclose(self.sketch, 2 * wanted, rtol=1e-4, atol=1e-4):
            return "S is exactly 2.00 times G Aᵀ: something was counted twice"
        if not bool(self.sketch.any()):
            return "S is still zero: no backward came by. A hook that taps returns what the tap returns"
        error = ((self.sketch - wanted).norm() / wanted.norm()).item()
        return f"S is off G Aᵀ by {error:.2f} of its norm: an H met the wrong P, or was lost"


def situation(*steps: tuple, ahead: bool = False) -> Callable[[MakeHook], bool | str]:
    """A law: run forward and backward of each of `steps`, or all forwards first (`ahead`), and compare S."""

    def law(make_hook: MakeHook) -> bool | str:
        world = World(make_hook)
        if ahead:
            for loss in [world.loss(*step) for step in steps]:
                loss.backward()
        else:
            for step in steps:
                world.loss(*step).backward()
        return world.verdict()

    return law
