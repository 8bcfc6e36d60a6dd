"""Lesson 09: bytes that must move, bytes that do move, and the two floors under a kernel's time.

A kernel can't be faster than its bytes over the memory's bandwidth, nor than its multiplications over the card's peak.
Bytes are counted here, on a CPU, where they are as many as on a GPU; times are only ever floors, or read from the
recorded run `data/runs/kernels_gpu.json` where there is one:

    {"command": …, "versions": …, "rows": [{"card": "H100 SXM", "tokens": T, "columns": k, "rank": r, "seconds": s}, …]}

    T  token positions      d, k  rows and columns of a weight      r  rank
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from logra_lab.data_files import located
from logra_lab.kernels import merge_kinds, plain
from logra_lab.lab import triton_play
from logra_lab.method.projection import projection_key

RECORDED = located("data/runs/kernels_gpu.json")
BYTES_PER_WEIGHT = {"fp32": 4, "split": 4, "stochastic": 2, "nearest": 2}


@dataclass(frozen=True)
class Speed:
    """A card by its maker's data sheet: bytes per second of its memory, dense bf16 operations per second."""

    name: str
    bandwidth: float
    peak: float


SPEEDS = {
    speed.name: speed
    for speed in (
        Speed("A100 80 GB", 2.039e12, 312e12),
        Speed("H100 SXM", 3.35e12, 989e12),
        Speed("H200", 4.8e12, 989e12),
    )
}


def project_bytes(tokens: int, columns: int, rank: int, size: int = 2) -> int:
    """Bytes that X Aᵀ has to move if A is made on the spot: X once in, P once out."""
    return size * (tokens * columns + tokens * rank)


def project_floors(tokens: int, columns: int, rank: int, speed: Speed, size: int = 2) -> tuple[float, float]:
    """Seconds at least for the bytes, and for the 2·T·k·r operations, of one projection."""
    return project_bytes(
        tokens, columns, rank, size
    ) / speed.bandwidth, 2 * tokens * columns * rank / speed.peak


def operations_decide(tokens: int, columns: int, rank: int, speed: Speed) -> bool:
    """True where the operations take longer than the bytes."""
    memory, arithmetic = project_floors(tokens, columns, rank, speed)
    return arithmetic > memory


def merge_bytes(kind: str, rows: int, columns: int, rank: int) -> int:
    """Bytes that W ← W − F A has to move: W in and out, F once in."""
    return 2 * BYTES_PER_WEIGHT[kind] * rows * columns + 4 * rows * rank


def recorded_timings() -> dict[str, Any] | None:
    """Timings of the projection measured on a GPU, None where none are recorded."""
    return json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else None


class TorchBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that each torch operation reads and writes; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not function.is_view:
            given = [*args, *(kwargs or {}).values()]
            self.total += sum(map(nbytes, given)) + sum(map(nbytes, (result,)))
        return result


def nbytes(value: Any) -> int:
    """Bytes of a tensor, or of the tensors in a list; anything else has none."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(nbytes, value)) if isinstance(value, list | tuple) else 0


@dataclass(frozen=True)
class Traffic:
    """One operation: bytes at least, bytes of the torch twin, and of the kernel (distinct, and all it asked for)."""

    name: str
    elements: int
    floor: int
    torch: int
    kernel: int | None
    asked: int | None


def merge_traffic(kind: str, rows: int = 128, columns: int = 256, rank: int = 16) -> Traffic:
    """Count the merge of one weight at one precision, both ways."""
    key, random = projection_key(0, 0, "lesson 09"), torch.Generator().manual_seed(9)
    weight = torch.randn(rows, columns, generator=random).to(
        torch.float32 if kind == "fp32" else torch.bfloat16
    )
    lower = torch.zeros(rows, columns, dtype=torch.int16) if kind == "split" else None
    factor = 1e-3 * torch.randn(rows, rank, generator=random)

    def run(merge: Callable) -> None:
        merge(weight.clone(), factor, key, kind=kind, lower=lower)

    return counted(
        f"merge {kind}", weight, merge_bytes(kind, rows, columns, rank), run, "triton_merge", "merge"
    )


def project_traffic(tokens: int = 128, columns: int = 256, rank: int = 16) -> Traffic:
    """Count one projection of fp32 activations, both ways."""
    key = projection_key(0, 0, "lesson 09")
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(9))
    floor = project_bytes(tokens, columns, rank, size=4)
    return counted("project fp32", x, floor, lambda run: run(x, key, rank), "triton_project", "project")


def counted(name: str, large: Tensor, floor: int, run: Callable, module: str, function: str) -> Traffic:
    """Run the torch twin and, where the interpreter is on, the kernel, each under its counter."""
    with TorchBytes() as mode:
        run(getattr(plain, function))
    torch_bytes = mode.total - (2 * nbytes(large) if function == "merge" else 0)  # the lesson's own copy of W
    if not interpreter_on():
        return Traffic(name, large.numel(), floor, torch_bytes, None, None)
    import importlib

    kernel = getattr(importlib.import_module(f"logra_lab.kernels.{module}"), function)
    with triton_play.counting() as count:
        run(kernel)
    return Traffic(name, large.numel(), floor, torch_bytes, count.distinct, count.asked)


def agreement(shapes: Sequence[tuple[int, int, int]], yours: Callable) -> list[tuple[bool, ...]]:
    """For each (rows, columns, rank): does a kernel equal torch bit for bit?

    In order: `yours(x, key, rank)`, the package's projection, its merge at each precision.
    Inputs are small whole numbers and ranks powers of 4, so that every sum is exact in any order.
    """
    from logra_lab.kernels import triton_merge, triton_project

    rows_of_answers = []
    for rows, columns, rank in shapes:
        key, random = projection_key(rows, columns, "odd"), torch.Generator().manual_seed(rank)
        x = torch.randint(-8, 9, (rows, columns), generator=random).float()
        factor = torch.randint(-8, 9, (rows, rank), generator=random).float()
        expected = plain.project(x, key, rank)
        answers = [
            torch.equal(project(x, key, rank), expected) for project in (yours, triton_project.project)
        ]
        for kind in merge_kinds():
            pairs = [merged(module.merge, x, factor, key, kind) for module in (plain, triton_merge)]
            answers.append(all(torch.equal(mine, theirs) for mine, theirs in zip(*pairs)))
        rows_of_answers.append(tuple(answers))
    return rows_of_answers


def merged(
    merge: Callable, weight: Tensor, factor: Tensor, key: tuple[int, int], kind: str
) -> tuple[Tensor, Tensor]:
    """The weight and its lower halves after one merge into a copy of `weight`."""
    copy = weight.clone() if kind == "fp32" else weight.bfloat16()
    lower = torch.zeros(weight.shape, dtype=torch.int16)
    merge(copy, factor, key, kind=kind, lower=lower if kind == "split" else None, noise_key=key)
    return copy, lower


def interpreter_on() -> bool:
    """True where the package's own kernels run in the interpreter here."""
    return triton_play.TRITON and bool(triton_play.triton.knobs.runtime.interpret)


def all_traffic() -> list[Traffic]:
    """The projection and the merge at each precision."""
    return [project_traffic(), *(merge_traffic(kind) for kind in merge_kinds())]
