"""Tables and pictures of plans and measurements: text first, the same numbers as a stacked picture second.

The drawing functions draw on axes passed in and import no plotting library themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .planner import Plan
from .presets import Card
from .replay import Phase
from .trial import Measured
from .units import CLASSES, GIB, Bytes, gib, table

# Okabe and Ito's colours and a grey; each class has a hatch as well, so that colour is never alone.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#E69F00",
    "#009E73",
    "#66C2A5",
    "#56B4E9",
    "#F0E442",
    "#CC79A7",
    "#000000",
    "#999999",
)
HATCHES = ("", "//", "\\\\", "..", "xx", "--", "||", "++", "oo", "")


def plan_table(made: Plan) -> str:
    """A plan's classes by phase, GiB per GPU."""
    return _by_phase({name: bytes_ for name, bytes_ in made.phases.items()})


def measured_table(measured: Measured | Mapping[str, Phase]) -> str:
    """Measured classes by phase in GiB, with the process's own figure and what stays unexplained."""
    phases = measured.phases if isinstance(measured, Measured) else measured
    rows = _rows({name: phase.peak for name, phase in phases.items()})
    known = [phase.process for phase in phases.values() if phase.process is not None]
    unexplained = [phase.unexplained for phase in phases.values() if phase.unexplained is not None]
    complete = len(known) == len(phases)
    if complete:
        rows.append(["the process itself", *map(_cell, known)])
        rows.append(["unexplained", *map(_cell, unexplained)])
    text = table(["GiB at the peak of", *phases], rows)
    causes = [f"The peak of {name} came with {phase.cause}." for name, phase in phases.items()]
    missing = [] if complete else ["The process's own figure is not available here."]
    return "\n".join([text, *causes, *missing])


def comparison_table(made: Plan, measured: Measured) -> str:
    """Predicted against measured at the peak, class by class, GiB and per cent of the measured peak."""
    phase = measured.peak
    rows = []
    for name in CLASSES:
        predicted, found = made.peak[name], phase.peak[name]
        if predicted or found:
            rows.append(
                [
                    name,
                    _cell(predicted),
                    _cell(found),
                    f"{100 * (predicted - found) / phase.peak.total:+.1f} %",
                ]
            )
    total = made.peak.total
    rows.append(
        ["all", _cell(total), _cell(phase.peak.total), f"{100 * (total / phase.peak.total - 1):+.1f} %"]
    )
    return table(
        [f"GiB, peak in {made.peak_phase} / {phase.name}", "predicted", "measured", "difference"], rows
    )


def _by_phase(phases: Mapping[str, Bytes]) -> str:
    return table(["GiB at the peak of", *phases], _rows(phases))


def _rows(phases: Mapping[str, Bytes]) -> list[list[str]]:
    filled = [name for name in CLASSES if any(phase[name] for phase in phases.values())]
    rows = [[name, *(_cell(phase[name]) for phase in phases.values())] for name in filled]
    return [*rows, ["sum of classes", *(_cell(phase.total) for phase in phases.values())]]


def _cell(bytes_: float) -> str:
    return f"{gib(bytes_):.2f}" if abs(bytes_) >= GIB else f"{gib(bytes_):.4f}"


def draw_stacks(
    axes: Any, bars: Mapping[str, Bytes], cards: Sequence[Card] = (), *, unit: float = GIB
) -> None:
    """Horizontal stacked bars, one per entry of `bars`, with a dashed line at the capacity of each card."""
    left = [0.0] * len(bars)
    for index, name in enumerate(CLASSES):
        widths = [bytes_[name] / unit for bytes_ in bars.values()]
        if any(widths):
            axes.barh(
                range(len(bars)), widths, left=left, label=name, color=COLOURS[index], hatch=HATCHES[index],
                edgecolor="white", linewidth=0.5,
            )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for card in cards:
        axes.axvline(card.capacity / unit, color="black", linestyle="--", linewidth=1)
        axes.annotate(
            card.name,
            (card.capacity / unit, 1.0),
            xycoords=("data", "axes fraction"),
            ha="center",
            va="bottom",
            fontsize=9,
        )
    axes.set_yticks(range(len(bars)), list(bars))
    axes.invert_yaxis()
    axes.set_xlabel("GiB per GPU" if unit == GIB else "bytes / unit")


def draw_timeline(axes: Any, phases: Mapping[str, Phase], *, unit: float = GIB) -> None:
    """Measured classes stacked over the operations of a step, phase after phase, with a line where one begins."""
    points: list[dict[str, int]] = []
    for name, phase in phases.items():
        axes.axvline(len(points), color="black", linewidth=0.5)
        axes.annotate(name, (len(points), 1.0), xycoords=("data", "axes fraction"), va="bottom", fontsize=9)
        points.extend(phase.timeline)
    filled = [index for index, name in enumerate(CLASSES) if any(point.get(name) for point in points)]
    layers = [[point.get(CLASSES[index], 0) / unit for point in points] for index in filled]
    stacks = axes.stackplot(
        range(len(points)),
        layers,
        labels=[CLASSES[i] for i in filled],
        colors=[COLOURS[i] for i in filled],
        linewidth=0,
    )
    for index, stack in zip(filled, stacks, strict=True):
        stack.set_hatch(HATCHES[index])
        stack.set_edgecolor("white")
    axes.set_xlabel("operations of one step")
    axes.set_ylabel("GiB")
    axes.set_xlim(0, max(len(points) - 1, 1))
