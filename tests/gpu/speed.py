"""How fast are the kernels, beside what this device can do at best: measured copy and matrix-product ceilings."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from logra_lab import kernels
from logra_lab.kernels import plain
from logra_lab.method.projection import projection_key
from tests.gpu.context import Context


def ceilings(context: Context) -> dict[str, Any]:
    """Bytes per second of a copy, operations per second of a bf16 matrix product."""
    size = 256 if context.tiny else 8192
    a = torch.randn(size, size, device=context.device).bfloat16()
    b = torch.empty_like(a)
    large = torch.empty((1 << 16) if context.tiny else (1 << 30), dtype=torch.uint8, device=context.device)
    target = torch.empty_like(large)
    copy = context.seconds(lambda: target.copy_(large))
    product = context.seconds(lambda: torch.mm(a, a, out=b))
    return {"copy_bytes_per_s": 2 * large.numel() / copy, "matmul_flop_per_s": 2 * size**3 / product}


def kernel_times(context: Context) -> dict[str, Any]:
    """Seconds of project and merge, Triton (where it runs) and torch, with the bandwidth and FLOP/s they reach."""
    tokens, columns, rows = (64, 96, 80) if context.tiny else (8192, 3584, 18944)
    repeats = 3 if context.tiny else 20
    bench: dict[str, Any] = {"rows": []}
    for rank in (8,) if context.tiny else (16, 64, 256):
        key = projection_key(1, 1, "g")
        x = torch.randn(tokens, columns, device=context.device).bfloat16()
        ways = {
            "dispatch": lambda k=key, r=rank, x=x: kernels.project(x, k, r),
            "torch": lambda k=key, r=rank, x=x: plain.project(x, k, r),
        }
        for way, work in ways.items():
            seconds = context.seconds(work, repeats)
            moved = 2 * (x.numel() + tokens * rank)
            bench["rows"].append({
                "kernel": "project", "way": way, "card": _name(context), "tokens": tokens, "columns": columns,
                "rank": rank, "seconds": seconds, "bytes_per_s": moved / seconds,
                "flop_per_s": 2 * tokens * columns * rank / seconds,
            })  # fmt: skip
        bench["rows"] += _merges(context, rows, columns, rank, repeats)
    return bench


def _merges(context: Context, rows: int, columns: int, rank: int, repeats: int) -> list[dict[str, Any]]:
    found = []
    factor = torch.randn(rows, rank, device=context.device) * 1e-6
    for kind in kernels.merge_kinds():
        weight = torch.randn(rows, columns, device=context.device).to(
            torch.float32 if kind == "fp32" else torch.bfloat16
        )
        lower = (
            torch.zeros(rows, columns, dtype=torch.int16, device=context.device) if kind == "split" else None
        )
        key = projection_key(1, 1, "g")
        options = {"kind": kind, "lower": lower, "noise_key": projection_key(0, 1, "n")}
        moved = 2 * rows * columns * {"fp32": 4, "split": 4}.get(kind, 2) + 4 * rows * rank
        for way, merge in (("dispatch", kernels.merge), ("torch", plain.merge)):
            seconds = context.seconds(partial(merge, weight, factor, key, **options), repeats)
            found.append({
                "kernel": f"merge {kind}", "way": way, "card": _name(context), "rows": rows, "columns": columns,
                "rank": rank, "seconds": seconds, "bytes_per_s": moved / seconds,
                "flop_per_s": 2 * rows * columns * rank / seconds,
            })  # fmt: skip
    return found


def _name(context: Context) -> str:
    return torch.cuda.get_device_name(context.device) if context.device.type == "cuda" else "CPU"
