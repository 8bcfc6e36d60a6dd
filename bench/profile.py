"""Where a step's time goes, before and after each fast path: writes docs/profile.md.

    python -m bench.profile [--rounds 7] [--out docs/profile.md] [--small]

Everything is measured in child processes: sections of a step in turns, then each fast path beside its plain twin.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from pathlib import Path

from bench.__main__ import machine, tell, versions
from bench.race import race, summarise
from bench.settings import DENSE, SMALL, Setting, shrunk
from logra_lab.memory.process import peak_bytes, reset_peak, resident_bytes, run_in_child

ROOT = Path(__file__).resolve().parents[1]
ARMS = (DENSE, Setting("logra", 16, probe=True), Setting("logra", 64, probe=True))
SECTIONS = ("forward", "backward", "update", "propose", "judge", "commit", "seconds")


def main(arguments: list[str] | None = None) -> int:
    """Measure and write; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description="Where a step's time goes.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "profile.md")
    parser.add_argument("--small", action="store_true", help="a tiny model; its figures mean nothing")
    options = parser.parse_args(arguments)
    settings = shrunk(ARMS, SMALL if options.small else DENSE.shape, options.threads)
    here = machine(options.threads)
    arms = summarise(race(settings, options.rounds, tell), settings[0].name)
    argument = {"setting": settings[1].to_json(), "rounds": options.rounds}
    twins = run_in_child("bench.profile:measure", argument, timeout=1800)["rows"]
    options.out.write_text(page(arms, twins, here, settings[1]), encoding="utf-8")
    return 0


def measure(argument: dict) -> dict[str, list[dict]]:
    """Median seconds and peak of every pair, the two taking turns; runs in a child."""
    from bench.twins import pairs

    rows = []
    for name, before, after in pairs(Setting.from_json(argument["setting"])):
        seconds: dict[str, list[float]] = {"before": [], "after": []}
        peaks = {"before": 0, "after": 0}
        for number in range(argument["rounds"] + 1):
            for side, work in (("before", before), ("after", after)):
                elapsed, peak = timed(work)
                if number:
                    seconds[side].append(elapsed)
                    peaks[side] = max(peaks[side], peak)
        medians = {side: statistics.median(values) for side, values in seconds.items()}
        rows.append({"name": name, "seconds": medians, "peak": peaks})
    return {"rows": rows}


def timed(work) -> tuple[float, int]:
    """Seconds of a call, and the peak of resident bytes above those before it."""
    gc.collect()
    reset_peak()
    start_bytes, start = resident_bytes() or 0, time.perf_counter()
    work()
    elapsed = time.perf_counter() - start
    return elapsed, max(0, (peak_bytes() or 0) - start_bytes)


def page(arms: dict[str, dict], twins: list[dict], here: dict, setting: Setting) -> str:
    """The page as Markdown; every number in it was measured by this run."""
    shape = setting.shape
    model = f"{shape.layers} blocks of width {shape.width}, {shape.tokens} tokens, fp32, {here['threads']} threads"
    packages = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Where a step's time goes", "",
        f"Made by `python -m bench.profile` on {here['processor']} ({here['cores']} cores), {packages}. "
        f"Load at the start: {here['load_before']}. The model: {model}.", "",
        "## A step by section", "", "Median milliseconds, and the share of the arm's own step.", "",
        *section_table(arms), "",
        "`judge` is the KL probe on 1/16 of the tokens; the shares include it.", "",
        "## Each fast path beside its plain twin", "",
        "Before and after give the same result (`tests/bench/test_profile.py`). The peak is memory made on the way.",
        "", *twin_table(twins), "",
    ]  # fmt: skip
    return "\n".join(lines)


def section_table(arms: dict[str, dict]) -> list[str]:
    """Rows: sections; columns: arms."""
    lines = ["| section | " + " | ".join(arms) + " |", "|---" * (len(arms) + 1) + "|"]
    for section in SECTIONS:
        cells = [
            f"{1e3 * arm[section]:.0f} ({100 * arm[section] / arm['seconds']:.1f} %)"
            if section in arm
            else "–"
            for arm in arms.values()
        ]
        lines.append(f"| {'whole step' if section == 'seconds' else section} | " + " | ".join(cells) + " |")
    return lines


def twin_table(twins: list[dict]) -> list[str]:
    """Rows: fast paths; milliseconds and MiB before and after."""
    lines = ["| what | before, ms | after, ms | before, MiB | after, MiB |", "|---|---|---|---|---|"]
    for row in twins:
        seconds = [f"{1e3 * row['seconds'][side]:.1f}" for side in ("before", "after")]
        peaks = [f"{row['peak'][side] / 2**20:.1f}" for side in ("before", "after")]
        lines.append(f"| {row['name']} | " + " | ".join(seconds + peaks) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
