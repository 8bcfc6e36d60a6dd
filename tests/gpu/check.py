"""One script for a machine with a GPU: is the method right there, how fast are the kernels, what does a step take?

    python tests/gpu/check.py                          # everything, under 8 minutes on a large card
    python tests/gpu/check.py --only method            # under 4: sketches, rules, halves, forward mode, a 1.5B step
    python tests/gpu/check.py --device cpu --tiny      # the same code in seconds, as the tests run it

Prints one JSON object and writes it to --out (data/runs/gpu-check.json). Each section has its own time limit and
degrades to the card: what does not fit, or has no time left, is listed under "skipped" with the reason. Exit status 1
if a section that checks correctness failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import correctness, speed, steps  # noqa: E402
from tests.gpu.context import Context, Skip  # noqa: E402

# name → (function, group, seconds it may take)
SECTIONS: dict[str, tuple[Callable[[Context], dict[str, Any]], str, float]] = {
    "sketch": (correctness.sketch, "method", 30),
    "rules": (correctness.rules, "method", 30),
    "split": (correctness.split, "method", 30),
    "forward_mode": (correctness.forward_mode, "method", 30),
    "kernels": (correctness.kernels_check, "method", 60),
    "step_1.5B": (steps.small, "method", 90),
    "ceilings": (speed.ceilings, "speed", 20),
    "kernel_times": (speed.kernel_times, "speed", 60),
    "step_7B": (steps.middle, "speed", 120),
    "step_27B": (steps.large, "speed", 150),
}


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for a CPU")
    parser.add_argument("--only", nargs="*", help="sections or groups (method, speed)")
    parser.add_argument(
        "--seconds", type=float, default=460.0, help="time for everything (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="where to write the JSON")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.only or ()) - set(SECTIONS) - {group for _, group, _ in SECTIONS.values()}
    if unknown:
        parser.error(
            f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}, method, speed"
        )
    results = run(Context(torch.device(chosen.device), chosen.tiny), chosen.only, chosen.seconds)
    text = json.dumps(results, indent=1)
    print(text)
    if chosen.out:
        chosen.out.write_text(text + "\n", encoding="utf-8")
    return 1 if results["failed"] else 0


def run(context: Context, only: list[str] | None, seconds: float) -> dict[str, Any]:
    """Run the chosen sections in order; results by name, what was skipped and what failed with the reason."""
    results: dict[str, Any] = {"machine": machine(context), "sections": {}, "skipped": {}, "failed": {}}
    end = time.monotonic() + seconds
    for name, (section, group, limit) in SECTIONS.items():
        if only and name not in only and group not in only:
            continue
        left = end - time.monotonic()
        if left < limit / 4:
            results["skipped"][name] = f"only {left:.0f} s of time left"
            continue
        context.begin(min(limit, left))
        started = time.monotonic()
        try:
            results["sections"][name] = section(context)
        except Skip as reason:
            results["skipped"][name] = str(reason)
        except torch.cuda.OutOfMemoryError as error:
            results["skipped"][name] = f"out of memory: {str(error).splitlines()[0]}"
        except (AssertionError, RuntimeError, ValueError) as error:
            results["failed"][name] = f"{type(error).__name__}: {error}"
        else:
            results["sections"][name]["section_seconds"] = round(time.monotonic() - started, 2)
        context.free()
        print(f"{name}: {time.monotonic() - started:.1f} s", file=sys.stderr, flush=True)
    return results


def machine(context: Context) -> dict[str, Any]:
    """What the numbers were made on and with."""
    cuda = context.device.type == "cuda"
    return {
        "command": "python tests/gpu/check.py" + (" --tiny" if context.tiny else ""),
        "device": torch.cuda.get_device_name(context.device) if cuda else platform.processor() or "CPU",
        "memory_gib": round(torch.cuda.get_device_properties(context.device).total_memory / 2**30, 1)
        if cuda
        else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
