"""The second process of lesson 08: a worker that is fed by packets, a transport that loses one, and a log of bytes.

Leaves out: what the worker does (`scale/worker.py`) and what is sent to it (`scale/rollouts.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from logra_lab.lab.gradients import TINY_MATH, tiny_policy
from logra_lab.lab.lesson08 import SEED, put, weights_of
from logra_lab.method.packet import decode
from logra_lab.rl.generation import Sampler, Sampling, sample_tokens
from logra_lab.rl.policy import Rollout, rollout
from logra_lab.rl.training import Trainer
from logra_lab.scale.rollouts import RemoteWorker, Sync
from logra_lab.scale.transport import Directory, Transport


class Losing:
    """The trainer's end of a transport that loses one update packet, and counts the bytes that it was given."""

    def __init__(self, transport: Transport, lose: int | None = None) -> None:
        self.transport, self.lose = transport, lose
        self.sent = 0

    def send(self, data: bytes) -> None:
        """Pass the message on, unless it is the update to lose."""
        self.sent += len(data)
        packet = decode(data)
        if packet.kind == "update" and packet.header["update"] == self.lose:
            return
        self.transport.send(data)

    def receive(self, timeout: float) -> bytes | None:
        """The next message."""
        return self.transport.receive(timeout)

    def close(self) -> None:
        """Close the transport."""
        self.transport.close()


@contextmanager
def worker_process() -> Iterator[Path]:
    """A second Python with its own tiny-math that serves the folder given; it is ended on the way out."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            sys.executable,
            "-m",
            "logra_lab.scale.worker",
            "--model",
            str(TINY_MATH),
            "--directory",
            folder,
        ]
        options = ["--threads", str(torch.get_num_threads()), "--idle", "120"]
        offline = os.environ | {"HF_HUB_OFFLINE": "1"}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen([*command, *options], env=offline, stdout=quiet, stderr=quiet)
        try:
            yield Path(folder)
        finally:
            process.kill()
            process.wait()


def end(folder: Path) -> Directory:
    """The trainer's end of the folder."""
    return Directory(folder, "trainer")


def answers_alike(run: Trainer, worker: RemoteWorker, problems: int = 64) -> bool:
    """Whether the worker's answers and log-probs are those of the trainer's own weights, bit for bit."""
    policy = tiny_policy()
    policy.model.requires_grad_(False)  # as the worker's: torch then multiplies by the same kernel
    put(policy.model, weights_of(run.arm.optimizer))
    prompts = policy.encode([problem.prompt for problem in run.task.held_out[:problems]])

    def sampled(seed: int, sampler: Sampler = sample_tokens) -> Rollout:
        return rollout(policy, prompts, Sampling(max_new_tokens=5), draws(seed), sampler=sampler)

    there = sampled(SEED, sampler=worker.sample)
    here = sampled(int(torch.randint(2**62, (), generator=draws(SEED))))  # the seed that a RemoteWorker sends
    return torch.equal(here.input_ids, there.input_ids) and torch.equal(here.log_probs, there.log_probs)


def draws(seed: int) -> torch.Generator:
    """A generator at `seed`."""
    return torch.Generator().manual_seed(seed)


def log_of(syncs: Sequence[Sync]) -> str:
    """What was sent to keep the worker in step, a line per message."""
    lines = [f"{'message':<26}{'bytes':>12}"]
    for sync in syncs:
        name = (
            f"packet {sync.update - 1}" if sync.kind == "update" else f"full weights ({sync.update} updates)"
        )
        lines.append(f"{name:<26}{sync.bytes:>12,}")
    return "\n".join(lines)
