"""Checkpoints that a kill at any moment can't corrupt.

A checkpoint is a folder `step-000050` with the model's weights (safetensors), the arm's state (`arm.pt`, read with
`weights_only=True`) and `state.json`. It is written beside its place, flushed to disk, and moved there by one rename:
either it is whole or it isn't there. `state.json` holds the SHA-256 of the other files and of itself, so that a
damaged one is refused before anything is changed. The two newest are kept. Random numbers need no saving, since every
draw comes from a generator made from (seed, step, purpose); torch's global state is kept for other people's packages.

Left out: sharded models (`torch.distributed.checkpoint` serves those) and asynchronous writing.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from logra_lab.rl.config import config_hash
from logra_lab.rl.reading import ReadingError, as_table, read_json

KEPT = 2
PREFIX = "step-"
STATE, WEIGHTS, ARM = "state.json", "model.safetensors", "arm.pt"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or belongs to another run; the message names the remedy."""


@dataclass(frozen=True)
class Restored:
    """What `load` gives back beside the weights it loaded into the model."""

    step: int
    state: dict[str, Any]
    arm: dict[str, Any]


def save(folder: Path, step: int, model: nn.Module, arm_state: dict[str, Any], state: dict[str, Any]) -> Path:
    """Write the checkpoint of `step` (steps done) into `folder` and drop all but the two newest.

    CheckpointError when the disk is full or the folder can't be written; older checkpoints stay usable.
    """
    final = folder / f"{PREFIX}{step:06d}"
    if (final / STATE).exists():  # this very state is on disk already
        return final
    partial = folder / f".{final.name}.partial"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        save_model(model, str(partial / WEIGHTS))
        torch.save({"arm": arm_state, "rng": torch.get_rng_state()}, partial / ARM)
        files = {name: _digest(partial / name) for name in (WEIGHTS, ARM)}
        whole = sealed({"step": step, **state, "files": files})
        (partial / STATE).write_text(json.dumps(whole, indent=1), encoding="utf-8")
        for file in partial.iterdir():
            _flush(file)
        os.replace(partial, final)
    except (
        OSError,
        RuntimeError,
    ) as error:  # safetensors and torch report a full disk as RuntimeErrors of their own
        shutil.rmtree(partial, ignore_errors=True)
        older = latest(folder)
        kept = f"the last usable checkpoint is {older.name}" if older else "there is no earlier checkpoint"
        raise CheckpointError(
            f"could not write the checkpoint of step {step}: {error}; {kept}; free space and resume"
        ) from error
    _flush(folder)
    for old in _all(folder)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest(folder: Path) -> Path | None:
    """The newest whole checkpoint in `folder`, or None."""
    found = _all(folder)
    return found[-1] if found else None


def sealed(state: dict[str, Any]) -> dict[str, Any]:
    """`state` with a digest of itself, which `read_state` compares."""
    return state | {"digest": config_hash(json.loads(json.dumps(state)))}


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The small facts of a checkpoint: step, configuration hash, baseline, …; CheckpointError if they are damaged."""
    try:
        state = as_table(read_json(checkpoint / STATE, finite=False), STATE)
    except (OSError, ReadingError) as error:
        raise CheckpointError(f"{checkpoint.name} can't be read: {error}; {remedy(checkpoint)}") from error
    digest = state.pop("digest", None)
    if digest != config_hash(state):
        raise CheckpointError(
            f"{checkpoint.name} is damaged: {STATE} has the digest {str(digest)[:12]!r} and should have "
            f"{config_hash(state)!r}; {remedy(checkpoint)}"
        )
    return state


def load(checkpoint: Path, model: nn.Module, identity: str) -> Restored:
    """Load the weights into `model` and return the rest.

    Raises:
        CheckpointError: if another configuration wrote it, or it is damaged; before anything is changed.
    """
    state = read_state(checkpoint)
    if state["config_hash"] != identity:
        raise CheckpointError(
            f"{checkpoint.name} was written by configuration {state['config_hash']}, this run is {identity}; "
            "resume with the same settings, or use another folder"
        )
    if ARM not in state["files"]:
        raise CheckpointError(
            f"{checkpoint.name} was written by logra-train, whose files these are not; resume it with that"
        )
    for name, digest in state["files"].items():
        if not (checkpoint / name).exists() or _digest(checkpoint / name) != digest:
            raise CheckpointError(
                f"{checkpoint.name} is damaged: {name} is not as it was written; {remedy(checkpoint)}"
            )
    try:
        saved = torch.load(checkpoint / ARM, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{checkpoint.name}: {ARM} can't be read without running code in it, so it isn't read; {remedy(checkpoint)}"
        ) from error
    load_model(model, str(checkpoint / WEIGHTS), device=str(next(model.parameters()).device))
    torch.set_rng_state(saved["rng"])
    return Restored(state["step"], state, saved["arm"])


def remedy(checkpoint: Path) -> str:
    """What to do about a damaged checkpoint."""
    others = [path.name for path in _all(checkpoint.parent) if path != checkpoint]
    older = (
        f"move it away and resume from {others[-1]}"
        if others
        else "there is no other checkpoint in its folder"
    )
    return f"{older}; nothing was written over"


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{PREFIX}*") if (path / STATE).exists())


def _flush(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # a folder can't be opened there
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
