"""GaLore and APOLLO from their own packages (optional extra `race`), and states that a safe load can read.

Both keep a projector object in their state, which `torch.load(weights_only=True)` refuses. `plain_state` writes it as
a dictionary of its attributes; `restore_state` makes the object again from the class that the optimizer would use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from logra_lab.rl.config import ArmConfig

MARK = "projector attributes"


def galore_optimizer(
    weights: Sequence[nn.Parameter], config: ArmConfig, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    """GaLore's AdamW on `weights` at `config.rank`; a new subspace every 50 steps unless `options` say otherwise."""
    optimizer = _import("galore_torch", "GaLoreAdamW")
    group = {"rank": config.rank, "update_proj_gap": 50, "scale": 1.0, "proj_type": "std"} | dict(
        config.options
    )
    return optimizer(
        [{"params": list(weights), **group}], lr=config.lr, betas=betas, no_deprecation_warning=True
    )


def apollo_optimizer(
    weights: Sequence[nn.Parameter], config: ArmConfig, betas: tuple[float, float]
) -> torch.optim.Optimizer:
    """APOLLO's AdamW on `weights` at `config.rank`, random projections, channel-wise scale unless `options` differ."""
    optimizer = _import("apollo_torch", "APOLLOAdamW")
    group = {
        "rank": config.rank, "proj": "random", "scale_type": "channel", "scale": 1.0, "update_proj_gap": 50,
        "proj_type": "std",
    } | dict(config.options)  # fmt: skip
    return optimizer(
        [{"params": list(weights), **group}], lr=config.lr, betas=betas, no_deprecation_warning=True
    )


def plain_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state with every projector object written as a dictionary."""
    state = optimizer.state_dict()
    plain = {
        index: {key: _plain(value) for key, value in entry.items()} for index, entry in state["state"].items()
    }
    return {"state": plain, "param_groups": state["param_groups"]}


def restore_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load what `plain_state` wrote."""
    groups = {i: group for group in state["param_groups"] for i in group["params"]}
    full = {
        index: {key: _object(value, optimizer, groups[index]) for key, value in entry.items()}
        for index, entry in state["state"].items()
    }
    optimizer.load_state_dict({"state": full, "param_groups": state["param_groups"]})


def _plain(value: object) -> object:
    if isinstance(value, (Tensor, int, float, str, bool, type(None), dict, list, tuple)):
        return value
    return {MARK: dict(vars(value))}


def _object(value: object, optimizer: Any, group: dict[str, Any]) -> object:
    if not (isinstance(value, dict) and MARK in value):
        return value
    if "proj" in group:  # APOLLO knows two projectors
        projector = optimizer._initialize_projector(group, {"seed": 0})
    else:
        from galore_torch.galore_projector import GaLoreProjector

        projector = GaLoreProjector(group["rank"])
    vars(projector).update(value[MARK])
    return projector


def _import(package: str, name: str):
    try:
        return getattr(__import__(package), name)
    except ImportError as error:
        raise ImportError(
            f"{package} is missing or broken ({error}); install the extra: pip install 'logra-lab[race]'"
        ) from error
