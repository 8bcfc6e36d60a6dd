"""The loop of `rl.training` at scale: the same steps, with engines, several processes and checkpoints for any number.

Nothing of the loop is written again: what differs are the seams it leaves. A process answers every `size`-th prompt of
the step, weighs its tokens as parts of the whole batch's mean, and adds its sketches to the others'; rewards are
gathered for baseline and metrics, the mismatch and the KL are agreed. Then all processes take the same step. With one
process each seam is the plain one.

Left out: dense arms on several processes (their own libraries do that), and reference KL or measured KL under FSDP.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from logra_lab.method import Mismatch
from logra_lab.rl.baselines import Arm, make_arm
from logra_lab.rl.batch import Batch, draw_problems, generator_for
from logra_lab.rl.config import config_hash
from logra_lab.rl.endings import RunResult
from logra_lab.rl.losses import per_token
from logra_lab.rl.metrics import MetricsLog
from logra_lab.rl.tasks import Problem, Task
from logra_lab.rl.training import Metrics, Trainer
from logra_lab.scale import checkpoints, stopping
from logra_lab.scale.distributed import AllReduce, EmptyProbe, ShardedRows, reshard
from logra_lab.scale.engines import Engine, InProcess, sync_metrics
from logra_lab.scale.loading import Loaded
from logra_lab.scale.passes import pass_at, right_answers
from logra_lab.scale.world import EvenProbe, World, WrongWorld, check_run, shard_layers

SCALE_METRICS = {
    "syncs": "messages sent to the rollout engine since the step before",
    "sync_bytes": "their bytes",
    "sync_seconds": "the time to make and send them",
    "total_tokens_per_second": "sampled tokens per second, all processes together",
}


class ScaleTrainer(Trainer):
    """One run at any size; see `Trainer` for `train_step`, `run` and `folder`.

    Args:
        loaded: from `loading.load`; under sharding="fsdp" its layers are sharded here.
        world: this process among the others.
        engine: who samples, or what makes it from this trainer; in process if None.
        resume: go on from the newest checkpoint, of whatever world size.

    Raises:
        WrongWorld: where the processes, or the run and its processes, don't fit.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        task: Task,
        world: World | None = None,
        engine: Engine | Callable[[ScaleTrainer], Engine | None] | None = None,
        folder: str | Path | None = None,
        resume: bool = False,
    ) -> None:
        self.loaded, self.scale, self.world = loaded, loaded.config, world or World()
        self.sharded = self.scale.sharding == "fsdp" and self.world.size > 1
        check_run(self.scale, self.world, getattr(engine, "name", self.scale.engine))
        self.world.agree("configuration", self.identity)
        checkpoints.check_folder(folder)
        self.reduce = AllReduce() if self.world.size > 1 else None
        if self.sharded:
            shard_layers(loaded.policy.model, self.world, loaded.choice.device)
        super().__init__(self.scale.run, policy=loaded.policy, task=task, folder=folder, resume=resume)
        if callable(engine):
            engine = engine(self)
        if engine is None and self.scale.engine != "transformers":
            raise WrongWorld(
                f"engine={self.scale.engine!r} is asked for, but none was given; pass engine= (scale/engines.py), "
                "or start logra-train with its options, or use engine='transformers'"
            )
        self.engine = engine or InProcess(
            self.scale.rollouts, self.world.everywhere if self.sharded else bool
        )
        if self.arm.name == "logra":
            self.engine.attach(self.arm.optimizer)
        self.sampler = self.engine.sample
        self._synced, self._updating = len(self.engine.syncs), False

    @property
    def identity(self) -> str:
        """Names what is learnt and how; how it is cut over cards and processes doesn't count."""
        run = self.scale.run.to_json() | {"micro_batch": None, "checkpoint_every": None}
        run["arm"] = run["arm"] | {"options": [pair for pair in run["arm"]["options"] if pair[0] != "halves"]}
        return config_hash(run)

    def train_step(self) -> Metrics:
        """One step, all processes together; adds `SCALE_METRICS` to the loop's own.

        HalfUpdated after an interrupt in the middle of an update.
        """
        if self._updating:
            raise stopping.HalfUpdated
        with self.compute():
            metrics = super().train_step()
        self._updating = False
        syncs = self.engine.syncs[self._synced :]
        self._synced = len(self.engine.syncs)
        own = torch.tensor(
            [metrics["entropy"], metrics["tokens_per_second"], float(metrics["peak_memory"] or 0)]
        )
        entropy, speed, memory = self.world.gather(own.double()).view(-1, 3).unbind(-1)
        return metrics | sync_metrics(syncs) | {
            "entropy": entropy.mean().item(), "total_tokens_per_second": speed.sum().item(),
            "peak_memory": int(memory.max()) or None,
        }  # fmt: skip

    def evaluate(self, problems: int | None = None) -> Metrics:
        """Sampled and greedy accuracy on held-out problems, shared by all processes."""
        with self.compute():
            if self.world.size == 1:
                return super().evaluate(problems)
            chosen = self._held_out(problems)
            without_chance = dataclasses.replace(self.config.sampling(), temperature=0.0)
            kinds = {"accuracy": self.config.sampling(), "greedy": without_chance}
            return {name: self._right(chosen, how, 1).mean().item() for name, how in kinds.items()}

    def evaluate_passes(self) -> Metrics:
        """Pass@1 and Pass@k on held-out problems, at the training temperature."""
        answers, chosen = self.scale.pass_answers, self._held_out(self.scale.pass_problems)
        with self.compute():
            right = self._right(chosen, self.config.sampling(), answers)
        return {f"pass@{k}": pass_at(right, answers, k) for k in sorted({1, answers})} | {
            "problems": len(chosen)
        }

    def run(self, on_step: Callable[[dict], None] | None = None) -> RunResult:
        """All remaining steps; an interrupt in any process ends all after the same step. See `stopping.run`."""
        return stopping.run(self, on_step)

    def save(self) -> Path | None:
        """Write a checkpoint that any number of processes can resume from (None without a folder)."""
        if self.folder is None or self.arm.name != "logra":
            return super().save()
        state = {"config_hash": self.identity, "baseline": self.baseline, "world_size": self.world.size}
        return checkpoints.save(
            self.folder, self.step, self.policy.model, self.arm.optimizer, state, self.world
        )

    def compute(self) -> contextlib.AbstractContextManager:
        """Autocast where fp32 weights are computed with in bf16; nothing otherwise."""
        choice = self.loaded.choice
        if choice.dtype == torch.bfloat16 and next(self.policy.model.parameters()).dtype == torch.float32:
            return torch.autocast(choice.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    # The seams of the loop.

    def _make_arm(self) -> Arm:
        config, options = self.config.arm, self.scale.options
        if config.name != "logra":
            own = {"precision", "halves", "targets", "shared", "refresh"}
            options = {name: value for name, value in options.items() if name not in own}
        elif self.reduce is not None:
            options |= {"reduce": self.reduce} | ({"rows": ShardedRows()} if self.sharded else {})
        config = dataclasses.replace(config, options=tuple(options.items()))
        return make_arm(config, self.policy.model, seed=self.config.seed, steps=self.config.steps)

    def _make_log(self) -> MetricsLog:
        return super()._make_log() if self.world.first else MetricsLog(None)

    def _prepare_folder(self) -> None:
        if self.world.first:
            super()._prepare_folder()
        self.world.wait()

    def _restore(self, found: Path) -> None:
        if self.arm.name != "logra":
            return super()._restore(found)
        state = checkpoints.load(found, self.policy.model, self.arm.optimizer, self.identity, self.world)
        self.step, self.baseline = state["step"], state["baseline"]
        return None

    def _share(self, problems: list[Problem]) -> list[Problem]:
        return problems[self.world.rank :: self.world.size]

    def _generator(self, purpose: str) -> torch.Generator:
        return generator_for(
            self.config.seed, self.step, f"{purpose}:{self.world.rank}" if self.world.rank else purpose
        )

    def _whole(self, batch: Batch) -> Batch:
        if self.world.size == 1:
            return batch
        gather, rollout = self.world.gather, batch.rollout
        joined = dataclasses.replace(
            rollout, lengths=gather(rollout.lengths), finished=gather(rollout.finished.float())
        )
        return dataclasses.replace(
            batch, rollout=joined, right=gather(batch.right), rewards=gather(batch.rewards)
        )

    def _token_weights(self, batch: Batch) -> Tensor:
        weights, share = super()._token_weights(batch), 1.0 / self.world.size
        if self.config.denominator == "batch_tokens" and self.world.size > 1:
            share = batch.tokens / float(self.world.gather(torch.tensor([float(batch.tokens)])).sum())
        return weights * share

    def _mismatch(self, batch: Batch, log_probs: Tensor) -> float | Mismatch | None:
        if self.reduce is None:
            return super()._mismatch(batch, log_probs)
        ended = per_token(batch.rollout.finished, batch.rollout.generated_mask)  # [T]
        return Mismatch.of((batch.rollout.log_probs - log_probs)[ended])

    def _update(self, batch: Batch, log_probs: Tensor):
        if self.sharded:
            reshard(self.policy.model)
        self._updating = True  # until the step is counted; an interrupt leaves it so
        return super()._update(batch, log_probs)

    def _probe(self, batch: Batch):
        if self.world.size == 1:
            return super()._probe(batch)
        config, rollout = self.config, batch.rollout
        rows = slice(0, -(-config.probe_sequences // self.world.size))
        masks = (rollout.input_ids[rows], rollout.attention_mask[rows], rollout.generated_mask[rows])
        try:
            probe = EvenProbe(
                *masks, config.temperature, max_tokens=config.probe_tokens, rows_at_once=config.probe_rows
            )
            return probe.prepare(self.world if self.sharded else World())
        except ValueError:
            if self.sharded:
                raise
            return EmptyProbe()

    def _held_out(self, problems: int | None) -> list[Problem]:
        held_out = list(self.task.held_out)
        if problems is None or problems >= len(held_out):
            return held_out
        return draw_problems(held_out, problems, generator_for(self.config.seed, self.step, "evaluation"))

    def _right(self, chosen: list[Problem], sampling, answers: int) -> Tensor:
        purpose = f"answers to held-out problems, {sampling.temperature}"
        return right_answers(
            self.policy, self.task, chosen, sampling, self._generator(purpose), answers=answers, sampler=self.sampler,
            world=self.world,
        )  # fmt: skip
