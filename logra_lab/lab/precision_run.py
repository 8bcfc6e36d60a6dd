"""The run that bf16 loses, recorded: one RL run at small steps, its weights kept at each of the four precisions.

    python -m logra_lab.lab.precision_run      # writes data/runs/precision.json, in about five minutes on a quiet core

The loop, the seeds and the step size are the same for all; only where the update is stored differs. The step is ten
times smaller than this model's best (`rl/config.py`), and so nearer to what a large model takes; no trust region, so
that every arm is offered the same steps. Left out: longer runs and other step sizes (the widget has those, without RL).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from logra_lab.data_files import located
from logra_lab.rl.config import ArmConfig, RunConfig, config_hash
from logra_lab.rl.policy import load_policy
from logra_lab.rl.training import Trainer

MODEL = located("data/tiny-math")
RECORD = located("data/runs/precision.json")
PRECISIONS = ("fp32", "split", "stochastic", "nearest")
SEEDS = (0, 1, 2)
STEPS = 100
UPDATE_RATIO = 3e-4
BLOCK = 5  # the recorded curve holds means over so many steps


def run_config(precision: str, seed: int) -> RunConfig:
    """The run of one arm: REINFORCE with rule "paper" at a small fixed step."""
    arm = ArmConfig(lr=UPDATE_RATIO, control="none", options=(("precision", precision),))
    return RunConfig(model="data/tiny-math", arm=arm, seed=seed, steps=STEPS)


def start(precision: str, seed: int) -> Trainer:
    """A fresh trainer; all but fp32 compute with bf16 weights."""
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    return Trainer(run_config(precision, seed), policy=load_policy(MODEL, dtype=dtype))


def share_right(trainer: Trainer, steps: int) -> list[float]:
    """Take so many steps; the share of right answers in each."""
    return [trainer.train_step()["right"] for _ in range(steps)]


def block_means(values: list[float]) -> list[float]:
    """Means over blocks of BLOCK steps, the rest at the end left out."""
    blocks = [values[i : i + BLOCK] for i in range(0, len(values) - BLOCK + 1, BLOCK)]
    return [round(sum(block) / BLOCK, 5) for block in blocks]


def run(precision: str, seed: int) -> dict[str, Any]:
    """One recorded run: its curve, and the sampled accuracy on all held-out problems before and after."""
    trainer = start(precision, seed)
    before = trainer.evaluate()["accuracy"]
    curve = block_means(share_right(trainer, STEPS))
    after = trainer.evaluate()["accuracy"]
    return {"precision": precision, "seed": seed, "curve": curve, "before": before, "after": after}


def model_hash() -> str:
    """The hash of the recipe that made the model."""
    return json.loads((MODEL / "recipe.json").read_text(encoding="utf-8"))["hash"]


def recorded_config(model: str) -> dict[str, Any]:
    """What the record's hash covers: the configuration of every run, and the recipe of the model."""
    return {f"{p}/{s}": run_config(p, s).to_json() for p in PRECISIONS for s in SEEDS} | {"model": model}


def read(path: Path = RECORD) -> dict[str, Any]:
    """The record; raises FileNotFoundError that names the command."""
    if not path.exists():
        raise FileNotFoundError(f"{path.name} is missing: make it with python -m logra_lab.lab.precision_run")
    return json.loads(path.read_text(encoding="utf-8"))


def main(arguments: list[str] | None = None) -> None:
    """Command line: all precisions on all seeds."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.lab.precision_run", description="Record lesson 05's runs."
    )
    parser.add_argument("--out", type=Path, default=RECORD, help="file (default: data/runs/precision.json)")
    options = parser.parse_args(arguments)
    runs = []
    for seed in SEEDS:
        for precision in PRECISIONS:
            runs.append(run(precision, seed))
            print(f"done: {precision}, seed {seed}: {runs[-1]['after']:.3f}", file=sys.stderr, flush=True)
    content = {
        "command": "python -m logra_lab.lab.precision_run",
        "hash": config_hash(recorded_config(model_hash())),
        "model": model_hash(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "update_ratio": UPDATE_RATIO, "steps": STEPS, "block": BLOCK, "seeds": SEEDS,
        "runs": runs,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(content) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
