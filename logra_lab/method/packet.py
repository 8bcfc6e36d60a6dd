"""One message between processes: tensors and a JSON header in a safetensors file, under one hash.

    data = encode({"kind": "update", ...}, {"factor/q_proj": F})      # bytes, the same for the same content
    packet = decode(data)                                             # refuses whatever is not exactly that

Safetensors holds numbers and text only, so reading a packet can't run code. The hash covers every header
field, every name, type, shape and byte; `chain.py` makes it the link of a chain.

Left out: secrecy and proof of origin. The hash finds accidents and mix-ups, not a forger who can write to
the transport: put packets on a channel that only your processes can write to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

FORMAT = 1
KEY = "logra"
"""The one metadata entry. One, because safetensors writes several in any order, and equal content must
give equal bytes."""


class PacketError(ValueError):
    """Bytes that are no packet, or not the packet that was due. Nothing was changed."""


@dataclass(frozen=True, eq=False)
class Packet:
    """A verified packet.

    Attributes:
        header: JSON values; `header["kind"]` says what the packet is.
        tensors: by name, on the CPU.
        digest: the hash of all of it, 64 hexadecimal digits.
    """

    header: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    digest: str

    @property
    def kind(self) -> str:
        """What the packet is: "update", "full", or a message of `logra_lab.scale`."""
        return str(self.header.get("kind"))


def encode(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """The packet as bytes, a safetensors file; the same content gives the same bytes.

    Raises:
        ValueError: if the header holds NaN or infinity; TypeError: if it holds no JSON value.
    """
    return seal(header, tensors)[0]


def seal(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[bytes, str]:
    """As `encode`, with the digest that `decode` will find."""
    stored = {name: _stored(tensor) for name, tensor in tensors.items()}
    found = digest(header, stored)
    meta = {"format": FORMAT, "digest": found, "header": dict(header)}
    return safetensors.torch.save(stored, metadata={KEY: _json(meta)}), found


def decode(data: bytes) -> Packet:
    """The packet in `data`.

    Raises:
        PacketError: if the bytes are cut, changed, of another format, or no packet at all.
    """
    meta = _metadata(data)
    if meta.get("format") != FORMAT:
        raise PacketError(
            f"the packet has format {meta.get('format')!r}, this version reads {FORMAT}: "
            "run the same version of logra_lab on both sides"
        )
    if not isinstance(meta.get("header"), dict):
        raise PacketError("the packet has no header: it was damaged or is no packet; ask for it again")
    try:
        tensors = safetensors.torch.load(data)
        actual = digest(meta["header"], tensors)
    except Exception as error:  # whatever a reader trips over in foreign bytes means the same
        raise PacketError(f"the packet can't be read ({type(error).__name__}): ask for it again") from error
    if actual != meta.get("digest"):
        raise PacketError(
            f"the packet's content has hash {actual[:12]}…, its header says {str(meta.get('digest'))[:12]}…: "
            "it was changed on its way; ask for it again"
        )
    return Packet(meta["header"], tensors, actual)


def digest(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """BLAKE2b-256 of the header and of each tensor's name, type, shape and bytes, in order of name."""
    state = hashlib.blake2b(digest_size=32)
    state.update(_json(header).encode())
    for name in sorted(tensors):
        absorb(state, name, tensors[name])
    return state.hexdigest()


def absorb(state: Any, name: str, tensor: Tensor) -> None:
    """Feed one named tensor to a hash, without ambiguity: its JSON description has a fixed end, its bytes a length."""
    description = _json([name, str(tensor.dtype), list(tensor.shape)])
    state.update(f"\n{description}\n".encode())
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    state.update(flat.view(torch.uint8).numpy())


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _stored(tensor: Tensor) -> Tensor:
    """On the CPU, contiguous, alone in its memory: what safetensors can write."""
    tensor = tensor.detach().cpu().contiguous()
    alone = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if alone else tensor.clone()


def _metadata(data: bytes) -> dict[str, Any]:
    """Our entry of the safetensors header, read before any tensor is made."""
    if len(data) < 8:
        raise PacketError(f"the packet has {len(data)} bytes and was cut: ask for it again")
    length = int.from_bytes(data[:8], "little")
    if length > len(data) - 8:
        raise PacketError(
            f"the packet has {len(data)} bytes, its header alone would need {8 + length}: it was cut or is no "
            "packet; ask for it again"
        )
    try:
        meta = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PacketError(
            f"the packet's header can't be read ({type(error).__name__}): it was damaged or is no packet; "
            "ask for it again"
        ) from error
    if not isinstance(meta, dict):
        raise PacketError(f"the packet's header is a {type(meta).__name__}, not an object: ask for it again")
    return meta
