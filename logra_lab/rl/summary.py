"""The table of a race: means over seeds, paired differences with intervals, memory, time, and a sentence each.

Intervals are 95 % from a t distribution over seeds. Paired means: the same seed saw the same prompts in both arms, so
the difference is taken per seed first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom
T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
)
REFERENCE = "logra paper"


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t: from the table, beyond it by the expansion 1.96 + 2.37/f + 2.8/f²."""
    if freedom < 1:
        return float("nan")
    return T95[freedom - 1] if freedom <= len(T95) else 1.95996 + 2.3723 / freedom + 2.8225 / freedom**2


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Mean and the half-width of its 95 % interval (None for fewer than two values)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "half_width": None}
    quantile = t_quantile(len(values) - 1)
    return {"mean": mean, "half_width": quantile * statistics.stdev(values) / math.sqrt(len(values))}


def summarise(records: Sequence[dict[str, Any]], reference: str = REFERENCE) -> list[dict[str, Any]]:
    """One row per (panel, label); `difference` is this arm minus the reference arm of its panel, paired by seed."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        rows.setdefault((record["panel"], record["label"]), []).append(record)
    return [
        _row(panel, label, runs, rows.get((panel, reference), [])) for (panel, label), runs in rows.items()
    ]


def verdict(difference: dict[str, Any] | None, reference: str = REFERENCE) -> str:
    """What the paired difference supports, in words."""
    if difference is None or difference["half_width"] is None:
        return "not compared"
    points, margin = 100 * difference["mean"], 100 * difference["half_width"]
    if abs(points) <= margin:
        return (
            f"no difference from {reference} that these seeds can show ({points:+.1f} ± {margin:.1f} points)"
        )
    return f"{'above' if points > 0 else 'below'} {reference} by {abs(points):.1f} ± {margin:.1f} points"


def accuracies(record: Mapping[str, Any]) -> list[float]:
    """All sampled accuracies of a run, in order; the last one on all held-out problems."""
    return [a for a in record["curves"]["accuracy"] if a is not None]


def _row(
    panel: str, label: str, runs: list[dict[str, Any]], reference: list[dict[str, Any]]
) -> dict[str, Any]:
    final = {run["seed"]: accuracies(run)[-1] if accuracies(run) else 0.0 for run in runs}
    theirs = {run["seed"]: accuracies(run)[-1] for run in reference if accuracies(run)}
    shared = sorted(set(final) & set(theirs))
    is_reference = bool(runs) and runs is reference
    difference = interval([final[s] - theirs[s] for s in shared]) if shared and not is_reference else None
    measured = [kl for run in runs for kl in run["curves"]["measured_kl"] if kl is not None]
    return {
        "panel": panel, "label": label, "seeds": sorted(final),
        "start": interval([r["start"]["accuracy"] for r in runs]),
        "final": interval(list(final.values())), "best": interval([max(accuracies(r), default=0.0) for r in runs]),
        "gain": interval([final[r["seed"]] - r["start"]["accuracy"] for r in runs]),
        "difference": difference, "verdict": "the reference" if is_reference else verdict(difference),
        "measured_kl": statistics.fmean(measured) if measured else None,
        "memory": runs[0]["memory"], "peak_memory": max(r["peak_memory"] or 0 for r in runs),
        "seconds_per_step": statistics.median(r["seconds_per_step"] for r in runs),
        "diverged": [r["seed"] for r in runs if r["status"] != "finished" or final[r["seed"]] < 0.05],
        "lr": runs[0]["config"]["arm"]["lr"],
    }  # fmt: skip
