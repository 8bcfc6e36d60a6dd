"""Cost against rank, tokens, width and micro-batches, beside the FLOP and byte model.

A child process per point, both arms in it.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import replace

from bench.model import Ceilings, step_seconds
from bench.settings import Setting, Shape
from bench.statistics import paired_ratio

SWEEP = Shape(width=512, ffn=1792, heads=8, kv_heads=2, layers=2, vocab=1024, sequences=4, length=128)
RANKS = (8, 16, 32, 64, 128, 256)
LENGTHS = (32, 64, 128, 256, 512)
WIDTHS = (256, 384, 512, 768, 1024)
MICRO_BATCHES = (1, 2, 4, 8)


def points(base: Shape = SWEEP) -> list[tuple[str, Setting]]:
    """(what varies, LoGRA's setting) for every point of the four curves; all but the last take a step in one pass."""
    once = Setting("logra", 16, micro_batches=1, shape=base)
    ranks = [("rank", replace(once, rank=rank)) for rank in RANKS]
    lengths = [("tokens", replace(once, shape=replace(base, length=length))) for length in LENGTHS]
    widths = [("width", replace(once, shape=widened(base, width))) for width in WIDTHS]
    wide = replace(widened(base, 2 * base.width), sequences=max(MICRO_BATCHES))  # G too large for the caches
    pieces = [("micro_batches", replace(once, shape=wide, micro_batches=count)) for count in MICRO_BATCHES]
    return ranks + lengths + widths + pieces


def widened(shape: Shape, width: int) -> Shape:
    """The same proportions at another width."""
    return replace(
        shape, width=width, ffn=shape.ffn * width // shape.width, heads=width // 64, kv_heads=width // 256
    )


def measure(argument: dict) -> dict[str, list[float]]:
    """Seconds of `rounds` steps of LoGRA and of dense AdamW on one machine, taking turns; runs in a child."""
    from bench.trial import Trial

    setting = Setting.from_json(argument["setting"])
    trials = {"logra": Trial(setting), "adamw": Trial(replace(setting, arm="adamw", rank=0))}
    seconds: dict[str, list[float]] = {name: [] for name in trials}
    for number in range(argument["rounds"] + 1):
        for name, trial in trials.items():
            value = trial.step()["seconds"]
            if number:  # the first warms up
                seconds[name].append(value)
            gc.collect()
    return seconds


def row(varies: str, setting: Setting, seconds: dict[str, list[float]], ceilings: Ceilings) -> dict:
    """One point of a curve: medians, their paired ratio, and what the model says."""
    dense = replace(setting, arm="adamw", rank=0)
    logra, adamw = (statistics.median(seconds[name]) for name in ("logra", "adamw"))
    paired = paired_ratio(seconds["logra"], seconds["adamw"])
    model = {name: step_seconds(one, ceilings) for name, one in (("logra", setting), ("adamw", dense))}
    return {
        "varies": varies, "rank": setting.rank, "tokens": setting.shape.tokens, "width": setting.shape.width,
        "micro_batches": setting.micro_batches,
        "logra_seconds": logra, "adamw_seconds": adamw, "ratio": paired.median, "low": paired.low, "high": paired.high,
        "model_logra_seconds": model["logra"], "model_adamw_seconds": model["adamw"],
        "model_ratio": model["logra"] / model["adamw"],
    }  # fmt: skip
