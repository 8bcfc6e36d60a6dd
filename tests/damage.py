"""Damage for readers' tests: flipped bits and gaps, values of wrong types and sizes, keys that stand twice."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import torch

HUGE = (10**400, -(2**70), 2**63, 1e308, -1e308, float("inf"), float("nan"))
ODD = (None, True, "ten", "", -1, 0.5, [], {}, [1, "x"], {"a": None}, "\ud800", "\0", *HUGE)


def damaged_bytes(data: bytes, dice: random.Random, within: int | None = None) -> bytes:
    """`data` with a bit flipped, its end cut off, bytes put in, taken out, overwritten or copied from elsewhere.

    The damage begins in the first `within` bytes; anywhere if None.
    """
    at, kind = dice.randrange(within or len(data)), dice.randrange(6)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << dice.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + dice.randbytes(dice.randrange(1, 9)) + data[at:]
    if kind == 3:
        return data[:at] + data[at + dice.randrange(1, 9) :]
    if kind == 4:
        return data[:at] + dice.randbytes(min(8, len(data) - at)) + data[at + 8 :]
    other = dice.randrange(len(data))
    return data[:at] + data[other : other + 16] + data[at + 16 :]


def damaged_value(value: Any, dice: random.Random) -> Any:
    """A copy of nested dictionaries, lists and tensors in which one place, at any depth, is another or gone."""
    value = copy.deepcopy(value)
    places = list(_places(value))
    holder, key = dice.choice(places)
    kind = dice.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[dice.choice(["", "extra", "Step"])] = holder[key]
    elif isinstance(holder[key], torch.Tensor):
        holder[key] = _damaged_tensor(holder[key], dice)
    else:
        holder[key] = dice.choice(ODD)
    return value


def damaged_json(value: Any, dice: random.Random) -> bytes:
    """JSON of `value`, damaged as a value, as bytes, or with one of its keys standing twice."""
    kind = dice.randrange(3)
    if kind == 0:
        return json.dumps(damaged_value(value, dice)).encode("utf-8")
    text = json.dumps(value)
    if kind == 1:
        return damaged_bytes(text.encode("utf-8"), dice)
    holder, key = dice.choice([place for place in _places(value) if isinstance(place[0], dict)])
    entry = f"{json.dumps(key)}: "
    return text.replace(entry, f"{entry}{json.dumps(dice.choice(ODD))}, {entry}", 1).encode("utf-8")


def _places(value: Any) -> Any:
    """(container, key) of everything below `value`, containers before what is in them."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield value, key
        yield from _places(inner)


def _damaged_tensor(tensor: torch.Tensor, dice: random.Random) -> Any:
    """A tensor of another shape, type or content, or no tensor at all."""
    kinds = [
        lambda: tensor.flatten()[:-1],
        lambda: tensor[None],
        lambda: tensor.to(torch.complex64),
        lambda: tensor.to(torch.int64),
        lambda: torch.full_like(tensor.float(), float("nan")),
        lambda: -torch.ones_like(tensor.float()),
        lambda: dice.choice(ODD),
    ]
    return dice.choice(kinds)()
