"""Figures of lesson 04: bytes and time against rank, and the parts that wait for backward (play).

Shapes: T token positions, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from logra_lab.lab.lesson04 import RankRow
from logra_lab.lab.plots import COLOURS, Picture, new_figure, style
from logra_lab.memory.activations import block_keeps, blocks_bytes, recomputed_bytes
from logra_lab.memory.presets import MODELS, ModelShape
from logra_lab.memory.settings import Settings
from logra_lab.memory.units import GIB, size

MB = 1e6
CONTEXT = 1024
PART_COLOURS = {
    "X of the linear layers": COLOURS[0],
    "X Aᵀ": COLOURS[1],
    "norm inputs (fp32)": COLOURS[2],
    "queries, keys, values": COLOURS[3],
    "attention output": COLOURS[4],
    "gate, silu(gate), up": COLOURS[5],
    "inputs of query and key norms": "#999999",
    "inputs of the blocks": "#BBBBBB",
    "one block, computed again": "#666666",
}


# ---------------------------------------------------------------- the signature figure


def rank_picture(
    dense_kept: int,
    rows: Sequence[RankRow],
    predicted: Callable[[int], float],
    flop_ratio: Callable[[int], float],
) -> Picture:
    """Measured bytes and seconds against rank, points over the learner's arithmetic as lines.

    `predicted(r)` is the bytes kept at rank r, `flop_ratio(r)` sketched over dense FLOPs.
    """
    figure, (left, right) = new_figure(9.2, 3.7, columns=2)
    draw_kept(left, dense_kept, rows, predicted)
    draw_seconds(right, rows, flop_ratio)
    small, large = rows[0], rows[-1]
    saved = 1 - small.kept / dense_kept
    caption = (
        f"Measured on this machine. At r = {small.rank} the model keeps {saved:.0%} fewer bytes for backward and takes "
        f"{median(small.ratios):.2f} of the dense seconds (forward and backward); at r = {large.rank}, two thirds of "
        f"the width, {1 - large.kept / dense_kept:.0%} fewer bytes and {median(large.ratios):.2f} of the seconds."
    )
    alt = (
        f"Two panels over ranks {small.rank} to {large.rank}. Left: bytes kept for backward rise with rank from "
        f"{small.kept / MB:.1f} to {large.kept / MB:.1f} MB, below the dense {dense_kept / MB:.1f} MB, points on the "
        "line of the arithmetic. Right: seconds over dense seconds, with the line of the FLOP count rising from two "
        "thirds."
    )
    return Picture(figure, alt, caption)


def draw_kept(
    axes: Axes, dense_kept: int, rows: Sequence[RankRow], predicted: Callable[[int], float]
) -> None:
    """Bytes kept for backward, measured and predicted."""
    ranks = [row.rank for row in rows]
    axes.axhline(dense_kept / MB, label="dense, measured", **style(1))
    axes.plot(ranks, [predicted(rank) / MB for rank in ranks], label="sketched, your arithmetic", **style(0))
    axes.plot(ranks, [row.kept / MB for row in rows], "o", color=COLOURS[0], label="sketched, measured")
    axes.set_ylim(0, dense_kept / MB * 1.12)
    axes.set(title="Kept for backward", xlabel="rank r", ylabel="MB")
    rank_axis(axes, ranks)
    axes.legend(loc="lower right")


def draw_seconds(axes: Axes, rows: Sequence[RankRow], flop_ratio: Callable[[int], float]) -> None:
    """Seconds over dense seconds: each repeat a dot, their median a ring, the FLOP model a line."""
    ranks = [row.rank for row in rows]
    axes.axhline(1.0, label="dense", **style(1))
    axes.plot(ranks, [flop_ratio(rank) for rank in ranks], label="FLOPs of the linear layers", **style(0))
    for row in rows:
        axes.plot([row.rank] * len(row.ratios), row.ratios, ".", color="#888888", markersize=5)
    middles = [median(row.ratios) for row in rows]
    axes.plot(ranks, middles, "o", color=COLOURS[0], label="measured, median of the dots")
    axes.set_ylim(0, max(1.15, 1.08 * max(max(row.ratios) for row in rows)))
    axes.set(title="Forward and backward", xlabel="rank r", ylabel="time over dense")
    rank_axis(axes, ranks)
    axes.legend(loc="lower right")


def rank_axis(axes: Axes, ranks: Sequence[int]) -> None:
    """A logarithmic axis with a mark at each rank."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.minorticks_off()


# ---------------------------------------------------------------- the play widget


def play_saved(model: str, rank: int, checkpointing: bool) -> Picture:
    """What one sequence of 1024 tokens keeps for backward in bf16, part by part, dense beside sketched."""
    shape = MODELS[model]
    arms = {
        "dense": settings("adamw", min(rank, shape.width), checkpointing),
        "sketched": settings("logra", rank, checkpointing),
    }
    parts = {name: saved_parts(shape, chosen) for name, chosen in arms.items()}
    figure, axes = new_figure(8.6, 3.1)
    draw_parts(axes, parts)
    axes.set(title=f"{model}, {CONTEXT} tokens, r = {rank}", xlabel="GiB kept for backward, all blocks")
    dense, sketched = (sum(parts[name].values()) for name in parts)
    how = "with gradient checkpointing" if checkpointing else "without checkpointing"
    caption = (
        f"{model}, rank {rank}, {how}: dense keeps {size(dense)}, sketched {size(sketched)} "
        f"({1 - sketched / dense:.0%} less)."
    )
    alt = f"Two stacked bars of what waits for backward. {caption}"
    return Picture(figure, alt, caption)


def settings(method: str, rank: int, checkpointing: bool) -> Settings:
    """One bf16 run of one sequence, with everything but the targets frozen."""
    return Settings(
        method=method, rank=rank, precision="nearest", rest="frozen", batch=1, context=CONTEXT,
        checkpointing=checkpointing,
    )  # fmt: skip


def saved_parts(shape: ModelShape, chosen: Settings) -> dict[str, int]:
    """Bytes by part over all blocks, by the planner's arithmetic (logra_lab.memory)."""
    if chosen.checkpointing:
        return {
            "inputs of the blocks": blocks_bytes(shape, chosen),
            "one block, computed again": recomputed_bytes(shape, chosen),
        }
    names = {"linear inputs": "X of the linear layers", "projected inputs X Aᵀ": "X Aᵀ"}
    return {
        names.get(kept.name, kept.name): shape.layers * chosen.tokens * kept.bytes
        for kept in block_keeps(shape, chosen)
    }


def draw_parts(axes: Axes, parts: dict[str, dict[str, int]]) -> None:
    """A stacked bar per arm; a part has the same colour in both."""
    names = [name for name in PART_COLOURS if any(name in arm for arm in parts.values())]
    for row, arm in enumerate(parts.values()):
        left = 0.0
        for name in names:
            width = arm.get(name, 0) / GIB
            axes.barh(row, width, left=left, color=PART_COLOURS[name], edgecolor="white", height=0.6)
            left += width
    axes.set_yticks(range(len(parts)), list(parts))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    handles = [Patch(color=PART_COLOURS[name], label=name) for name in names]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=4)
