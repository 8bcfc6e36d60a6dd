"""The FLOPs and bytes of a step, by arithmetic, and the seconds that follow from two measured ceilings.

A pass over the targets is 2 T N FLOPs (N numbers in all targets). Dense training makes three: forward, the
gradient of the inputs (not in the first block's q, k, v, whose input needs none), the gradient of the weights. LoGRA
makes two and thin products:

    X Aᵀ: 2 T k r per group      Hᵀ P: 2 T d r per target      F A: 2 d k r per target

Bytes are those of the passes over weights, gradients and moments, in fp32: every further micro-batch adds its G.
Left out, in both: attention, norms, the activation function, and memory that the system hands out page by page.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from bench.settings import Setting, Shape

FLOAT = 4
ADAMW_PASSES = 7 + 1  # W, G, m, v read; W, m, v written; and G written by backward
ADDING_PASSES = 4  # a further micro-batch: its G written and read, the sum read and written
LOGRA_PASSES = 3  # W read for its norm, read and written by the merge


@dataclass(frozen=True)
class Ceilings:
    """FLOP/s of a large fp32 product, and bytes/s of a copy (one read and one write)."""

    flops: float
    bandwidth: float


def measure_ceilings(size: int = 1024, repeats: int = 5) -> Ceilings:
    """The best of some repeats, on this machine, now."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    source = torch.randn(32 * size * size // 8)
    target = torch.empty_like(source)
    product = min(_seconds(lambda: torch.mm(a, b, out=a.new_empty(size, size))) for _ in range(repeats))
    copy = min(_seconds(lambda: target.copy_(source)) for _ in range(repeats))
    return Ceilings(2 * size**3 / product, 2 * FLOAT * source.numel() / copy)


def head_flops(shape: Shape) -> float:
    """Of the frozen head: forward, and the gradient of its inputs."""
    return 2 * 2 * shape.tokens * shape.width * shape.vocab


def step_flops(setting: Setting) -> float:
    """Matrix products of the targets and the head in one step; "adamw" stands for all dense arms."""
    shape, rank = setting.shape, setting.rank
    whole = 2 * shape.tokens * shape.target_parameters()
    entry = sum(d * k for d, k, group in shape.targets() if group == "qkv")  # behind a frozen embedding
    spared = 0 if setting.checkpointing and setting.arm == "logra" else 2 * shape.tokens * entry
    if setting.arm != "logra":
        return (3 + setting.checkpointing) * whole - spared + head_flops(shape)
    groups = {group: k for _, k, group in shape.targets()}
    projected = 2 * shape.tokens * rank * sum(groups.values()) * shape.layers * (1 + setting.checkpointing)
    sketched = 2 * shape.tokens * rank * sum(d for d, _, _ in shape.targets()) * shape.layers
    merged = 2 * rank * shape.target_parameters()
    return (2 + setting.checkpointing) * whole + projected + sketched + merged - spared + head_flops(shape)


def update_bytes(setting: Setting) -> float:
    """What gradients and optimizer move through memory in one step."""
    dense = ADAMW_PASSES + ADDING_PASSES * (setting.micro_batches - 1)
    passes = LOGRA_PASSES if setting.arm == "logra" else dense
    return passes * FLOAT * setting.shape.target_parameters()


def step_seconds(setting: Setting, ceilings: Ceilings) -> float:
    """FLOPs at the first ceiling plus bytes at the second: a floor, since all else is left out."""
    return step_flops(setting) / ceilings.flops + update_bytes(setting) / ceilings.bandwidth


def _seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
