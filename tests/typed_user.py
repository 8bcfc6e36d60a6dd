"""A trainer that uses the public API with types, as mypy reads it under `--strict` in `make lint`. Never run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

from logra_lab.memory import Plan, Settings, plan, shape_of
from logra_lab.method import LoGRA, Proposal, StepReport, TrustRegion, Verdict
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.metrics import read_metrics
from logra_lab.rl.probe import LMProbe
from logra_lab.scale.device import DeviceChoice, choose_device


def train(model: nn.Module, ids: Tensor, mask: Tensor, generated: Tensor) -> float:
    """One step in two ways: at once, and in its three parts."""
    region = TrustRegion(budget=2e-4)
    optimizer = LoGRA(model, rank=64, rule="paper", precision="fp32", trust_region=region)
    probe = LMProbe(ids, mask, generated)
    report = optimizer.step(probe=probe, tokens=12)
    assert_type(report, StepReport)
    assert_type(report.predicted_kl, float | None)
    proposal = optimizer.propose(tokens=12)
    assert_type(proposal, Proposal)
    verdict = optimizer.judge(proposal, probe)
    assert_type(verdict, Verdict)
    optimizer.commit(proposal, verdict.scale)
    assert_type(optimizer.sketches["layer"], Tensor)
    assert_type(optimizer.weight("layer"), Tensor)
    return float(verdict.scale)


def settings(folder: Path) -> int:
    """Configurations, metrics and the device."""
    config = RunConfig(arm=ArmConfig("logra", lr=3e-3), steps=10)
    assert_type(config.hash(), str)
    assert_type(plan(shape_of("7B"), Settings()), Plan)
    choice = choose_device()
    assert_type(choice, DeviceChoice)
    assert_type(choice.dtype, torch.dtype)
    return len(read_metrics(folder / "metrics.jsonl"))
