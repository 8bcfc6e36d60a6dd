"""The planner against the figures that were published (method.md §7), and what can be said of the difference.

The published averages don't come with their settings. `ASSUMED` is our guess at them, the same for every row: four
training GPUs (the paper gave four of a node's eight to training), FSDP, fp32 weights computed with in bf16, gradient
checkpointing, two sequences of 2,048 tokens at a time, rank 256, a probe of 4,096 tokens. No number was tuned to a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from .planner import Plan, plan
from .presets import card_of
from .settings import NAMES, Settings
from .units import gib, size, table

ASSUMED = Settings(
    precision="fp32", dtype="bf16", batch=2, context=2048, checkpointing=True, gpus=4, sharding="fsdp", rank=256,
    probe_tokens=4096,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One published figure: GiB per training GPU, or None for "out of memory"."""

    source: str
    model: str
    method: str
    gib: float | None


FIGURES = (
    Figure("paper", "Qwen2.5-Math-1.5B", "adamw", 9.18),
    Figure("paper", "Qwen2.5-Math-1.5B", "logra", 7.18),
    Figure("paper", "Qwen2.5-Math-7B", "adamw", 31.82),
    Figure("paper", "Qwen2.5-Math-7B", "logra", 17.29),
    Figure("paper, model not named", "Gemma-3-27B", "adamw", None),
    Figure("paper, model not named", "Gemma-3-27B", "logra", 51.54),
    Figure("later port, GSM8K", "Qwen2.5-Math-7B", "adamw", 36.13),
    Figure("later port, GSM8K", "Qwen2.5-Math-7B", "logra", 19.36),
)

NOTES = (
    "The published figures are averages per training GPU over a run; the planner predicts a peak. Neither the paper "
    "nor the port says how many sequences a micro-batch held, how long answers were, whether activations were "
    "checkpointed, what the allocator had reserved, or which phases were averaged. So a difference of some GiB means "
    "nothing by itself, and an agreement proves little.",
    "What the rows do bear out is the part that settings hardly touch: dense AdamW keeps 16 bytes a parameter over "
    "the GPUs it is sharded on, LoGRA keeps 4 and its sketches, which are whole on every GPU. The gap between a "
    "model's two rows is the better test, since what is unknown is in both.",
    'The 27B model is not named; ours is one of that size (presets.py). "Out of memory" is judged on 80 GB cards.',
)


def prediction(figure: Figure, settings: Settings = ASSUMED) -> Plan:
    """The plan that stands beside a published figure."""
    probe = settings.probe_tokens if figure.method == "logra" else 0
    same = {
        "precision": settings.precision,
        "probe_tokens": probe,
    }  # another method would choose its own precision
    return plan(figure.model, settings.but(method=figure.method, **same))


def published_rows(settings: Settings = ASSUMED) -> list[tuple[Figure, Plan, float | None]]:
    """Each figure, its plan, and predicted less published in GiB (None where it ran out of memory)."""
    plans = [prediction(figure, settings) for figure in FIGURES]
    return [
        (figure, made, None if figure.gib is None else gib(made.peak.total) - figure.gib)
        for figure, made in zip(FIGURES, plans, strict=True)
    ]


def published_table(settings: Settings = ASSUMED) -> str:
    """Predicted, published and the difference as text, GiB per training GPU."""
    rows = []
    for figure, made, difference in published_rows(settings):
        predicted = gib(made.peak.total)
        outcome = "fits 80 GB" if made.fits("80 GB") else "out of memory on 80 GB"
        rows.append([
            f"{figure.model}, {NAMES[figure.method]} ({figure.source})", f"{predicted:.2f}",
            "out of memory" if figure.gib is None else f"{figure.gib:.2f}",
            outcome if difference is None else f"{difference:+.2f}", made.peak_phase,
        ])  # fmt: skip
    return table(["GiB per training GPU", "predicted", "published", "difference", "peak in"], rows)


def layouts_27b(total: int = 8, card: str = "80 GB", **settings: object) -> str:
    """What 27B takes on each split of one node between training and rollouts: dense AdamW beside LoGRA, as text."""
    rows = []
    for training in (1, 2, 4, 6, 8):
        cells = [f"{training} training + {total - training} rollout"]
        for method in ("adamw", "logra"):
            s = ASSUMED.but(**settings) if settings else ASSUMED
            sharding = "fsdp" if training > 1 else "replicated"
            sharded = s.but(gpus=training, sharding=sharding, method=method, precision=s.precision)
            made = plan("27B", sharded)
            margin = made.margin(card_of(card))
            verdict = f"fits, {size(margin)} free" if margin >= 0 else f"short by {size(-margin)}"
            cells += [f"{gib(made.peak.total):.1f}", verdict]
        rows.append(cells)
    return table([f"GPUs of {card}", "dense AdamW, GiB", "", "LoGRA, GiB", ""], rows)
