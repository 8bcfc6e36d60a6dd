"""The other end: a copy of the model that stays in step by packets of kilobytes (method.md §5).

    replica = Replica(model, rank=64, seed=42)           # from the same initial weights
    receipt = replica.apply(data)                        # "applied", or "resync" with the reason
    if receipt.status == "resync": replica.resync(full)  # the trainer's Sender.full()

A replica is the trainer's own `WeightStore` and `Projections` behind a check, so the same merge runs on both
sides. Everything is checked before anything changes; a refused packet leaves the replica as it was, and the
packet that is due can still be applied.

Bit-equality holds for the same device kind, kernel and shapes. Across kinds, products round differently: then
let the sender add checksums, whose tolerance is `tolerance` here.

Shapes: F factor [d, r].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .admission import admit_full, admit_update, refuse_other_terms
from .chain import DTYPES, Terms, geometry, other_tensors, root_link
from .checksum import checksum, relative_drift
from .distributed import OneProcess, Rows
from .merge import PRECISIONS
from .packet import Packet, PacketError, decode
from .sketch import Projections
from .targets import DEFAULT_TARGETS, Target, find_targets
from .weights import WeightStore


@dataclass(frozen=True)
class Receipt:
    """What became of a packet.

    Attributes:
        status: "applied", or "resync": send this replica the full weights.
        updates: how many updates the replica has now.
        reason: why a resync is needed, a sentence for a log; empty when applied.
        drift: the largest relative distance to the trainer over targets, where the packet had a checksum.
    """

    status: str
    updates: int
    reason: str = ""
    drift: float | None = None


class Replica:
    """Applies packets to `model`, which may do anything else but change its weights.

    The model is frozen, as the trainer's targets are: torch multiplies by another kernel where a weight asks for
    gradients, and equal weights would then give log-probs that differ in the last bit.

    Args:
        model: the same architecture; the same initial weights, or it begins with a resync.
        rank, seed, targets, shared, refresh, precision, factor_dtype, halves: as the trainer's `LoGRA`.
        run: as the trainer's `Sender`.
        tolerance: the relative drift from which a checksum asks for a resync. One missed update of ratio 6e-5
            is found by 1e-5, which the rounding of fp32 reaches after some ten thousand updates; for "nearest"
            and "stochastic", where one rounding differs by 4e-3 of a weight, choose about 1e-3.

    Raises:
        ValueError, TypeError: as `LoGRA`, for targets or weights that don't fit.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int = 64,
        seed: int = 42,
        targets: Sequence[str] = DEFAULT_TARGETS,
        shared: bool = True,
        refresh: bool = True,
        precision: str = "fp32",
        factor_dtype: torch.dtype = torch.float32,
        halves: str = "device",
        rows: Rows | None = None,
        run: str = "logra",
        tolerance: float = 1e-5,
    ) -> None:
        self.model, self.tolerance = model.requires_grad_(False), tolerance
        self.targets: tuple[Target, ...] = find_targets(model, targets, shared=shared)
        if precision not in PRECISIONS:
            raise ValueError(f"precision={precision!r}: choose one of {', '.join(PRECISIONS)}")
        keeper, rows = PRECISIONS[precision](seed, halves), rows or OneProcess()
        for target in self.targets:
            keeper.check(target.name, rows.local(target.weight)[0])
        self.weights = WeightStore(self.targets, keeper, rows)
        self.projections = Projections(seed, rank, refresh)
        self.terms = Terms(run, seed, rank, refresh, precision, str(factor_dtype), geometry(self.targets))
        self.updates = 0
        self.link = root_link(self.terms, self.weights, other_tensors(model, self.targets))

    @classmethod
    def from_terms(
        cls, model: nn.Module, terms: Terms, *, halves: str = "device", tolerance: float = 1e-5
    ) -> Replica:
        """A replica for the trainer that sent these terms.

        Raises:
            PacketError: naming each difference, if the model's layers are not those of the terms.
        """
        groups = [group for *_, group in terms.targets]
        names = [name for name, *_ in terms.targets]
        replica = cls(
            model, rank=terms.rank, seed=terms.seed, targets=names, shared=groups != names,
            refresh=terms.refresh, precision=terms.precision, halves=halves, run=terms.run,
            factor_dtype=DTYPES[terms.factor_dtype], tolerance=tolerance,
        )  # fmt: skip
        refuse_other_terms(replica.terms, terms)
        return replica

    @torch.no_grad()
    def apply(self, data: bytes) -> Receipt:
        """Apply the packet that is due; anything else changes nothing and is answered with "resync"."""
        try:
            packet = decode(data)
            update, native = admit_update(self, packet)
        except PacketError as error:
            return Receipt("resync", self.updates, str(error))
        self.link = ""  # an error halfway through leaves a replica that only a resync can mend
        self.weights.merge(update, self.projections)
        for parameter, value in native:
            parameter.detach().copy_(value)
        self._stand_at(packet.digest, update.update + 1)
        return self._compared(packet)

    @torch.no_grad()
    def resync(self, data: bytes) -> Receipt:
        """Take over the full weights that `Sender.full` sent, and its place in the chain.

        Raises:
            PacketError: if the packet is damaged, no full packet, or of other terms; nothing was changed.
        """
        packet = decode(data)
        copies, states = admit_full(self, packet)
        self.link = ""
        for destination, value in copies:
            destination.detach().copy_(value)
        for target in self.targets:
            self.weights.precision.load(target.name, self.weights.local(target), states[target.name])
        self._stand_at(packet.header["link"], packet.header["update"])
        return Receipt("applied", self.updates)

    def weight(self, name: str) -> Tensor:
        """The full-precision value [d, k] of the target, as a copy."""
        return self.weights.read(next(target for target in self.targets if target.name == name))

    # ---- helpers -----------------------------------------------------------------------------------------

    def _stand_at(self, link: str, updates: int) -> None:
        self.updates = updates
        self.projections.advance(updates)
        self.link = link

    def _compared(self, packet: Packet) -> Receipt:
        """Applied, unless the packet's checksum shows that this replica has drifted."""
        if "checksum" not in packet.tensors:
            return Receipt("applied", self.updates)
        mine = checksum(self.weights, self.terms.seed)
        drift = float(relative_drift(mine, packet.tensors["checksum"]).max())
        if drift <= self.tolerance:
            return Receipt("applied", self.updates, drift=drift)
        self.link = ""
        reason = f"the weights have drifted by {drift:.1e} of their size, {self.tolerance:.0e} is allowed"
        return Receipt("resync", self.updates, reason, drift)
