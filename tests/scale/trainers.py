"""A trainer whose answers come from a worker, and the question whether they are right."""

from __future__ import annotations

import torch

from logra_lab.method import LoGRA
from logra_lab.method.sender import Sender
from logra_lab.rl.generation import Sampling, sample_tokens
from logra_lab.scale.rollouts import RemoteWorker
from tests.method.worlds import llama, loss_of, tokens

OPTIONS = dict(rank=4, update_ratio=1e-2, factor_dtype=torch.bfloat16)
STOPS, PAD = (0, 1, 2, 3, 4, 5, 6), 0


class Trainer:
    """A small model that trains, and its worker's other end."""

    def __init__(self, transport, model=None, timeout=60.0, **options):
        self.model = model if model is not None else llama()
        self.optimizer = LoGRA(self.model, **(OPTIONS | options))
        self.remote = RemoteWorker(Sender(self.optimizer), transport, timeout=timeout)
        self.optimizer.on_commit.append(self.remote.publish)
        self.steps = 0

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.steps += 1
            loss_of(self.model, tokens(seed=self.steps)).backward()
            assert self.optimizer.step(tokens=90).status == "updated"

    def arguments(self, seed: int = 0) -> tuple:
        ids = tokens(rows=6, length=5, seed=100 + seed)
        return ids, torch.ones_like(ids), Sampling(max_new_tokens=7), STOPS, PAD

    def answers_are_right(self) -> bool:
        """The worker's samples are those of the trainer's own weights, bit for bit."""
        answers = self.remote.sample(self.model, *self.arguments(), torch.Generator().manual_seed(3))
        seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(3)))
        own = sample_tokens(self.model, *self.arguments(), torch.Generator().manual_seed(seed))
        return all(torch.equal(a, b) for a, b in zip(answers, own, strict=True))

    def resyncs(self) -> list[str]:
        return [sync.reason for sync in self.remote.syncs if sync.kind == "full"]
