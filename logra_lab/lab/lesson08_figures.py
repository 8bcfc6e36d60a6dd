"""Pictures of lesson 08: what travels, bytes against rank, a lost packet, a receiver in bf16.

Leaves out: measuring. Everything drawn is passed in (lesson08.py makes it).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from logra_lab.lab.lesson08 import Arrival
from logra_lab.lab.packet_size import bytes_in_words, patch_bits
from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.memory import ModelShape
from logra_lab.method import TrafficReport

FLOOR = 1e-9  # KL below this is drawn at the floor: it is 0 or rounding


def travel() -> Picture:
    """The trainer, the packet and the worker, and what each of them holds."""
    figure, axes = new_figure(9.0, 2.7)
    axes.set(xlim=(0, 12), ylim=(0, 4))
    axes.axis("off")
    box(axes, 0.1, "Trainer", ("weights W, fp32", "seed → A", "sketches, row moments"), COLOURS[0])
    box(axes, 8.6, "Worker", ("weights W, fp32", "seed → A", "sampler"), COLOURS[1])
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.8}
    axes.annotate("", (8.5, 2.8), (3.5, 2.8), arrowprops=arrow)
    axes.annotate("", (3.5, 1.0), (8.5, 1.0), arrowprops=arrow)
    axes.text(6, 3.35, "packet: update number, decay, parent,", ha="center", size=10)
    axes.text(6, 2.95, "F = αU in bf16 [d, r] per weight, hash", ha="center", size=10)
    axes.text(6, 1.15, "answers, or “resync”", ha="center", size=10)
    axes.text(6, 2.0, "W ← (1 − decay) W − F A   on both sides", ha="center", size=11, color=COLOURS[2])
    return Picture(
        figure,
        "Two boxes. Trainer and worker both hold fp32 weights and the seed that makes A. A packet goes from one "
        "to the other, answers or the word resync come back, and both merge W minus F A.",
        "Both sides hold W and can make A. Only F travels.",
    )


def box(axes: Axes, x: float, title: str, lines: Sequence[str], colour: str) -> None:
    """A rounded box with a title and some lines."""
    axes.add_patch(FancyBboxPatch((x, 0.4), 3.2, 3.2, boxstyle="round,pad=0.05", fill=False, ec=colour, lw=2))
    axes.text(x + 1.6, 3.05, title, ha="center", size=12, weight="bold", color=colour)
    for number, line in enumerate(lines):
        axes.text(x + 1.6, 2.25 - 0.65 * number, line, ha="center", size=10)


def bytes_against_rank(
    measured: Sequence[TrafficReport],
    small: TrafficReport,
    packet_bytes: Callable[[Sequence[tuple[int, int]], int], float],
    tiny: Sequence[tuple[int, int]],
    large: ModelShape,
    ratios: tuple[float, float],
) -> Picture:
    """The signature figure: measured on tiny-math (left), by the learner's formula for a large model (right)."""
    figure, (left, right) = new_figure(10.6, 4.2, columns=2)
    ranks = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    course = measured[len(measured) // 2].bytes
    levels = {"full bf16 weights": course["full"], f"patch, step {ratios[0]:.0e}": course["patch"]}
    levels[f"patch, step {ratios[1]:.0e}"] = small.bytes["patch"]
    lines(left, ranks[:7], levels, [packet_bytes(tiny, r) for r in ranks[:7]])
    dots = [(report.rank, report.bytes["packet"]) for report in measured]
    left.plot(*zip(*dots), "o", color=COLOURS[2], markersize=8, label="packet, measured")
    left.set_title("tiny-math, measured")
    shapes = [(m.d, m.k) for m in large.targets] * large.layers
    patch = patch_bits(ratios[1])[0] * large.target_parameters / 8
    levels = {"full bf16 weights": 2 * large.parameters, f"patch, step {ratios[1]:.0e}": patch}
    lines(right, ranks, levels, [packet_bytes(shapes, r) for r in ranks])
    right.set_title(f"{large.name}, arithmetic")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    turn = patch / packet_bytes(shapes, 1)
    return Picture(
        figure,
        "Two panels of bytes per update against rank on log axes. Full weights and patches are level lines, the packet "
        "rises in proportion to the rank and crosses the patch.",
        f"Bytes per update. Left: at the course's step packet and patch are equal near rank {equal(measured):.0f}, at "
        f"the paper's already near rank {small.equal_rank:.0f}. Right: {large.name} at rank 64 sends "
        f"{bytes_in_words(packet_bytes(shapes, 64))} instead of {bytes_in_words(2 * large.parameters)}; a Gaussian "
        f"model's patch would equal the packet near rank {turn:.0f}.",
    )


def equal(measured: Sequence[TrafficReport]) -> float:
    """The mean over reports of the rank where packet and patch are equal."""
    return sum(report.equal_rank for report in measured) / len(measured)


def lines(axes: Axes, ranks: Sequence[int], levels: Mapping[str, float], packet: Sequence[float]) -> None:
    """Level lines and the packet's line over ranks."""
    numbers = (0, 1, 3) if len(levels) == 3 else (0, 3)
    for number, (label, value) in zip(numbers, levels.items(), strict=True):
        axes.plot(ranks, [value] * len(ranks), label=label, **style(number))
    axes.plot(ranks, packet, label="packet, your formula", color=COLOURS[2], linestyle="-.")
    axes.set(xscale="log", yscale="log", xlabel="rank r", ylabel="bytes per update")
    axes.set_xticks(ranks, [str(r) for r in ranks])
    axes.minorticks_off()


def lost_packet(costs: Mapping[str, Sequence[float]], lost: int) -> Picture:
    """KL from the trainer to each receiver over updates; packet `lost` never came."""
    figure, axes = new_figure(8.4, 3.8)
    for number, (name, values) in enumerate(costs.items()):
        updates = range(1, len(values) + 1)
        axes.plot(updates, [max(v, FLOOR) for v in values], marker="o", ms=4, label=name, **style(number))
    axes.axvline(lost + 1, color=INK, lw=1, ls=":")
    axes.text(lost + 1.1, 3e-9, "lost", color=INK, size=10)
    axes.set(
        yscale="log",
        ylim=(FLOOR / 2, 1),
        xlabel="the trainer's updates",
        ylabel="KL per token to the trainer",
    )
    axes.set_yticks([FLOOR, 1e-7, 1e-5, 1e-3, 1e-1], ["0", "1e-7", "1e-5", "1e-3", "0.1"])
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    ends = "; ".join(f"{name}: {values[-1]:.2g}" for name, values in costs.items())
    return Picture(
        figure,
        "KL per token between trainer and receivers over updates. All are at zero until a packet is lost. The chained "
        "replica returns to zero with the next packet, the two blind receivers stay off or get worse.",
        f"Packet {lost} (update {lost + 1} on the axis) is lost. KL per token at the last update: {ends}.",
    )


def receivers(found: Mapping[str, Arrival]) -> Picture:
    """Per receiver the share of bf16 weights that are not the trainer's, over updates, and how much arrived."""
    figure, (left, right) = new_figure(9.6, 3.4, columns=2, width_ratios=(1.5, 1))
    for number, (name, arrival) in enumerate(found.items()):
        updates = range(1, len(arrival.differ) + 1)
        left.plot(updates, [100 * v for v in arrival.differ], marker="o", ms=4, label=name, **style(number))
    left.set(xlabel="updates received", ylim=(-3, 100), title="Weights that differ (%)")
    left.legend(loc="upper left")
    bars = right.bar(
        list(found), [100 * a.displacement for a in found.values()], color=COLOURS[: len(found)], width=0.5
    )
    right.bar_label(bars, fmt="%.0f %%", padding=2)
    right.set(ylim=(0, 115), title="Of the way, has arrived (%)")
    ends = "; ".join(
        f"{name}: {a.differ[-1]:.0%} differ, {a.displacement:.0%} of the way has arrived"
        for name, a in found.items()
    )
    return Picture(
        figure,
        "Left: the share of bf16 weights that differ from the trainer's over updates received, one rising line per "
        f"step size. Right: bars of how much of the trainer's way has arrived. {ends}.",
        f"One weight of tiny-math after {len(next(iter(found.values())).differ)} updates. {ends}.",
    )
