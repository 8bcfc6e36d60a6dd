"""Checkpoints of sharded and unsharded runs through `torch.distributed.checkpoint`, which resume at any world size.

A checkpoint is a folder `step-000050` with the shards and `state.json`, as `rl.checkpoint` names them: written beside
its place by all processes, moved there by one rename, the two newest kept. In it are the weights as the model holds
them, the lower halves of "split", and the row moments. A is a function of seed and update number and is never stored.

`state.json` holds length and SHA-256 of each shard, and a digest of itself; all are compared before a load touches the
model. That reads the shards twice, the processes sharing the files between them.

Left out: other arms than LoGRA (`rl.checkpoint` keeps those), native optimizers, asynchronous writing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from logra_lab.method import LoGRA
from logra_lab.method.targets import canonical_name
from logra_lab.rl import checkpoint as plain
from logra_lab.rl.checkpoint import CheckpointError
from logra_lab.scale import manifest
from logra_lab.scale.safe_reader import SafeReader
from logra_lab.scale.world import World

SHARDS = "shards"


def save(
    folder: Path, step: int, model: nn.Module, optimizer: LoGRA, state: dict[str, Any], world: World
) -> Path:
    """Write the checkpoint of `step`, in all processes together.

    Raises:
        CheckpointError: when the disk is full or the folder can't be written; older checkpoints stay usable.
    """
    final = folder / f"{plain.PREFIX}{step:06d}"
    if world.everywhere((final / plain.STATE).exists()):
        return final
    partial = folder / f".{final.name}.partial"
    try:
        if world.first:
            shutil.rmtree(partial, ignore_errors=True)
            (partial / SHARDS).mkdir(parents=True)
        world.wait()
        with _quiet():
            dcp.save(tensors(model, optimizer), checkpoint_id=str(partial / SHARDS), no_dist=world.size == 1)
        files = manifest.digests(partial / SHARDS, world)
        if world.first:
            whole = {"step": step, **state, "logra": small_state(optimizer), "files": files}
            _finish(folder, partial, final, whole)
    except (OSError, RuntimeError, dcp.api.CheckpointException) as error:
        if world.first:
            shutil.rmtree(partial, ignore_errors=True)
        older = plain.latest(folder)
        kept = f"the last usable checkpoint is {older.name}" if older else "there is no earlier checkpoint"
        raise CheckpointError(
            f"could not write the checkpoint of step {step}: {error}; {kept}; free space and resume"
        ) from error
    world.wait()
    return final


def load(checkpoint: Path, model: nn.Module, optimizer: LoGRA, identity: str, world: World) -> dict[str, Any]:
    """Load weights and state in all processes, however many wrote them; returns what `save` was given as `state`.

    Raises:
        CheckpointError: for another configuration's, or a damaged one; before anything is changed.
    """
    state = read_state(checkpoint)
    if state["config_hash"] != identity:
        raise CheckpointError(
            f"{checkpoint.name} was written by configuration {state['config_hash']}, this run is {identity}; "
            "resume with the same settings, or use another folder"
        )
    if damage := manifest.damage(checkpoint / SHARDS, state["files"], world):
        raise CheckpointError(f"{checkpoint.name} is damaged: {damage}; {plain.remedy(checkpoint)}")
    whole = optimizer.state_dict()
    whole["logra"] = whole["logra"] | state["logra"]["own"]
    whole["param_groups"] = [
        group | saved for group, saved in zip(whole["param_groups"], state["logra"]["groups"], strict=True)
    ]
    try:
        with _quiet():
            reader = SafeReader(str(checkpoint / SHARDS))
            dcp.load(tensors(model, optimizer), storage_reader=reader, no_dist=world.size == 1)
    except (RuntimeError, ValueError, OSError, dcp.api.CheckpointException) as error:
        raise CheckpointError(
            f"{checkpoint.name} can't be read: {error}; {plain.remedy(checkpoint)}"
        ) from error
    fresh = optimizer.state_dict()["logra"]  # digests of the weights just loaded
    whole["logra"] |= {"moments": fresh["moments"], "precision": fresh["precision"]}
    optimizer.load_state_dict(whole)
    return state


def check_folder(folder: str | Path | None) -> None:
    """CheckpointError for a checkpoint whose `state.json` is gone: it would be passed over, and its run begun anew."""
    for checkpoint in sorted(Path(folder).glob(f"{plain.PREFIX}*")) if folder is not None else ():
        if not (checkpoint / plain.STATE).exists():
            raise CheckpointError(
                f"{checkpoint.name} is damaged: {plain.STATE} is missing; {plain.remedy(checkpoint)}"
            )


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The small facts of a checkpoint; CheckpointError if they can't be read or are of another kind."""
    state = plain.read_state(checkpoint)
    if "logra" not in state or "files" not in state:
        raise CheckpointError(
            f"{checkpoint.name} was written by python -m logra_lab.rl, whose files these are not; resume it with that"
        )
    return state


def tensors(model: nn.Module, optimizer: LoGRA) -> dict[str, Tensor]:
    """Everything large, by name, as the live memory that a load fills: DTensors where rows are sharded."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:  # a tied weight once
            found[f"model.{canonical_name(name)}"] = tensor.detach()
        seen.add(id(tensor))
    for target in optimizer.targets:
        found[f"moment.{target.name}"] = optimizer.moments[target.name]
        for key, value in optimizer.precision.state(target.name).items():
            if key != "fingerprint":  # of this process's rows; made anew on loading
                found[f"{key}.{target.name}"] = _as_placed(value, target.weight)
    return found


def small_state(optimizer: LoGRA) -> dict[str, Any]:
    """What of the optimizer's state fits in JSON."""
    whole = optimizer.state_dict()
    own = {
        key: value for key, value in whole["logra"].items() if key not in ("moments", "precision", "native")
    }
    groups = [
        {key: value for key, value in group.items() if key != "params"} for group in whole["param_groups"]
    ]
    return {"own": own, "groups": groups}


def _as_placed(value: Tensor, weight: Tensor) -> Tensor:
    """`value`, which has the rows of `weight` that live here, placed as the weight is."""
    if not isinstance(weight, DTensor):
        return value
    return DTensor.from_local(
        value,
        weight.device_mesh,
        weight.placements,
        shape=weight.shape,
        stride=weight.stride(),
        run_check=False,
    )


def _finish(folder: Path, partial: Path, final: Path, state: dict[str, Any]) -> None:
    text = json.dumps(plain.sealed(state), indent=1)
    (partial / plain.STATE).write_text(text, encoding="utf-8")
    for file in (*(partial / SHARDS).iterdir(), partial / plain.STATE):
        plain._flush(file)
    os.replace(partial, final)
    plain._flush(folder)
    for old in plain._all(folder)[: -plain.KEPT]:
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """A single process is meant; torch warns that it assumes so."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*assuming the intent is to.*single process")
        yield
