"""What trainer and replica must agree on, and where their hash chain starts (method.md §5).

    root = hash(terms, every weight, every buffer)        link(n+1) = hash(packet n), which names link(n)

Equal links mean equal initial weights and the same updates in the same order. A missed, repeated or foreign
update gives another link, and is found before it is applied.

Left out: weights that somebody changes by hand between two packets. The chain hashes what was sent, not the
weights after each update, which would cost more than the update; `checksum.py` looks at those now and then.

Shapes: d output rows of a target, k its input columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .packet import PacketError, absorb
from .targets import Target, canonical_name
from .weights import WeightStore

if TYPE_CHECKING:
    from .optimizer import LoGRA


DTYPES = {str(kind): kind for kind in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}
"""The types a factor can travel in, by name."""


@dataclass(frozen=True)
class Terms:
    """What an update means, beside its numbers; it stands in every packet.

    Attributes:
        run: a name that keeps two runs of one model apart.
        seed, rank, refresh: of the projections.
        precision: how both sides keep their weights.
        factor_dtype: the type of the factors sent, such as "torch.bfloat16".
        targets: (name, d, k, projection group) of each target.
    """

    run: str
    seed: int
    rank: int
    refresh: bool
    precision: str
    factor_dtype: str
    targets: tuple[tuple[str, int, int, str], ...]

    @staticmethod
    def of(optimizer: LoGRA, run: str = "logra") -> Terms:
        """The terms that `optimizer` sends by."""
        config = optimizer.config
        return Terms(
            run, config["seed"], config["rank"], config["refresh"], config["precision"],
            config["factor_dtype"], geometry(optimizer.targets),
        )  # fmt: skip

    @staticmethod
    def parse(value: Any) -> Terms:
        """Terms from the JSON value that `as_json` gave.

        Raises:
            PacketError: if it is none.
        """
        try:
            targets = tuple((str(n), int(d), int(k), str(g)) for n, d, k, g in value["targets"])
            rest = {field.name: value[field.name] for field in fields(Terms) if field.name != "targets"}
            if rest["factor_dtype"] not in DTYPES:
                raise ValueError(f"factor_dtype {rest['factor_dtype']!r} is none of {', '.join(DTYPES)}")
            return Terms(**rest, targets=targets)
        except (TypeError, KeyError, ValueError) as error:
            raise PacketError(f"the packet's terms can't be read ({error}): ask for it again") from error

    def as_json(self) -> dict[str, Any]:
        """The terms as plain containers."""
        return json.loads(json.dumps(asdict(self)))

    def differences(self, other: Terms) -> list[str]:
        """One phrase per field in which `other` differs, first the scalars, then the targets."""
        found = [
            f"{field.name} is {getattr(other, field.name)!r} there but {getattr(self, field.name)!r} here"
            for field in fields(Terms)
            if field.name != "targets" and getattr(self, field.name) != getattr(other, field.name)
        ]
        mine, theirs = ({name: rest for name, *rest in terms.targets} for terms in (self, other))
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                found.append(f"target {name} is {theirs.get(name)} there but {mine.get(name)} here")
        if not found and self.targets != other.targets:
            found.append("the targets are in another order there")
        return found


def geometry(targets: Sequence[Target]) -> tuple[tuple[str, int, int, str], ...]:
    """(name, d, k, group) of each target."""
    return tuple((target.name, target.rows, target.columns, target.group) for target in targets)


def other_tensors(model: nn.Module, targets: Sequence[Target]) -> dict[str, Tensor]:
    """Every parameter and stored buffer that is no target, once each, by canonical name."""
    seen = {id(target.weight) for target in targets}
    found: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            found[canonical_name(name)] = tensor
    return found


def root_link(terms: Terms, weights: WeightStore, others: Mapping[str, Tensor]) -> str:
    """Where a chain starts: the hash of the terms and of every weight, in full precision (method.md §5).

    Reads the model once, about a second per GB. Sharded weights are gathered one at a time: every rank calls it.
    """
    state = hashlib.blake2b(digest_size=32)
    state.update(json.dumps(terms.as_json(), sort_keys=True).encode())
    for name, tensor in _in_order(weights, others):
        absorb(state, name, tensor)
    return state.hexdigest()


def _in_order(weights: WeightStore, others: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for target in sorted(weights.targets, key=lambda target: target.name):
        yield f"weight/{target.name}", weights.rows.gather(weights.read(target), target.weight)
    for name in sorted(others):
        yield f"other/{name}", weights.rows.gather(others[name], others[name])
