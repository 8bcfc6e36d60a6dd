"""Races between optimizers on tiny-math, recorded for the lessons.

    python -m logra_lab.rl.compare arms     # lesson 07: AdamW's grid, LoGRA's two recipes, the step that is too large
    python -m logra_lab.rl.compare race     # at least eight paired seeds of every arm, tuned on other seeds

Every run is appended to a JSONL file as it ends, keyed by (arm, seed, configuration hash): an interrupted race goes
on where it stopped, and a run whose settings have changed is done again. When all are done, the JSON that the lessons
read takes its place.

Left out: anything in parallel. One run after another, so that seconds per step mean something.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from logra_lab import __version__
from logra_lab.data_files import located
from logra_lab.rl.config import RunConfig, config_hash
from logra_lab.rl.metrics import whole_lines
from logra_lab.rl.panels import ARMS_PANEL, race_panel, tuning_panel
from logra_lab.rl.reading import read_json
from logra_lab.rl.summary import summarise
from logra_lab.rl.training import Trainer
from logra_lab.rl.words import in_words

CURVES = ("right", "accuracy", "greedy", "predicted_kl", "measured_kl", "budget", "scale", "sketch_norm", "entropy",
          "no_signal", "length")  # fmt: skip


class Entry(NamedTuple):
    """One run to do: a label for the table, its panel, and its configuration (which holds the seed)."""

    panel: str
    label: str
    config: RunConfig

    @property
    def key(self) -> str:
        """What a finished run is found again by."""
        return f"{self.panel}/{self.label}/{self.config.seed}/{self.config.hash()}"


def _say_nothing(line: str) -> None:
    """What a caller gets who doesn't ask for reports."""


def run_entry(entry: Entry) -> dict[str, Any]:
    """Do one run; returns its record with per-step curves, rounded to five digits."""
    started = time.perf_counter()
    trainer = Trainer(entry.config)
    result = trainer.run()
    steps = [line for line in result.history if line["step"] > 0]
    return {
        "key": entry.key, "panel": entry.panel, "label": entry.label, "seed": entry.config.seed,
        "config": entry.config.to_json(), "hash": entry.config.hash(),
        "status": result.status, "message": result.message,
        "start": {name: _round(result.history[0][name]) for name in ("accuracy", "greedy")},
        "curves": {name: [_round(line.get(name)) for line in steps] for name in CURVES},
        "memory": trainer.arm.memory(), "peak_memory": steps[-1]["peak_memory"],
        "seconds_per_step": _round(sorted(line["seconds"] for line in steps)[len(steps) // 2]),
        "seconds": _round(time.perf_counter() - started),
    }  # fmt: skip


def run_all(
    entries: Iterable[Entry], path: Path, report: Callable[[str], None] = _say_nothing
) -> list[dict[str, Any]]:
    """Do the entries that `path` (JSONL) or the summary beside it don't hold yet; returns the records of all."""
    done = {record["key"]: record for record in read_records(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    records = []
    for entry in entries:
        if entry.key not in done:
            done[entry.key] = _same_run(entry, done) or run_entry(entry)
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(done[entry.key]) + "\n")
        record = done[entry.key]
        records.append(record)
        report(
            f"{entry.key}: {record['start']['accuracy']} -> {final_accuracy(record)} ({record['seconds']} s)"
        )
    return records


def _same_run(entry: Entry, done: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """A finished run of the same configuration in another panel, under this entry's name."""
    for record in done.values():
        if record["hash"] == entry.config.hash():
            return record | {"key": entry.key, "panel": entry.panel, "label": entry.label}
    return None


def read_records(path: Path) -> list[dict[str, Any]]:
    """Runs that are done: those of the finished summary, and whole lines of the JSONL file of one in progress."""
    finished = path.with_suffix(".json")
    records = read_json(finished)["runs"] if finished.exists() else []
    return records + [record for _, record in whole_lines(path)] if path.exists() else records


def final_accuracy(record: dict[str, Any]) -> float | None:
    """The last sampled accuracy of a run: on all held-out problems if it finished."""
    known = [value for value in record["curves"]["accuracy"] if value is not None]
    return known[-1] if known else record["start"]["accuracy"]


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    return {
        "logra_lab": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
        "python": sys.version.split()[0], "threads": str(torch.get_num_threads()),
    }  # fmt: skip


def model_hash(model: str) -> str | None:
    """The hash of the recipe that made `model`, where one stands beside it."""
    recipe = located(model) / "recipe.json"
    return read_json(recipe)["hash"] if recipe.exists() else None


def write_summary(path: Path, command: str, entries: list[Entry], records: list[dict[str, Any]]) -> None:
    """The JSON that lessons read: command, versions, hash over all configurations, the table and the runs.

    It takes the place of the JSONL file of the race in progress.
    """
    table = summarise(records)
    summary = {
        "command": command, "versions": versions(), "hash": config_hash({e.key: e.config.to_json() for e in entries}),
        "model": model_hash(entries[0].config.model), "table": table, "words": in_words(table, records),
        "runs": records,
    }  # fmt: skip
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    os.replace(partial, path)
    path.with_suffix(".jsonl").unlink(missing_ok=True)


def arms(out: Path, report: Callable[[str], None]) -> None:
    """Lesson 07's runs: `tiny-math-arms.json`."""
    entries = [Entry(*entry) for entry in ARMS_PANEL]
    records = run_all(entries, out / "tiny-math-arms.jsonl", report)
    write_summary(out / "tiny-math-arms.json", "python -m logra_lab.rl.compare arms", entries, records)


def race(out: Path, report: Callable[[str], None], seeds: int) -> None:
    """Tune each arm on its grid, then run the best on `seeds` paired seeds: `race.json`."""
    tuning = [Entry(*entry) for entry in tuning_panel()]
    tuned = run_all(tuning, out / "race.jsonl", report)
    entries = [Entry(*entry) for entry in race_panel(tuned, seeds)]
    records = run_all(entries, out / "race.jsonl", report)
    command = f"python -m logra_lab.rl.compare race --seeds {seeds}"
    write_summary(out / "race.json", command, tuning + entries, tuned + records)


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.rl.compare", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("what", choices=("arms", "race"))
    parser.add_argument("--out", type=Path, default=Path("data/runs"), help="folder (default: %(default)s)")
    parser.add_argument(
        "--seeds", type=int, default=8, help="paired seeds of the race (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, default=None, help="torch threads")
    parser.add_argument("--nice", type=int, default=0, help="lower this process's priority by so much")
    options = parser.parse_args(arguments)
    if options.nice and hasattr(os, "nice"):
        os.nice(options.nice)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.what == "arms":
        arms(options.out, _say)
    else:
        race(options.out, _say, options.seeds)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _round(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
