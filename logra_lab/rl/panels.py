"""Which runs a race consists of: the grids, the recipes and the seeds, as data.

Two recipes are used throughout, each with 256 answers a step for 150 steps: "paper" (REINFORCE, one answer per
prompt, rewards 1 / -0.01) and "grpo" (32 prompts x 8 answers). Step sizes belong to this model's size.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any

from logra_lab.rl.config import ArmConfig, RunConfig

PAPER: dict[str, Any] = {"algorithm": "reinforce", "prompts": 256, "answers": 1}
GRPO: dict[str, Any] = {"algorithm": "grpo", "prompts": 32, "answers": 8}
ADAMW_GRID = (1e-4, 3e-4, 1e-3, 3e-3)
LESSON_SEEDS = (0, 1, 2)
TUNING_SEEDS = (100,)
TOO_LARGE = 1e-2  # learning rate of rule="lr", thirty times the one that works

LOGRA_PAPER = ArmConfig("logra", lr=3e-3, rank=8, rule="paper", budget=1e-2, final_budget=1e-3)
LOGRA_LR = ArmConfig("logra", lr=3e-4, rank=8, rule="lr", control="none")
LOGRA_LARGE = dataclasses.replace(LOGRA_LR, lr=TOO_LARGE)
LOGRA_LARGE_TR = dataclasses.replace(LOGRA_LARGE, control="trust_region", budget=1e-2, final_budget=1e-3)
MEASURED: dict[str, Any] = {"measure_kl": True}


def _lesson_panel() -> list[tuple[str, str, RunConfig]]:
    """AdamW on the paper's recipe, as the first LoGRA arm; the too large step on GRPO, as in a drop-in trainer."""
    adamw = [(f"adamw {lr:.0e}", ArmConfig("adamw", lr=lr, control="none")) for lr in ADAMW_GRID]
    entries = [
        ("recipes", "logra paper", RunConfig(arm=LOGRA_PAPER, **PAPER, **MEASURED)),
        ("recipes", "logra lr", RunConfig(arm=LOGRA_LR, **GRPO, **MEASURED)),
        ("too large", "without trust region", RunConfig(arm=LOGRA_LARGE, **GRPO, **MEASURED)),
        ("too large", "with trust region", RunConfig(arm=LOGRA_LARGE_TR, **GRPO, **MEASURED)),
        *(("recipes", label, RunConfig(arm=arm, **PAPER)) for label, arm in adamw),
        (
            "control",
            "logra paper, shuffled rewards",
            RunConfig(arm=LOGRA_PAPER, **PAPER, shuffle_rewards=True),
        ),
    ]
    return [
        (panel, label, dataclasses.replace(c, seed=s)) for panel, label, c in entries for s in LESSON_SEEDS
    ]


ARMS_PANEL = _lesson_panel()


def tuning_panel() -> list[tuple[str, str, RunConfig]]:
    """Every arm on its grid of step sizes, on seeds that the race itself doesn't use."""
    entries = []
    for label, arm, recipe, grid in RACE_ARMS:
        for lr in grid:
            config = RunConfig(arm=dataclasses.replace(arm, lr=lr), **recipe)
            entries += [
                ("tuning", f"{label} {lr:.0e}", dataclasses.replace(config, seed=s)) for s in TUNING_SEEDS
            ]
    return entries


def race_panel(tuned: list[dict[str, Any]], seeds: int) -> list[tuple[str, str, RunConfig]]:
    """The arms at their best step size on `seeds` paired seeds, and panels at equal KL and at equal memory.

    In "equal KL" every arm's step is steered to the same budget, by the trust region or by measured KL. "Equal memory"
    holds those whose gradients, states and factors take about as many bytes; GaLore, APOLLO and dense RowAdam form
    dense gradients and can't be there at any rank.
    """
    entries = []
    for label, arm, recipe, _ in RACE_ARMS:
        best = dataclasses.replace(arm, lr=best_lr(tuned, label))
        entries.append(("at its best step size", label, RunConfig(arm=best, **recipe, **MEASURED)))
        control = "trust_region" if arm.name == "logra" else "feedback"
        steered = dataclasses.replace(best, control=control, budget=EQUAL_KL, final_budget=EQUAL_KL)
        if label in EQUAL_KL_ARMS:
            entries.append(("equal KL", label, RunConfig(arm=steered, **recipe, **MEASURED)))
        if label in EQUAL_MEMORY_ARMS:
            entries.append(("equal memory", label, RunConfig(arm=best, **recipe, **MEASURED)))
    return [
        (panel, label, dataclasses.replace(c, seed=s)) for s in range(seeds) for panel, label, c in entries
    ]


def best_lr(tuned: list[dict[str, Any]], label: str) -> float:
    """The step size of `label` with the highest mean final accuracy over the tuning seeds."""
    finals: dict[float, list[float]] = {}
    for record in tuned:
        if record["label"].rsplit(" ", 1)[0] == label:
            known = [a for a in record["curves"]["accuracy"] if a is not None]
            finals.setdefault(record["config"]["arm"]["lr"], []).append(known[-1] if known else 0.0)
    if not finals:
        raise ValueError(f"no tuning run of {label!r}; run the tuning panel first")
    return max(finals, key=lambda lr: statistics.fmean(finals[lr]))


def _arm(name: str, rank: int = 8, **options: Any) -> ArmConfig:
    settings: dict[str, Any] = {"control": "none"} | options
    return ArmConfig(name, rank=rank, **settings)


EQUAL_KL = 5e-3
RATIOS = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
# label, arm, recipe, grid of step sizes. The reference of every comparison is "logra paper".
RACE_ARMS: tuple[tuple[str, ArmConfig, dict[str, Any], tuple[float, ...]], ...] = (
    ("logra paper", LOGRA_PAPER, PAPER, RATIOS),
    ("logra paper, no KL control", dataclasses.replace(LOGRA_PAPER, control="none"), PAPER, RATIOS),
    ("logra paper, measured KL", dataclasses.replace(LOGRA_PAPER, control="feedback"), PAPER, RATIOS),
    ("logra lr", LOGRA_LR, PAPER, (1e-4, 3e-4, 1e-3, 3e-3)),
    ("row adam, dense", _arm("row_adam"), PAPER, (1e-4, 3e-4, 1e-3)),
    ("adamw", _arm("adamw"), PAPER, (1e-4, 3e-4, 1e-3)),
    ("lora", _arm("lora"), PAPER, (3e-4, 1e-3, 3e-3, 1e-2)),
    ("lora, rank 2", _arm("lora", rank=2), PAPER, (1e-3, 3e-3, 1e-2)),
    ("galore", _arm("galore"), PAPER, (3e-4, 1e-3, 3e-3)),
    ("apollo", _arm("apollo"), PAPER, (3e-4, 1e-3, 3e-3, 1e-2)),
)
EQUAL_KL_ARMS = ("logra paper", "logra lr", "row adam, dense", "adamw", "lora", "galore", "apollo")
EQUAL_MEMORY_ARMS = ("logra paper", "lora, rank 2")
