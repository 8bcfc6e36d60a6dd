"""Packets beside full weights and sparse patches: each way really brings the update, and bytes are what was sent."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

from logra_lab.method import LoGRA
from logra_lab.method.packet import PacketError
from logra_lab.method.replica import Replica
from logra_lab.method.sender import Sender
from logra_lab.method.sparse_patch import apply_patch, changed_entries, encode_patch
from logra_lab.method.traffic import TrafficMeter, measure_traffic
from tests.method.worlds import llama, loss_of, tokens


def gaussian(*shape: int, seed: int = 0, size: float = 0.02) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * size


def pair(step: float, *shape: int) -> tuple[dict, dict]:
    """A bf16 weight before and after a step of that size."""
    weight = gaussian(*shape)
    return {"w": weight.bfloat16()}, {"w": (weight + gaussian(*shape, seed=1, size=step)).bfloat16()}


@pytest.mark.parametrize("step", [0.0, 1e-7, 1e-6, 1e-4, 1.0])
def test_a_patch_turns_the_old_weights_into_the_new_bit_for_bit(step):
    old, new = pair(step, 300, 401)
    old["w"][0, :3] = torch.tensor([math.nan, math.inf, 0.0])
    new["w"][0, :3] = torch.tensor([1.0, -math.inf, -0.0])
    new["w"][-1, -1] = -3e38
    received = {"w": old["w"].clone()}
    apply_patch(received, encode_patch(old, new))
    assert torch.equal(received["w"].view(torch.int16), new["w"].view(torch.int16))
    assert changed_entries(received, new) == 0


@pytest.mark.parametrize("step", [3e-6, 1e-5, 1e-4])
def test_a_patch_is_within_a_tenth_of_its_entropy_so_the_rival_is_a_fair_one(step):
    old, new = pair(step, 500, 800)
    steps = (new["w"].view(torch.int16) - old["w"].view(torch.int16)).flatten()
    share = float((steps != 0).double().mean())
    _, counts = steps[steps != 0].unique(return_counts=True)
    p = counts.double() / counts.sum()
    bits = (
        -share * math.log2(share) - (1 - share) * math.log2(1 - share) - share * float((p * p.log2()).sum())
    )
    assert 1.0 < len(encode_patch(old, new)) / (bits / 8 * steps.numel()) < 1.1


def test_a_patch_refuses_other_types_names_and_damage():
    old, new = pair(1e-4, 5, 6)
    with pytest.raises(TypeError, match="w is torch.float32: pass weight.bfloat16"):
        encode_patch(old, {"w": new["w"].float()})
    with pytest.raises(ValueError, match="different names"):
        encode_patch(old, {"v": new["w"]})
    data = encode_patch(old, new)
    for damaged in (data[:-9], data[: len(data) // 2], b"", data[:40] + b"?" + data[41:]):
        with pytest.raises(PacketError):
            apply_patch({"w": old["w"].clone()}, damaged)


def trained(ratio: float, rank: int, precision: str = "fp32", updates: int = 2):
    model = llama(hidden_size=128, intermediate_size=256)
    if precision == "split":
        model = model.bfloat16()
    options = dict(rank=rank, factor_dtype=torch.bfloat16, precision=precision)
    optimizer = LoGRA(model, update_ratio=ratio, **options)
    sender, replica = Sender(optimizer), Replica(copy.deepcopy(model), **options)
    seeds = iter(range(100))

    def train_step():
        loss_of(model, tokens(seed=next(seeds))).backward()
        optimizer.step(tokens=90)

    return measure_traffic(sender, replica, train_step, updates), sender, replica


@pytest.mark.parametrize("precision", ["fp32", "split"])
def test_small_steps_favour_the_patch_and_large_ones_the_packet(precision):
    small, sender, replica = trained(2e-5, rank=16, precision=precision)
    large, *_ = trained(1e-2, rank=16, precision=precision)
    assert small.bytes["patch"] < small.bytes["packet"] and "the sparse patch is" in small.verdict
    assert large.bytes["packet"] < large.bytes["patch"] and "the packet is" in large.verdict
    assert small.changed < large.changed and small.equal_rank < 16 < large.equal_rank
    assert replica.updates == sender.updates == 2 and replica.link == sender.link
    assert not sender.optimizer.on_commit


def test_bytes_follow_rank_and_sizes_and_the_equal_rank_is_where_they_meet():
    by_rank = {rank: trained(1e-3, rank)[0] for rank in (4, 20)}
    per_rank = (by_rank[20].bytes["packet"] - by_rank[4].bytes["packet"]) / 16
    assert per_rank == pytest.approx(by_rank[4].factor_bytes, rel=0.02)
    parameters = sum(p.numel() for p in llama(hidden_size=128, intermediate_size=256).parameters())
    assert 2 * parameters < by_rank[4].bytes["full"] < 2 * parameters + 5000
    report = by_rank[4]
    there = dataclasses.replace(
        report, rank=report.equal_rank,
        bytes=dict(report.bytes) | {"packet": report.bytes["packet"] + per_rank * (report.equal_rank - 4)},
    )  # fmt: skip
    assert there.bytes["packet"] == pytest.approx(there.bytes["patch"], rel=0.05)
    assert "packet, r = 4" in str(report) and all(v > 0 for v in report.make.values())


def test_a_replica_out_of_step_stops_the_measurement_with_its_reason():
    model = llama()
    optimizer, replica = LoGRA(model, rank=4), Replica(llama(seed=3), rank=4)
    meter = TrafficMeter(Sender(optimizer), replica)
    with pytest.raises(ValueError, match="no update was observed yet"):
        meter.report()
    optimizer.on_commit.append(meter.observe)
    loss_of(model, tokens()).backward()
    with pytest.raises(RuntimeError, match="refused the packet.*initial weights"):
        optimizer.step(tokens=90)


def test_steps_that_move_nothing_end_the_measurement():
    model = llama()
    optimizer = LoGRA(model, rank=4)
    with pytest.raises(RuntimeError, match="ten steps in a row moved nothing"):
        measure_traffic(Sender(optimizer), Replica(copy.deepcopy(model), rank=4), optimizer.step, 1)
