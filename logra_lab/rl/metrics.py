"""Metrics of a run: one JSON object a step, written as it comes, and the progress line drawn from it.

What each number means is in `STEP_METRICS`; a test compares that table with what a run writes. A file that a kill cut
in the middle of a line is read up to its last whole line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from logra_lab.method import StepReport
from logra_lab.rl.reading import ReadingError, as_table, parse_json

STEP_METRICS = {
    "step": "steps done",
    "reward": "mean reward of the step's answers",
    "right": "share of right answers (training problems, sampled)",
    "accuracy": "share of right answers to held-out problems, sampled (on evaluation steps)",
    "greedy": "the same with greedy decoding",
    "no_signal": "share of groups whose rewards are all equal; without groups 1 if the whole batch's are",
    "length": "mean answer length in tokens, stop token included",
    "truncated": "share of answers that hit the length limit",
    "entropy": "mean entropy of the next token where tokens were sampled, in nats",
    "status": "what the optimizer did: updated, no signal or non-finite",
    "predicted_kl": "KL per token that the trust region predicts for the step as taken",
    "measured_kl": "KL per token measured on the same probe after the step (if asked for)",
    "budget": "KL per token allowed",
    "scale": "alpha, what the step was multiplied by (or the controller's factor)",
    "mismatch": "running mean of log pi_rollout - log pi_train over finished answers",
    "sketch_norm": "norm of S A (LoGRA) or of the dense gradient (others)",
    "seconds": "the step's wall time, evaluation left out",
    "rollout_seconds": "of it, sampling",
    "tokens_per_second": "sampled tokens per second of the step",
    "peak_memory": "the process's peak resident memory, or the GPU's peak allocated memory, in bytes",
}


def of_report(report: StepReport) -> dict[str, Any]:
    """What the optimizer reports of a step; the predicted KL is that of the step as taken, alpha^2 q."""
    predicted, scale = report.predicted_kl, report.scale
    taken = predicted * scale**2 if predicted is not None and scale is not None else None
    return {
        "status": report.status, "message": report.message, "sketch_norm": report.sketch_norm,
        "predicted_kl": taken,
        "measured_kl": report.measured_kl, "budget": report.budget, "scale": scale, "mismatch": report.mismatch,
    }  # fmt: skip


def peak_memory(device: torch.device) -> int | None:
    """Peak bytes so far: allocated on a GPU, resident of the process elsewhere; None where the system doesn't say."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MetricsLog:
    """Appends one line per step to `path` (or keeps them in memory only, with `path=None`)."""

    def __init__(self, path: Path | None, *, keep_steps: int = 0) -> None:
        """With `keep_steps`, lines of later steps are dropped: a resumed run writes those again."""
        self.path = path
        self.history: list[dict[str, Any]] = []
        if path is None:
            return
        self.history = (
            [line for line in read_metrics(path) if line["step"] <= keep_steps] if path.exists() else []
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text("".join(_line(metrics) for metrics in self.history), encoding="utf-8")
        os.replace(partial, path)

    def append(self, metrics: dict[str, Any]) -> None:
        """Add one step; the line is on disk when this returns (OSError when it is full)."""
        self.history.append(metrics)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(metrics))


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file.

    Raises:
        ReadingError: names the line that is no JSON object with a step, and what to do.
    """
    return [_checked(metrics, where) for where, metrics in whole_lines(path)]


def whole_lines(path: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each whole line of a JSONL file; a last line that a kill cut short is left out."""
    path = Path(path)
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        where = f"{path.name}, line {number}"
        try:
            text = line.decode("utf-8").strip()
        except UnicodeDecodeError:
            raise ReadingError(f"{where} is no UTF-8 text: take the line out, or the file away") from None
        if text:
            yield where, as_table(parse_json(text, where, finite=False), where)


def _checked(metrics: dict[str, Any], where: str) -> dict[str, Any]:
    step = metrics.get("step")
    if type(step) is not int or step < 0:
        raise ReadingError(
            f"{where}: the step is {step!r}, not a number from 0: take the line out, or the file away"
        )
    return metrics


def progress_line(metrics: dict[str, Any], steps: int, elapsed: float, steps_here: int) -> str:
    """One line for a terminal: step, a bar, reward, accuracy where known, time left.

    `elapsed` seconds were spent on the `steps_here` steps of this process.
    """
    done = metrics["step"]
    bar = "#" * (20 * done // steps)
    left = elapsed / max(steps_here, 1) * (steps - done)
    parts = [f"{done:>5}/{steps} [{bar:<20}]", f"right {metrics['right']:.3f}"]
    for name, label in (("accuracy", "held-out"), ("predicted_kl", "KL"), ("scale", "scale")):
        if metrics.get(name) is not None:
            parts.append(f"{label} {metrics[name]:.3g}")
    return "  ".join([*parts, f"{clock(left)} left"])


def clock(seconds: float) -> str:
    """Seconds as 4:05 or 1:02:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _line(metrics: dict[str, Any]) -> str:
    return json.dumps(metrics) + "\n"
