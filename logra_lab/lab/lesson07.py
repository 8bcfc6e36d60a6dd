"""What lesson 07 reads and draws: recorded runs of several arms, their paired differences, and one run repeated live.

The runs come from `python -m logra_lab.rl.compare arms` (and `race`, where it was recorded). Leaves out: running
them; a seed takes half a minute, and there are many.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from matplotlib.axes import Axes
from transformers.utils import logging

from logra_lab.data_files import located
from logra_lab.lab.gradients import answer_sums, policy_loss, tiny_policy
from logra_lab.lab.plots import COLOURS, INK, Picture, draw_band, new_figure, style
from logra_lab.method import LoGRA
from logra_lab.rl.config import RunConfig
from logra_lab.rl.losses import group_advantages
from logra_lab.rl.training import Trainer

Run = Mapping[str, Any]
ARMS = "data/runs/tiny-math-arms.json"
RACE = "data/runs/race.json"


@cache
def recorded(path: str = ARMS) -> dict[str, Any]:
    """The summary at `path` under the repository's root: command, versions, hash, table and runs."""
    return json.loads(located(path).read_text(encoding="utf-8"))


def provenance(summary: Mapping[str, Any]) -> str:
    """One sentence that says where recorded numbers come from, in lines that fit a page."""
    versions = ", ".join(f"{name} {number}" for name, number in summary["versions"].items())
    words = f"Recorded with `{summary['command']}` ({versions}; configurations {summary['hash']})."
    return textwrap.fill(words, 100, break_on_hyphens=False)


def runs_of(summary: Mapping[str, Any], panel: str, label: str) -> list[Run]:
    """The runs of one arm, by seed.

    Raises:
        KeyError: with the labels there are.
    """
    found = [run for run in summary["runs"] if run["panel"] == panel and run["label"] == label]
    if not found:
        known = sorted({f"{run['panel']} / {run['label']}" for run in summary["runs"]})
        raise KeyError(f"no recorded run is {panel} / {label}; there are {', '.join(known)}")
    return sorted(found, key=lambda run: run["seed"])


def labels(summary: Mapping[str, Any], panel: str) -> list[str]:
    """The arms of a panel, in the order they ran."""
    return list(dict.fromkeys(run["label"] for run in summary["runs"] if run["panel"] == panel))


def points(run: Run, metric: str) -> tuple[list[int], list[float]]:
    """(steps, values) where the metric is known; accuracy starts with the untrained model."""
    steps, values = [], []
    if metric in run["start"]:
        steps, values = [0], [run["start"][metric]]
    for step, value in enumerate(run["curves"][metric], start=1):
        if value is not None:
            steps.append(step)
            values.append(value)
    return steps, values


def final(run: Run) -> float:
    """The sampled accuracy on all held-out problems at the end; 0 where a run broke off before any."""
    return points(run, "accuracy")[1][-1]


def best_adamw(summary: Mapping[str, Any]) -> str:
    """The label of AdamW's best learning rate of the grid, by mean final accuracy."""
    grid = [label for label in labels(summary, "recipes") if label.startswith("adamw")]
    return max(grid, key=lambda label: statistics.fmean(map(final, runs_of(summary, "recipes", label))))


def draw_arms(
    axes: Axes, summary: Mapping[str, Any], arms: Mapping[str, tuple[str, str]], metric: str
) -> None:
    """A band over seeds for each arm: name → (panel, label)."""
    for number, (name, (panel, label)) in enumerate(arms.items()):
        curves = [points(run, metric) for run in runs_of(summary, panel, label)]
        shortest = min(len(steps) for steps, _ in curves)
        values = [curve[:shortest] for _, curve in curves]
        draw_band(axes, curves[0][0][:shortest], values, name, number)


def sketched_batch(rank: int = 8, prompts: int = 64, answers: int = 4) -> LoGRA:
    """A LoGRA whose sketches hold one batch of answered sums, ready to propose."""
    policy = tiny_policy()
    batch = answer_sums(policy, prompts, answers)
    optimizer = LoGRA(policy.model, rank=rank, update_ratio=3e-3)
    advantages = group_advantages(batch.rewards.view(-1, answers)).flatten()  # [B]
    policy_loss(policy, batch, advantages).backward()
    return optimizer


def learning_picture(summary: Mapping[str, Any], arms: Mapping[str, tuple[str, str]]) -> Picture:
    """Held-out accuracy over updates, mean and range over seeds."""
    figure, axes = new_figure(7.6, 3.9)
    draw_arms(axes, summary, arms, "accuracy")
    axes.set(xlabel="updates", ylabel="share of right answers", ylim=(0, 1), title="Held-out sums, sampled")
    axes.legend(loc="lower right")
    ends = {n: statistics.fmean(map(final, runs_of(summary, *where))) for n, where in arms.items()}
    told = ", ".join(f"{name} {value:.1%}" for name, value in ends.items())
    seeds = len(runs_of(summary, *next(iter(arms.values()))))
    return Picture(
        figure,
        f"Curves of accuracy over updates for {', '.join(arms)}; each rises and flattens.",
        f"Mean and range over {seeds} seeds. Final accuracy on all held-out sums: {told}.",
    )


def rescue_picture(summary: Mapping[str, Any]) -> Picture:
    """The step that is too large, without and with the trust region: accuracy beside KL per token."""
    arms = {name: ("too large", name) for name in ("without trust region", "with trust region")}
    figure, (left, right) = new_figure(9.4, 3.7, columns=2)
    draw_arms(left, summary, arms, "accuracy")
    left.set(
        xlabel="updates", ylabel="share of right answers", ylim=(-0.02, 1), title="Held-out sums, sampled"
    )
    left.legend(loc="center right")
    draw_arms(right, summary, arms, "measured_kl")
    budget = runs_of(summary, *arms["with trust region"])[0]["curves"]["budget"]
    right.plot(range(1, len(budget) + 1), budget, color=INK, linewidth=1.2, linestyle=":", label="budget")
    right.set(
        xlabel="updates",
        ylabel="measured KL per token",
        yscale="log",
        title="How far each step moved the policy",
    )
    right.legend(loc="upper right")
    ends = {n: statistics.fmean(map(final, runs_of(summary, *where))) for n, where in arms.items()}
    return Picture(
        figure,
        "Left: without the trust region accuracy falls to nothing, with it accuracy rises. Right: the KL of a step, "
        "far above the budget without the region and on the budget with it.",
        "The same step size, thirty times the one that works. Final accuracy: "
        + ", ".join(f"{value:.1%} {name}" for name, value in ends.items())
        + ".",
    )


def kl_ratio(runs: Sequence[Run], largest: float = 1e-2) -> list[float]:
    """Predicted over measured KL of every recorded step whose measured KL is at most `largest` and not zero."""
    pairs = [
        pair
        for run in runs
        for pair in zip(run["curves"]["predicted_kl"], run["curves"]["measured_kl"], strict=True)
    ]
    return [p / m for p, m in pairs if p is not None and m is not None and 1e-6 < m <= largest]


def live_run(run: Run, steps: int, on_step: Callable[[dict], None] | None = None) -> list[float]:
    """Repeat the first `steps` updates of a recorded run; returns the share of right answers in each batch."""
    logging.disable_progress_bar()  # a bar for twenty small tensors, on stderr
    trainer = Trainer(RunConfig.from_json(dict(run["config"])))
    right = []
    for _ in range(steps):
        metrics = trainer.train_step()
        right.append(metrics["right"])
        if on_step is not None:
            on_step(metrics)
    return right


def repeat_picture(run: Run, live: Sequence[float]) -> Picture:
    """The repeated steps over the recorded ones."""
    figure, axes = new_figure(7.2, 3.4)
    recorded_right = run["curves"]["right"][: len(live)]
    steps = range(1, len(live) + 1)
    axes.plot(steps, recorded_right, label="recorded", linewidth=4, alpha=0.35, color=COLOURS[0])
    axes.plot(steps, live, label="just now", **style(1))
    axes.set(
        xlabel="updates", ylabel="share of right answers", title="Answers in training batches", ylim=(0, 1)
    )
    axes.legend(loc="lower right")
    gap = max(abs(a - b) for a, b in zip(live, recorded_right, strict=True))
    told = "agree to the last digit recorded" if gap < 1e-4 else f"differ by at most {gap:.1%}"
    return Picture(
        figure,
        "Two curves of the share of right answers, the recorded one and the one just run.",
        f"Seed {run['seed']}, {len(live)} updates: the run just made and the recorded one {told}. On another processor "
        "rounding differs, and then so do single answers.",
    )


def final_table(summary: Mapping[str, Any], panel: str = "recipes") -> str:
    """The recorded table of a panel as text: final accuracy, paired difference, sentence."""
    lines = [f"{'arm':<22}{'seeds':>6}{'final':>9}{'best':>9}   compared with the reference, paired by seed"]
    for row in summary["table"]:
        if row["panel"] == panel:
            lines.append(
                f"{row['label']:<22}{len(row['seeds']):>6}{row['final']['mean']:>9.1%}{row['best']['mean']:>9.1%}   "
                + row["verdict"]
            )
    return "\n".join(lines)
