"""What lesson 01 counts: tables of bytes, one live step under the ledger, and the counts of sharded training.

Pure arithmetic except for `observe`, which runs a few steps of a small random model. Pictures are in
lesson01_figures.py. Left out: the process's own figure (`logra_lab.memory.measure(…, child=True)` has it): it varies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from logra_lab.lab import rank_memory
from logra_lab.memory import (
    CLASSES,
    GIB,
    MIB,
    NAMES,
    Bytes,
    Ledger,
    Measured,
    ModelShape,
    Plan,
    Settings,
    gib,
    measure,
    plan,
    shape_of,
)
from logra_lab.memory.arms import build_model
from logra_lab.memory.holdings import holdings
from logra_lab.memory.units import table

MODELS = ("1.5B", "7B", "27B")
SMALL = ModelShape(
    "a small Llama", layers=4, width=256, ffn=768, heads=4, kv_heads=2, head_dim=64, vocab=1024, tied=True
)
# of the live step
STEP: dict[str, Any] = {"dtype": "fp32", "rank": 16, "batch": 2, "context": 96, "device": "cpu"}
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BYTES_EACH = 16  # of AdamW in mixed precision, per parameter


# ---------------------------------------------------------------- what is kept


def kept_table(resident_gib: Callable[[int, dict], float], kept: dict[str, torch.dtype]) -> str:
    """GiB of each entry of `kept` for the three models, as text, with the weights' share of all."""
    shapes = [shape_of(name) for name in MODELS]
    rows = [
        [entry, *(f"{resident_gib(shape.parameters, {entry: dtype}):.1f}" for shape in shapes)]
        for entry, dtype in kept.items()
    ]
    rows.append(["all", *(f"{resident_gib(shape.parameters, kept):.1f}" for shape in shapes)])
    return table(["GiB of", *(shape.name for shape in shapes)], rows)


def weight_share(kept: dict[str, torch.dtype]) -> float:
    """The share of the weights that the model computes with."""
    return kept["weight"].itemsize / sum(dtype.itemsize for dtype in kept.values())


# ---------------------------------------------------------------- one step, measured


@dataclass(frozen=True)
class Observed:
    """One method's step on the small model: what the ledger found, and what the planner had foretold."""

    measured: Measured
    planned: Plan

    @property
    def miss(self) -> float:
        """Predicted over measured peak, less 1."""
        return self.planned.peak.total / self.measured.peak.peak.total - 1


def observe(methods: Sequence[str] = ("adamw", "logra")) -> dict[str, Observed]:
    """Run steps of each method on the small model, by the method's name (a few seconds on a CPU)."""
    found = {}
    for method in methods:
        settings = Settings(method=method, **STEP)
        found[NAMES[method]] = Observed(measure(SMALL, settings, child=False), plan(SMALL, settings))
    return found


def control_table(observed: dict[str, Observed]) -> str:
    """Predicted and measured MiB at each method's peak, class by class, as text."""
    header = ["MiB at the peak"]
    for name in observed:
        header += [f"{name}: predicted", "measured"]
    pairs = [(one.planned.peak, one.measured.peak.peak) for one in observed.values()]
    rows = [
        [label, *(f"{part[label] / MIB:.2f}" for pair in pairs for part in pair)]
        for label in CLASSES
        if any(part[label] for pair in pairs for part in pair)
    ]
    rows.append(["all", *(f"{part.total / MIB:.2f}" for pair in pairs for part in pair)])
    return table(header, rows)


def wrong_plan_miss(one: Observed) -> float:
    """The miss of a plan that is told of checkpointing, which did not run: a control for the control."""
    told = plan(SMALL, one.planned.settings.but(checkpointing=True))
    return told.peak.total / one.measured.peak.peak.total - 1


# ---------------------------------------------------------------- sketches


def groups(model: str) -> dict[str, tuple[tuple[int, int], ...]]:
    """Shapes (d, k) of the target layers of one block, by the layers that read the same input."""
    found: dict[str, tuple[tuple[int, int], ...]] = {}
    names: dict[str, list[str]] = {}
    for target in shape_of(model).targets:
        found[target.group] = (*found.get(target.group, ()), (target.d, target.k))
        names.setdefault(target.group, []).append(target.name.removesuffix("_proj"))
    return {", ".join(names[group]): shapes for group, shapes in found.items()}


def group_table(group_bytes: Callable[[Sequence, int], tuple[int, int, int]], model: str, rank: int) -> str:
    """Gradients, sketches and A of one matrix of 4096 × 4096 and of each group of one block, in MiB, as text."""
    square = {"one matrix, 4096 × 4096": ((4096, 4096),)}
    named = {f"{model}: {name}": shapes for name, shapes in groups(model).items()}
    rows = []
    for name, shapes in (square | named).items():
        dense, sketch, projection = group_bytes(shapes, rank)
        alone = len(shapes) * projection
        rows.append([name, *(f"{part / MIB:.2f}" for part in (dense, sketch, projection, alone))])
    return table([f"MiB in fp32, r = {rank}", "G", "S", "one A", "an A for each layer"], rows)


# ---------------------------------------------------------------- the wall


def wall() -> dict[str, dict[str, Bytes]]:
    """Bytes by class at the peak for each model: the weights alone, dense AdamW, LoRA and LoGRA on one GPU."""
    found = {}
    for name in MODELS:
        shape = shape_of(name)
        bars = {"the weights alone": Bytes({"weights": 2 * shape.parameters})}
        for method in ("adamw", "lora", "logra"):
            made = rank_memory.plans(shape.name, method, 64, rank_memory.USUAL, 1, 1024)
            bars |= {title: one.peak for title, one in made.items()}
        found[shape.name] = bars
    return found


def variants(model: str = "7B") -> str:
    """LoGRA's peak with and without checkpointing, and with the lower halves on the host, as text."""
    base = rank_memory.RUN.but(method="logra", rank=64)
    rows = []
    choices: dict[str, dict[str, Any]] = {
        "as in the figure": {},
        "without checkpointing": {"checkpointing": False},
        "lower halves on the host": {"halves": "host"},
        "rank 256": {"rank": 256},
    }
    for name, changes in choices.items():
        made = plan(model, base.but(**changes))
        peak = made.peak
        classes = ("weights", "sketches", "saved activations")
        rows.append(
            [name, *(f"{gib(peak[c]):.2f}" for c in classes), f"{gib(peak.total):.2f}", made.peak_phase]
        )
    return table([f"{model}, LoGRA, GiB", "weights", "sketches", "saved activations", "all", "peak in"], rows)


# ---------------------------------------------------------------- many GPUs


def beside_weights(model: str, rank: int) -> tuple[int, int]:
    """Bytes kept beside the weights: dense AdamW's in all (FSDP cuts them), LoGRA's on every GPU (they stay whole)."""
    shape = shape_of(model)
    dense = holdings(shape, Settings(method="adamw", precision="fp32"))
    logra = holdings(shape, Settings(method="logra", precision="fp32", rank=rank))
    return int(dense.gradients + dense.state), int(logra.sketches + logra.projections)


def peaks_by_gpus(model: str, method: str, rank: int, counts: Sequence[int] = COUNTS) -> list[float]:
    """GiB at the peak on each of n GPUs, for each n: fp32 weights under FSDP, the widget's run without rollouts."""
    found = []
    for n in counts:
        settings = rank_memory.RUN.but(
            method=method, rank=rank, precision="fp32", rest=None, gpus=n, rollout="none",
            sharding="fsdp" if n > 1 else "replicated", probe_tokens=0 if method == "adamw" else 2048,
        )  # fmt: skip
        found.append(gib(plan(model, settings).peak.total))
    return found


# ---------------------------------------------------------------- find the bug


def tied_model() -> nn.Module:
    """The small model with its output head tied to the embedding, random fp32 weights."""
    return build_model(SMALL, Settings(dtype="fp32", device="cpu"))


def weights_found(model: nn.Module) -> int:
    """Bytes that the weights of a live model take, by the ledger."""
    return Ledger(model).now()["weights"]


def cost_of_the_bug() -> str:
    """What counting a tied table twice adds to a plan of dense AdamW, as text."""
    rows = []
    for name in MODELS:
        shape = shape_of(name)
        twice = replace(shape, tied=False).parameters
        extra = BYTES_EACH * (twice - shape.parameters) / GIB
        share = f"{twice / shape.parameters - 1:.1%}"
        rows.append(
            [shape.name, "yes" if shape.tied else "no", f"{shape.parameters:,}", share, f"{extra:.1f}"]
        )
    return table(["model", "tied", "parameters", "too many by", "AdamW, GiB too much"], rows)
