"""Figures and measurements of lesson 02: estimates around the true gradient, groups without signal, a lost stop token.

The world is small_world.py's. The learner's own functions are passed in. Leaves out: the play widget (`lesson02_play`).

    B  answers      L  tokens of the longest answer      n  estimates      D  parameters of the policy (9)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logra_lab.lab import small_world as world
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.rl import losses

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
Rule = Callable[[Tensor, float], tuple[Tensor, float]]
BURN_IN = 50  # batches that only move the running mean
GROUP = 8


def no_baseline(rewards: Tensor, baseline: float) -> tuple[Tensor, float]:
    """The rewards themselves [B] as advantages."""
    return rewards, baseline


def in_groups(group_advantages: Callable[[Tensor], Tensor], size: int = GROUP) -> Rule:
    """A rule that cuts a batch into groups of `size` answers."""
    return lambda rewards, baseline: (group_advantages(rewards.view(-1, size)).flatten(), baseline)


def library_loss(denominator: losses.Denominator) -> Loss:
    """The course's own loss on padded answers: logra_lab.rl's `reinforce_loss` with `token_weights` of a denominator.

    "constant" (1 here) sums over each answer; "own_length" takes the mean within each answer first.
    """

    def loss(log_probs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
        scored = log_probs[mask]  # [T]
        weights = losses.token_weights(mask, denominator, constant=1.0)[mask]
        return losses.reinforce_loss(scored, scored.detach(), losses.per_token(advantages, mask), weights)

    return loss


def direction(policy: Tensor, answers: world.Answers, advantages: Tensor, loss: Loss) -> Tensor:
    """Minus the gradient [V, V] of a loss on these answers: where a step would go."""
    leaf = policy.clone().requires_grad_(True)
    value = loss(world.log_probs(leaf, answers.ids), advantages, answers.mask)
    return -torch.autograd.grad(value, leaf)[0]


def estimates(
    policy: Tensor, rule: Rule, loss: Loss, *, answers: int = 64, bonus: float = 0.0, count: int = 200, seed: int = 0
) -> Tensor:  # fmt: skip
    """`count` gradient estimates [n, D], each from `answers` fresh answers; `bonus` is added to every reward."""
    generator = torch.Generator().manual_seed(seed)
    baseline, found = 0.0, []
    for number in range(BURN_IN + count):
        drawn = world.sample(policy, answers, generator)
        advantages, baseline = rule(drawn.rewards + bonus, baseline)
        if number >= BURN_IN:
            found.append(direction(policy, drawn, advantages, loss).flatten())
    return torch.stack(found)


@dataclass(frozen=True)
class Cloud:
    """Estimates [n, D] against the truth [D]: `slope` of their mean on it, `cosine` of their mean, relative `noise`."""

    slope: float
    cosine: float
    noise: float

    @classmethod
    def of(cls, found: Tensor, truth: Tensor) -> Cloud:
        """Measure a cloud of estimates."""
        mean = found.mean(0)
        spread = (found - mean).square().sum(1).mean().sqrt()
        return cls(
            slope=(mean @ truth / truth.square().sum()).item(),
            cosine=torch.cosine_similarity(mean, truth, dim=0).item(),
            noise=(spread / mean.norm()).item(),
        )


def draw_estimates(truth: Tensor, clouds: Mapping[str, Tensor], control: str) -> Picture:
    """Clouds of estimates [n, D] around the truth [V, V], each at the truth's length, with their means.

    Across: along the truth. Up: along what the mean of the cloud named `control` has at right angles to it.
    """
    truth = truth.flatten()
    measured = {label: Cloud.of(found, truth) for label, found in clouds.items()}
    biased = clouds[control].mean(0) / measured[control].slope - truth
    side = biased / biased.norm()
    figure, panels = new_figure(10.6, 3.7, columns=len(clouds), sharex=True, sharey=True)
    for number, (axes, (label, found)) in enumerate(zip(panels, clouds.items(), strict=True)):
        x = found @ truth / truth.square().sum() / measured[label].slope  # [n]
        y = found @ side / truth.norm() / measured[label].slope  # [n]
        axes.plot(x, y, ".", color=COLOURS[number], alpha=0.35, markersize=5)
        axes.plot([1], [0], "*", color="black", markersize=15, label="truth")
        axes.plot(
            x.mean(),
            y.mean(),
            "P",
            color=COLOURS[number],
            markeredgecolor="black",
            markersize=10,
            label="mean",
        )
        axes.set(title=label, xlabel="along the truth", xlim=(-1.1, 3.1), ylim=(-1.5, 1.5))
    panels[-1].legend(loc="lower right")
    panels[0].set_ylabel("across it")
    words = "; ".join(f"{label}: cosine {c.cosine:.2f}, noise {c.noise:.2f}" for label, c in measured.items())
    alt = (
        f"{len(clouds)} clouds of gradient estimates, each drawn at the length of the true gradient. The means of all "
        f"but the last sit on the truth, their widths differ; the mean of the last, {control}, lies beside it."
    )
    return Picture(figure, alt, f"Cosine of the mean with the truth, and spread around the mean. {words}.")


# ---------------------------------------------------------------- groups without signal


def draw_no_signal(share: Callable[[float, int], float], sizes: Sequence[int], accuracy: float, measured: float,
                   answers: int) -> Picture:  # fmt: skip
    """Share of groups without signal against accuracy for some sizes, and that of tiny-math's groups."""
    figure, axes = new_figure(7.4, 3.6)
    ticks = [i / 100 for i in range(101)]
    for number, size in enumerate(sizes):
        axes.plot(ticks, [share(p, size) for p in ticks], label=f"G = {size}", **style(number))
    axes.plot([accuracy], [measured], "o", color=INK, markersize=9, label=f"tiny-math, G = {answers}")
    axes.set(
        xlabel="accuracy p", ylabel="share of groups", title="Groups that teach nothing", ylim=(-0.02, 1.02)
    )
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    expected = share(accuracy, answers)
    return Picture(
        figure,
        "Curves of the share of groups with equal rewards against accuracy: one at both ends, lowest at a half, lower "
        "for larger groups. A dot for tiny-math lies above its curve.",
        f"tiny-math: accuracy {accuracy:.2f}; {measured:.0%} of its groups of {answers} teach nothing, where equally "
        f"hard prompts would give {expected:.0%}.",
    )


# ---------------------------------------------------------------- training, with and without the stop token


@dataclass(frozen=True)
class Run:
    """A training run: exact accuracy and mean length after each step, and the loss of each step."""

    accuracy: list[float]
    length: list[float]
    loss: list[float]


def train(policy: Tensor, loss: Loss, mask: Callable[[Tensor], Tensor], rule: Rule, *, steps: int = 100,
          answers: int = 64, rate: float = 1.0, seed: int = 0) -> Run:  # fmt: skip
    """Plain gradient steps on a loss whose tokens are those of `mask`, from one start, on the same seeds."""
    generator = torch.Generator().manual_seed(seed)
    run, baseline = Run([], [], []), 0.0
    for _ in range(steps):
        drawn = world.sample(policy, answers, generator)
        advantages, baseline = rule(drawn.rewards, baseline)
        counted = world.Answers(drawn.ids, mask(drawn.ids), drawn.rewards)
        value = loss(world.log_probs(policy, counted.ids), advantages, counted.mask)
        policy = policy + rate * direction(policy, counted, advantages, loss)
        run.accuracy.append(world.accuracy(policy))
        run.length.append(world.mean_length(policy))
        run.loss.append(float(value))
    return run


def draw_runs(runs: Mapping[str, Run]) -> Picture:
    """Accuracy and mean length over the steps of some runs."""
    figure, (left, right) = new_figure(8.8, 3.4, columns=2)
    for number, (label, run) in enumerate(runs.items()):
        steps = range(1, len(run.accuracy) + 1)
        left.plot(steps, run.accuracy, label=label, **style(number))
        right.plot(steps, run.length, label=label, **style(number))
    left.set(title="Accuracy (exact)", xlabel="step", ylim=(0, 1.03))
    right.set(title="Mean length in tokens (exact)", xlabel="step", ylim=(1, world.LENGTH + 0.1))
    right.axhline(world.LENGTH, color=INK, linewidth=1.0)
    right.text(0, world.LENGTH - 0.17, "length limit", fontsize=9)
    left.legend(loc="center right")
    ends = [
        f"{label}: best {max(r.accuracy):.2f}, at the end {r.accuracy[-1]:.2f} with {r.length[-1]:.1f} tokens"
        for label, r in runs.items()
    ]
    alt = "Accuracy and mean answer length over training steps for: " + ", ".join(runs) + "."
    return Picture(figure, alt, f"Accuracy. {'; '.join(ends)}.")
