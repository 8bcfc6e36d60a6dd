"""Three ways to bring one update to a generating process, measured on the same updates.

    full     every weight of the model in bf16
    patch    the bf16 entries that changed, losslessly (`sparse_patch.py`)
    packet   the factors αU; the receiver rebuilds A and merges (`replica.py`)

A packet grows with the rank, a patch with the share of entries that change; `TrafficReport.verdict` says
which is smaller here and at which rank they would be equal. Seconds are those of making and of applying;
the wire's come on top. Left out: full weights of frozen parts could be sent once only, a saving noted as
`full_targets`.

Shapes: W [d, k], F factor [d, r].
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from .packet import decode, encode
from .replica import Replica
from .sender import Sender
from .sparse_patch import apply_patch, changed_entries, encode_patch
from .values import Update

WAYS = ("full", "patch", "packet")
Result = TypeVar("Result")


@dataclass(frozen=True)
class TrafficReport:
    """Means per update.

    Attributes:
        updates: how many were measured.
        rank: r of the packets.
        bytes, make, apply: bytes, and seconds to make and to apply, by way: "full", "patch", "packet".
        full_targets: bytes of full bf16 weights if only the targets were sent.
        changed: the share of the targets' bf16 entries that an update changed.
        factor_bytes: bytes that one more rank adds to a packet.
    """

    updates: int
    rank: int
    bytes: Mapping[str, float]
    make: Mapping[str, float]
    apply: Mapping[str, float]
    full_targets: int
    changed: float
    factor_bytes: int

    @property
    def equal_rank(self) -> float:
        """The rank at which a packet would be as large as the patch; below 1 the patch always wins."""
        overhead = self.bytes["packet"] - self.factor_bytes * self.rank
        return (self.bytes["patch"] - overhead) / self.factor_bytes

    @property
    def verdict(self) -> str:
        """Which is smaller, by how much, and when it would be the other."""
        packet, patch, full = (self.bytes[way] for way in ("packet", "patch", "full"))
        smaller, factor = ("packet", patch / packet) if packet < patch else ("sparse patch", packet / patch)
        turn = f"they are equal near rank {self.equal_rank:.0f}" if self.equal_rank >= 1 else (
            "the patch is smaller at any rank"
        )  # fmt: skip
        return (
            f"At rank {self.rank}, with {self.changed:.1%} of the bf16 entries changed per update, the {smaller} is "
            f"{factor:.1f} times smaller than the other; {turn}, below it the packet is smaller, above it the "
            f"patch. Full bf16 weights are {full / packet:.0f} times the packet and {full / patch:.0f} times the "
            "patch. A packet grows with the rank, a patch with the size of the step; only the packet also "
            "brings the fp32 weights."
        )

    def __str__(self) -> str:
        lines = [f"{'per update':<24}{'bytes':>14}{'make, ms':>12}{'apply, ms':>12}"]
        names = {
            "full": "full bf16 weights",
            "patch": "sparse bf16 patch",
            "packet": f"packet, r = {self.rank}",
        }
        for way in WAYS:
            seconds = f"{1e3 * self.make[way]:>12.1f}{1e3 * self.apply[way]:>12.1f}"
            lines.append(f"{names[way]:<24}{self.bytes[way]:>14,.0f}{seconds}")
        return "\n".join([*lines, self.verdict])


class TrafficMeter:
    """Sends each update by all three ways and measures them.

    Args:
        sender: of the trainer.
        replica: in step with it; it receives the packets.
    """

    def __init__(self, sender: Sender, replica: Replica) -> None:
        self.sender, self.replica = sender, replica
        self.updates, self.changed = 0, 0.0
        self.bytes, self.make, self.apply = ({way: 0.0 for way in WAYS} for _ in range(3))
        self._old = _bf16(sender)
        self._receiver = {name: weight.clone() for name, weight in self._old.items()}

    def observe(self, update: Update) -> None:
        """Measure one commit, right after it was made; fits `optimizer.on_commit`.

        Raises:
            RuntimeError: if a receiver didn't end with the trainer's weights.
        """
        data = self._timed("packet", self.make, lambda: self.sender.pack(update))
        receipt = self._timed("packet", self.apply, lambda: self.replica.apply(data))
        self.bytes["packet"] += len(data)
        new = _bf16(self.sender)
        data = self._timed("patch", self.make, lambda: encode_patch(self._old, new))
        self._timed("patch", self.apply, lambda: apply_patch(self._receiver, data))
        self.bytes["patch"] += len(data)
        model = self.sender.optimizer.model
        data = self._timed("full", self.make, lambda: _whole(model))
        self._timed("full", self.apply, lambda: _load(data))
        self.bytes["full"] += len(data)
        self.changed += changed_entries(self._old, new) / sum(weight.numel() for weight in new.values())
        self._check(receipt.reason, new)
        self.updates, self._old = self.updates + 1, new

    def report(self) -> TrafficReport:
        """The means so far.

        Raises:
            ValueError: before the first update.
        """
        if self.updates == 0:
            raise ValueError(
                "no update was observed yet: add observe to optimizer.on_commit and train a step"
            )
        optimizer, terms = self.sender.optimizer, self.sender.terms
        width = 2 if terms.factor_dtype in ("torch.bfloat16", "torch.float16") else 4
        return TrafficReport(
            self.updates, terms.rank, self._mean(self.bytes), self._mean(self.make), self._mean(self.apply),
            full_targets=sum(2 * target.rows * target.columns for target in optimizer.targets),
            changed=self.changed / self.updates,
            factor_bytes=sum(width * target.rows for target in optimizer.targets),
        )  # fmt: skip

    def _mean(self, sums: Mapping[str, float]) -> dict[str, float]:
        return {way: total / self.updates for way, total in sums.items()}

    def _timed(self, way: str, table: dict[str, float], run: Callable[[], Result]) -> Result:
        started = time.perf_counter()
        result = run()
        table[way] += time.perf_counter() - started
        return result

    def _check(self, reason: str, new: Mapping[str, Tensor]) -> None:
        if reason:
            raise RuntimeError(f"the replica refused the packet: {reason}")
        for name, weight in new.items():
            if not torch.equal(self._receiver[name].view(torch.int16), weight.view(torch.int16)):
                raise RuntimeError(
                    f"the patched {name} differs from the trainer's: was its weight changed by hand?"
                )


def measure_traffic(
    sender: Sender, replica: Replica, train_step: Callable[[], object], updates: int
) -> TrafficReport:
    """Call `train_step` (a backward and an optimizer step) until `updates` commits were measured.

    Raises:
        RuntimeError: if ten steps in a row moved nothing.
    """
    meter, idle = TrafficMeter(sender, replica), 0
    sender.optimizer.on_commit.append(meter.observe)
    try:
        while meter.updates < updates:
            before = meter.updates
            train_step()
            idle = 0 if meter.updates > before else idle + 1
            if idle == 10:
                raise RuntimeError("ten steps in a row moved nothing, so there is no traffic to measure")
    finally:
        sender.optimizer.on_commit.remove(meter.observe)
    return meter.report()


def _bf16(sender: Sender) -> dict[str, Tensor]:
    """What an inference engine would hold: the targets in bf16, copies on the CPU."""
    weights = sender.optimizer.weights
    return {t.name: weights.local(t).detach().to("cpu", torch.bfloat16, copy=True) for t in weights.targets}


def _whole(model: torch.nn.Module) -> bytes:
    tensors = {name: value.detach().to(torch.bfloat16) for name, value in model.named_parameters()}
    return encode({"kind": "full"}, tensors)


def _load(data: bytes) -> None:
    """What a receiver of full weights does: read, and copy each into place (here into a throw-away)."""
    for value in decode(data).tensors.values():
        torch.empty_like(value).copy_(value)
