"""What lesson 10 shows: what fits which card, dense AdamW beside LoGRA, 27B on one card, and how fast it ought to be.

Pure functions of plans; `lesson10_live.py` draws a run as it goes, `lesson10_trainers.py` has other people's trainers.
Recorded runs are read from data/runs where somebody has made some.
"""

from __future__ import annotations

import gc
import json
import tempfile
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from logra_lab.data_files import located
from logra_lab.lab.plots import Picture, new_figure
from logra_lab.memory import CARDS, Settings, card_of, gib, measure, plan, shape_of
from logra_lab.memory.presets import ModelShape
from logra_lab.memory.report import comparison_table, draw_stacks
from logra_lab.scale.fitting import TooLarge, dense_verdict, fitted
from logra_lab.scale.presets import ScaleConfig, preset
from logra_lab.scale.rates import ASSUMED, derive

RUNS = located("data/runs")
MODELS = ("1.5B", "7B", "27B")
# The twin of a large model for the ledger: the same kind of block, small enough for a CPU.
LEDGER_TWIN = ModelShape(
    "twin", layers=4, width=256, ffn=1024, heads=8, kv_heads=4, head_dim=32, vocab=4096, tied=True
)


def run_folder(config: ScaleConfig) -> Path:
    """Where checkpoints go: a fresh temporary folder for the twin, runs/NAME beside the notebooks for a real run."""
    if config.name == "tiny":
        return Path(tempfile.mkdtemp()) / "run"
    return Path("runs") / config.name.replace("/", "_")


def fit_rows() -> list[dict[str, Any]]:
    """Each model on each card: LoGRA's first configuration that fits, and dense AdamW with the same settings."""
    rows = []
    for model in MODELS:
        shape = shape_of(model)
        for card in CARDS.values():
            try:
                config, made = fitted(preset(model), shape, card)
            except TooLarge:
                rows.append({"model": model, "card": card, "plan": None, "config": None, "dense": False})
                continue
            dense, _ = dense_verdict(config, shape, card)
            rows.append({"model": model, "card": card, "plan": made, "config": config, "dense": dense})
    return rows


def fit_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as text: what fits, and with which settings."""
    lines = [f"{'model':<6}{'card':<8}{'LoGRA, GiB':>11}  {'settings that the planner chose':<72}dense AdamW"]
    for row in rows:
        if row["plan"] is None:
            lines.append(f"{row['model']:<6}{row['card'].name:<8}{'':>11}  {'does not fit':<72}does not fit")
            continue
        dense = "fits too" if row["dense"] else "does not fit"
        chosen = f"{settings_words(row['config'])}"
        lines.append(
            f"{row['model']:<6}{row['card'].name:<8}{gib(row['plan'].peak.total):>11.1f}  {chosen:<72}{dense}"
        )
    return "\n".join(lines)


def settings_words(config: ScaleConfig) -> str:
    """A fitted configuration in a few words."""
    words = [
        f"micro-batch {config.run.micro_batch}",
        f"{config.rollouts or config.run.prompts} answers at once",
    ]
    words += ["checkpointing"] if config.checkpointing else []
    words += ["halves on the host"] if config.options.get("halves") == "host" else []
    return ", ".join(words)


def plan_picture(model: str, card: str, rank: int = 64) -> Picture:
    """Dense AdamW beside LoGRA as stacked bars against one card; LoGRA with what the planner chose for it."""
    shape, chosen = shape_of(model), card_of(card)
    try:
        config, made = fitted(preset(model, rank=rank), shape, chosen)
        verdict = f"LoGRA fits with {gib(made.margin(chosen)):.1f} GiB to spare ({settings_words(config)})"
    except TooLarge:
        config = preset(model, rank=rank, checkpointing=True, micro_batch=1, rollouts=4).but(halves="host")
        made = plan(shape, config.memory("bf16"))
        verdict = f"LoGRA is {gib(-made.margin(chosen)):.1f} GiB too large even at its most frugal"
    dense = plan(shape, config.memory("bf16", method="adamw"))
    figure, axes = new_figure(8.0, 2.9)
    draw_stacks(axes, {"dense AdamW": dense.peak, f"LoGRA, r = {rank}": made.peak}, [chosen])
    figure.legend(loc="outside lower center", ncols=5, fontsize=9)
    words = "fits too" if dense.fits(chosen) else f"is {gib(-dense.margin(chosen)):.1f} GiB too large"
    caption = f"{shape.name} on one {card} card, rank {rank}: {verdict}; dense AdamW {words}."
    return Picture(figure, f"Stacked bars of memory by class for dense AdamW and LoGRA. {caption}", caption)


def dense_steps(make: Callable[[], Any], steps: int = 2) -> str:
    """Try `steps` of a dense run, after freeing what is free; running out of memory is a result, not an error."""
    free_memory()
    try:
        trainer = make()
        for _ in range(steps):
            trainer.train_step()
    except (torch.OutOfMemoryError, MemoryError, TooLarge, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return f"dense AdamW: out of memory ({first[:160]})"
    return "dense AdamW holds " + held_words(trainer.arm.memory())


def held_words(memory: dict[str, int]) -> str:
    """Bytes by class in words."""
    return ", ".join(f"{name} {size / 2**20:.2f} MiB" for name, size in memory.items())


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError, TooLarge)):
        return True
    return "DefaultCPUAllocator" in str(error)  # torch has no class of its own for a full host


def wrapped(text: str, indent: str = "  ") -> str:
    """A paragraph in lines that fit a page, all but the first indented."""
    return textwrap.fill(text, 100, subsequent_indent=indent, break_on_hyphens=False)


def one_card_rows() -> list[str]:
    """27B on one 80 GB and one 141 GB card: the plan by class, the host's share, and the derived speed."""
    shape, lines = shape_of("27B"), []
    for name in ("80 GB", "141 GB"):
        card = card_of(name)
        config, made = fitted(preset("27B"), shape, card)
        rate = derive(shape, config, card)
        parts = ", ".join(f"{kind} {gib(size):.1f}" for kind, size in made.peak.largest())
        lines += [
            f"{name} ({settings_words(config)})",
            f"  predicted: peak {gib(made.peak.total):.1f} GiB in the {made.peak_phase} phase ({parts}), "
            f"{gib(made.margin(card)):.1f} to spare; {gib(made.host):.1f} GiB on the host",
            f"  derived:   {rate.tokens_per_second:.0f} tokens/s, {rate.hours_per_100:.1f} hours per 100 updates "
            f"(rollouts {rate.rollout:.0f} s, training {rate.training:.0f} s, probe {rate.probe:.1f} s, "
            f"commit {rate.commit:.1f} s)",
        ]
    lines = [wrapped(line, " " * 13) for line in lines]
    share = f"{ASSUMED.bandwidth_share:.0%} of the memory's bandwidth and {ASSUMED.flops_share:.0%} of the arithmetic"
    return [*lines, f"Derived with {share} on the data sheet, answers of {ASSUMED.answer_tokens} tokens."]


def ledger_twin() -> tuple[str, float]:
    """Predicted against measured memory of a real step with `split` weights, halves on the host; text, share off."""
    settings = Settings(
        method="logra", rank=16, dtype="bf16", precision="split", halves="host", batch=2, context=64,
        checkpointing=True, probe_tokens=64, device="cpu", rollout="transformers", rollouts=4,
    )  # fmt: skip
    measured = measure(LEDGER_TWIN, settings, child=False)
    made = plan(LEDGER_TWIN, settings)
    return comparison_table(made, measured), made.peak.total / measured.peak.peak.total - 1


def recorded() -> str:
    """What recorded full-scale runs and the GPU check say, each marked as measured, or that there are none."""
    lines = []
    for file in sorted(RUNS.glob("full-scale-*.json")):
        record = json.loads(file.read_text(encoding="utf-8"))
        lines.append(f"measured, {file.stem}: {record['summary']} ({record['device']}, {record['command']})")
    if not lines:
        lines.append("No run of this lesson has been recorded: not yet measured on a GPU.")
    check = RUNS / "gpu-check.json"
    found = json.loads(check.read_text(encoding="utf-8")) if check.exists() else {"machine": {}}
    if found["machine"].get("memory_gib") is None:
        return "\n".join([*lines, "Steps of random weights (tests/gpu/check.py): not yet measured on a GPU."])
    return "\n".join([*lines, *_checked(found)])


def _checked(found: dict[str, Any]) -> list[str]:
    """The steps of random weights that the GPU check timed."""
    lines = [f"measured with random weights on {found['machine']['device']} (tests/gpu/check.py):"]
    for name, section in found["sections"].items():
        arms = {"": section} if "peak_gib" in section else section
        for arm, values in arms.items():
            if not (name.startswith("step_") and isinstance(values, dict) and "peak_gib" in values):
                continue
            label, hours = f"{name} {arm}".strip(), values.get("hours_per_100_updates")
            lines.append(
                f"  {label}: peak {values['peak_gib']:.1f} GiB (planned {values['planned_gib']:.1f}), "
                f"{values['tokens_per_s']:.0f} tokens/s in training"
                + ("" if hours is None else f", {hours:.1f} hours per 100 updates")
            )
    return lines


def quiet() -> None:
    """No progress bars or advice from the libraries: they would end up in the saved notebook."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def free_memory() -> None:
    """Give back what no name holds any more, on the card too; set the names to None first."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
