"""What a race supports and what it doesn't, as sentences made from its table and its tuning runs.

Left out: corrections for many comparisons. With ten arms one 95 % interval in twenty misleads by chance; the
sentences say how many were drawn.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from logra_lab.rl.summary import REFERENCE, accuracies

Row = Mapping[str, Any]
TUNING = "tuning"


def panel_words(table: Sequence[Row], panel: str, reference: str = REFERENCE) -> list[str]:
    """Which arms ended above the reference, which below, and which these seeds can't tell apart from it."""
    rows = {row["label"]: row for row in table if row["panel"] == panel}
    compared = [row for label, row in rows.items() if label != reference and row["difference"]]
    if not compared:
        return []
    groups: dict[str, list[str]] = {"above": [], "not told apart from": [], "below": []}
    for row in compared:
        mean, half = row["difference"]["mean"], row["difference"]["half_width"]
        half = float("inf") if half is None else half  # one seed has no spread
        side = "not told apart from" if abs(mean) <= half else "above" if mean > 0 else "below"
        margin = f" ± {100 * half:.1f}" if half < float("inf") else ""
        groups[side].append(f"{row['label']} ({100 * mean:+.1f}{margin} points)")
    seeds = len(rows[reference]["seeds"])
    told = [f"{side} {reference}: {', '.join(names)}" for side, names in groups.items() if names]
    broken = [f"{label} on {len(row['diverged'])}" for label, row in rows.items() if row["diverged"]]
    return [
        f"{panel}, {seeds} paired seeds, {len(compared)} comparisons with {reference} "
        f"({rows[reference]['final']['mean']:.1%}): " + "; ".join(told) + ".",
        f"{panel}: diverged {', '.join(broken)} of {seeds} seeds."
        if broken
        else f"{panel}: no run diverged.",
    ]


def grids(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[float, float]]:
    """Arm → step size → mean final accuracy over the tuning seeds."""
    found: dict[str, dict[float, list[float]]] = {}
    for run in runs:
        if run["panel"] == TUNING:
            label = run["label"].rsplit(" ", 1)[0]
            known = accuracies(run) or [0.0]
            found.setdefault(label, {}).setdefault(run["config"]["arm"]["lr"], []).append(known[-1])
    return {
        label: {lr: statistics.fmean(finals) for lr, finals in sorted(grid.items())}
        for label, grid in found.items()
    }


def tuning_words(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each arm's grid with the best step size; says so where that lies at the edge of the grid."""
    sentences = []
    for label, grid in grids(runs).items():
        best = max(grid, key=grid.__getitem__)
        edge = (
            " (the edge of its grid: a wider one might do better)" if best in (min(grid), max(grid)) else ""
        )
        tried = ", ".join(f"{lr:.0e}" for lr in grid)
        sentences.append(f"{label}: {best:.0e} of {tried}{edge}.")
    return sentences


def in_words(table: Sequence[Row], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """All sentences on a race: its panels, what was tuned, and what none of it can show."""
    panels = [panel for panel in dict.fromkeys(row["panel"] for row in table) if panel != TUNING]
    sentences = [sentence for panel in panels for sentence in panel_words(table, panel)]
    if tuned := tuning_words(runs):
        seeds = {run["seed"] for run in runs if run["panel"] == TUNING}
        sentences.append(f"Step sizes, tuned on {len(seeds)} other seed(s): {' '.join(tuned)}")
    model = runs[0]["config"]["model"] if runs else "the model"
    return [
        *sentences,
        f"Not shown: that any ranking carries over from {model} and one family of tasks to another model or task, and "
        "that two arms are equal where the interval holds zero.",
    ]
