"""The play widget of lesson 08: model, rank, step size → bytes per update of full weights, sparse patch and packet.

Full weights and packet are arithmetic over the model's shape. The patch is measured: a Gaussian weight takes a step of
the chosen size, the real `encode_patch` packs what changed in bf16, and its bits per weight are scaled to the model.
Left out: real weights, which are not Gaussian (tiny-math's patch is measured in the lesson), and headers.

Shapes: d output rows of a weight, k its input columns, r rank.
"""

from __future__ import annotations

from functools import cache

import torch
from matplotlib.axes import Axes

from logra_lab.lab.plots import COLOURS, INK, Picture, new_figure, style
from logra_lab.memory import MODELS, ModelShape
from logra_lab.method.projection import rademacher
from logra_lab.method.sparse_patch import changed_entries, encode_patch

RANKS = (4, 8, 16, 32, 64, 128, 256)
RATIOS = (6e-6, 2e-5, 6e-5, 2e-4, 6e-4, 3e-3)
LINKS = {"1 Gbit/s": 1e9, "10 Gbit/s": 1e10, "400 Gbit/s": 4e11}
WIDTH = 2  # bytes of a bf16 number
SHAPES = {"tiny-math": ModelShape("tiny-math", 2, 96, 288, 4, 4, 24, 22, tied=False)} | MODELS
WAYS = ("full bf16 weights", "sparse patch", "packet")
SAMPLE = 512


@cache
def patch_bits(ratio: float) -> tuple[float, float]:
    """Bits per weight of a real patch after a step of `ratio`, and the share of bf16 entries that it changed."""
    generator = torch.Generator().manual_seed(0)
    before = 0.03 * torch.randn(SAMPLE, SAMPLE, generator=generator)
    step = torch.randn(SAMPLE, 64, generator=generator) @ rademacher(0, 0, "sample", 64, SAMPLE)
    after = before - step * (ratio * before.norm() / step.norm())
    old, new = {"w": before.to(torch.bfloat16)}, {"w": after.to(torch.bfloat16)}
    return 8 * len(encode_patch(old, new)) / before.numel(), changed_entries(old, new) / before.numel()


def sizes(model: str, rank: int, ratio: float) -> dict[str, float]:
    """Bytes per update by way; raises KeyError for a model that is not in SHAPES."""
    shape = SHAPES[model]
    patch = patch_bits(ratio)[0] * shape.target_parameters / 8
    return dict(zip(WAYS, (WIDTH * shape.parameters, patch, WIDTH * rank * shape.target_rows), strict=True))


def equal_rank(model: str, ratio: float) -> float:
    """The rank at which packet and patch are as large as each other."""
    return sizes(model, 1, ratio)["sparse patch"] / sizes(model, 1, ratio)["packet"]


def bytes_in_words(count: float) -> str:
    """Decimal units with three digits, as networks count."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count:.0f} bytes"


def time_in_words(seconds: float) -> str:
    """A duration with two digits."""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{seconds / unit:.2g} {name}" if seconds < 100 * unit else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 1e-6:.2g} µs" if seconds < 1e-4 else f"{seconds / 1e-6:.0f} µs"


def packet_size(model: str, rank: int, ratio: float, link: str) -> Picture:
    """Dots of the three ways beside their lines over ranks, with the sentence that says which is smaller."""
    figure, (left, right) = new_figure(10.2, 3.5, columns=2, width_ratios=(1, 1.25))
    made = sizes(model, rank, ratio)
    draw_dots(left, made, model)
    draw_lines(right, model, rank, ratio)
    return Picture(figure, alt(model, rank, made), caption(model, rank, ratio, link))


def draw_dots(axes: Axes, made: dict[str, float], model: str) -> None:
    """One dot per way on a log scale, which has no zero that a bar could start from."""
    for row, value in enumerate(made.values()):
        axes.plot([value], [-row], "o", color=COLOURS[row], markersize=11)
        axes.annotate(bytes_in_words(value), (value, -row), (10, 0), textcoords="offset points", va="center")
    low, high = min(made.values()), max(made.values())
    axes.set(xscale="log", xlim=(low / 4, high * 40), ylim=(-2.5, 0.5), xlabel="bytes per update")
    axes.set_yticks([0, -1, -2], list(made))
    axes.set_title(model)


def draw_lines(axes: Axes, model: str, rank: int, ratio: float) -> None:
    """Bytes of each way over all ranks; the chosen rank marked."""
    for number, way in enumerate(WAYS):
        values = [sizes(model, r, ratio)[way] for r in RANKS]
        axes.plot(RANKS, values, label=way, **style(number))
    axes.plot([rank], [sizes(model, rank, ratio)["packet"]], "o", color=COLOURS[2], markersize=9)
    axes.set(xscale="log", yscale="log", xlabel="rank r", ylabel="bytes per update")
    axes.set_xticks(RANKS, [str(r) for r in RANKS])
    axes.minorticks_off()
    axes.set_title("Only the packet hears the rank", color=INK)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def caption(model: str, rank: int, ratio: float, link: str) -> str:
    """Which is smaller and by how much, where they are equal, and the time on the link."""
    made, changed = sizes(model, rank, ratio), patch_bits(ratio)[1]
    full, patch, packet = (made[way] for way in WAYS)
    smaller, factor = ("packet", patch / packet) if packet < patch else ("patch", packet / patch)
    times = [time_in_words(8 * value / LINKS[link]) for value in (full, patch, packet)]
    turn = equal_rank(model, ratio)
    where = f"they are equal near rank {turn:.0f}" if turn >= 1 else "the patch is smaller at every rank"
    return (
        f"{model} at rank {rank}: packet {bytes_in_words(packet)}, patch {bytes_in_words(patch)}, full weights "
        f"{bytes_in_words(full)}. A step of {ratio:.0e} of the weights changes {changed:.1%} of the bf16 entries; the "
        f"{smaller} is {factor:.1f} times smaller than the other, and {where}. Over {link}: {times[0]}, {times[1]} "
        f"and {times[2]} for full, patch and packet."
    )


def alt(model: str, rank: int, made: dict[str, float]) -> str:
    """The picture in words."""
    dots = ", ".join(f"{way} {bytes_in_words(value)}" for way, value in made.items())
    return (
        f"Left: dots of bytes per update for {model} at rank {rank}: {dots}. Right: the same over ranks; full weights "
        "and patch are level lines, the packet rises in proportion to the rank."
    )
