"""A packet as lesson 08's chain exercise sees it: whom it follows, what it says it is, and what it really is.

Leaves out: the numbers inside. `method/packet.py` makes the hashes and `method/replica.py` acts on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from logra_lab.method.packet import decode


class Parcel(NamedTuple):
    """The update's `number`; the link it follows; the link that it says it is; the hash of what arrived."""

    number: int
    parent: str
    says: str
    computed: str


def chain(root: str, contents: Sequence[str], first: int = 0) -> list[Parcel]:
    """Parcels that follow `root` in order; each link is a hash of its parent and its content."""
    parcels, link = [], root
    for number, content in enumerate(contents, first):
        parent, link = link, hashlib.blake2b(f"{link} {content}".encode(), digest_size=4).hexdigest()
        parcels.append(Parcel(number, parent, link, link))
    return parcels


def damaged(parcel: Parcel) -> Parcel:
    """The same parcel with a flipped bit in it: it still says what it said."""
    return parcel._replace(computed=hashlib.blake2b(parcel.says.encode(), digest_size=4).hexdigest())


def opened(data: bytes) -> Parcel:
    """A real update packet as a parcel; raises PacketError for one that was damaged."""
    packet = decode(data)
    return Parcel(packet.header["update"], packet.header["parent"], packet.digest, packet.digest)
