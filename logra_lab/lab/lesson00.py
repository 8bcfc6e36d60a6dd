"""What lesson 00 shows: a live run on tiny-math, its control, and the sizes of gradient and sketch.

Leaves out: several seeds and other optimizers (lesson 07 has them, recorded).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transformers.utils import logging

from logra_lab.data_files import located
from logra_lab.lab.plots import COLOURS, Picture, new_figure, style
from logra_lab.method import LoGRA
from logra_lab.rl.batch import generator_for
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.generation import Sampling
from logra_lab.rl.policy import Policy, rollout
from logra_lab.rl.tasks import Problem
from logra_lab.rl.training import Trainer

TINY_MATH = located("data/tiny-math")
STEPS = 60
Metrics = dict[str, Any]


def trainer(*, shuffle_rewards: bool = False, steps: int = STEPS, eval_problems: int = 300) -> Trainer:
    """A run of the paper's recipe at this size: REINFORCE, 256 sums a step, sketches of rank 8, a trust region."""
    logging.disable_progress_bar()  # a bar for twenty small tensors, on stderr
    arm = ArmConfig("logra", lr=3e-3, rank=8, rule="paper", budget=1e-2, final_budget=1e-3)
    config = RunConfig(
        model=str(TINY_MATH), arm=arm, steps=steps, eval_every=10, eval_problems=eval_problems,
        shuffle_rewards=shuffle_rewards,
    )  # fmt: skip
    return Trainer(config)


def first_accuracy(run: Trainer, problems: int = 300) -> Metrics:
    """The metrics of step 0: what the model can do before anything is learned."""
    return {"step": 0, **run.evaluate(problems)}


def answers(policy: Policy, problems: Sequence[Problem], seed: int = 0) -> list[str]:
    """One sampled answer to each problem, the same for the same seed and model."""
    sampled = rollout(
        policy,
        policy.encode([p.prompt for p in problems]),
        Sampling(max_new_tokens=5),
        generator_for(seed, 0, "show"),
    )
    return list(sampled.texts)


def table(problems: Sequence[Problem], columns: dict[str, Sequence[str]]) -> str:
    """Problems and answers side by side as text."""
    lines = [f"{'problem':<10}{'right':>7}" + "".join(f"{name:>10}" for name in columns)]
    for i, problem in enumerate(problems):
        cells = "".join(f"{given[i] or '(none)':>10}" for given in columns.values())
        lines.append(f"{problem.prompt:<10}{problem.answer:>7}{cells}")
    return "\n".join(lines)


def sizes(optimizer: LoGRA) -> dict[str, float]:
    """KiB of the dense gradient of all sketched weights, and of the sketches that stand in its place."""
    dense = sum(target.rows * target.columns * 4 for target in optimizer.targets)
    sketched = sum(sketch.numel() * sketch.element_size() for sketch in optimizer.sketches.values())
    return {"dense gradient": dense / 1024, "sketch": sketched / 1024}


def tour_picture(
    optimizer: LoGRA, control: Sequence[Metrics] | None = None
) -> Callable[[list[Metrics]], Picture]:
    """The drawing function of the tour: accuracy over steps (with the control, if given) beside the two sizes."""
    kib = sizes(optimizer)

    def draw(history: list[Metrics]) -> Picture:
        figure, (left, right) = new_figure(8.4, 3.4, columns=2, width_ratios=(2.2, 1))
        _draw_accuracy(left, history, 0, "right and wrong as they were")
        if control is not None:
            _draw_accuracy(left, control, 1, "the same rewards, shuffled")
        left.set(xlabel="updates", ylabel="share of right answers", ylim=(0, 1), title="Held-out sums")
        left.legend(loc="lower right" if control is None else "center right")
        bars = right.bar(list(kib), list(kib.values()), color=[COLOURS[1], COLOURS[0]], width=0.6)
        right.bar_label(bars, fmt="%.0f KiB", padding=2)
        right.set(title="What backward leaves", ylabel="KiB", ylim=(0, 1.15 * max(kib.values())))
        return Picture(figure, _alt(history, control, kib), _caption(history, control, kib))

    return draw


def _draw_accuracy(axes: Any, history: Sequence[Metrics], number: int, label: str) -> None:
    points = _evaluated(history)
    axes.plot([s for s, _ in points], [a for _, a in points], marker="o", ms=4, label=label, **style(number))


def _evaluated(history: Sequence[Metrics]) -> list[tuple[int, float]]:
    return [(m["step"], m["accuracy"]) for m in history if m.get("accuracy") is not None]


def _caption(history: list[Metrics], control: Sequence[Metrics] | None, kib: dict[str, float]) -> str:
    (_, start), (steps, now) = _evaluated(history)[0], _evaluated(history)[-1]
    text = f"After {steps} updates {now:.0%} of held-out sums are right, against {start:.0%} at the start."
    if control is not None:
        text += f" With shuffled rewards: {_evaluated(control)[-1][1]:.0%}."
    return text + f" The sketch is 1/{kib['dense gradient'] / kib['sketch']:.0f} of the gradient."


def _alt(history: list[Metrics], control: Sequence[Metrics] | None, kib: dict[str, float]) -> str:
    (_, start), (_, now) = _evaluated(history)[0], _evaluated(history)[-1]
    text = f"Left: a curve of the share of right answers that goes from {start:.2f} to {now:.2f}"
    if control is not None:
        text += f", and one for shuffled rewards that ends at {_evaluated(control)[-1][1]:.2f}"
    dense, sketch = kib["dense gradient"], kib["sketch"]
    return f"{text}. Right: two bars, {dense:.0f} KiB of gradient and {sketch:.0f} KiB of sketch."
