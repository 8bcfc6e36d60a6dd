"""What an optimizer trains and what that costs in bytes, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from .inspection import Inspection


@dataclass(frozen=True)
class Description:
    """Parameters and bytes by treatment.

    Attributes:
        sketched, native, frozen: (name, shape, bytes) of each parameter.
        state: bytes by kind: sketches, row moments, lower halves, cached projections, and the dense gradient
            that the sketches replace.
    """

    sketched: tuple[tuple[str, tuple[int, ...], int], ...]
    native: tuple[tuple[str, tuple[int, ...], int], ...]
    frozen: tuple[tuple[str, tuple[int, ...], int], ...]
    state: dict[str, int]

    def __str__(self) -> str:
        lines = [f"{'':<22}{'tensors':>9}{'numbers':>14}{'MiB':>10}"]
        for kind in ("sketched", "native", "frozen"):
            rows = getattr(self, kind)
            numbers = sum(_count(shape) for _, shape, _ in rows)
            lines.append(f"{kind:<22}{len(rows):>9}{numbers:>14,}{sum(r[2] for r in rows) / 2**20:>10.2f}")
        lines += [f"{kind:<45}{size / 2**20:>10.2f}" for kind, size in self.state.items()]
        return "\n".join(lines)


def describe(optimizer: Inspection) -> Description:
    """See `LoGRA.describe`."""
    targets = {id(target.weight): target.name for target in optimizer.targets}
    groups = [] if optimizer.native is None else optimizer.native.param_groups
    owned = {id(parameter) for group in groups for parameter in group["params"]}
    rows: dict[str, list[tuple[str, tuple[int, ...], int]]] = {"sketched": [], "native": [], "frozen": []}
    for name, parameter in optimizer.model.named_parameters():
        kind = "sketched" if id(parameter) in targets else "native" if id(parameter) in owned else "frozen"
        rows[kind].append((name, tuple(parameter.shape), parameter.numel() * parameter.element_size()))
    state = {
        "sketches": sum(_bytes(flat) for flat in optimizer.sketcher.sketches.flats.values()),
        "row moments": sum(_bytes(moment) for moment in optimizer.moments.values()),
        "lower halves": optimizer.precision.nbytes(),
        "cached projections": optimizer.projections.nbytes(),
        "(dense gradient, never made)": sum(size for _, _, size in rows["sketched"]),
    }
    return Description(tuple(rows["sketched"]), tuple(rows["native"]), tuple(rows["frozen"]), state)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
