"""`make bench`: the race, the cost curves, a table of what holds, and data/runs/bench-cpu.json.

    python -m bench [--rounds 9] [--out FILE] [--small] [--no-costs | --only-costs]

`--only-costs` measures the curves again and puts them into a record that is there. `--small` runs everything on a tiny
model, to see that it works; its figures mean nothing. Exit status 1 if a hard figure fails (not with `--small`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

import torch

from bench.costs import points, row
from bench.model import Ceilings, measure_ceilings
from bench.race import race, summarise
from bench.settings import ARMS, DENSE, SMALL, Setting, shrunk
from bench.targets import Figure, figures
from logra_lab.memory.process import run_in_child

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("torch", "transformers", "numpy", "peft", "galore-torch", "apollo-torch")


def main(arguments: list[str] | None = None) -> int:
    """Run, write, print; returns the exit status."""
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    if options.only_costs:
        return refresh_costs(options)
    start, here = time.time(), machine(options.threads)
    settings = shrunk(ARMS, SMALL if options.small else DENSE.shape, options.threads)
    ceilings = measure_ceilings()
    arms = summarise(race(settings, options.rounds, tell), DENSE.name)
    held = figures(arms) if len(arms) == len(settings) else []
    result = {
        "command": "make bench", "machine": here, "versions": versions(),
        "setting": asdict(settings[0].shape), "micro_batches": settings[0].micro_batches, "rounds": options.rounds,
        "ceilings": asdict(ceilings), "arms": arms,
        "figures": [figure.to_json() for figure in held],
        "costs": [] if options.no_costs else cost_curves(ceilings, options),
        "minutes": (time.time() - start) / 60,
    }  # fmt: skip
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    report(arms, held, result["minutes"])
    failed = [figure for figure in held if figure.hard and not figure.holds]
    return 1 if (failed or not held) and not options.small else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="What a step costs on this CPU.")
    parser.add_argument("--rounds", type=int, default=9, help="measured steps of every arm, at least 5")
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "runs" / "bench-cpu.json")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a tiny model; its figures mean nothing")
    curves = parser.add_mutually_exclusive_group()
    curves.add_argument("--no-costs", action="store_true", help="leave the curves out")
    curves.add_argument(
        "--only-costs", action="store_true", help="the curves alone, into a record that is there"
    )
    return parser.parse_args(arguments)


def refresh_costs(options: argparse.Namespace) -> int:
    """The curves of an earlier record measured anew, with the load at that time."""
    record = json.loads(options.out.read_text(encoding="utf-8"))
    load = machine(options.threads)["load_before"]
    record |= {"costs": cost_curves(measure_ceilings(), options), "costs_load_before": load}
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


def cost_curves(ceilings: Ceilings, options: argparse.Namespace) -> list[dict]:
    """Every point of the curves, each in a child of its own."""
    rows = []
    for varies, setting in points(SMALL)[:6] if options.small else points():
        setting = Setting.from_json(setting.to_json() | {"threads": options.threads})
        seconds = run_in_child("bench.costs:measure", {"setting": setting.to_json(), "rounds": 9})
        rows.append(row(varies, setting, seconds, ceilings))
    tell("cost curves done")
    return rows


def machine(threads: int) -> dict:
    """What it runs on, with the system's load average now: well above 0, distrust the times."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": names[0] if names else platform.processor(), "cores": os.cpu_count(), "threads": threads,
        "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(), "load_before": load,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Of the packages that are here."""
    found = {package: _version(package) for package in PACKAGES}
    return {package: version for package, version in found.items() if version}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def report(arms: dict[str, dict], held: list[Figure], minutes: float) -> None:
    """The table on the terminal."""
    print(f"\n{'arm':26s} {'s/step':>8s} {'over dense AdamW':>24s} {'peak MB':>8s} {'over dense AdamW':>24s}")
    for name, arm in arms.items():
        time_ratio, peak_ratio = (
            "{median:.3f} [{low:.3f}, {high:.3f}]".format(**arm[key]) for key in ("time_ratio", "peak_ratio")
        )
        print(
            f"{name:26s} {arm['seconds']:8.3f} {time_ratio:>24s} {arm['peak'] / 2**20:8.0f} {peak_ratio:>24s}"
        )
    print()
    for figure in held:
        mark = "holds" if figure.holds else ("FAILS" if figure.hard else "not reached")
        paired = "[{:.3f}, {:.3f}]".format(*figure.interval) if figure.interval else ""
        print(f"{figure.name:58s} {figure.value:7.3f} {paired:16s}  limit {figure.limit:.2f}  {mark}")
    print(f"\n{minutes:.1f} minutes")


def tell(words: str) -> None:
    """Progress, on the error stream."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
