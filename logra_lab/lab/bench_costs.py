"""How a step's cost grows with rank, tokens, width and micro-batches: recorded points beside the FLOP and byte model.

Left out: the model itself, which is in `bench/model.py` and went into the file with the points.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from logra_lab.lab.bench_figure import BENCH, MISSING
from logra_lab.lab.plots import INK, Picture, new_figure, show, style

AXES = {
    "rank": "rank r", "tokens": "tokens of a step T", "width": "width of the model",
    "micro_batches": "micro-batches of a step",
}  # fmt: skip


def show_costs(path: Path = BENCH) -> None:
    """Show the recorded cost curves, or say in one sentence that there are none here."""
    record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if not record.get("costs"):
        print(MISSING)
        return
    picture = cost_picture(record)
    show(picture.figure, picture.alt, picture.caption)


def cost_picture(record: Mapping[str, Any]) -> Picture:
    """LoGRA's seconds over dense AdamW's against what varies, measured and by the model, in a panel each."""
    rows = record["costs"]
    figure, grid = new_figure(9.0, 6.4, rows=2, columns=2, sharey=True)
    panels = grid.flatten()
    for axes, varies in zip(panels, AXES, strict=True):
        draw_curve(axes, varies, [row for row in rows if row["varies"] == varies])
    for axes in grid[:, 0]:
        axes.set(ylabel="seconds over dense AdamW's")
    panels[0].legend(loc="lower left")
    ranks = {row["rank"]: row for row in rows if row["varies"] == "rank"}
    even = [rank for rank, row in ranks.items() if row["ratio"] >= 1]
    width = next(row["width"] for row in rows if row["varies"] == "rank")
    told = f"from rank {min(even)} on LoGRA is no faster" if even else "LoGRA is faster at every rank here"
    gaps = sorted(row["ratio"] - row["model_ratio"] for row in rows)
    return Picture(
        figure,
        "Four panels of LoGRA's time over dense AdamW's, against rank, tokens, width and micro-batches: a measured "
        "curve and that of FLOPs and bytes.",
        f"{record['machine']['threads']} threads. At width {width}, {told}. The model counts matrix products and "
        f"bytes only; the measured ratio lies {gaps[0]:+.2f} to {gaps[-1]:+.2f} from it.",
    )


def draw_curve(axes: Axes, varies: str, rows: list[Mapping[str, Any]]) -> None:
    """Measured points joined by a line, and the model's line."""
    xs = [row[varies] for row in rows]
    axes.plot(xs, [row["ratio"] for row in rows], marker="o", label="measured, with its interval", **style(0))
    lows, highs = ([row[end] for row in rows] for end in ("low", "high"))
    axes.fill_between(xs, lows, highs, color=style(0)["color"], alpha=0.2, linewidth=0)
    axes.plot(xs, [row["model_ratio"] for row in rows], label="FLOPs and bytes", **style(1))
    axes.axhline(1.0, color=INK, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [str(x) for x in xs])
    axes.minorticks_off()
    fixed = {name: rows[0][name] for name in AXES if name != varies}
    axes.set(xlabel=AXES[varies], ylim=(0, None))
    axes.set_title(", ".join(f"{name.replace('_', '-')} {value}" for name, value in fixed.items()), size=10)
