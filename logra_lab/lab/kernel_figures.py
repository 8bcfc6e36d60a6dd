"""The pictures of lesson 09: pure functions from numbers to a figure with words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from logra_lab.lab.kernel_bytes import SPEEDS, Traffic, project_bytes, project_floors
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.lab.widgets import Choice, Slider

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
WIDTHS = (2048, 3584, 4096, 8192)


def bits_of(words: Tensor, signs: Tensor) -> Picture:
    """A corner of A as a picture of signs [r, k]: 32 columns to a word."""
    figure, axes = new_figure(8.6, 2.4)
    axes.imshow(signs, cmap="Greys_r", vmin=-1.6, vmax=1.6, aspect="auto", interpolation="nearest")
    for edge in range(32, signs.shape[1], 32):
        axes.axvline(edge - 0.5, color=COLOURS[1], linewidth=2)
    axes.set(
        xlabel="column of A",
        ylabel="row of A",
        title="Signs of A: white +, black −; an orange line after each word",
    )
    axes.grid(visible=False)
    share = float((signs > 0).float().mean())
    caption = f"{words.numel()} hash words of 32 bits make {signs.numel()} signs; {share:.0%} are +."
    return Picture(figure, f"A grid of black and white cells without visible pattern. {caption}", caption)


def traffic(rows: Sequence[Traffic]) -> Picture:
    """The signature figure: bytes per element by operation, torch operation by operation against one kernel."""
    figure, axes = new_figure(9.2, 4.2)
    places = torch.arange(len(rows)).float()
    axes.barh(
        places - 0.2,
        [row.torch / row.elements for row in rows],
        0.38,
        color=COLOURS[1],
        label="torch, one operation after the other",
    )
    kernels = {
        place + 0.2: row.kernel / row.elements
        for place, row in zip(places.tolist(), rows)
        if row.kernel is not None
    }
    if kernels:
        axes.barh(
            list(kernels),
            list(kernels.values()),
            0.38,
            color=COLOURS[0],
            label="one Triton kernel",
        )
    for place, row in zip(places.tolist(), rows):
        floor = row.floor / row.elements
        axes.plot(
            [floor, floor],
            [place - 0.42, place + 0.42],
            color=INK,
            linestyle="-",
            linewidth=2.2,
            label="the floor" if place == 0 else None,
        )
        axes.text(
            row.torch / row.elements * 1.06,
            place - 0.2,
            f"{row.torch / row.elements:.0f}",
            va="center",
            fontsize=10,
        )
    axes.set(
        xscale="log",
        xlim=(1, 1500),
        xlabel="bytes moved per element of X or W",
        title="Bytes that each operation touches, counted on a CPU",
    )
    axes.set_yticks(places.tolist(), [row.name for row in rows])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right", bbox_to_anchor=(1.0, 0.62))
    words = traffic_words(rows)
    return Picture(figure, f"Horizontal bars on a log scale, two per operation. {words}", words)


def traffic_words(rows: Sequence[Traffic]) -> str:
    """What was counted, in a sentence."""
    parts = "; ".join(f"{row.name} {row.torch / row.floor:.1f}" for row in rows)
    words = f"Bytes over the floor with torch: {parts}."
    kernels = [row.kernel / row.floor for row in rows if row.kernel is not None]
    if len(kernels) < len(rows):
        return words + " The kernels were not run here: Triton's interpreter is off or missing."
    return words + f" With the kernels at most {max(kernels):.2f}."


def missed(weight_error: Tensor, block_rows: int, block_columns: int) -> Picture:
    """Where a merge missed the weight: |error| [d, k], with the tiles' edges."""
    figure, axes = new_figure(7.0, 3.6)
    image = axes.imshow(weight_error, cmap="Blues", aspect="auto", interpolation="nearest", vmin=0)
    for edge in range(block_rows, weight_error.shape[0], block_rows):
        axes.axhline(edge - 0.5, color="#888888", linewidth=0.8)
    for edge in range(block_columns, weight_error.shape[1], block_columns):
        axes.axvline(edge - 0.5, color="#888888", linewidth=0.8)
    axes.grid(visible=False)
    axes.set(xlabel="column of W", ylabel="row of W", title="|merged − expected|; grey lines: edges of tiles")
    figure.colorbar(image, ax=axes, label="error")
    share = float((weight_error > 1e-5).float().mean())
    words = f"{share:.1%} of the {weight_error.shape[0]} × {weight_error.shape[1]} weights are wrong."
    return Picture(figure, f"A map of the error over the weight matrix. {words}", words)


def floor_controls() -> dict[str, Choice]:
    """The controls of the floors widget."""
    return {
        "rank": Slider("rank r", RANKS, 64),
        "width": Choice("input columns k", WIDTHS, 4096),
        "card": Choice("card", tuple(SPEEDS), "H100 SXM"),
    }


def floors(
    rank: int, width: int, card: str, recorded: Mapping[str, Any] | None = None, tokens: int = 16384
) -> Picture:
    """Time of one projection against rank: the floor of its bytes and the floor of its operations."""
    speed = SPEEDS[card]
    pairs = [project_floors(tokens, width, r, speed) for r in RANKS]
    figure, axes = new_figure(8.0, 3.8)
    for number, (label, column) in enumerate((("bytes / bandwidth", 0), ("operations / peak", 1))):
        axes.plot(RANKS, [1e6 * pair[column] for pair in pairs], label=label, **style(number))
    timed = [
        row for row in (recorded or {}).get("rows", []) if row["card"] == card and row["columns"] == width
    ]
    if timed:
        axes.plot(
            [row["rank"] for row in timed],
            [1e6 * row["seconds"] for row in timed],
            "o",
            color=INK,
            label="measured on a GPU",
        )
    axes.axvline(rank, color="#888888", linewidth=1.2)
    axes.set(xscale="log", yscale="log", xlabel="rank r", ylabel="microseconds at least", ylim=(0.3, 1500))
    axes.set_title(f"X Aᵀ on {card}: {tokens} tokens, {width} columns, bf16")
    axes.set_xticks(RANKS, [str(r) for r in RANKS])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    caption = floor_words(rank, width, card, tokens)
    return Picture(
        figure,
        f"Two lines over rank on log scales; the byte line is flat, the operation line climbs. {caption}",
        caption,
    )


def floor_words(rank: int, width: int, card: str, tokens: int) -> str:
    """Which floor is higher at these settings, and by how much."""
    memory, arithmetic = project_floors(tokens, width, rank, SPEEDS[card])
    name, ratio = (
        ("memory", memory / arithmetic) if memory >= arithmetic else ("arithmetic", arithmetic / memory)
    )
    return (
        f"Rank {rank}, {width} columns, {card}: {project_bytes(tokens, width, rank) / 1e6:.0f} MB take at least "
        f"{1e6 * memory:.1f} µs, the operations {1e6 * arithmetic:.1f} µs. "
        f"The {name} floor is the higher one, {ratio:.1f} times the other; A itself moves no byte."
    )
