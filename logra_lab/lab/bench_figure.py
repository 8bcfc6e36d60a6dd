"""The recorded bench (`make bench`, data/runs/bench-cpu.json) as a picture: seconds and peak over dense AdamW's.

Left out: the cost curves (`bench_costs.py`), the ceilings and the sections; the file has them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from logra_lab.data_files import located
from logra_lab.lab.plots import COLOURS, Picture, new_figure, show

BENCH = located("data/runs/bench-cpu.json")
MISSING = "There is no data/runs/bench-cpu.json here yet: `make bench` makes it, in some minutes."
REFERENCE = "adamw"
NAMES = {
    "adamw": "dense AdamW", "sgd": "dense SGD", "galore": "GaLore", "apollo": "APOLLO", "lora": "LoRA",
    "logra": "LoGRA", "checkpointing": "(checkpointing)", "probe": "(KL probe)",
}  # fmt: skip


def show_bench(path: Path = BENCH) -> None:
    """Show the recorded bench, or say in one sentence that there is none here."""
    if not path.exists():
        print(MISSING)
        return
    picture = bench_picture(json.loads(path.read_text(encoding="utf-8")))
    show(picture.figure, picture.alt, picture.caption)


def bench_picture(record: Mapping[str, Any]) -> Picture:
    """Bars of `time_ratio` and `peak_ratio` by arm with their intervals.

    `record` is what `make bench` writes: `arms` by name, each with both ratios as {median, low, high}.
    Raises KeyError where dense AdamW is missing.
    """
    arms = record["arms"]
    if REFERENCE not in arms:
        raise KeyError(f"the bench has no arm {REFERENCE!r}, only {', '.join(arms)}: run `make bench` again")
    labels = [label(name) for name in arms]
    figure, panels = new_figure(9.2, 1.1 + 0.32 * len(arms), columns=2, sharey=True)
    for axes, key, title in zip(
        panels, ("time_ratio", "peak_ratio"), ("Seconds a step", "Peak memory"), strict=True
    ):
        draw_ratios(axes, labels, [arm[key] for arm in arms.values()])
        axes.set(title=title, xlabel="over dense AdamW (line: interval)")
    panels[0].invert_yaxis()
    caption = bench_words(record)
    return Picture(
        figure, f"Bars per arm: seconds a step and peak memory over dense AdamW. {caption}", caption
    )


def label(name: str) -> str:
    """An arm's name as people say it: "logra r16 probe" is LoGRA r = 16 (KL probe)."""
    return " ".join(
        f"r = {word[1:]}" if word[1:].isdigit() else NAMES.get(word, word) for word in name.split()
    )


def draw_ratios(axes: Axes, labels: list[str], ratios: list[Mapping[str, float]]) -> None:
    """A bar per arm with a line over the interval of its ratio."""
    middles = [ratio["median"] for ratio in ratios]
    colours = [COLOURS[0] if "LoGRA" in name else "#AAAAAA" for name in labels]
    axes.barh(labels, middles, color=colours, height=0.65)
    for row, ratio in enumerate(ratios):
        axes.plot([ratio["low"], ratio["high"]], [row, row], color="#222222", linewidth=1.5, linestyle="-")
        axes.text(ratio["high"], row, f" {ratio['median']:.2f}", va="center", size=9)
    axes.axvline(1.0, color="#777777", linewidth=1, linestyle=":")
    axes.set_xlim(0, 1.18 * max(ratio["high"] for ratio in ratios))
    axes.grid(axis="y", visible=False)


def bench_words(record: Mapping[str, Any]) -> str:
    """Size, machine and LoGRA's ratios in a sentence or two."""
    shape, machine, pieces = record["setting"], record["machine"], record["micro_batches"]
    tokens = shape["sequences"] * shape["length"]
    parts = [
        f"{label(name)} takes {arm['time_ratio']['median']:.2f} of the seconds and "
        f"{arm['peak_ratio']['median']:.2f} of the memory above the start"
        for name, arm in record["arms"].items()
        if name.startswith("logra") and len(name.split()) == 2
    ]
    return (
        f"Recorded by `{record['command']}`: width {shape['width']}, {shape['layers']} layers, {tokens} tokens in "
        f"{pieces} micro-batches, {record['rounds']} rounds on {machine['processor']}, {machine['threads']} threads. "
        f"{'; '.join(parts)}." + one_pass_words(record.get("figures", ()))
    )


def one_pass_words(figures: Sequence[Mapping[str, Any]]) -> str:
    """LoGRA over dense AdamW where both take all tokens in one pass, as paired ratios with their intervals."""
    parts = [
        "{} {:.2f} ({:.2f} to {:.2f})".format(figure["name"].split()[2], figure["value"], *figure["interval"])
        for figure in figures
        if figure["name"].endswith("both in one pass")
    ]
    return f" Seconds over dense AdamW's, both in one pass: {', '.join(parts)}." if parts else ""
