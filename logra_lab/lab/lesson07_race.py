"""The recorded race of lesson 07: every arm's paired difference as a picture, its table, and a real model's run.

Left out: running it. `python -m logra_lab.rl.compare race` and `python -m logra_lab.rl.smollm` do that.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from logra_lab.data_files import located
from logra_lab.lab.lesson07 import RACE, final, points, provenance, recorded
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, show, style

REAL = "data/runs/smollm.json"
REFERENCE = "logra paper"
PANELS = ("at its best step size", "equal KL", "equal memory")
Row = Mapping[str, Any]


def rows_of(summary: Mapping[str, Any], panel: str) -> list[Row]:
    """The table's rows of a panel, the reference first, then by mean final accuracy."""
    rows = [row for row in summary["table"] if row["panel"] == panel]
    return sorted(rows, key=lambda row: (row["label"] != REFERENCE, -row["final"]["mean"]))


def kept(row: Row) -> int:
    """Bytes that an arm keeps besides the weights: gradients or sketches, moments, factors."""
    return sum(size for kind, size in row["memory"].items() if kind != "weights")


def race_picture(summary: Mapping[str, Any], panels: Sequence[str] = PANELS) -> Picture:
    """Final accuracy of every arm minus the reference's, in points, with 95 % intervals over paired seeds."""
    heights = [len(rows_of(summary, panel)) for panel in panels]
    figure, columns = new_figure(
        8.0, 1.2 + 0.36 * sum(heights), rows=len(panels), sharex=True, height_ratios=heights
    )
    for axes, panel in zip(columns, panels, strict=True):
        draw_differences(axes, rows_of(summary, panel))
        axes.set_title(panel, loc="left")
    columns[-1].set_xlabel(f"final accuracy minus that of “{REFERENCE}”, points (line: 95 % interval)")
    first = rows_of(summary, panels[0])
    seeds, reference = len(first[0]["seeds"]), first[0]["final"]["mean"]
    outside = sum(
        abs(row["difference"]["mean"]) > row["difference"]["half_width"] for row in first if row["difference"]
    )
    return Picture(
        figure,
        f"A point with a line per arm in {len(panels)} panels; the dotted line at zero is {REFERENCE}.",
        f"{seeds} paired seeds; {REFERENCE} itself ends at {reference:.1%}. In the first panel {outside} of "
        f"{len(first) - 1} intervals leave zero out.",
    )


def draw_differences(axes: Axes, rows: Sequence[Row]) -> None:
    """A point and its interval for each arm; the reference is a hollow point at zero."""
    axes.axvline(0.0, color="#777777", linewidth=1, linestyle=":")
    for place, row in enumerate(rows):
        difference = row["difference"] or {"mean": 0.0, "half_width": 0.0}
        middle, half = 100 * difference["mean"], 100 * (difference["half_width"] or 0.0)
        own = "logra" in row["label"]
        colour = COLOURS[0] if own else INK
        axes.plot([middle - half, middle + half], [place, place], color=colour, linewidth=1.8, linestyle="-")
        face = "white" if row["difference"] is None else colour
        axes.plot(middle, place, marker="o" if own else "s", color=colour, markerfacecolor=face, linestyle="")
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def race_table(summary: Mapping[str, Any], panel: str) -> str:
    """A panel as text: step size, final accuracy, paired difference, KL a step, bytes kept, seconds a step."""
    lines = [
        f"{panel}\n{'arm':<28}{'step size':>10}{'final':>8}{'minus reference':>18}{'KL a step':>11}{'keeps':>11}"
        f"{'s/step':>8}{'diverged':>10}"
    ]
    for row in rows_of(summary, panel):
        difference = row["difference"]
        told = (
            f"{100 * difference['mean']:+.1f} ± {100 * difference['half_width']:.1f}"
            if difference
            else "(reference)"
        )
        kl = f"{row['measured_kl']:.1e}" if row["measured_kl"] is not None else "–"
        lines.append(
            f"{row['label']:<28}{row['lr']:>10.0e}{row['final']['mean']:>8.1%}{told:>18}{kl:>11}"
            f"{kept(row) / 1024:>7.0f} KiB{row['seconds_per_step']:>8.2f}{len(row['diverged']):>10}"
        )
    return "\n".join(lines)


def real_picture(record: Mapping[str, Any]) -> Picture:
    """SmolLM2's answers in training batches, and held-out accuracy before and after, by arm and seed."""
    figure, (left, right) = new_figure(9.0, 3.6, columns=2)
    arms = list(dict.fromkeys(run["label"] for run in record["runs"]))
    for number, arm in enumerate(arms):
        runs = [run for run in record["runs"] if run["label"] == arm]
        for run in runs:
            steps = range(1, len(run["curves"]["right"]) + 1)
            left.plot(steps, run["curves"]["right"], **style(number), label=arm if run is runs[0] else None)
            before, after = points(run, "accuracy")[1][0], final(run)
            right.plot([0, 1], [before, after], **style(number), label=arm if run is runs[0] else None)
    left.set(xlabel="updates", ylabel="share of right answers", ylim=(0, 1), title="Sums it trains on")
    right.set(xlim=(-0.2, 1.2), ylim=(0, 1), title="Sums it never saw, sampled")
    right.set_xticks([0, 1], ["before", "after"])
    for axes in (left, right):
        axes.legend(loc="lower right")
    return Picture(
        figure,
        "Left: the share of right answers over the updates of every run. Right: held-out accuracy before and after, a "
        "line per run.",
        real_words(record),
    )


def real_words(record: Mapping[str, Any]) -> str:
    """What every recorded run of the real model gained, took and held, in a sentence each."""
    told = [
        f"{run['label']}, seed {run['seed']}: {run['start']['accuracy']:.0%} → {final(run):.0%} sampled, "
        f"{run['start']['greedy']:.0%} → {points(run, 'greedy')[1][-1]:.0%} greedy, {run['seconds'] / 60:.1f} min, "
        f"peak {run['peak'] / 1e9:.1f} GB"
        for run in record["runs"]
    ]
    return f"{record['model']}, {record['held_out']} held-out sums. " + "; ".join(told) + "."


def show_race(path: str = RACE) -> None:
    """Show the recorded race with its tables and sentences, or say in one sentence how to record it."""
    if not located(path).exists():
        print(
            "The race is not recorded here yet: `python -m logra_lab.rl.compare race` takes an hour or two."
        )
        return
    summary = recorded(path)
    print(provenance(summary))
    picture = race_picture(summary)
    show(picture.figure, picture.alt, picture.caption)
    for panel in PANELS:
        print(race_table(summary, panel), end="\n\n")
    for sentence in [*summary["words"], no_control_words(summary)]:
        print(textwrap.fill(sentence, 110, subsequent_indent="  "))


def no_control_words(summary: Mapping[str, Any], label: str = "logra paper, no KL control") -> str:
    """The paper's remark on its arm without KL control, beside what these seeds gave."""
    row = next(row for row in rows_of(summary, PANELS[0]) if row["label"] == label)
    seeds, broken = len(row["seeds"]), len(row["diverged"])
    return (
        f"The paper found its arm without KL control equally stable. Here, at its own best step size "
        f"({row['lr']:.0e}): {broken} of {seeds} seeds diverged, and the end is {row['verdict']}."
    )


def tell(metrics: Mapping[str, Any]) -> None:
    """A line per update of a run that takes minutes."""
    print(f"update {metrics['step']:2d}: {metrics['right']:.0%} right, {metrics['seconds']:.0f} s")
