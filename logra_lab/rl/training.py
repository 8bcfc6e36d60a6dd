"""The loop: rollout -> reward -> advantages -> backward in micro-batches -> one optimizer step -> metrics.

    P  prompts a step      G  answers per prompt      B = P*G  sequences      L  padded length      T  sampled tokens

Every random draw comes from a generator made from (seed, step, purpose), so all arms see the same prompts, a resumed
run continues bit for bit on a CPU, and nothing touches the global seed. The loop knows no optimizer by name: an `Arm`
(baselines.py) does.

The small methods from `_make_arm` to `_mismatch` are the plain case of what `logra_lab.scale` does with more processes.

Left out: several updates per rollout (the importance weights are there, the loop isn't), rollouts in another
process (`scale/`), and learning-rate schedules.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logra_lab.method import Mismatch, StepReport
from logra_lab.rl import checkpoint as checkpoints
from logra_lab.rl import losses
from logra_lab.rl.baselines import Arm, make_arm
from logra_lab.rl.batch import Batch, answer_prompts, draw_problems, generator_for
from logra_lab.rl.config import RunConfig
from logra_lab.rl.endings import RunResult, run_to_the_end
from logra_lab.rl.evaluation import evaluate
from logra_lab.rl.feedback import make_feedback
from logra_lab.rl.generation import Sampler, sample_tokens
from logra_lab.rl.interrupt import StopRequest
from logra_lab.rl.kl import ProbeSnapshot
from logra_lab.rl.metrics import MetricsLog, of_report, peak_memory
from logra_lab.rl.policy import Policy, load_policy, token_scores
from logra_lab.rl.probe import LMProbe
from logra_lab.rl.tasks import Problem, Task, make_task

Metrics = dict[str, Any]


class Trainer:
    """One run. `train_step()` does a step and returns its metrics; `run()` does all of them and saves.

    `policy` and `task` default to those the configuration names. `folder` receives `metrics.jsonl`, `config.json` and
    the checkpoints (None: nothing is written). With `resume` the newest checkpoint in it is continued.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        policy: Policy | None = None,
        task: Task | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        self.config = config
        self.folder = Path(folder) if folder is not None else None
        found = checkpoints.latest(self.folder) if self.folder is not None else None
        if found and not resume:
            raise FileExistsError(
                f"{self.folder} already holds {found.name}; pass resume=True or use another folder"
            )
        self.policy = policy if policy is not None else load_policy(config.model)
        self.task = task if task is not None else make_task(config.task, **dict(config.task_options))
        self.reference = _reference_copy(self.policy, config)
        self.sampler: Sampler = sample_tokens
        self.arm: Arm = self._make_arm()
        self.policy = dataclasses.replace(self.policy, model=self.arm.model)
        self.feedback = make_feedback(config.arm, config.steps)
        self.step, self.baseline = 0, 0.0
        if found:
            self._restore(found)
        self._prepare_folder()
        self.log = self._make_log()

    def train_step(self) -> Metrics:
        """One step of the loop; the metrics are explained in `metrics.STEP_METRICS`."""
        started = time.perf_counter()
        batch = self._rollout()
        rollout_seconds = time.perf_counter() - started
        self.arm.zero_grad()
        log_probs, entropy = self._backward(batch)
        whole = self._whole(batch)
        self.baseline = losses.next_baseline(self.baseline, whole.rewards, self.config.baseline_weight)
        report, measured = self._update(batch, log_probs)
        self.step += 1
        metrics = {"step": self.step, **whole.metrics(), "entropy": entropy, **of_report(report), **measured}
        seconds = time.perf_counter() - started
        return metrics | {
            "seconds": seconds, "rollout_seconds": rollout_seconds,
            "tokens_per_second": batch.tokens / seconds, "peak_memory": peak_memory(self.policy.device),
        }  # fmt: skip

    def evaluate(self, problems: int | None = None) -> Metrics:
        """Sampled and greedy accuracy on held-out problems (all of them by default)."""
        generator = generator_for(self.config.seed, self.step, "evaluation")
        return evaluate(
            self.policy, self.task, self.config.sampling(), generator, problems, sampler=self.sampler
        )

    def run(self, on_step: Callable[[Metrics], None] | None = None) -> RunResult:
        """All remaining steps. Ctrl-C finishes the step, saves and returns; a second one stops at once.

        A non-finite step or a full disk ends the run with a message; the checkpoint named in the result is usable.
        """
        with StopRequest() as stop:
            return run_to_the_end(self, stop, on_step)

    def save(self) -> Path | None:
        """Write a checkpoint of the current state (None without a folder)."""
        if self.folder is None:
            return None
        state = {
            "config_hash": self.config.hash(), "baseline": self.baseline,
            "feedback_factor": self.feedback.factor if self.feedback else 1.0,
        }  # fmt: skip
        return checkpoints.save(self.folder, self.step, self.policy.model, self.arm.state_dict(), state)

    def _make_log(self) -> MetricsLog:
        return MetricsLog(self.folder and self.folder / "metrics.jsonl", keep_steps=self.step)

    def _make_arm(self) -> Arm:
        return make_arm(self.config.arm, self.policy.model, seed=self.config.seed, steps=self.config.steps)

    def _share(self, problems: list[Problem]) -> list[Problem]:
        return problems  # those of the step that this process answers

    def _generator(self, purpose: str) -> torch.Generator:
        return generator_for(self.config.seed, self.step, purpose)

    def _whole(self, batch: Batch) -> Batch:
        return batch  # with the rewards of all processes

    def _token_weights(self, batch: Batch) -> Tensor:
        """The loss's weight of each position [B, L]; over all processes they make one mean."""
        config = self.config
        return losses.token_weights(
            batch.rollout.generated_mask, config.denominator, constant=config.max_new_tokens,
            length_weight=config.length_weight,
        )  # fmt: skip

    def _mismatch(self, batch: Batch, log_probs: Tensor) -> float | Mismatch | None:
        return batch.mismatch(log_probs)

    def _rollout(self) -> Batch:
        config, step = self.config, self.step
        drawn = draw_problems(self.task.train, config.prompts, generator_for(config.seed, step, "problems"))
        answers = (self._share(drawn), config, self._generator("answers"))
        batch = answer_prompts(self.policy, self.task, *answers, sampler=self.sampler)
        if config.shuffle_rewards:
            order = torch.randperm(len(batch.right), generator=generator_for(config.seed, step, "shuffle"))
            batch = dataclasses.replace(batch, rewards=batch.rewards[order])
        return batch

    def _advantages(self, batch: Batch) -> Tensor:
        if self.config.algorithm == "reinforce":
            return losses.baseline_advantages(batch.rewards, self.baseline)
        grouped = batch.rewards.view(-1, self.config.answers)  # [P, G]
        return losses.group_advantages(grouped, use_std=self.config.use_std).flatten()

    def _backward(self, batch: Batch) -> tuple[Tensor, float]:
        """Accumulate the gradient of the whole batch; returns the log-probs [T] and their mean entropy."""
        config = self.config
        weights = self._token_weights(batch)  # [B, L]
        advantages = self._advantages(batch).to(weights.device)
        size = config.micro_batch or len(weights)
        scored, entropies = [], []
        for micro in batch.micro_batches(size, weights, advantages):
            scores = token_scores(
                self.policy.model, micro.input_ids, micro.attention_mask, micro.generated_mask,
                temperature=config.temperature, chunk=config.chunk,
            )  # fmt: skip
            loss = self._loss(scores.log_probs, micro)
            if loss.requires_grad:
                loss.backward()
            scored.append(scores.log_probs.detach())
            entropies.append(scores.entropy)
        return torch.cat(scored), torch.cat(entropies).mean().item()

    def _loss(self, log_probs: Tensor, micro) -> Tensor:
        config = self.config
        terms = (log_probs, micro.log_probs, micro.advantages, micro.weights)  # [T] each
        if config.algorithm == "reinforce":
            loss = losses.reinforce_loss(*terms, cap=config.importance_cap)
        else:
            loss = losses.grpo_loss(*terms, clip=config.clip)
        if self.reference is None or config.reference_kl is None:
            return loss
        with torch.no_grad():
            reference = token_scores(
                self.reference, micro.input_ids, micro.attention_mask, micro.generated_mask,
                temperature=config.temperature, chunk=config.chunk,
            )  # fmt: skip
        kl = losses.reference_kl_loss(log_probs, reference.log_probs, micro.weights, config.reference_kl)
        return loss + config.reference_weight * kl

    def _update(self, batch: Batch, log_probs: Tensor) -> tuple[StepReport, Metrics]:
        """The optimizer's step, with the KL measured around it where asked for."""
        wants_measure = self.config.measure_kl or self.feedback is not None
        probe = self._probe(batch) if wants_measure or self.arm.wants_probe else None
        snapshot = ProbeSnapshot(self.policy.model, probe) if wants_measure and probe else None
        mismatch = self._mismatch(batch, log_probs)
        report = self.arm.step(probe=probe, tokens=batch.tokens, mismatch=mismatch)
        if snapshot is None or report.status != "updated":
            return report, {}
        measured = snapshot.kl(self.policy.model)
        if self.feedback is None:
            return report, {"measured_kl": measured}
        used, budget = self.feedback.factor, self.feedback.delta(report.update - 1)
        self.arm.scale_steps(self.feedback.observe(measured, report.update - 1))
        return report, {"measured_kl": measured, "scale": used, "budget": budget}

    def _probe(self, batch: Batch) -> LMProbe:
        config, rollout = self.config, batch.rollout
        rows = slice(0, config.probe_sequences)
        return LMProbe(
            rollout.input_ids[rows], rollout.attention_mask[rows], rollout.generated_mask[rows], config.temperature,
            max_tokens=config.probe_tokens, rows_at_once=config.probe_rows,
        )  # fmt: skip

    def _restore(self, found: Path) -> None:
        restored = checkpoints.load(found, self.policy.model, self.config.hash())
        self.arm.load_state_dict(restored.arm)
        self.step, self.baseline = restored.step, restored.state["baseline"]
        if self.feedback is not None:
            self.feedback.factor = restored.state["feedback_factor"]
            self.arm.scale_steps(self.feedback.factor)

    def _prepare_folder(self) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"hash": self.config.hash(), "config": self.config.to_json()}, indent=1)
        (self.folder / "config.json").write_text(text, encoding="utf-8")


def _reference_copy(policy: Policy, config: RunConfig) -> torch.nn.Module | None:
    """A frozen copy of the model as it is before training, where a reference KL is asked for."""
    if config.reference_kl is None:
        return None
    return copy.deepcopy(policy.model).eval().requires_grad_(False)
