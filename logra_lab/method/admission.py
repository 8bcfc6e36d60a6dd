"""What a replica lets in: each packet is checked whole before anything changes.

One condition per message; every refusal is a `PacketError`, which a replica answers with "resync".

Shapes: d output rows of a target, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor

from .chain import Terms, other_tensors
from .packet import Packet, PacketError
from .targets import Target
from .values import Update

if TYPE_CHECKING:
    from .replica import Replica


def admit_update(replica: Replica, packet: Packet) -> tuple[Update, list[tuple[Tensor, Tensor]]]:
    """The update in the packet and its native values, if it is exactly the one that is due."""
    header = packet.header
    if packet.kind != "update":
        raise PacketError(f"this is a packet of kind {packet.kind!r}, an update was due")
    refuse_other_terms(replica.terms, Terms.parse(header.get("terms")))
    _refuse_out_of_turn(replica.updates, replica.link, header)
    decay = header.get("decay")
    if not isinstance(decay, (int, float)) or not (math.isfinite(decay) and decay >= 0):
        raise PacketError(f"the packet's decay is {decay!r}, not a finite number ≥ 0")
    shapes = {target.name: (target.rows, replica.terms.rank) for target in replica.targets}
    factors = _part(packet, "factor/")
    _refuse_other_tensors(
        {name: (shape, replica.terms.factor_dtype) for name, shape in shapes.items()}, factors
    )
    others = other_tensors(replica.model, replica.targets)
    native = _part(packet, "native/")
    known = {name: _kind(others[name]) for name in native if name in others}
    _refuse_other_tensors(known, native)
    if "checksum" in packet.tensors and len(packet.tensors["checksum"]) != len(replica.targets):
        raise PacketError("the packet's checksum is of another number of targets")
    update = Update(header["update"], factors, float(decay))
    return update, [(others[name], value) for name, value in native.items()]


def admit_full(
    replica: Replica, packet: Packet
) -> tuple[list[tuple[Tensor, Tensor]], dict[str, dict[str, Tensor]]]:
    """Where each tensor of a full packet belongs, and each target's precision state."""
    header = packet.header
    if packet.kind != "full":
        raise PacketError(f"this is a packet of kind {packet.kind!r}, a resync needs the full weights")
    refuse_other_terms(replica.terms, Terms.parse(header.get("terms")))
    if not (isinstance(header.get("link"), str) and _is_count(header.get("update"))):
        raise PacketError("the full packet doesn't say where in the chain it stands")
    own = {f"weight/{target.name}": replica.weights.local(target) for target in replica.targets}
    own |= {f"other/{name}": value for name, value in other_tensors(replica.model, replica.targets).items()}
    sent = {name: value for name, value in packet.tensors.items() if not name.startswith("state/")}
    _refuse_other_tensors({name: _kind(value) for name, value in own.items()}, sent, finite=False)
    states = {target.name: _part(packet, f"state/{target.name}/") for target in replica.targets}
    for target in replica.targets:
        _check_state(replica, target, sent[f"weight/{target.name}"], states[target.name])
    return [(own[name], value) for name, value in sent.items()], states


def _check_state(replica: Replica, target: Target, weight: Tensor, state: dict[str, Tensor]) -> None:
    expected = {key: _kind(value) for key, value in replica.weights.precision.state(target.name).items()}
    _refuse_other_tensors(expected, state)
    try:
        replica.weights.precision.check_state(target.name, weight, state)
    except ValueError as error:
        raise PacketError(f"the full packet contradicts itself: {error}") from error


def _part(packet: Packet, prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: t for name, t in packet.tensors.items() if name.startswith(prefix)}


def _kind(tensor: Tensor) -> tuple[tuple[int, ...], str]:
    return tuple(tensor.shape), str(tensor.dtype)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def refuse_other_terms(mine: Terms, theirs: Terms) -> None:
    """PacketError, with the differences, unless sender and receiver follow the same terms."""
    found = mine.differences(theirs)
    if found:
        raise PacketError(
            "the packet belongs to another configuration: " + "; ".join(found[:4])
            + ". Construct the replica as the trainer's LoGRA"
        )  # fmt: skip


def _refuse_out_of_turn(updates: int, link: str, header: Mapping[str, Any]) -> None:
    number, parent = header.get("update"), header.get("parent")
    if not _is_count(number):
        raise PacketError(f"the packet's update number is {number!r}")
    if number < updates:
        raise PacketError(f"update {number} came again: {updates} updates are applied already")
    if number > updates:
        raise PacketError(
            f"update {number} came, but update {updates} was due: packets were lost or reordered"
        )
    if parent != link:
        raise PacketError(
            f"the packet follows link {str(parent)[:12]}…, this replica stands at {link[:12] or 'none'}…: "
            "it is of another run, or of other initial weights"
        )


def _refuse_other_tensors(
    expected: Mapping[str, tuple[tuple[int, ...], str]], found: Mapping[str, Tensor], finite: bool = True
) -> None:
    for name in sorted(expected.keys() | found.keys()):
        kind = _kind(found[name]) if name in found else None
        if kind != expected.get(name):
            raise PacketError(f"{name} is {kind} in the packet but {expected.get(name)} here")
        if finite and found[name].is_floating_point() and not found[name].isfinite().all():
            raise PacketError(f"{name} holds NaN or infinity in the packet")
