"""Who holds what right now: walks over a model and an optimizer that count every storage once.

Two parameters that share memory (a tied head, views of one flat buffer) are one storage and are counted once; that is
the only way to agree with the process. Left out: tensors that only compiled code or C++ holds. They appear as
"unexplained" in the ledger.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn

PLAIN = (str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Generator)


def tensors_in(root: object, limit: int = 200_000) -> Iterator[Tensor]:
    """Every tensor reachable from `root` through containers, dataclasses and attributes (modules excepted).

    Raises RuntimeError when more than `limit` objects had to be visited, so that a cycle through a large program is
    noticed rather than waited for.
    """
    seen, stack = set(), [root]
    while stack:
        item = stack.pop()
        if isinstance(item, PLAIN) or id(item) in seen or isinstance(item, type):
            continue
        seen.add(id(item))
        if len(seen) > limit:
            raise RuntimeError(
                f"More than {limit} objects hang on {type(root).__name__}; pass the part that holds tensors."
            )
        if isinstance(item, Tensor):
            yield item
        elif not isinstance(item, nn.Module) and not callable(item):
            stack.extend(_children(item))


def _children(item: object) -> list[object]:
    if isinstance(item, torch.optim.Optimizer):  # its param_groups hold the parameters, which are the model's
        inside = {key: value for key, value in vars(item).items() if key not in ("param_groups", "defaults")}
        return list(inside.values())
    if isinstance(item, Mapping):
        return list(item.values()) + list(getattr(item, "__dict__", {}).values())
    if isinstance(item, (list, tuple, set, frozenset)):
        return list(item)
    if is_dataclass(item):
        return [getattr(item, field.name) for field in fields(item)]
    slots = [getattr(item, name, None) for name in getattr(type(item), "__slots__", ())]
    return slots + list(getattr(item, "__dict__", {}).values())


def residents(model: nn.Module, optimizer: object = None) -> Iterator[tuple[str, Tensor]]:
    """(class, tensor) of all that lives between steps; a storage may come up more than once, the first class counts.

    The lower halves of split weights count as weights, whatever device they are on: weight and half are one number.
    """
    for tensor in [*model.parameters(), *model.buffers()]:
        yield "weights", tensor
        if tensor.grad is not None:
            yield "gradients", tensor.grad
    if optimizer is None:
        return
    for name, part in _lora_parts(optimizer):
        yield from ((name, tensor) for tensor in tensors_in(part))
    for tensor in tensors_in(optimizer):
        yield "optimizer state", tensor


def _lora_parts(optimizer: object) -> Iterator[tuple[str, object]]:
    """What `LoGRA` keeps, by class (an optimizer of another kind has none of these attributes)."""
    if isinstance(sketches := getattr(optimizer, "sketches", None), Mapping):
        yield "sketches", list(sketches.values())
    for attribute in vars(optimizer).values():
        kind = type(attribute).__name__
        if kind == "Projections":
            yield "projections", attribute
        elif kind == "Split":
            yield "weights", attribute.lower
        elif kind == "Sketcher":
            yield "projections", attribute.projections


def bytes_of(tensors: Iterator[Tensor] | list[Tensor], device: torch.device | None = None) -> int:
    """Bytes of the storages behind `tensors`, each once, on `device` (default: any)."""
    storages = {}
    for tensor in tensors:
        if device is None or tensor.device == device:
            storage = tensor.untyped_storage()
            storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())
