"""The trained model in Hugging Face's format, from one process or from shards.

Under "split" the upper halves are joined with the lower ones first, so what is saved is the fp32 value, rounded once if
a smaller dtype is asked for. Rows of other processes are gathered one target at a time and kept on the first process's
host. Left out: optimizer state (checkpoints.py has it), and formats other than safetensors.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from logra_lab.method import LoGRA
from logra_lab.method.targets import canonical_name
from logra_lab.rl.policy import Policy
from logra_lab.scale.world import World


def save_pretrained(
    policy: Policy,
    optimizer: LoGRA | None,
    folder: str | Path,
    world: World,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write model and tokenizer into `folder`, in all processes together; the folder appears whole or not at all.

    Args:
        optimizer: whose targets hold more than their parameters show; None for dense arms.
        dtype: of the file; the model's own if None.

    Raises:
        FileExistsError: if the folder has something in it; it is left alone.
    """
    folder = Path(folder)
    if world.anywhere(folder.exists() and any(folder.iterdir())):
        raise FileExistsError(
            f"{folder.name!r} exists and isn't empty; choose another folder for the model, it is not written over"
        )
    dtype = dtype or next(policy.model.parameters()).dtype
    values = whole_weights(policy, optimizer, dtype, keep=world.first)
    if world.first:
        partial = folder.with_name(f".{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        policy.model.save_pretrained(partial, state_dict=values)
        policy.tokenizer.save_pretrained(partial)
        _name_class(partial / "config.json", dtype)
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    world.wait()
    return folder


def whole_weights(
    policy: Policy, optimizer: LoGRA | None, dtype: torch.dtype, keep: bool = True
) -> dict[str, Tensor]:
    """The model's state dict with every target at full precision and whole, floating tensors in `dtype`, on the CPU.

    A collective under FSDP; with `keep=False` this process takes part and keeps nothing.
    """
    targets = {} if optimizer is None else {id(target.weight): target for target in optimizer.targets}
    done: dict[int, Tensor] = {}
    found: dict[str, Tensor] = {}
    for name, tensor in policy.model.state_dict(keep_vars=True).items():
        if id(tensor) not in done:
            target = targets.get(id(tensor))
            value = tensor.detach()
            if optimizer is not None and target is not None:
                value = optimizer.weight(target.name)
            if optimizer is not None and isinstance(tensor, DTensor):
                value = optimizer.weights.rows.gather(value, tensor)
            value = value.to("cpu", dtype) if value.is_floating_point() else value.cpu()
            done[id(tensor)] = value if keep else torch.empty(0)
        found[canonical_name(name)] = done[id(tensor)]
    return found if keep else {}


def _name_class(file: Path, dtype: torch.dtype) -> None:
    """FSDP renames the class of a sharded model; the saved configuration has the plain one."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config["architectures"] = [name.removeprefix("FSDP") for name in config.get("architectures") or []]
    config["dtype"] = str(dtype).removeprefix("torch.")
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
