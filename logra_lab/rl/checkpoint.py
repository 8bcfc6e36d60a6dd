"""Checkpoints that a kill at any moment can't corrupt.

A checkpoint is a folder `step-000050` with the model's weights (safetensors), the arm's state (`arm.pt`, read with
`weights_only=True`) and `state.json`. It is written beside its place, flushed to disk, and moved there by one rename:
either it is whole or it isn't there. The two newest are kept. Random numbers need no saving, since every draw comes
from a generator made from (seed, step, purpose); torch's global state is kept for other people's packages.

Left out: sharded models (`torch.distributed.checkpoint` serves those) and asynchronous writing.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

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
        (partial / STATE).write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
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


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The small facts of a checkpoint: step, configuration hash, baseline, …"""
    with (checkpoint / STATE).open(encoding="utf-8") as file:
        return json.load(file)


def load(checkpoint: Path, model: nn.Module, config_hash: str) -> Restored:
    """Load the weights into `model` and return the rest; CheckpointError if another configuration wrote it."""
    state = read_state(checkpoint)
    if state["config_hash"] != config_hash:
        raise CheckpointError(
            f"{checkpoint.name} was written by configuration {state['config_hash']}, this run is {config_hash}; "
            "resume with the same settings, or use another folder"
        )
    saved = torch.load(checkpoint / ARM, weights_only=True)
    load_model(model, str(checkpoint / WEIGHTS), device=str(next(model.parameters()).device))
    torch.set_rng_state(saved["rng"])
    return Restored(state["step"], state, saved["arm"])


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
