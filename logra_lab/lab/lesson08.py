"""What lesson 08 does: a short real run whose packets are kept, and receivers that follow it.

Leaves out: larger models (the widget scales by arithmetic), and time on a wire, which depends on the wire.

Shapes: d output rows of a target, k its input columns, r rank; F factor [d, r].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from logra_lab.lab.gradients import TINY_MATH, answer_sums, tiny_policy
from logra_lab.method import LoGRA, Receipt, Replica, Sender, Target, TrafficReport, measure_traffic
from logra_lab.method.packet import Packet, decode
from logra_lab.method.projection import rademacher
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.kl import ProbeSnapshot
from logra_lab.rl.policy import LMProbe
from logra_lab.rl.training import Trainer

RANK, SEED, PROMPTS = 8, 0, 96
COURSE_RATIO, PAPER_RATIO = 3e-3, 6e-5
Matrices = dict[str, Tensor]
Apply = Callable[[Tensor, Tensor, int, int, str, float], Tensor]


# ---------------------------------------------------------------- the run


def trainer(rank: int = RANK, ratio: float = COURSE_RATIO) -> Trainer:
    """The course's loop on tiny-math, REINFORCE with rule "paper"; factors are made in bf16, as they travel."""
    options = (("factor_dtype", torch.bfloat16),)
    arm = ArmConfig(lr=ratio, rank=rank, control="none", options=options)
    config = RunConfig(model=str(TINY_MATH), arm=arm, seed=SEED, prompts=PROMPTS)
    return Trainer(config, policy=tiny_policy())


def replica(rank: int = RANK, *, model_dtype: torch.dtype = torch.float32, **options: Any) -> Replica:
    """A second copy of tiny-math that follows such a run; other `options` make it one that doesn't."""
    settings: dict[str, Any] = {"seed": SEED, "factor_dtype": torch.bfloat16} | options
    return Replica(tiny_policy().model.to(model_dtype), rank=rank, **settings)


def touched_by_a_stray_write(size: float = 1e-3) -> Receipt:
    """What a replica says to a packet with a checksum, after one of its weights was changed behind its back."""
    run, copy = trainer(), replica()
    sender, packets = Sender(run.arm.optimizer, checksum_every=1), []
    run.arm.optimizer.on_commit.append(lambda update: packets.append(sender.pack(update)))
    while not packets:
        run.train_step()
    with torch.no_grad():
        copy.targets[0].weight.mul_(1 + size)
    return copy.apply(packets[0])


@dataclass(frozen=True)
class Journey:
    """A run as it was sent: its start, and per update the packet, the full weights and the fp32 weights after it."""

    root: str
    targets: tuple[Target, ...]
    start: Matrices
    packets: tuple[bytes, ...]
    full: tuple[bytes, ...]
    after: tuple[Matrices, ...]


def journey(updates: int = 16) -> Journey:
    """Train for so many updates and keep what was sent."""
    run = trainer()
    optimizer = run.arm.optimizer
    sender = Sender(optimizer)
    root, start = sender.link, weights_of(optimizer)
    packets, full, after = [], [], []

    def keep(update) -> None:
        packets.append(sender.pack(update))
        full.append(sender.full())
        after.append(weights_of(optimizer))

    optimizer.on_commit.append(keep)
    while len(packets) < updates:
        run.train_step()
    return Journey(root, optimizer.targets, start, tuple(packets), tuple(full), tuple(after))


def weights_of(store: LoGRA | Replica) -> Matrices:
    """A copy of every target's fp32 weight [d, k]."""
    return {target.name: store.weight(target.name).detach().clone() for target in store.targets}


def factor_of(packet: Packet, name: str) -> Tensor:
    """F [d, r] of one target in fp32."""
    return packet.tensors[f"factor/{name}"].float()


def equal_share(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The share of numbers that are equal in every bit."""
    same = sum(int((mine[name] == theirs[name]).sum()) for name in theirs)
    return same / sum(weight.numel() for weight in theirs.values())


def distance(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """‖W − W'‖ over all targets."""
    return sum((mine[name].double() - theirs[name]).square().sum().item() for name in theirs) ** 0.5


# ---------------------------------------------------------------- receivers


def follow_blindly(
    trip: Journey, apply: Apply, lost: int | None = None, own_count: bool = False
) -> list[Matrices]:
    """A receiver without a chain: it applies whatever comes, by the packet's number or by its `own_count`.

    Returns its weights after each of the trainer's updates; where the packet was `lost` they stay.
    """
    weights, count, path = dict(trip.start), 0, []
    for number, data in enumerate(trip.packets):
        if number != lost:
            packet = decode(data)
            step = count if own_count else packet.header["update"]
            for target in trip.targets:
                weights[target.name] = apply(
                    weights[target.name], factor_of(packet, target.name), SEED, step, target.group,
                    packet.header["decay"],
                )  # fmt: skip
            count += 1
        path.append(dict(weights))
    return path


def follow_by_chain(trip: Journey, lost: int | None = None) -> tuple[list[Matrices], list[str]]:
    """A replica that refuses what doesn't follow and then gets the full weights; its weights and its complaints."""
    copy, path, complaints = replica(), [], []
    for number, data in enumerate(trip.packets):
        if number != lost:
            receipt = copy.apply(data)
            if receipt.status == "resync":
                complaints.append(receipt.reason)
                copy.resync(trip.full[number])
        path.append(weights_of(copy))
    return path, complaints


def kl_to_trainer(trip: Journey, paths: Mapping[str, Sequence[Matrices]]) -> dict[str, list[float]]:
    """KL per token from the trainer's policy to each receiver's after each update, in fp32."""
    policy = tiny_policy()
    seen = answer_sums(policy, 24, 2, SEED, 999).rollout
    probe = LMProbe(seen.input_ids, seen.attention_mask, seen.generated_mask, rows_at_once=64)
    costs: dict[str, list[float]] = {name: [] for name in paths}
    for number, weights in enumerate(trip.after):
        put(policy.model, weights)
        truth = ProbeSnapshot(policy.model, probe)
        for name, path in paths.items():
            put(policy.model, path[number])
            costs[name].append(abs(truth.kl(policy.model)))
    return costs


@torch.no_grad()
def put(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Set targets' weights."""
    for name, weight in weights.items():
        model.get_parameter(f"{name}.weight").copy_(weight)


@dataclass(frozen=True)
class Arrival:
    """Per update: the share of bf16 weights that differ from the trainer's; at the end, how much of the way arrived."""

    differ: tuple[float, ...]
    displacement: float


def arrivals(trip: Journey, receiver: Callable, size: float = 1.0) -> Arrival:
    """How `receiver(start, pairs)`, which returns bf16 weights, follows one weight; `size` scales each update.

    `displacement` is the part of W_end − W_start that the receiver's weights have moved along it (1: all of it).
    """
    target = trip.targets[-1]
    start = trip.start[target.name]
    pairs, differ, truth = [], [], start.clone()
    found = start
    for data in trip.packets:
        packet = decode(data)
        factor = (factor_of(packet, target.name) * size).to(torch.bfloat16)
        pairs.append((factor, rademacher(SEED, packet.header["update"], target.group, RANK, target.columns)))
        truth -= factor.float() @ pairs[-1][1]
        found = receiver(start, pairs)
        differ.append((found != truth.to(torch.bfloat16)).float().mean().item())
    way = truth - start
    moved = found.float() - start.to(torch.bfloat16).float()
    return Arrival(tuple(differ), ((moved * way).sum() / way.square().sum()).item())


# ---------------------------------------------------------------- traffic


def traffic(rank: int, ratio: float = COURSE_RATIO, updates: int = 2) -> TrafficReport:
    """Full weights, sparse patch and packet, measured on the same updates of a fresh run."""
    run = trainer(rank, ratio)
    return measure_traffic(Sender(run.arm.optimizer), replica(rank), run.train_step, updates)
