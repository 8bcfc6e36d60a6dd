"""Every optimizer of the race behind one interface: an *arm*.

    arm.zero_grad() · arm.step(probe=…, tokens=…, mismatch=…) -> StepReport · arm.state_dict() · arm.memory()

The loop, the rollouts, the seeds and the evaluation are the same for all; only this file knows the difference.
Arms: "adamw" (dense, all parameters), "adamw_targets" (dense, LoGRA's targets), "lora" (peft), "galore", "apollo"
(their own packages), "row_adam" (RowAdam on the dense gradient) and "logra".

Left out: quantised optimizer states and fused kernels, so seconds per step compare our loop, not the best of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from logra_lab.method import DEFAULT_TARGETS, LoGRA, Mismatch, Probe, StepReport, TrustRegion
from logra_lab.rl.config import ArmConfig
from logra_lab.rl.projected import apollo_optimizer, galore_optimizer, plain_state, restore_state
from logra_lab.rl.row_adam import RowAdam

BETAS = (0.9, 0.95)  # the paper's dense baseline


class Arm:
    """An optimizer as the loop sees it; `model` is the model to sample from and to train."""

    def __init__(self, name: str, model: nn.Module, optimizer: Any, wants_probe: bool = False) -> None:
        self.name, self.model, self.optimizer = name, model, optimizer
        self.wants_probe = wants_probe
        self.base_lrs = [group["lr"] for group in optimizer.param_groups]

    def zero_grad(self) -> None:
        """Forget this step's gradients or sketches."""
        self.optimizer.zero_grad(set_to_none=True)

    def step(
        self,
        *,
        probe: Probe | None = None,
        tokens: float | None = None,
        mismatch: float | Mismatch | None = None,
    ) -> StepReport:
        """One update from the gradients collected so far, or a report that says why there was none."""
        norm = gradient_norm(self.parameters())
        updates = self.updates
        if not math.isfinite(norm):
            self.zero_grad()
            return StepReport(
                "non-finite", updates, f"a gradient is not finite (norm {norm}); nothing was changed"
            )
        if norm == 0.0:
            self.zero_grad()
            return StepReport("no signal", updates, "every gradient is zero; nothing was changed", 0.0)
        self.optimizer.step()
        self.zero_grad()
        self._updates = updates + 1
        return StepReport("updated", updates + 1, "updated", sketch_norm=norm)

    _updates = 0

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self._updates

    def scale_steps(self, factor: float) -> None:
        """Make every step `factor` times the configured size (the measured-KL controller's handle)."""
        for group, lr in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["lr"] = lr * factor

    def parameters(self) -> list[nn.Parameter]:
        """What this arm moves."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def state_dict(self) -> dict[str, Any]:
        """State that `torch.load(weights_only=True)` reads."""
        return {"optimizer": plain_state(self.optimizer), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`; the model's weights are loaded by the caller."""
        restore_state(self.optimizer, state["optimizer"])
        self._updates = state["updates"]

    def memory(self) -> dict[str, int]:
        """Bytes by class: weights, gradients (all at once, as after backward) and optimizer state."""
        trained = sum(p.numel() * p.element_size() for p in self.parameters())
        weights = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return {
            "weights": weights,
            "gradients": trained,
            "optimizer": tensor_bytes(plain_state(self.optimizer)["state"]),
        }


class LoGRAArm(Arm):
    """LoGRA as an arm: sketches in place of gradients."""

    def step(
        self,
        *,
        probe: Probe | None = None,
        tokens: float | None = None,
        mismatch: float | Mismatch | None = None,
    ) -> StepReport:
        """Propose, judge by the probe (with a trust region), commit."""
        return self.optimizer.step(probe=probe, tokens=tokens, mismatch=mismatch)

    @property
    def updates(self) -> int:
        """Updates done so far."""
        return self.optimizer.updates

    def state_dict(self) -> dict[str, Any]:
        """LoGRA's own state."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state_dict()`."""
        self.optimizer.load_state_dict(state["optimizer"])

    def memory(self) -> dict[str, int]:
        """Bytes by class: the sketches stand where gradients stood; A may be cached within a step."""
        names = [target.name for target in self.optimizer.targets]
        groups = {target.group: target.name for target in self.optimizer.targets}
        return {
            "weights": sum(p.numel() * p.element_size() for p in self.model.parameters()),
            "gradients": tensor_bytes([self.optimizer.sketches[name] for name in names]),
            "optimizer": tensor_bytes(list(self.optimizer.moments.values())),
            "projections": tensor_bytes([self.optimizer.projection(name) for name in groups.values()]),
        }


def make_arm(config: ArmConfig, model: nn.Module, *, seed: int, steps: int) -> Arm:
    """The arm that `config` describes, attached to `model`; `steps` is the length of a budget's schedule.

    ValueError for an unknown name, ImportError that names the extra where a package is missing.
    """
    if config.name not in ARMS:
        raise ValueError(f"unknown arm {config.name!r}; use one of {', '.join(ARMS)}")
    if config.control == "trust_region" and config.name != "logra":
        raise ValueError(f"the arm {config.name!r} has no trust region; use control='feedback' or 'none'")
    return ARMS[config.name](config, model, seed, steps)


def target_weights(model: nn.Module) -> list[nn.Parameter]:
    """The weights that LoGRA would sketch, made the only trainable ones."""
    modules: list[Any] = [
        m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in DEFAULT_TARGETS
    ]
    model.requires_grad_(False)
    return [module.weight.requires_grad_(True) for module in modules]


def gradient_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The norm of all gradients together, in float64; 0 where there are none."""
    norms = [p.grad.double().norm() for p in parameters if p.grad is not None]
    return torch.stack(norms).norm().item() if norms else 0.0


def tensor_bytes(values: object) -> int:
    """Bytes of all tensors in nested dictionaries and lists."""
    if isinstance(values, Tensor):
        return values.numel() * values.element_size()
    if isinstance(values, dict):
        return sum(tensor_bytes(value) for value in values.values())
    return sum(tensor_bytes(value) for value in values) if isinstance(values, (list, tuple)) else 0


def _adamw(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    model.requires_grad_(True)
    return Arm("adamw", model, _torch_adamw(model.parameters(), config))


def _adamw_targets(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    return Arm("adamw_targets", model, _torch_adamw(target_weights(model), config))


def _row_adam(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    return Arm("row_adam", model, RowAdam(target_weights(model), lr=config.lr, **dict(config.options)))


def _lora(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise ImportError("LoRA needs peft; install the extra: pip install 'logra-lab[race]'") from error
    options: dict[str, Any] = {"lora_alpha": 2 * config.rank} | dict(config.options)
    settings = LoraConfig(r=config.rank, target_modules=list(DEFAULT_TARGETS), lora_dropout=0.0, **options)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # peft draws its first factors from the global generator
        model = inject_adapter_in_model(settings, model)
    return Arm(
        "lora", model, _torch_adamw([p for p in model.parameters() if p.requires_grad], config, options=())
    )


def _galore(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    return Arm("galore", model, galore_optimizer(target_weights(model), config, BETAS))


def _apollo(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    return Arm("apollo", model, apollo_optimizer(target_weights(model), config, BETAS))


def _logra(config: ArmConfig, model: nn.Module, seed: int, steps: int) -> Arm:
    region = None
    if config.control == "trust_region":
        region = TrustRegion(budget=config.budget, final_budget=config.final_budget, schedule_steps=steps)
    step_size: dict[str, Any] = {"update_ratio": config.lr} if config.rule == "paper" else {"lr": config.lr}
    options: dict[str, Any] = {
        "rank": config.rank,
        "rule": config.rule,
        "seed": seed,
        "trust_region": region,
    } | step_size
    optimizer = LoGRA(model, **options | dict(config.options))
    return LoGRAArm("logra", model, optimizer, wants_probe=region is not None)


def _torch_adamw(parameters, config: ArmConfig, options: tuple | None = None) -> torch.optim.AdamW:
    own: dict[str, Any] = {"betas": BETAS, "weight_decay": 0.0}
    own |= dict(config.options if options is None else options)
    return torch.optim.AdamW(parameters, lr=config.lr, **own)


ARMS: dict[str, Callable[[ArmConfig, nn.Module, int, int], Arm]] = {
    "logra": _logra, "adamw": _adamw, "adamw_targets": _adamw_targets, "row_adam": _row_adam, "lora": _lora,
    "galore": _galore, "apollo": _apollo,
}  # fmt: skip
