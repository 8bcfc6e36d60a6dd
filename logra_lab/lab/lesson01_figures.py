"""The pictures of lesson 01: a step as it happens, the wall, and what is left of the gain on many GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from matplotlib.axes import Axes

from logra_lab.lab import lesson01
from logra_lab.lab.lesson01 import COUNTS, Observed
from logra_lab.lab.plots import INK, Picture, new_figure, style
from logra_lab.memory import CARDS, MIB, NAMES, Bytes, gib, shape_of
from logra_lab.memory.report import draw_stacks, draw_timeline


def draw_steps(observed: Mapping[str, Observed]) -> Picture:
    """Every byte of one measured step, over its operations, one panel per method on one scale."""
    figure, axes = new_figure(10.4, 4.2, columns=len(observed), sharey=True)
    for axis, (name, one) in zip(axes, observed.items(), strict=True):
        draw_timeline(axis, one.measured.phases, unit=MIB)
        axis.set_title(name, pad=20)
        axis.set_ylabel("MiB" if axis is axes[0] else "")
        axis.grid(False)
    handles = {
        label: handle
        for axis in axes
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    peaks = {name: one.measured.peak for name, one in observed.items()}
    words = "; ".join(
        f"{name} {phase.peak.total / MIB:.1f} MiB in the {phase.name} phase" for name, phase in peaks.items()
    )
    between = {name: one.measured.phases["step"].end.total / MIB for name, one in observed.items()}
    rest = ", ".join(f"{name} {size:.1f} MiB" for name, size in between.items())
    alt = (
        "Stacked areas of memory over the operations of one step, a panel for each method. Activations pile up in "
        f"the forward phase and are used up in the backward phase. Highest points: {words}."
    )
    return Picture(figure, alt, f"One real step. Highest points: {words}. What stays after the step: {rest}.")


def draw_wall(bars: Mapping[str, Mapping[str, Bytes]]) -> Picture:
    """The signature figure: stacked bars by class, one panel and one scale per model, with the cards it can reach."""
    figure, axes = new_figure(10.0, 6.6, rows=len(bars))
    for axis, (model, stacks) in zip(axes, bars.items(), strict=True):
        widest = 1.16 * max(gib(bytes_.total) for bytes_ in stacks.values())
        in_reach = [card for card in CARDS.values() if 0.12 * widest < gib(card.capacity) < widest]
        draw_stacks(axis, stacks, in_reach)
        axis.set(xlim=(0, widest), xlabel="")
        axis.set_title(model, pad=18)
        axis.grid(False, axis="y")
        for row, bytes_ in enumerate(stacks.values()):
            axis.text(gib(bytes_.total) + 0.008 * widest, row, f"{gib(bytes_.total):.1f}", va="center", size=9,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8})  # fmt: skip
    axes[-1].set_xlabel("GiB on one GPU; each panel has its own scale")
    handles = {h: k for a in axes for k, h in zip(*a.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    shares = [
        f"{model}: dense AdamW {share(stacks[NAMES['adamw']])}, LoGRA {share(stacks[NAMES['logra']])}"
        for model, stacks in bars.items()
    ]
    totals = "; ".join(
        f"{model}: " + ", ".join(f"{name} {gib(bytes_.total):.1f}" for name, bytes_ in stacks.items())
        for model, stacks in bars.items()
    )
    alt = (
        f"Stacked bars of GiB at the peak of a step on one GPU, dashed lines at the sizes of cards. {totals}."
    )
    return Picture(figure, alt, f"The weights' share of the peak. {'; '.join(shares)}.")


def share(bytes_: Bytes) -> str:
    """The weights' share in words."""
    return f"{bytes_['weights'] / bytes_.total:.0%}"


def draw_gpus(
    last_gain: Callable[[int, int], int], model: str = "7B", ranks: tuple[int, ...] = (64, 256)
) -> Picture:
    """Left what is kept beside the weights, right the whole peak, on each of n GPUs."""
    figure, (left, right) = new_figure(10.4, 4.0, columns=2)
    name = shape_of(model).name
    dense = lesson01.beside_weights(model, ranks[0])[0]
    left.plot(COUNTS, [gib(dense) / n for n in COUNTS], label=NAMES["adamw"], **style(0))
    right.plot(
        COUNTS, adamw := lesson01.peaks_by_gpus(model, "adamw", ranks[0]), label=NAMES["adamw"], **style(0)
    )
    kept, ends = [], []
    for number, rank in enumerate(ranks, start=1):
        whole = lesson01.beside_weights(model, rank)[1]
        last = last_gain(dense, whole)
        label = f"{NAMES['logra']}, r = {rank}"
        left.plot(COUNTS, [gib(whole)] * len(COUNTS), label=label, **style(number))
        left.plot([last], [gib(whole)], "o", color=INK)
        words, below = f"up to {last} GPUs", {"xytext": (-6, -6), "textcoords": "offset points"}
        left.annotate(words, (last, gib(whole)), ha="right", va="top", **below)
        peaks = lesson01.peaks_by_gpus(model, "logra", rank)
        right.plot(COUNTS, peaks, label=label, **style(number))
        kept.append(f"at rank {rank} up to {last} GPUs")
        saved = [dense_peak - peak for dense_peak, peak in zip(adamw, peaks, strict=True)]
        ends.append(f"rank {rank} saves {saved[0]:.1f} GiB on one GPU and {saved[-1]:.1f} on {COUNTS[-1]}")
    left.set_title("Kept beside the weights")
    right.set_title("Peak of a step, all included")
    for axis in (left, right):
        axes_of_counts(axis)
    left.legend(loc="upper right")
    right.legend(loc="upper right")
    alt = (
        f"Two panels over the number of GPUs for {name}. Left: what dense AdamW keeps beside the weights falls as one "
        f"over the number, LoGRA's sketches stay level; LoGRA keeps less {', '.join(kept)}. Right: peaks fall and "
        "level off, LoGRA's below dense AdamW's."
    )
    return Picture(
        figure, alt, f"{name}, left: LoGRA keeps less {', '.join(kept)}. Right: {'; '.join(ends)}."
    )


def axes_of_counts(axis: Axes) -> None:
    """Logarithmic axes with plain numbers: GPUs below, GiB on each at the left."""
    axis.set(xscale="log", yscale="log", xlabel="GPUs", ylabel="GiB on each GPU")
    axis.set_xticks(COUNTS, [str(n) for n in COUNTS])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    ticks = [value for value in (0.1, 0.3, 1, 3, 10, 30, 100) if low <= value <= high]
    axis.set_yticks(ticks, [f"{value:g}" for value in ticks])
