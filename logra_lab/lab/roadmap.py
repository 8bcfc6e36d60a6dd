"""The roadmap that stands at the top of each lesson: where the course goes, and where you are."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure


@dataclass(frozen=True)
class Stop:
    """One lesson on the map: its number, its title, the title broken into two lines, and its part of the course."""

    number: int
    title: str
    lines: str
    part: str


PARTS = {"why": COLOURS[5], "the method": COLOURS[0], "at work": COLOURS[2]}
STOPS = (
    Stop(0, "start here", "start\nhere", "why"),
    Stop(1, "the memory wall", "the memory\nwall", "why"),
    Stop(2, "learning from one bit", "learning from\none bit", "why"),
    Stop(3, "sketching", "sketching\n", "the method"),
    Stop(4, "backward without a gradient", "backward with-\nout a gradient", "the method"),
    Stop(5, "row Adam and merging", "row Adam\nand merging", "the method"),
    Stop(6, "the trust region", "the trust\nregion", "the method"),
    Stop(7, "the full loop", "the full\nloop", "at work"),
    Stop(8, "the sketch travels", "the sketch\ntravels", "at work"),
    Stop(9, "kernels", "kernels\n", "at work"),
    Stop(10, "full scale", "full\nscale", "at work"),
)
COLUMNS = 6
STEP_X, STEP_Y, WIDTH, HEIGHT = 1.5, 1.25, 1.3, 0.78


def roadmap(here: int) -> Picture:
    """The map of lessons 00 to 10 with lesson `here` marked; raises ValueError for another number."""
    if not 0 <= here < len(STOPS):
        raise ValueError(f"There is no lesson {here!r}. Give a number from 0 to {len(STOPS) - 1}.")
    figure, axes = new_figure(8.6, 2.4)
    for stop in STOPS:
        draw_way(axes, stop)
        draw_stop(axes, stop, here)
    draw_legend(axes)
    axes.set_xlim(-0.1, STEP_X * (COLUMNS - 1) + WIDTH + 0.1)
    axes.set_ylim(-STEP_Y - 0.1, HEIGHT + 0.34)
    axes.set_axis_off()
    title = STOPS[here].title
    names = ", ".join(f"{stop.number:02d} {stop.title}" for stop in STOPS)
    alt = f"Map of the course, lessons in order: {names}. Lesson {here:02d} is marked as the place where you are."
    return Picture(figure, alt, f"You are here: lesson {here:02d}, {title}.")


def corner(number: int) -> tuple[float, float]:
    """Lower left corner of a stop: two rows, read from left to right."""
    return STEP_X * (number % COLUMNS), -STEP_Y * (number // COLUMNS)


def draw_stop(axes: Axes, stop: Stop, here: int) -> None:
    """One box; the current one is filled and says so, those behind you are tinted."""
    x, y = corner(stop.number)
    colour, current = PARTS[stop.part], stop.number == here
    face = colour if current else "white"
    box = FancyBboxPatch((x, y), WIDTH, HEIGHT, boxstyle="round,pad=0,rounding_size=0.1", facecolor=face)
    box.set(edgecolor=colour, linewidth=2.4 if current else 1.4)
    axes.add_patch(box)
    ink = "white" if current and stop.part != "why" else INK
    axes.text(x + 0.09, y + HEIGHT - 0.09, f"{stop.number:02d}", va="top", color=ink, weight="bold", size=9)
    axes.text(x + WIDTH / 2, y + 0.28, stop.lines.strip(), ha="center", va="center", color=ink, size=8.5)
    if current:
        axes.text(
            x + WIDTH / 2,
            y + HEIGHT + 0.07,
            "▼ you are here",
            ha="center",
            va="bottom",
            size=9,
            weight="bold",
        )


def draw_way(axes: Axes, stop: Stop) -> None:
    """The arrow from a stop to the next in its row."""
    if stop.number == STOPS[-1].number or stop.number % COLUMNS == COLUMNS - 1:
        return
    x, y = corner(stop.number)
    middle = y + HEIGHT / 2
    arrow = {"arrowstyle": "->", "color": "#777777", "linewidth": 1.2}
    axes.annotate("", (x + STEP_X, middle), (x + WIDTH, middle), arrowprops=arrow)


def draw_legend(axes: Axes) -> None:
    """What the colours mean, in the free place at the end of the second row."""
    x, y = corner(len(STOPS))
    for number, (part, colour) in enumerate(PARTS.items()):
        height = y + HEIGHT - 0.12 - 0.27 * number
        axes.plot([x + 0.12], [height], marker="s", markersize=8, color=colour, linestyle="none")
        axes.text(x + 0.3, height, part, va="center", size=9, color=INK)
