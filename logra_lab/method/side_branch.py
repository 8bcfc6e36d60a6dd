"""A proposed update as a low-rank side branch: the model computes with it, the weights never move.

    y = x (W − αUA)ᵀ = x Wᵀ − α (x Aᵀ) Uᵀ

`side_branch` adds the term itself (preview, measured KL), `tangent_branch` adds it to the forward-mode
tangent only (predicted KL). Neither builds ΔW; both remove their hooks on the way out, also after an error.

Shapes: x [..., k], y [..., d], U factor [d, r], signs of A [r, k].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

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

    with _hooked((m, hook_of(t)) for t in targets for m in t.modules):
        yield


@contextmanager
def tangent_branch(
    targets: Sequence[Target], factors: Mapping[str, Tensor], projections: Projections
) -> Iterator[None]:
    """Within it, and within a forward-mode level, outputs carry the tangent along ΔW = −U A (method.md §3)."""

    def branch_of(target: Target) -> Callable:
        return lambda x: low_rank_term(x, factors[target.name], target, projections)

    with _with_tangents(_Tangent(m, branch_of(t)) for t in targets for m in t.modules):
        yield


@contextmanager
def constant_weights(model: nn.Module, targets: Sequence[Target]) -> Iterator[None]:
    """Within it, and within a forward-mode level, linear layers other than the targets treat W as a constant.

    Left to itself, forward mode multiplies by a tangent of W that is all zeros, and makes one as large as W:
    half as much work again, and for the head a matrix of [V, D].
    """
    own = {id(module) for target in targets for module in target.modules}
    others = (m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in own)
    with _with_tangents(_Tangent(m, None) for m in others if type(m).forward is nn.Linear.forward):
        yield


class _Hook:
    """A forward hook that `torch.compile` leaves alone. (Disabling each function anew would take milliseconds.)"""

    def __init__(self, function: Callable) -> None:
        self._function = function

    @torch.compiler.disable
    def __call__(self, *args):
        return self._function(*args)


class _Tangent:
    """A linear layer's forward within `tangent_branch`: W x and W ẋ in one product, branch(x) taken off the tangent."""

    def __init__(self, module: nn.Linear, branch: Callable[[Tensor], Tensor] | None) -> None:
        self._module, self._branch, self._own = module, branch, module.forward
        plain = type(module).forward is nn.Linear.forward and "forward" not in vars(module)
        self._few_rows = plain and module.weight.device.type == "cpu"

    @torch.compiler.disable
    def __call__(self, x: Tensor) -> Tensor:
        x, moved = forward_ad.unpack_dual(x)
        tangent = None
        if moved is None:
            output = self._linear(x)
        else:
            output, tangent = self._linear(torch.cat((x, moved))).chunk(2)  # [B, ..., d] each; W is read once
            if self._module.bias is not None:
                tangent = tangent - self._module.bias
        if self._branch is not None:
            own = self._branch(x).to(output.dtype)
            tangent = own.neg_() if tangent is None else tangent - own
        return output if tangent is None else forward_ad.make_dual(output, tangent)

    def __enter__(self) -> None:
        self._before = vars(self._module).get("forward")
        vars(self._module)["forward"] = self

    def __exit__(self, *_: object) -> None:
        del vars(self._module)["forward"]
        if self._before is not None:
            vars(self._module)["forward"] = self._before

    def _linear(self, rows: Tensor) -> Tensor:
        if not self._few_rows:
            return self._own(rows)
        flat = (self._module.weight @ rows.flatten(0, -2).T).T  # [n, d]; a CPU is faster at W Xᵀ for few rows
        output = flat.reshape(*rows.shape[:-1], flat.shape[-1])  # [B, ..., d]
        return output if self._module.bias is None else output.add_(self._module.bias)


@contextmanager
def _hooked(hooks: Iterable[tuple[nn.Module, Callable]]) -> Iterator[None]:
    """Every module with its forward hook until the context closes."""
    with ExitStack() as stack:
        for module, hook in hooks:
            stack.callback(module.register_forward_hook(_Hook(hook)).remove)
        yield


@contextmanager
def _with_tangents(forwards: Iterable[_Tangent]) -> Iterator[None]:
    """Every module with its other forward until the context closes."""
    with ExitStack() as stack:
        for forward in forwards:
            stack.enter_context(forward)
        yield
