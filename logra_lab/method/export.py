"""Weights at full precision, as a state dict or a safetensors file under the model's usual names.

`model.save_pretrained` writes what the parameters hold; under `split` these are the upper halves only. This
joins the halves first. Left out: sharded models, whose rows must be gathered first (`logra_lab.scale`).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .optimizer import LoGRA


def full_state_dict(optimizer: LoGRA, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """The model's state dict with every target's full-precision value, floating tensors in `dtype`, on the CPU.

    Names that share a tensor in the model share one here, so that `save_pretrained(state_dict=…)` still sees
    what is tied.

    Raises:
        ValueError: if dtype is neither float32 nor bfloat16.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"dtype={dtype}: choose torch.float32 or torch.bfloat16")
    values = {id(target.weight): optimizer.weights.read(target) for target in optimizer.targets}
    done: dict[int, Tensor] = {}
    result = {}
    # keep_vars gives the parameters themselves, so that shared ones are recognised
    for name, tensor in optimizer.model.state_dict(keep_vars=True).items():
        if id(tensor) not in done:
            value = values.get(id(tensor), tensor.detach())
            done[id(tensor)] = value.to("cpu", dtype) if value.is_floating_point() else value.cpu()
        result[name] = done[id(tensor)]
    return result


def save_weights(optimizer: LoGRA, path: Path | str, dtype: torch.dtype = torch.float32) -> Path:
    """Write `full_state_dict` as one safetensors file; a tied tensor is written under its first name only.

    The file appears whole or not at all.
    """
    path = Path(path)
    seen: set[int] = set()
    unique = {}
    for name, tensor in full_state_dict(optimizer, dtype).items():
        if tensor.data_ptr() not in seen:
            unique[name] = tensor.contiguous()
        seen.add(tensor.data_ptr())
    unfinished = path.with_name(path.name + ".part")
    save_file(unique, unfinished, metadata={"format": "pt"})
    unfinished.replace(path)
    return path
