"""Small runs for the tests: a configuration per arm, an untrained model, and a score that it meets half the time."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.training import Trainer

PAPER = ArmConfig(lr=3e-3, rank=4, budget=1e-2, final_budget=1e-3)
ARMS = {
    "reinforce, logra paper": dict(arm=PAPER),
    "grpo, logra lr": dict(arm=ArmConfig(lr=3e-4, rank=4, rule="lr"), algorithm="grpo", prompts=6, answers=4),
    "reinforce, adamw": dict(arm=ArmConfig("adamw", lr=1e-3, control="none")),
    "reinforce, adamw feedback": dict(arm=ArmConfig("adamw", lr=1e-3, control="feedback")),
    "reinforce, lora": dict(arm=ArmConfig("lora", lr=1e-3, rank=2, control="none")),
    "reinforce, galore": dict(arm=ArmConfig("galore", lr=1e-3, rank=2, control="none")),
    "reinforce, apollo": dict(arm=ArmConfig("apollo", lr=1e-3, rank=2, control="none")),
    "reinforce, row adam": dict(arm=ArmConfig("row_adam", lr=1e-3, control="none")),
}
PACKAGES = {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}


def config_for(model_folder, steps=4, **options) -> RunConfig:
    small = dict(
        prompts=24, probe_sequences=8, eval_every=2, eval_problems=16, checkpoint_every=2, max_new_tokens=4
    )
    return RunConfig(
        **(small | dict(model=model_folder, task_options=(("largest", 12),), steps=steps) | options)
    )


def trainer_for(model_folder, arm="reinforce, logra paper", **options) -> Trainer:
    settings = ARMS[arm]
    if package := PACKAGES.get(settings["arm"].name):
        pytest.importorskip(package, reason=f"needs {package}: pip install 'logra-lab[race]'")
    folder, resume = options.pop("folder", None), options.pop("resume", False)
    trainer = Trainer(config_for(model_folder, **(settings | options)), folder=folder, resume=resume)
    trainer.task = Easy.of(trainer.task)
    return trainer


class Easy:
    """A score that an untrained model meets about half the time: the answer's length is odd."""

    @staticmethod
    def of(task):
        return dataclasses.replace(task, score=lambda text, problem: float(len(text) % 2), needs_stop=False)


def weights(trainer):
    return {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}


def assert_equal(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name
