"""Which weights are sketched: found once by name, refused by name where a sketch would be wrong.

A target is a weight W [d, k] of one or several `nn.Linear` modules. Its geometry is settled here, at
construction, and serves the sketch, the rule, the merge, the checkpoint and the packet alike.

Left out: convolutions, `Conv1D` and quantised layers. Their gradient is no plain Hᵀ X of a stored weight;
they are refused with the remedy instead of trained wrongly.

Shapes: d output rows, k input columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

DEFAULT_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Attention and MLP projections of Llama-type models (method.md §1)."""

SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Siblings that read the same input, so that one A and one X Aᵀ serve them all."""

WRAPPER_PARTS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


@dataclass(frozen=True, eq=False)
class Target:
    """One sketched weight W [d, k].

    Attributes:
        name: the first module's name in `model.named_modules()`, wrapper prefixes stripped.
        modules: every `nn.Linear` that computes with this weight (several when it is shared).
        group: the projection group by name; targets of one group use one A.
        rows: d, output features.
        columns: k, input features.
    """

    name: str
    modules: tuple[nn.Linear, ...]
    group: str
    rows: int
    columns: int

    @property
    def weight(self) -> Tensor:
        """The parameter as the module holds it now (wrappers may swap it between steps)."""
        return self.modules[0].weight


def canonical_name(name: str) -> str:
    """A module's name without the parts that DDP, FSDP, checkpointing or `torch.compile` add."""
    return ".".join(part for part in name.split(".") if part not in WRAPPER_PARTS)


def find_targets(model: nn.Module, patterns: Sequence[str], *, shared: bool = True) -> tuple[Target, ...]:
    """The targets of `model`: modules whose last name part, or whole name, is in `patterns`.

    Raises:
        TypeError: if a matched module is no plain floating-point `nn.Linear`.
        ValueError: if nothing matches, or a weight is also used by a module that can't be sketched.
    """
    by_weight: dict[int, list[tuple[str, nn.Linear]]] = {}
    for name, module in _matches(model, patterns):
        linear = _suitable(name, module)
        by_weight.setdefault(id(linear.weight), []).append((name, linear))
    if not by_weight:
        raise ValueError(
            f"no module is named {', '.join(patterns)}: pass targets= with some of this model's linear "
            f"layers, {', '.join(linear_names(model)) or 'of which it has none'}"
        )
    _refuse_foreign_users(model, by_weight)
    columns = {name: module.in_features for users in by_weight.values() for name, module in users}
    return tuple(
        Target(
            name=users[0][0],
            modules=tuple(module for _, module in users),
            group=_group(users[0][0], columns) if shared else users[0][0],
            rows=users[0][1].out_features,
            columns=users[0][1].in_features,
        )
        for users in by_weight.values()
    )


def linear_names(model: nn.Module) -> list[str]:
    """The distinct last name parts of the model's `nn.Linear` modules, in order of appearance."""
    found = (name.split(".")[-1] for name, module in model.named_modules() if isinstance(module, nn.Linear))
    return list(dict.fromkeys(found))


def _matches(model: nn.Module, patterns: Sequence[str]) -> Iterator[tuple[str, nn.Module]]:
    wanted = set(patterns)
    for raw, module in model.named_modules():
        name = canonical_name(raw)
        if name and (name in wanted or name.split(".")[-1] in wanted):
            yield name, module


def _suitable(name: str, module: nn.Module) -> nn.Linear:
    """The module, if it is a plain floating-point `nn.Linear`."""
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if hasattr(module, "base_layer"):
        raise TypeError(
            f"{name} is {kind}, a layer wrapped by an adapter: merge and unload the adapter first "
            "(peft: model.merge_and_unload()), or choose other targets"
        )
    if hasattr(module, "quant_state") or kind.startswith(("bitsandbytes.", "torchao.")):
        raise TypeError(f"{name} is {kind}, a quantised layer: load the model unquantised, in bf16 or fp32")
    if not isinstance(module, nn.Linear):
        raise TypeError(
            f"{name} is {kind}, not nn.Linear, and has no plain [out, in] weight to sketch: "
            "convert it to nn.Linear or choose other targets"
        )
    if module.weight.dtype == torch.float16:
        raise TypeError(
            f"{name} has float16 weights, whose gradients need loss scaling: load the model in bf16 or fp32"
        )
    if not module.weight.is_floating_point():
        raise TypeError(
            f"{name} has {module.weight.dtype} weights, a quantised layer: load the model unquantised"
        )
    return module


def _refuse_foreign_users(model: nn.Module, by_weight: dict[int, list[tuple[str, nn.Linear]]]) -> None:
    """A weight tied to, say, an embedding also gets a gradient that no sketch of the linear sees."""
    known = {id(module) for users in by_weight.values() for _, module in users}
    for raw, module in model.named_modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in by_weight and id(module) not in known:
                target = by_weight[id(parameter)][0][0]
                raise ValueError(
                    f"the weight of {target} is also used by {canonical_name(raw)} "
                    f"({type(module).__name__}), which is no target: untie them, target both if both are "
                    f"nn.Linear, or leave {target} out of targets="
                )


def _group(name: str, columns: dict[str, int]) -> str:
    """The projection group: one name for siblings that read one input, else the target's own name."""
    parent, _, leaf = name.rpartition(".")
    for siblings in SHARED_INPUTS:
        widths = {columns.get(f"{parent}.{s}" if parent else s) for s in siblings} - {None}
        if leaf in siblings and len(widths) == 1:
            return ".".join(filter(None, [parent, "+".join(siblings)]))
    return name
