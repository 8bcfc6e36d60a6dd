"""All arms in one run: a child each, one step at a time, in a new order every round."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from bench.settings import Setting
from bench.statistics import medians, paired_ratio
from bench.worker import Worker

Rounds = dict[str, list[dict[str, float]]]


def race(settings: Sequence[Setting], rounds: int, tell: Callable[[str], None]) -> Rounds:
    """Every arm's rounds by name, after one step each to warm up. A missing package leaves its arm out, and says so."""
    workers = [worker for worker in [Worker(setting) for setting in settings] if _ready(worker, tell)]
    results: Rounds = {worker.setting.name: [] for worker in workers}
    order = random.Random(0)
    try:
        for number in range(rounds + 1):
            for worker in order.sample(workers, len(workers)):
                result = worker.step()
                if number:
                    results[worker.setting.name].append(result)
            tell(f"round {number} of {rounds}" if number else "warmed up")
    finally:
        for worker in workers:
            worker.close()
    return results


def _ready(worker: Worker, tell: Callable[[str], None]) -> bool:
    try:
        worker.ready()
    except RuntimeError as error:
        if "ImportError" not in str(error) and "ModuleNotFoundError" not in str(error):
            raise
        tell(f"left out: {error}")
        return False
    return True


def summarise(results: Rounds, reference: str) -> dict[str, dict]:
    """Medians by arm, and paired ratios of seconds and peak to the reference arm."""
    table = {}
    for name, rounds in results.items():
        pair = {
            key: paired_ratio(
                [one[what] for one in rounds], [one[what] for one in results[reference]]
            ).to_json()
            for key, what in (("time_ratio", "seconds"), ("peak_ratio", "peak"))
        }
        every = {what: [one[what] for one in rounds] for what in ("seconds", "peak")}
        table[name] = medians(rounds) | pair | {"rounds": every}
    return table
