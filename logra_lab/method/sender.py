"""The trainer's end: commits become packets, and a replica that lost its way gets the full weights.

    sender = Sender(optimizer)
    optimizer.on_commit.append(lambda update: transport.send(sender.pack(update)))
    ... train as ever, by step() or by commit(); when a replica answers "resync", transport.send(sender.full())

Native parameters (those that `native=` trains) are carried: each packet holds their new values whole, in
their own type, so a replica stays bit-equal. That costs their full size per update; a large native share,
such as an embedding, can outweigh what the factors save. `Sender.native_bytes` says how much it is.

A sharded trainer makes a Sender on every rank, since its weights are gathered for the start of the chain and
for `full()`, and one rank sends. Its row blocks have other shapes than a replica's, so rounding may differ in
the last bit: let it add checksums.

Left out: buffers that training moves, such as running means; they travel with `full()` only.

Shapes: F factor [d, r].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .chain import Terms, other_tensors, root_link
from .checksum import checksum
from .merge import fingerprint
from .packet import encode, seal
from .targets import Target, canonical_name
from .values import Update

if TYPE_CHECKING:
    from .optimizer import LoGRA


class Sender:
    """Packs each update of `optimizer` once, in order.

    Args:
        optimizer: the trainer; its weights now are the start of the chain.
        run: a name that keeps two runs of one model apart.
        checksum_every: every so many updates the packet carries a checksum of the weights; 0 never.
    """

    def __init__(self, optimizer: LoGRA, *, run: str = "logra", checksum_every: int = 0) -> None:
        if checksum_every < 0:
            raise ValueError(f"checksum_every={checksum_every}: choose a number of updates, or 0 for never")
        self.optimizer, self.terms = optimizer, Terms.of(optimizer, run)
        self.checksum_every = checksum_every
        self.link = ""
        self.updates = -1
        self._begin()

    def pack(self, update: Update) -> bytes:
        """The packet of a commit just made; the chain moves on.

        Raises:
            ValueError: for a commit without signal (nothing travels then), or one out of turn.
        """
        if not update.factors:
            raise ValueError(
                f"the commit at update {update.update} had no signal and moved nothing: send no packet for it"
            )
        if not update.update == self.updates == self.optimizer.updates - 1:
            raise ValueError(
                f"the next packet is that of update {self.updates}, but this is update {update.update} of an "
                f"optimizer with {self.optimizer.updates} updates done: pack each commit once, at once; "
                "after a gap send full()"
            )
        tensors = {f"factor/{name}": factor for name, factor in update.factors.items()}
        tensors |= {f"native/{name}": value for name, value in self._native().items()}
        if self.checksum_every and (update.update + 1) % self.checksum_every == 0:
            tensors["checksum"] = checksum(self.optimizer.weights, self.terms.seed)
        header = self._header("update", update.update) | {"decay": update.decay, "parent": self.link}
        data, self.link = seal(header, tensors)
        self.updates = update.update + 1
        return data

    def full(self) -> bytes:
        """All weights and buffers at full precision, and where in the chain they stand.

        After a commit that was not packed, a new chain begins here: other replicas will need this packet too.
        """
        if self.updates != self.optimizer.updates:
            self._begin()
        weights = self.optimizer.weights
        tensors: dict[str, Tensor] = {}
        for target in self.optimizer.targets:
            whole = weights.rows.gather(weights.local(target), target.weight)
            tensors[f"weight/{target.name}"] = whole
            for key, value in self._state(target, whole).items():
                tensors[f"state/{target.name}/{key}"] = value
        others = other_tensors(self.optimizer.model, self.optimizer.targets)
        tensors |= {f"other/{name}": weights.rows.gather(value, value) for name, value in others.items()}
        return encode(self._header("full", self.updates) | {"link": self.link}, tensors)

    @property
    def native_bytes(self) -> int:
        """Bytes of native parameters that every packet carries."""
        return sum(value.numel() * value.element_size() for value in self._native().values())

    def _begin(self) -> None:
        others = other_tensors(self.optimizer.model, self.optimizer.targets)
        self.link = root_link(self.terms, self.optimizer.weights, others)
        self.updates = self.optimizer.updates

    def _header(self, kind: str, update: int) -> dict[str, Any]:
        return {"kind": kind, "update": update, "terms": self.terms.as_json()}

    def _state(self, target: Target, whole: Tensor) -> dict[str, Tensor]:
        """The precision's state over all rows."""
        weights = self.optimizer.weights
        state = dict(weights.precision.state(target.name))
        if "lower" in state:
            lower = weights.rows.gather(state["lower"].to(whole.device), target.weight)
            state = {"lower": lower, "fingerprint": fingerprint(whole)}
        return state

    def _native(self) -> dict[str, Tensor]:
        """The native parameters by canonical name."""
        groups = [] if self.optimizer.native is None else self.optimizer.native.param_groups
        owned = {id(parameter) for group in groups for parameter in group["params"]}
        named = self.optimizer.model.named_parameters()
        gather = self.optimizer.weights.rows.gather
        return {canonical_name(name): gather(value, value) for name, value in named if id(value) in owned}
