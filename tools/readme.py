"""Write what README.md shows of measurements: its tables of results and its picture, from the files in data/runs.

    python -m tools.readme            # after a recording

Tables stand between `<!-- results: NAME -->` and `<!-- end -->`. A table whose file was not recorded yet says so.
Nothing is typed by hand there; tests/test_readme.py compares. Left out: published results (docs/method.md §7).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from logra_lab.lab.bench_figure import label as arm_label
from logra_lab.lab.bench_figure import one_pass_words
from logra_lab.lab.plots import COLOURS, draw_band, new_figure, png

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "data" / "runs"
PICTURE = "docs/logra.png"
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# What the README calls a row: (its name, panel, label in the file).
ARM_ROWS = (
    ("LoGRA rank 8, the paper's recipe", "recipes", "logra paper"),
    ("LoGRA rank 8, rule `lr` with GRPO", "recipes", "logra lr"),
    ("dense AdamW, best of four learning rates", "recipes", "adamw 3e-04"),
    ("rule `lr`, a step 33 times too large", "too large", "without trust region"),
    ("the same with the trust region", "too large", "with trust region"),
    ("the paper's recipe, rewards shuffled", "control", "logra paper, shuffled rewards"),
)


def main() -> int:
    """Rewrite README.md's tables and its picture; says what changed."""
    page = ROOT / "README.md"
    old = page.read_text(encoding="utf-8")
    new = refreshed(old)
    page.write_text(new, encoding="utf-8", newline="\n")
    (ROOT / PICTURE).write_bytes(picture(recorded("tiny-math-arms")))
    print("README.md: " + ("unchanged" if new == old else "tables written anew"), file=sys.stderr)
    return 0


def refreshed(text: str, runs: Path = RUNS) -> str:
    """The README with every table of results made anew from the files in `runs`."""

    def table(found: re.Match[str]) -> str:
        return found[1] + TABLES[found[2]](runs) + "\n" + found[3]

    return BLOCK.sub(table, text)


def recorded(name: str, runs: Path = RUNS) -> dict[str, Any]:
    """What data/runs/NAME.json holds; {} where it was not recorded."""
    file = runs / f"{name}.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def arms_table(runs: Path) -> str:
    """Lesson 07's recorded arms: accuracy at the start and the end, and bytes kept from backward to step."""
    rows = {(row["panel"], row["label"]): row for row in recorded("tiny-math-arms", runs).get("table", ())}
    if not rows:
        return absent("tiny-math-arms", "python -m logra_lab.rl.compare arms")
    lines = ["| arm | right at the start | right at the end | kept from backward to step |", "|-|-:|-:|-:|"]
    for name, panel, label in ARM_ROWS:
        row = rows[panel, label]
        lines.append(f"| {name} | {share(row['start'])} | {share(row['final'])} | {kept(row):.0f} KiB |")
    return "\n".join(lines)


def race_table(runs: Path) -> str:
    """The race: each arm at its best step size and at equal KL, against the reference on paired seeds."""
    table = recorded("race", runs).get("table", ())
    rows = [row for row in table if row["panel"] != "tuning"]
    if not rows:
        return absent("race", "python -m logra_lab.rl.compare race")
    lines = ["| panel | arm | seeds | right at the end | in words |", "|-|-|-:|-:|-|"]
    for row in rows:
        cells = (row["panel"], row["label"], str(len(row["seeds"])), share(row["final"]), row["verdict"])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def bench_table(runs: Path) -> str:
    """The bench: seconds a step and peak memory over dense AdamW's, with intervals; one pass in words."""
    record = recorded("bench-cpu", runs)
    if not record:
        return absent("bench-cpu", "make bench")
    shape, machine = record["setting"], record["machine"]
    words = (
        f"Width {shape['width']}, {shape['layers']} layers, {shape['sequences'] * shape['length']} tokens a step in "
        f"{record['micro_batches']} micro-batches, {record['rounds']} rounds, {machine['processor']}, "
        f"{machine['threads']} threads.{one_pass_words(record['figures'])}\n\n"
    )
    lines = ["| arm | seconds a step / dense AdamW | peak memory / dense AdamW |", "|-|-:|-:|"]
    for name, arm in record["arms"].items():
        lines.append(f"| {arm_label(name)} | {ratio(arm['time_ratio'])} | {ratio(arm['peak_ratio'])} |")
    return words + "\n".join(lines)


def absent(name: str, command: str) -> str:
    """The sentence in place of a table that was not recorded."""
    return f"*`data/runs/{name}.json` is not recorded yet; `{command}` records it.*"


def share(spread: dict[str, Any]) -> str:
    """A mean in per cent with the half-width of its 95 % interval."""
    mean, half = spread["mean"], spread["half_width"]
    return f"{100 * mean:.1f} %" if half is None else f"{100 * mean:.1f} ± {100 * half:.1f} %"


def ratio(spread: dict[str, float]) -> str:
    """A median ratio with its interval."""
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"


def kept(row: dict[str, Any]) -> float:
    """KiB that live between backward and step: everything but the weights."""
    return sum(size for kind, size in row["memory"].items() if kind != "weights") / 1024


def picture(record: dict[str, Any]) -> bytes:
    """A PNG: accuracy over updates of LoGRA, AdamW and the control, beside the bytes that LoGRA and AdamW keep."""
    figure, (left, right) = new_figure(8.4, 3.4, columns=2, width_ratios=(2.2, 1))
    for number, (name, label) in enumerate(
        (
            ("LoGRA, rank 8", "logra paper"),
            ("dense AdamW", "adamw 3e-04"),
            ("LoGRA, rewards shuffled", "logra paper, shuffled rewards"),
        )
    ):
        steps, curves = accuracies(record, label)
        draw_band(left, steps, curves, name, number)
    left.set(
        xlabel="updates", ylabel="share of right answers", ylim=(0, 1), title="Held-out sums, three seeds"
    )
    left.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    rows = {row["label"]: row for row in record["table"]}
    sizes = {"LoGRA": kept(rows["logra paper"]), "AdamW": kept(rows["adamw 3e-04"])}
    bars = right.bar(list(sizes), list(sizes.values()), color=COLOURS[:2], width=0.6)
    right.bar_label(bars, fmt="%.0f KiB", padding=2)
    right.set(title="Kept until the step", ylabel="KiB", ylim=(0, 1.15 * max(sizes.values())))
    return png(figure)


def accuracies(record: dict[str, Any], label: str) -> tuple[list[int], list[list[float]]]:
    """The updates after which a recorded arm was evaluated, from 0, and its accuracy there by seed."""
    runs = [run for run in record["runs"] if run["label"] == label]
    curves = [run["curves"]["accuracy"] for run in runs]
    steps = [step for step, value in enumerate(curves[0], start=1) if value is not None]
    found = [
        [run["start"]["accuracy"], *(curve[step - 1] for step in steps)]
        for run, curve in zip(runs, curves, strict=True)
    ]
    return [0, *steps], found


TABLES: dict[str, Callable[[Path], str]] = {"arms": arms_table, "race": race_table, "bench": bench_table}

if __name__ == "__main__":
    sys.exit(main())
