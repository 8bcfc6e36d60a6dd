"""A proposed update as a low-rank side branch: the model computes with it, the weights never move.

    y = x (W − αUA)ᵀ = x Wᵀ − α (x Aᵀ) Uᵀ

`side_branch` adds the term itself (preview, measured KL), `tangent_branch` adds it to the forward-mode
tangent only (predicted KL). Neither builds ΔW; both remove their hooks on the way out, also after an error.

Shapes: x [..., k], y [..., d], U factor [d, r], signs of A [r, k].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn

from .sketch import Projections
from .targets import Target


def low_rank_term(x: Tensor, factor: Tensor, target: Target, projections: Projections) -> Tensor:
    """(x Aᵀ) Uᵀ [..., d] in the type of x; √r is divided out of U so that the signs stay exact in bf16."""
    signs = projections.signs(target, x.device, x.dtype)
    return (x @ signs.T) @ (factor * projections.scale).to(x.dtype).T  # [..., r] @ [r, d] = [..., d]


@contextmanager
def side_branch(
    targets: Sequence[Target],
    factors: Mapping[str, Tensor],
    projections: Projections,
    scale: float,
    decay: float = 0.0,
) -> Iterator[None]:
    """Within it, every target computes as if W were (1 − decay) W − scale · U A."""

    def hook_of(target: Target) -> Callable:
        factor = factors[target.name] * scale

        def hook(module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if decay:
                bias = 0 if module.bias is None else module.bias
                output = (output - bias) * (1 - decay) + bias
            return output - low_rank_term(args[0], factor, target, projections).to(output.dtype)

        return hook

    with _hooked(targets, hook_of):
        yield


@contextmanager
def tangent_branch(
    targets: Sequence[Target], factors: Mapping[str, Tensor], projections: Projections
) -> Iterator[None]:
    """Within it and a forward-mode level, outputs carry the tangent along ΔW = −U A (method.md §3)."""

    def hook_of(target: Target) -> Callable:
        def hook(module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            x = forward_ad.unpack_dual(args[0]).primal
            primal, tangent = forward_ad.unpack_dual(output)
            own = -low_rank_term(x, factors[target.name], target, projections).to(primal.dtype)
            return forward_ad.make_dual(primal, own if tangent is None else tangent + own)

        return hook

    with _hooked(targets, hook_of):
        yield


@contextmanager
def _hooked(targets: Sequence[Target], hook_of: Callable[[Target], Callable]) -> Iterator[None]:
    handles = [
        m.register_forward_hook(torch.compiler.disable(hook_of(t))) for t in targets for m in t.modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
