"""What a LoGRA state must look like before anything is taken from it: the parts, their types, and numbers that can be.

The comparison with the optimizer at hand (rank, rule, targets, …) is checkpoint.py's. Left out: what a native optimizer
keeps for its parameters; it says itself what it can't load, and is put back as it was.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

VERSION = 1
PARTS: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "config": Mapping,
    "targets": Mapping,
    "updates": int,
    "no_signal_steps": int,
    "mismatch": (int, float),
    "moments": Mapping,
    "precision": Mapping,
    "native": (Mapping, type(None)),
}
REMEDY = "load the file that LoGRA.state_dict() was saved to, or an older checkpoint"


class StateError(ValueError):
    """A state that is no LoGRA state, or one of another configuration; the message names the part and the remedy."""


def refuse_malformed(state: Any, groups: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """LoGRA's own part of `state`, with every part present and of its type.

    Args:
        groups: the optimizer's parameter groups, which the saved ones must match in number.

    Raises:
        StateError: names the part, what was found and the remedy.
    """
    if not isinstance(state, Mapping) or not isinstance(state.get("logra"), Mapping):
        parts = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"this is no LoGRA state, its parts are {parts}: {REMEDY}")
    own = state["logra"]
    if own.get("version") != VERSION:
        raise StateError(
            f"the checkpoint has format {own.get('version')!r}, this version reads {VERSION}: "
            "load it with the version of logra_lab that wrote it"
        )
    for name, kind in PARTS.items():
        if name not in own:
            raise StateError(f"the state has no part {name!r}: {REMEDY}")
        if not isinstance(own[name], kind) or isinstance(own[name], bool):
            raise StateError(f"the state's part {name!r} is of type {type(own[name]).__name__}: {REMEDY}")
        if isinstance(own[name], int) and not 0 <= own[name] < 2**63:
            raise StateError(f"{name}={_number(own[name])} can't be counted from 0: {REMEDY}")
    if not math.isfinite(own["mismatch"]):
        raise StateError(f"mismatch={own['mismatch']} is not finite: {REMEDY}")
    _refuse_entries(own)
    _refuse_groups(state.get("param_groups"), groups)
    return own


def load_native(native: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Load `state` into the native optimizer, or leave it as it was.

    Raises:
        StateError: with the native optimizer's own words.
    """
    before = copy.deepcopy(native.state_dict())
    try:
        native.load_state_dict(dict(state))
    except Exception as error:  # any optimizer, any error: what matters is that nothing stays half loaded
        native.load_state_dict(before)
        raise StateError(
            f"the native optimizer can't load its part ({type(error).__name__}: {error}): {REMEDY}"
        ) from error


def _refuse_entries(own: Mapping[str, Any]) -> None:
    for part in ("config", "targets", "moments", "precision"):
        for name in own[part]:
            if not isinstance(name, str):
                raise StateError(
                    f"the state's part {part!r} has a key of type {type(name).__name__}: {REMEDY}"
                )
    for name, value in own["config"].items():
        if not _plain(value):
            raise StateError(f"the state's config has {name} of type {type(value).__name__}: {REMEDY}")
    for name, moment in own["moments"].items():
        if not isinstance(moment, Tensor) or not moment.is_floating_point():
            raise StateError(f"the row moment of {name} is {_kind(moment)}, not a tensor of floats: {REMEDY}")
    for name, geometry in own["targets"].items():
        if not isinstance(geometry, (list, tuple)) or len(geometry) != 3 or not _plain(geometry):
            raise StateError(f"target {name} is {_kind(geometry)}, not [rows, columns, group]: {REMEDY}")
        kept = own["precision"].get(name)
        if not isinstance(kept, Mapping) or not all(isinstance(value, Tensor) for value in kept.values()):
            raise StateError(f"what the precision keeps for {name} is missing or no tensors: {REMEDY}")


def _refuse_groups(saved: Any, groups: Sequence[Mapping[str, Any]]) -> None:
    if not isinstance(saved, (list, tuple)) or len(saved) != len(groups):
        found = len(saved) if isinstance(saved, (list, tuple)) else _kind(saved)
        raise StateError(f"the state has {found} parameter groups, {len(groups)} are needed: {REMEDY}")
    for number, (theirs, mine) in enumerate(zip(saved, groups, strict=True)):
        if not isinstance(theirs, Mapping) or not all(isinstance(key, str) for key in theirs):
            raise StateError(f"parameter group {number} is {_kind(theirs)}, not settings by name: {REMEDY}")
        for key in ("lr", "weight_decay"):
            if key not in theirs:
                raise StateError(f"parameter group {number} has no {key!r}: {REMEDY}")
        for key in (mine.keys() & theirs.keys()) - {"params"}:
            if not _like(theirs[key], mine[key]):
                raise StateError(f"parameter group {number} has {key}={theirs[key]!r}: {REMEDY}")


def _like(value: Any, known: Any) -> bool:
    """Whether a saved setting may stand where `known` stands: a finite number ≥ 0 for a number, else the same type."""
    if isinstance(known, bool) or not isinstance(known, (int, float)):
        return type(value) is type(known)
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf


def _plain(value: Any) -> bool:
    """Whether a value is made of texts, numbers, True, False, None and lists of them."""
    if isinstance(value, (list, tuple)):
        return all(_plain(part) for part in value)
    return value is None or isinstance(value, (str, int, float))


def _number(value: int) -> str:
    return str(value) if abs(value) < 10**40 else "a number of many digits"


def _kind(value: Any) -> str:
    return (
        f"a {str(value.dtype).removeprefix('torch.')} tensor"
        if isinstance(value, Tensor)
        else type(value).__name__
    )
