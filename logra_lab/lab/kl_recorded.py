"""The recorded runs of lesson 06, and the command that makes them:

    python -m logra_lab.lab.kl_recorded            # writes data/runs/kl_drift.json and data/runs/free_estimate.json

`kl_drift`: for each step size, rank and budget the first steps of a real run, with the KL that was predicted for each
step as taken and the KL that was then measured, in fp32 on the same answers. `free_estimate`: the same-batch estimate
divided by the forward-mode one, for several batch sizes and seeds. Left out: accuracy at the end; the runs are short.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from logra_lab.lab.trust_step import MODEL, WIDE_OPEN, answers, free_scores, fresh_policy, one_step, probe_of
from logra_lab.method.same_batch import biased_same_batch_kl
from logra_lab.rl.config import ArmConfig, RunConfig, config_hash
from logra_lab.rl.policy import Policy
from logra_lab.rl.tasks import Task, sums
from logra_lab.rl.training import Trainer

RUNS = MODEL.parent / "runs"
STEP_SIZES = (1e-3, 3e-3, 1e-2, 3e-2)
RANKS = (2, 8, 32)
BUDGETS = (1e-3, 1e-2, None)
STEPS, PROMPTS, SEED = 24, 96, 0
BATCH_SIZES, SEEDS, FRESH = (4, 16, 64, 256), (1, 2, 3, 4, 5, 6), 64
DIGITS = 5


def drift_config(step_size: float, rank: int, budget: float | None, steps: int = STEPS) -> RunConfig:
    """The run of the paper's recipe at this step size, rank and constant budget; None predicts and never scales."""
    options = (("trust_region", WIDE_OPEN),) if budget is None else ()
    allowed = WIDE_OPEN.budget if budget is None else budget
    arm = ArmConfig(lr=step_size, rank=rank, budget=allowed, final_budget=allowed, options=options)
    return RunConfig(model=str(MODEL), arm=arm, seed=SEED, steps=steps, prompts=PROMPTS, measure_kl=True)


def drift_run(step_size: float, rank: int, budget: float | None, steps: int = STEPS) -> dict[str, Any]:
    """Run `steps` steps; per step: predicted and measured KL, α, and the share of right answers before it."""
    config = drift_config(step_size, rank, budget, steps)
    trainer = Trainer(config, policy=fresh_policy())
    history = [trainer.train_step() for _ in range(steps)]
    series = {"predicted": "predicted_kl", "measured": "measured_kl", "scale": "scale", "right": "right"}
    run: dict[str, Any] = {"step_size": step_size, "rank": rank, "budget": budget}
    return run | {name: [rounded(metrics.get(key)) for metrics in history] for name, key in series.items()}


def free_estimate(policy: Policy, task: Task, prompts: int, seed: int) -> dict[str, float] | None:
    """Free over forward-mode KL, on the batch that made the step and on fresh answers; None without signal."""
    step = one_step(policy, task, seed=seed, prompts=prompts)
    if not step.proposal.has_signal:
        return None
    fresh = answers(step.policy, task, seed=seed, prompts=FRESH, purpose="fresh")
    ratios: dict[str, float] = {"prompts": prompts, "seed": seed}
    predictions = {}
    for name, batch in (("own", step.batch), ("fresh", fresh)):
        free = biased_same_batch_kl(free_scores(step, batch), batch.tokens)
        predictions[name] = step.optimizer.judge(step.proposal, probe_of(batch.rollout)).predicted_kl
        ratios[name] = short(free / predictions[name])
    return ratios | {"fresh_over_own": short(predictions["fresh"] / predictions["own"])}


def short(value: float) -> float:
    """A number to a few digits, for a small file."""
    return float(f"{value:.{DIGITS}g}")


def rounded(value: float | None) -> float | None:
    """As `short`; None stays."""
    return None if value is None else short(value)


def load(name: str) -> dict[str, Any]:
    """A recorded file of this lesson by name, "kl_drift" or "free_estimate"."""
    return json.loads((RUNS / f"{name}.json").read_text(encoding="utf-8"))


def record(name: str, config: dict[str, Any], runs: Iterator[dict[str, Any] | None], folder: Path) -> None:
    """Write the runs with the command, the versions and the hash of the configuration."""
    weights = (MODEL / "recipe.json").read_text(encoding="utf-8")
    config = config | {"model": json.loads(weights)["hash"]}
    content = {
        "command": "python -m logra_lab.lab.kl_recorded",
        "config": config,
        "hash": config_hash(config),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "runs": [run for run in runs if run is not None],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Command line: make both files."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.lab.kl_recorded", description="Record lesson 06's runs."
    )
    parser.add_argument("--out", type=Path, default=RUNS, help="folder (default: data/runs)")
    parser.add_argument("--only", choices=("kl_drift", "free_estimate"), help="one file of the two")
    options = parser.parse_args(arguments)
    if options.only != "free_estimate":
        grid = {"step_sizes": STEP_SIZES, "ranks": RANKS, "budgets": BUDGETS}
        runs = itertools.product(STEP_SIZES, RANKS, BUDGETS)
        config = grid | {"steps": STEPS, "prompts": PROMPTS, "seed": SEED}
        record("kl_drift", config, (told(drift_run(*chosen), chosen) for chosen in runs), options.out)
    if options.only != "kl_drift":
        policy, task = fresh_policy(), sums()
        pairs = itertools.product(BATCH_SIZES, SEEDS)
        config = {"batch_sizes": BATCH_SIZES, "seeds": SEEDS, "fresh": FRESH}
        found = (told(free_estimate(policy, task, *pair), pair) for pair in pairs)
        record("free_estimate", config, found, options.out)


def told(run: dict[str, Any] | None, chosen: tuple) -> dict[str, Any] | None:
    """The run, after a line on stderr that it is done."""
    print(f"done: {chosen}", file=sys.stderr, flush=True)
    return run


if __name__ == "__main__":
    main()
