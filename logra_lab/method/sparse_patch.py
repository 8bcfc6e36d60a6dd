"""The rival of a packet: the bf16 entries that one update changed, losslessly, as a small file.

An update of ratio 6e-5 leaves most bf16 weights where they are, so an inference engine that only wants bf16
can be sent the others. The patch holds, per weight, the gaps between changed positions and the steps of the 16-bit
patterns there (mostly ±1), a byte each with the few large ones apart, then Huffman-coded by zlib. That
comes near what entropy allows (some per cent above where many entries changed, a fifth where few did), so the
rival is not made to look large.

Left out: the fp32 weights. A receiver of patches has the rounded model only, and can't take over training
or apply a packet.

Shapes: W [d, k]; n changed entries of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor

from .packet import PacketError, decode, encode

BYTE = 255
"""A byte of 255 says that the value stands in the list of large ones."""


def encode_patch(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bytes:
    """What turns the bf16 weights `old` into `new`, by name.

    Raises:
        TypeError: if a weight is not bf16; ValueError: if the names differ.
    """
    if old.keys() != new.keys():
        raise ValueError(f"old and new weights have different names: {sorted(old.keys() ^ new.keys())[:4]}")
    tensors: dict[str, Tensor] = {}
    for name in old:
        gaps, steps = _difference(name, old[name], new[name])
        tensors |= _bytes(f"gaps/{name}", gaps) | _bytes(f"steps/{name}", steps)
    packer = zlib.compressobj(9, memLevel=9, strategy=zlib.Z_HUFFMAN_ONLY)  # nothing repeats, so no search
    return packer.compress(encode({"kind": "patch"}, tensors)) + packer.flush()


@torch.no_grad()
def apply_patch(weights: Mapping[str, Tensor], data: bytes) -> None:
    """Change bf16 weights in place as the patch says.

    Raises:
        PacketError: if the patch was damaged, KeyError: if it names a weight that isn't here.
    """
    try:
        tensors = decode(zlib.decompress(data)).tensors
    except zlib.error as error:
        raise PacketError(f"the patch can't be inflated ({error}): ask for it again") from error
    for name in (key.removeprefix("gaps/") for key in tensors if key.startswith("gaps/")):
        bits = weights[name].view(torch.int16).view(-1)
        index = _values(f"gaps/{name}", tensors).cumsum(0) - 1  # [n]
        folded = _values(f"steps/{name}", tensors)
        steps = (folded >> 1) ^ -(folded & 1)
        bits[index.to(bits.device)] += steps.to(bits.device, torch.int16)


def changed_entries(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> int:
    """How many bf16 entries differ in their bits."""
    return sum(int((_bits(n, old[n]) != _bits(n, new[n])).sum()) for n in old)


def _difference(name: str, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Gaps ≥ 1 from one changed position to the next [n], and the steps of the patterns there [n], folded to ≥ 0."""
    before, after = _bits(name, old), _bits(name, new)
    index = (before != after).nonzero()[:, 0]  # [n]
    gaps = torch.diff(index, prepend=index.new_full((1,), -1))
    steps = (after[index] - before[index]).to(torch.int64)  # int16 wraps, and so does the way back
    return gaps, (steps << 1) ^ (steps >> 63)


def _bytes(name: str, values: Tensor) -> dict[str, Tensor]:
    """Integers ≥ 0 [n] as a byte each, and the large ones in a list."""
    large = values >= BYTE
    return {name: values.clamp_max(BYTE).to(torch.uint8), f"large {name}": values[large].to(torch.int32)}


def _values(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    values = tensors[name].to(torch.int64)
    values[values == BYTE] = tensors[f"large {name}"].to(torch.int64)
    return values


def _bits(name: str, weight: Tensor) -> Tensor:
    if weight.dtype != torch.bfloat16:
        raise TypeError(f"a patch is of bf16 weights, but {name} is {weight.dtype}: pass weight.bfloat16()")
    return weight.contiguous().view(torch.int16).view(-1)
