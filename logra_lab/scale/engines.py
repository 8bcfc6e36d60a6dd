"""Rollout engines: whoever samples the answers, behind one small interface.

    engine = InProcess(rollouts=64)                       # same weights, no second copy: the default on one card
    engine = Worker(Directory(folder, "trainer"))         # a replica elsewhere, fed by packets (worker.py)
    engine = vllm_engine.colocated(policy, path)          # optional; full weights by vLLM's own update API
    engine.attach(optimizer); trainer.sampler = engine.sample

`sample` is a `logra_lab.rl.generation.Sampler`, log-probs included: the loop compares them with its own
and charges the difference to the KL budget (method.md §3). Every sync of weights is logged with bytes and seconds.

Left out: sampling while training goes on. An engine answers from the weights of the last commit.

Shapes: B sequences, L prompt length, N new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from logra_lab.method import LoGRA
from logra_lab.method.sender import Sender
from logra_lab.rl.generation import Sampled, Sampler, Sampling, sample_tokens
from logra_lab.scale.rollouts import RemoteWorker, Sync
from logra_lab.scale.transport import Transport

__all__ = ["Engine", "InProcess", "Sync", "Worker", "sync_metrics"]


class Engine(Protocol):
    """Samples answers, and follows the optimizer that it is attached to."""

    name: str

    @property
    def syncs(self) -> Sequence[Sync]:
        """Every message sent so far to keep the engine's weights in step."""

    def attach(self, optimizer: LoGRA) -> None:
        """Follow this optimizer's commits; its model's weights now are the start."""

    @property
    def sample(self) -> Sampler:
        """A method that samples with the engine's weights."""

    def close(self) -> None:
        """End processes and free memory that belong to the engine."""


class InProcess:
    """The trainer's own model samples: nothing to sync, no second copy.

    Args:
        rollouts: sequences at once (the cache grows with them); None for all.
        everywhere: see `sample_tokens`; for shards, whose ranks must run the model equally often.
    """

    name = "transformers"
    syncs: Sequence[Sync] = ()

    def __init__(self, rollouts: int | None = None, everywhere: Callable[[bool], bool] = bool) -> None:
        if rollouts is not None and rollouts < 1:
            raise ValueError(f"rollouts={rollouts} samples nothing; use at least 1, or None for all at once")
        self.rollouts, self.everywhere = rollouts, everywhere

    def attach(self, optimizer: LoGRA) -> None:
        """Nothing to do: the weights are the trainer's."""

    def sample(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        sampling: Sampling,
        stop_ids: Sequence[int],
        pad: int,
        generator: torch.Generator,
    ) -> Sampled:
        """As `Engine.sample`, `rollouts` sequences at a time; on a GPU the noise is drawn there."""
        generator = device_generator(generator, input_ids.device)
        size = self.rollouts or len(input_ids)
        parts = []
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            columns = attention_mask[rows].any(0)  # padding that only longer prompts needed
            ids, mask = input_ids[rows][:, columns], attention_mask[rows][:, columns]
            parts.append(
                sample_tokens(
                    model, ids, mask, sampling, stop_ids, pad, generator, everywhere=self.everywhere
                )
            )
        return joined(parts, pad)

    def close(self) -> None:
        """Nothing to end."""


class Worker:
    """A worker in another process or on another GPU, which holds a replica fed by packets of αU.

    Args:
        transport: to the worker (`transport.Directory`, or `transport.listen` for sockets).
        timeout: seconds to wait for answers; the worker's start counts.
        checksum_every: updates between two checksums of the weights (another kind of device rounds otherwise).
    """

    name = "worker"

    def __init__(self, transport: Transport, *, timeout: float = 300.0, checksum_every: int = 50) -> None:
        self.transport, self.timeout, self.checksum_every = transport, timeout, checksum_every
        self.remote: RemoteWorker | None = None

    @property
    def syncs(self) -> Sequence[Sync]:
        """Packets and full resyncs sent so far."""
        return () if self.remote is None else self.remote.syncs

    def attach(self, optimizer: LoGRA) -> None:
        """Send each commit from now on; a worker that starts late or lost its way gets full weights."""
        sender = Sender(optimizer, checksum_every=self.checksum_every)
        self.remote = RemoteWorker(sender, self.transport, timeout=self.timeout)
        optimizer.on_commit.append(self.remote.publish)

    def sample(
        self,
        model: nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        sampling: Sampling,
        stop_ids: Sequence[int],
        pad: int,
        generator: torch.Generator,
    ) -> Sampled:
        """As `Engine.sample`, by the worker.

        Raises:
            RuntimeError: before `attach`. WorkerError: if no answer came in time.
        """
        if self.remote is None:
            raise RuntimeError("the worker follows no optimizer yet; call attach(optimizer) first")
        return self.remote.sample(model, input_ids, attention_mask, sampling, stop_ids, pad, generator)

    def close(self) -> None:
        """Tell the worker to end."""
        if self.remote is not None:
            self.remote.stop()


def device_generator(generator: torch.Generator, device: torch.device) -> torch.Generator:
    """A generator on `device`, seeded from `generator`: noise of a whole vocabulary is slow to draw on the CPU."""
    if device.type != "cuda":
        return generator
    seed = int(torch.randint(2**62, (), generator=generator))
    return torch.Generator(device).manual_seed(seed)


def joined(parts: Sequence[Sampled], pad: int) -> Sampled:
    """Several samples as one [B, N], padded to the longest."""
    if len(parts) == 1:
        return parts[0]
    longest = max(part.tokens.shape[1] for part in parts)

    def widened(tensor: Tensor, value: float) -> Tensor:
        return nn.functional.pad(tensor, (0, longest - tensor.shape[1]), value=value)

    return Sampled(
        torch.cat([widened(part.tokens, pad) for part in parts]),
        torch.cat([widened(part.log_probs, 0.0) for part in parts]),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.finished for part in parts]),
    )


def sync_metrics(syncs: Sequence[Sync]) -> dict[str, float]:
    """Messages, bytes and seconds of some syncs together."""
    return {
        "syncs": len(syncs),
        "sync_bytes": sum(sync.bytes for sync in syncs),
        "sync_seconds": sum(sync.seconds for sync in syncs),
    }
