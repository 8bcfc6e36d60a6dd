"""The trainer's side of a rollout worker: packets go out after each update, answers come back on request.

    worker = RemoteWorker(Sender(optimizer), Directory(folder, "trainer"))
    optimizer.on_commit.append(worker.publish)
    answers = rollout(policy, prompts, sampling, generator, sampler=worker.sample)   # logra_lab.rl.policy
    m_hat = mismatch(answers, log_probs)                                            # for optimizer.step

`sample` is a `logra_lab.rl.generation.Sampler`, so the loop doesn't know that its answers come from another
process. Its random draws come from the worker's generator, seeded from the trainer's.

Left out: overlap of rollouts with training, and several workers at once (make one `RemoteWorker` for each
and hand each the same packet by `send_packet`).

Shapes: B sequences, L prompt length, T sampled tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from logra_lab.method.packet import Packet, PacketError, decode, encode
from logra_lab.method.sender import Sender
from logra_lab.method.values import Update
from logra_lab.rl.generation import Sampled, Sampling
from logra_lab.rl.policy import Rollout
from logra_lab.scale.transport import Transport


class WorkerError(RuntimeError):
    """The worker is silent, or its sampling failed."""


@dataclass(frozen=True)
class Sync:
    """One message sent to keep the worker's weights in step.

    Attributes:
        kind: "update" or "full".
        update: the number of updates the worker has after it.
        bytes, seconds: its size, and the time to make and send it.
        reason: why full weights were needed.
    """

    kind: str
    update: int
    bytes: int
    seconds: float
    reason: str = ""


class RemoteWorker:
    """One rollout worker as the trainer sees it.

    Args:
        sender: of the trainer's optimizer.
        transport: to the worker.
        timeout: seconds to wait for answers, a worker's start or restart included.

    Attributes:
        syncs: every `Sync` so far.
    """

    def __init__(self, sender: Sender, transport: Transport, *, timeout: float = 300.0) -> None:
        self.sender, self.transport, self.timeout = sender, transport, timeout
        self.syncs: list[Sync] = []
        self._requests = 0

    def publish(self, update: Update) -> None:
        """Pack an update and send it; fits `optimizer.on_commit`."""
        started = time.monotonic()
        self.send_packet(self.sender.pack(update), started)

    def send_packet(self, data: bytes, started: float | None = None) -> None:
        """Send a packet that was made before."""
        started = time.monotonic() if started is None else started
        self.transport.send(data)
        self.syncs.append(Sync("update", self.sender.updates, len(data), time.monotonic() - started))

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
        """As `sample_tokens`, by the worker, from the weights that the trainer has now; `model` is not used.

        Raises:
            WorkerError: if no answer came in time, or the worker's sampling failed.
        """
        seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        self._requests += 1
        fields = {
            "kind": "request", "id": self._requests, "temperature": sampling.temperature, "pad": pad, "seed": seed,
            "max_new_tokens": sampling.max_new_tokens, "stop_ids": [int(stop) for stop in stop_ids],
        }  # fmt: skip
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask}
        request = encode(fields | {"link": self.sender.link}, tensors)
        answers = self._answers(request)
        return Sampled(**{name: answers.tensors[name].to(input_ids.device) for name in Sampled._fields})

    def serve(self, seconds: float = 0.0) -> None:
        """Answer what a worker has said meanwhile: greet one that came late, resync one that lost its way."""
        deadline = time.monotonic() + seconds
        while (data := self.transport.receive(max(0.0, deadline - time.monotonic()))) is not None:
            self._handle(data)

    def stop(self) -> None:
        """Tell the worker to end."""
        self.transport.send(encode({"kind": "stop"}, {}))

    def _answers(self, request: bytes) -> Packet:
        """Send the request until its answers come; what else the worker says is handled on the way."""
        self.serve()
        self.transport.send(request)
        deadline = time.monotonic() + self.timeout
        while (left := deadline - time.monotonic()) > 0:
            data = self.transport.receive(min(left, 1.0))
            packet = self._handle(data) if data is not None else None
            if packet is None:
                continue
            if packet.kind in (
                "ready",
                "resync",
            ):  # a worker that now stands right, but never saw the request
                self.transport.send(request)
            elif packet.header.get("id") == self._requests and packet.kind == "answers":
                return packet
            elif packet.header.get("id") == self._requests:
                raise WorkerError(f"the worker's sampling failed: {packet.header.get('message')}")
        raise WorkerError(
            f"no answer within {self.timeout:.0f} s: is the worker running? "
            "Start python -m logra_lab.scale.worker (again); it will catch up by itself"
        )

    def _handle(self, data: bytes) -> Packet | None:
        """Do what a message of the worker asks for, and return it; None for one that can't be read."""
        try:
            packet = decode(data)
        except PacketError:
            return None  # a worker that lost something says so again
        if packet.kind == "hello":
            self.transport.send(encode({"kind": "terms", "terms": self.sender.terms.as_json()}, {}))
        elif packet.kind == "ready" and packet.header.get("link") != self.sender.link:
            self._send_full(f"a worker started at update {packet.header.get('update')}")
        elif packet.kind == "resync":
            self._send_full(str(packet.header.get("reason")))
        return packet

    def _send_full(self, reason: str) -> None:
        started = time.monotonic()
        data = self.sender.full()
        self.transport.send(data)
        self.syncs.append(Sync("full", self.sender.updates, len(data), time.monotonic() - started, reason))


def mismatch(answers: Rollout, log_probs: Tensor) -> float | None:
    """m̂ = mean(log π_rollout − log π_train) over tokens of answers that ended by themselves (method.md §3).

    Args:
        answers: with the log-probs [T] that the worker sampled by.
        log_probs: of the same tokens [T] under the trainer's weights, in the same order.

    Returns:
        None where no answer ended. The step clamps it at 0 and averages it over time.
    """
    row = answers.generated_mask.nonzero()[:, 0]  # [T]
    ended = answers.finished[row]
    if not bool(ended.any()):
        return None
    return float((answers.log_probs[ended].double() - log_probs[ended].detach().double()).mean())
