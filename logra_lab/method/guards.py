"""What `LoGRA` refuses before it touches anything, and what it freezes. Each error names value and remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .distributed import Rows
from .merge import FP32, PRECISIONS
from .sketch import is_sketched
from .targets import Target
from .trust_region import Probe, TrustRegion

RULES = ("paper", "lr")


def check_arguments(
    config: Mapping[str, Any],
    targets: Sequence[str],
    update_ratio: float,
    lr: float | None,
    weight_decay: float,
    max_grad_norm: float | None,
    native: torch.optim.Optimizer | None,
    region: TrustRegion | None,
    halves: str,
) -> None:
    """Refuse arguments that contradict each other or make no sense."""
    _check_config(config)
    if isinstance(targets, str) or not all(isinstance(name, str) for name in targets):
        raise TypeError(f"targets={targets!r}: pass a sequence of names, such as ('q_proj', 'v_proj')")
    if not update_ratio > 0:
        raise ValueError(f"update_ratio={update_ratio}: choose a positive number, such as 6e-5")
    if lr is not None and not lr >= 0:
        raise ValueError(f"lr={lr}: choose a number ≥ 0")
    if not weight_decay >= 0:
        raise ValueError(f"weight_decay={weight_decay}: choose a number ≥ 0")
    if max_grad_norm is not None and not max_grad_norm > 0:
        raise ValueError(f"max_grad_norm={max_grad_norm}: choose a positive number, or None for no clipping")
    if config["rule"] == "paper":
        for name, value in {"lr": lr, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm}.items():
            if value:
                raise ValueError(
                    f'{name}={value} means nothing under rule="paper": use update_ratio, or rule="lr"'
                )
    if halves not in ("device", "host"):
        raise ValueError(f'halves={halves!r}: choose "device" or "host"')
    if region is not None:
        _check_region(config, region, weight_decay, native)


def _check_config(config: Mapping[str, Any]) -> None:
    rank, beta2, eps = config["rank"], config["beta2"], config["eps"]
    if not (isinstance(rank, int) and rank >= 1):
        raise ValueError(f"rank={rank}: choose a whole number ≥ 1, such as 64")
    if not isinstance(config["seed"], int):
        raise TypeError(f"seed={config['seed']!r}: choose a whole number")
    if config["rule"] not in RULES:
        raise ValueError(f'rule={config["rule"]!r}: choose "paper" or "lr"')
    if config["precision"] not in PRECISIONS:
        raise ValueError(f"precision={config['precision']!r}: choose one of {', '.join(PRECISIONS)}")
    if not 0 <= beta2 < 1:
        raise ValueError(f"beta2={beta2}: choose a number from 0 up to but not including 1, such as 0.95")
    if not eps >= 0:
        raise ValueError(f"eps={eps}: choose a number ≥ 0, such as 1e-8")


def _check_region(
    config: Mapping[str, Any], region: TrustRegion, weight_decay: float, native: torch.optim.Optimizer | None
) -> None:
    if native is not None:
        raise ValueError(
            "trust_region with native=: α scales only U A, while the native optimizer would move the policy "
            "unseen, often by the whole budget: freeze the rest (native=None) or train without a trust region"
        )
    if weight_decay:
        raise ValueError(
            f"trust_region with weight_decay={weight_decay}: α can't scale the decay, which would move the "
            "policy unseen: set weight_decay=0 or train without a trust region"
        )
    if region.verify and config["precision"] != "fp32":
        raise ValueError(
            f'verify=True with precision="{config["precision"]}": in bf16 the measured KL is rounding, '
            'not signal, and would drive α to 0: use precision="fp32" or verify=False'
        )


def check_model(
    model: nn.Module,
    targets: Sequence[Target],
    precision: FP32,
    rows: Rows,
    native: torch.optim.Optimizer | None,
) -> None:
    """Refuse a model sketched already, weights the precision can't keep, a native that owns targets."""
    taken = [target.name for target in targets if any(is_sketched(module) for module in target.modules)]
    if taken:
        raise ValueError(
            f"{taken[0]} already fills the sketches of another LoGRA: use that one or detach() it"
        )
    for target in targets:
        precision.check(target.name, rows.local(target.weight)[0])
    if native is not None:
        owned = {id(parameter) for group in native.param_groups for parameter in group["params"]}
        stolen = [target.name for target in targets if id(target.weight) in owned]
        if stolen:
            raise ValueError(
                f"native= owns the weight of {stolen[0]}, which LoGRA trains too: "
                "give it only the parameters that are no targets"
            )


def freeze(
    model: nn.Module, targets: Sequence[Target], native: torch.optim.Optimizer | None
) -> list[tuple[nn.Parameter, bool]]:
    """Only native parameters keep asking for gradients; returns each parameter's flag as it was."""
    owned = set()
    if native is not None:
        owned = {id(parameter) for group in native.param_groups for parameter in group["params"]}
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    for parameter, _ in before:
        if id(parameter) not in owned:
            parameter.requires_grad_(False)
            parameter.grad = None
    return before


def probe_maker(
    region: TrustRegion | None, probe: Probe | None, source: Callable[[], Probe] | None
) -> Callable[[], Probe] | None:
    """What makes the probe that `region` judges by; that there is none is said before anything is computed."""
    if region is None:
        return None
    if probe is not None:
        return lambda: probe
    if source is None:
        raise ValueError(
            "step() needs a probe, since there is a trust region: pass step(probe=…) or construct LoGRA with "
            "probe_source="
        )
    return source


def named(targets: Sequence[Target], name: str) -> Target:
    """The target of that name.

    Raises:
        KeyError: with a few of the names there are.
    """
    for target in targets:
        if target.name == name:
            return target
    raise KeyError(f"no target is named {name!r}; there are {', '.join(t.name for t in targets[:4])}, …")


class RefusesLossScaling:
    """Refuses `torch.amp.GradScaler` by name.

    A scaler looks for gradients that sketches don't have; with this mark it sets `grad_scale` instead, and
    that is where it is told why.
    """

    _step_supports_amp_scaling = True

    @property
    def grad_scale(self) -> float:
        """Never set; 1 is what a scaler multiplies its scale by before it sets it."""
        return 1.0

    @grad_scale.setter
    def grad_scale(self, value: object) -> None:
        raise TypeError(
            "LoGRA got a GradScaler, but a scaled loss would end up in the sketches: "
            "train in bf16 (torch.autocast(..., dtype=torch.bfloat16)) or fp32, without a scaler"
        )
