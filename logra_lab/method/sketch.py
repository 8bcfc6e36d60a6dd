"""Backward without a gradient: hooks that add S += Hᵀ (X Aᵀ) and never build G (method.md §1).

Forward: a hook on each target computes P = X signs(A)ᵀ [T, r] and passes the layer's output through an
autograd function that keeps P. Backward: that function adds Hᵀ P to S. The weight itself needs no
gradient, so autograd keeps neither X for it nor G.

Left out: fp16 (its loss scaling would end up in S; refused), and tracing by `torch.compile`: the hooks run
outside the compiled graph, which costs a graph break per target and keeps the result that of eager mode.
An operation that overwrites a target's output in place is refused by autograd.

Shapes: T token positions, d output rows, k input columns, r rank.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from .distributed import OneProcess, Reduce
from .projections import Projections
from .targets import Target


class SketchBuffer(Mapping[str, Tensor]):
    """S [d, r] by target name, all of them views of one flat fp32 buffer per device.

    One buffer means one memset to clear, and one collective to reduce.
    """

    def __init__(self, targets: Sequence[Target], rank: int) -> None:
        self._targets, self._rank = {target.name: target for target in targets}, rank
        self.flats: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._views: dict[str, Tensor] = {}
        self.place()

    def place(self) -> None:
        """(Re)build the buffers on the weights' devices, keeping what they hold."""
        old, self.flats, self._views = dict(self._views), {}, {}
        self._members: dict[tuple[torch.device, torch.dtype], list[Target]] = {}
        for target in self._targets.values():
            dtype = torch.float64 if target.weight.dtype == torch.float64 else torch.float32
            self._members.setdefault((target.weight.device, dtype), []).append(target)
        for (device, dtype), members in self._members.items():
            total = sum(target.rows * self._rank for target in members)
            self.flats[device, dtype] = torch.zeros(total, device=device, dtype=dtype)
            self._views.update(views_of(self.flats[device, dtype], members, self._rank))
        for name, content in old.items():
            self._views[name].copy_(content)

    def on(self, target: Target, device: torch.device) -> Tensor:
        """The sketch of `target` [d, r], moved along first if the model was moved to another device."""
        if self._views[target.name].device != device:
            self.place()
        return self._views[target.name]

    def reduced(self, reduce: Reduce) -> Mapping[str, Tensor]:
        """The sketches summed or averaged over replicas; in one process the sketches themselves, uncopied."""
        if isinstance(reduce, OneProcess):
            return self
        result: dict[str, Tensor] = {}
        for place, flat in self.flats.items():
            whole = flat.clone()  # a copy, so that a dropped proposal leaves this process's sketch as it was
            reduce.sketch(whole)
            result.update(views_of(whole, self._members[place], self._rank))
        return result

    def clear(self) -> None:
        """Set every sketch to zero."""
        for flat in self.flats.values():
            flat.zero_()

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self):
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)


def views_of(flat: Tensor, targets: Sequence[Target], rank: int) -> dict[str, Tensor]:
    """Cut a flat buffer into S [d, r] per target, in order."""
    parts = flat.split([target.rows * rank for target in targets])
    return {t.name: part.view(t.rows, rank) for t, part in zip(targets, parts, strict=True)}


def accumulate(sketch: Tensor, grad: Tensor, projected: Tensor, scale: float) -> None:
    """S += scale · Hᵀ P in the sketch's precision, from H [..., d] and P [..., r] (method.md §1)."""
    grad, projected = grad.reshape(-1, grad.shape[-1]), projected.reshape(-1, projected.shape[-1])
    if grad.dtype == sketch.dtype:
        sketch.addmm_(grad.T, projected, alpha=scale)  # [d, r]
    elif grad.is_cuda and sketch.dtype == torch.float32:  # half-width inputs, fp32 sums, no upcast copy
        sketch.add_(torch.mm(grad.T, projected, out_dtype=torch.float32), alpha=scale)
    else:
        sketch.addmm_(grad.to(sketch.dtype).T, projected.to(sketch.dtype), alpha=scale)


class _Tap(torch.autograd.Function):
    """Identity on the layer's output; its backward hands H and the kept P to a sink."""

    @staticmethod
    def forward(ctx, output: Tensor, projected: Tensor, anchor: Tensor, sink: Callable) -> Tensor:
        ctx.save_for_backward(projected)  # checkpointing drops and recomputes what is saved this way
        ctx.sink = sink
        return output.view_as(output)

    @staticmethod
    def backward(ctx, grad: Tensor):
        ctx.sink(grad, *ctx.saved_tensors)
        return grad, None, None, None


class SketchHook:
    """The forward hook of one module; a copy or a pickle of it does nothing (see `__reduce__`)."""

    def __init__(self, sketcher: Sketcher | None = None, target: Target | None = None) -> None:
        self.sketcher, self.target = sketcher, target

    def __reduce__(self):
        # deepcopy(model) and torch.save(model) copy hooks too: the copy must not write into our sketches.
        return SketchHook, ()

    @torch.compiler.disable
    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if self.sketcher is None or self.target is None or not torch.is_grad_enabled():
            return None
        return self.sketcher.tap(self.target, args[0], output)


class Sketcher:
    """Attaches to the targets and fills `sketches` in every backward until `detach()`.

    Args:
        model: whose embeddings, when frozen, must let gradients start.
        targets: what to sketch.
        projections: A by group.
    """

    def __init__(self, model: nn.Module, targets: Sequence[Target], projections: Projections) -> None:
        self.targets, self.projections = tuple(targets), projections
        self.sketches = SketchBuffer(targets, projections.rank)
        self.touched: set[str] = set()  # the targets that some backward has reached since the last clear
        self._anchor = torch.zeros((), requires_grad=True)  # makes a tap differentiable on a frozen input
        self._shared: dict[str, tuple[weakref.ref, int, Tensor, int]] = {}
        self._members: dict[str, int] = {}
        for target in self.targets:
            self._members[target.group] = self._members.get(target.group, 0) + len(target.modules)
        self._handles = [
            module.register_forward_hook(SketchHook(self, target))
            for target in self.targets
            for module in target.modules
        ]
        self._handles += [
            module.register_forward_hook(GradientStart(model))
            for module in model.modules()
            if isinstance(module, nn.Embedding)
        ]

    def tap(self, target: Target, x: Tensor, output: Tensor) -> Tensor:
        """Project the input and put the tap on the output, [..., d] → [..., d]."""
        if output.dtype == torch.float16:
            raise TypeError(
                f"{target.name} computes in float16, whose loss scaling would end up in the sketch: "
                "use bf16 (torch.autocast(..., dtype=torch.bfloat16)) or fp32"
            )
        projected = self._projected(target, x)  # [..., r]

        def sink(grad: Tensor, kept: Tensor) -> None:
            accumulate(self.sketches.on(target, grad.device), grad, kept, self.projections.scale)
            self.touched.add(target.name)

        return _Tap.apply(output, projected, self._anchor, sink)

    def _projected(self, target: Target, x: Tensor) -> Tensor:
        """P = X signs(A)ᵀ [..., r], computed once for the members of a group that read the same tensor."""
        kept = self._shared.pop(target.group, None)
        if kept is None or kept[0]() is not x or kept[1] != x._version:
            with torch.no_grad():
                projected = self.projections.project(target, x)  # [..., r]
            kept = weakref.ref(x), x._version, projected, self._members[target.group]
        ref, version, projected, left = kept
        if left > 1:  # the last member lets go, so that only autograd keeps P
            self._shared[target.group] = (ref, version, projected, left - 1)
        return projected

    def clear(self) -> None:
        """Forget what was collected."""
        self.sketches.clear()
        self.touched.clear()

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        self._handles, self._shared = [], {}


class GradientStart:
    """The forward hook of an embedding: its output asks for a gradient where the first block must pass one on.

    Behind a frozen embedding nothing that enters the first block asks for one, and reentrant checkpointing then
    drops that block's whole backward. A transformers model that doesn't checkpoint is spared the work, unless somebody
    put torch's wrappers around its blocks.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model = model

    def __reduce__(self):
        return GradientStart, ()  # copies and pickles of the model carry no second model

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if torch.is_grad_enabled() and not output.requires_grad and self._may_checkpoint():
            output.requires_grad_(True)

    def _may_checkpoint(self) -> bool:
        says = getattr(self.model, "is_activation_checkpointing", None)
        if self.model is None or says is not False:
            return True
        return any(type(module).__name__ == "CheckpointWrapper" for module in self.model.modules())


def is_sketched(module: nn.Module) -> bool:
    """True if a live hook of some `LoGRA` sits on the module."""
    hooks = module._forward_hooks.values()
    return any(isinstance(hook, SketchHook) and hook.sketcher is not None for hook in hooks)
