"""Reading what others may have damaged or mistyped: JSON and the settings in it, with an error that says where and why.

A key that stands twice, a number that is no finite one, a value of another type: `json` lets each pass, and a run would
go wrong later for a reason nobody sees. Left out: limits on the size of a file, which is read whole.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = 2**63 - 1  # what torch's generators and sizes can hold


class ReadingError(ValueError):
    """A file or a setting that can't be used; the message names the place, what was found and the remedy."""


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file; ReadingError where it is none, FileNotFoundError where there is no file."""
    path = Path(path)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReadingError(
            f"{path.name} is no UTF-8 text (byte {error.start}): save it as UTF-8, or restore it from a copy"
        ) from None


def read_json(path: str | Path, *, finite: bool = True) -> Any:
    """What a JSON file holds; see `parse_json`."""
    return parse_json(read_text(path), Path(path).name, finite=finite)


def parse_json(text: str, where: str, *, finite: bool = True) -> Any:
    """What a JSON text holds.

    Args:
        where: the file, and the line where it matters, for the message.
        finite: refuse NaN, Infinity and numbers too large for a float.

    Raises:
        ReadingError: for anything that is no JSON, a key that stands twice in one object, or a number refused.
    """
    hooks: dict[str, Any] = {"object_pairs_hook": _unique}
    if finite:
        hooks |= {"parse_constant": _finite, "parse_float": _finite}
    try:
        return json.loads(text, **hooks)
    except json.JSONDecodeError as error:
        seen = (text + "\n").split("\n")[error.lineno - 1][:60] if text.strip() else "nothing"
        raise ReadingError(
            f"{where}: {seen!r} is not JSON ({error.msg}, line {error.lineno}, column {error.colno}): "
            "correct it, or restore it from a copy"
        ) from None
    except RecursionError:
        raise ReadingError(f"{where}: brackets are nested too deeply: restore it from a copy") from None
    except ValueError as error:  # of the hooks, and of integers with thousands of digits
        raise ReadingError(f"{where}: {error}: correct it, or restore it from a copy") from None


def as_table(values: Any, where: str) -> dict[str, Any]:
    """`values` if it is a JSON object; ReadingError otherwise."""
    if not isinstance(values, Mapping):
        raise ReadingError(f"{where} is {_shown(values)}, and an object in braces is expected: correct it")
    return dict(values)


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Refuse settings that the dataclass `kind` does not have, and values of another type than its fields'.

    Raises:
        ReadingError: names the setting, what it is and what it should be.
    """
    hints = get_type_hints(kind)
    known = [entry.name for entry in dataclasses.fields(kind)]
    if unknown := sorted(set(values) - set(known)):
        raise ReadingError(f"unknown settings {unknown}; known are {sorted(known)}")
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise ReadingError(
                f"{name} is {_shown(value)}, and {_named(hints[name])} is expected: correct it"
            )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:60]!r} stands twice in one object")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is not finite")
    return number


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value may stand for a field annotated `hint`."""
    if hint is Any:
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str) and value in get_args(hint)
    if hint is int:
        return type(value) is int and abs(value) <= LARGEST
    if hint is float:
        return type(value) in (int, float) and abs(value) <= LARGEST
    if get_origin(hint) is tuple:
        return isinstance(value, (list, tuple))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return isinstance(value, (Mapping, hint))
    return type(value) is hint


def _named(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_named(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(repr, get_args(hint)))}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", NoneType: "null"}
    return words.get(hint, "a list" if get_origin(hint) is tuple else "an object in braces")


def _shown(value: Any) -> str:
    """A value, cut short."""
    try:
        text = repr(value)
    except ValueError:  # an integer with thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "…"
