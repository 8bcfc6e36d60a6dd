"""What the shards of a checkpoint should be: length and SHA-256 of each, the processes sharing the work.

    files = digests(folder, world)         # {name: {"bytes": …, "sha256": …}}
    damage(folder, files, world)           # None, or a sentence that names the first file that is not as written

A digest finds what a length can't: a flipped bit, a block of zeros after a crash, a shard of another run. It costs one
more reading of the files. Left out: protection against somebody who means it, and could write a new digest too.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from logra_lab.scale.world import World

Files = dict[str, dict[str, Any]]


def digests(folder: Path, world: World) -> Files:
    """Length and digest of every file in `folder`, in all processes; each reads its share of them."""
    names = sorted(file.name for file in folder.iterdir())
    own = {name: _facts(folder / name) for name in names[world.rank :: world.size]}
    found = {name: facts for part in world.gather_objects(own) for name, facts in part.items()}
    return {name: found[name] for name in names}


def damage(folder: Path, files: Files, world: World) -> str | None:
    """What is wrong with the first damaged file, the same sentence in all processes; None if all are as written."""
    own: dict[str, str] = {}
    for name in sorted(files)[world.rank :: world.size]:
        if told := _difference(folder / name, files[name]):
            own[name] = told
    found = {name: told for part in world.gather_objects(own) for name, told in part.items()}
    return found[min(found)] if found else None


def _difference(file: Path, written: dict[str, Any]) -> str | None:
    if not file.exists():
        return f"{file.name} is missing, it was written with {written['bytes']} bytes"
    size = file.stat().st_size
    if size != written["bytes"]:
        return f"{file.name} has {size} bytes, it was written with {written['bytes']}"
    if _digest(file) != written["sha256"]:
        return f"{file.name} is not as it was written (its SHA-256 differs)"
    return None


def _facts(file: Path) -> dict[str, Any]:
    return {"bytes": file.stat().st_size, "sha256": _digest(file)}


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
