"""What a training step takes on this device: peak memory and seconds, for random models of real shapes.

The weights are random, so nothing is learned; time and memory don't depend on that. A step is one micro-batch forward
and backward (checkpointed, head in chunks), propose, judge by a probe and commit, or the dense arm's step.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import torch

from logra_lab.memory import Settings, plan, shape_of
from logra_lab.memory.arms import build_model, build_optimizer
from logra_lab.memory.presets import ModelShape
from logra_lab.method import LoGRA
from logra_lab.rl.generation import Sampling, sample_tokens
from logra_lab.rl.policy import LMProbe, token_scores
from tests.gpu.context import Context, Skip

TINY = ModelShape("tiny", 2, 48, 80, 4, 2, 12, 300, tied=False)


def small(context: Context) -> dict[str, Any]:
    """A 1.5B-shaped model with LoGRA (split) and with dense AdamW (fp32 masters)."""
    shape = TINY if context.tiny else shape_of("Qwen2.5-Math-1.5B")
    return {"logra": arm(context, shape, "logra"), "adamw": arm(context, shape, "adamw")}


def middle(context: Context) -> dict[str, Any]:
    """A 7B-shaped model with LoGRA, LoRA and, where it fits, dense AdamW."""
    shape = TINY if context.tiny else shape_of("Qwen2.5-Math-7B")
    return {name: arm(context, shape, name) for name in ("logra", "lora", "adamw")}


def large(context: Context) -> dict[str, Any]:
    """A 27B-shaped model with LoGRA, lower halves on the host, generation included; hours per 100 updates."""
    shape = TINY
    if not context.tiny:  # Gemma's sizes in Llama's block: two norms, no head norms, no window
        full = shape_of("Gemma-3-27B") if _known("Gemma-3-27B") else shape_of(_largest())
        shape = dataclasses.replace(
            full, block_norms=2, head_norms=False, window=None, full_every=1, tied=False
        )
    result = arm(context, shape, "logra", halves="host", generate=True)
    if "seconds" in result:
        update = (
            result["seconds"] * 16 + result["generation_seconds"]
        )  # 16 micro-batches, one round of answers
        result["hours_per_100_updates"] = round(100 * update / 3600, 3)
    return result


def arm(
    context: Context, shape: ModelShape, method: str, *, halves: str = "device", generate: bool = False
) -> dict[str, Any]:
    """Peak GiB and seconds of one step, or why it was skipped."""
    batch, length = (2, 16) if context.tiny else (1, 1024)
    settings = Settings(
        method, rank=8 if context.tiny else 64, batch=batch, context=length, checkpointing=True
    )
    if method == "logra":
        settings = settings.but(halves=halves)
    planned = plan(shape, settings)
    needed = planned.peak.total / 2**30
    if needed > context.free_gib():
        return {
            "skipped": f"the plan needs {needed:.1f} GiB, {context.free_gib():.1f} are free",
            "planned_gib": round(needed, 2),
        }
    try:
        context.need(5 if context.tiny else 25, f"{method} on {shape.name}")
        return {"planned_gib": round(needed, 2), **_measure(context, shape, settings, generate)}
    except Skip as reason:
        return {"skipped": str(reason)}
    except torch.cuda.OutOfMemoryError as error:
        return {"skipped": f"out of memory: {str(error).splitlines()[0]}", "planned_gib": round(needed, 2)}
    finally:
        context.reset_peak()


def _measure(context: Context, shape: ModelShape, settings: Settings, generate: bool) -> dict[str, Any]:
    with context.device:
        model = build_model(shape, settings)
    optimizer = build_optimizer(model, settings)
    ids = torch.randint(0, shape.vocab, (settings.batch, settings.context), device=context.device)
    step = _stepper(model, optimizer, ids)
    step()  # allocates states, compiles kernels
    context.wait()
    seconds = context.seconds(step, repeats=2)
    result = {"peak_gib": context.peak_gib(), "seconds": seconds, "tokens_per_s": ids.numel() / seconds}
    return result | (_generation(context, model, shape) if generate else {})


def _stepper(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor
) -> Callable[[], None]:
    mask = torch.ones_like(ids, dtype=torch.bool)
    generated = mask.clone()
    generated[:, : ids.shape[1] // 2] = False
    signs = torch.randint(0, 2, (int(generated.sum()),), device=ids.device) * 2.0 - 1.0

    def step() -> None:
        model.train()
        scores = token_scores(model, ids, mask, generated, chunk=256)
        (-(signs * scores.log_probs).mean()).backward()
        if isinstance(optimizer, LoGRA) and optimizer.trust_region is not None:
            optimizer.step(
                probe=LMProbe(ids[:1, :256], mask[:1, :256], _last_half(mask[:1, :256])), tokens=len(signs)
            )
        else:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _last_half(mask: torch.Tensor) -> torch.Tensor:
    half = mask.clone()
    half[:, : mask.shape[1] // 2] = False
    return half


def _generation(context: Context, model: torch.nn.Module, shape: ModelShape) -> dict[str, Any]:
    rows, new = (4, 4) if context.tiny else (16, 64)
    prompts = torch.randint(1, shape.vocab, (rows, 32), device=context.device)
    generator = torch.Generator(device=context.device).manual_seed(0)
    model.eval()
    context.wait()
    start = time.perf_counter()
    with torch.no_grad():
        sample_tokens(
            model,
            prompts,
            torch.ones_like(prompts, dtype=torch.bool),
            Sampling(max_new_tokens=new),
            (),
            0,
            generator,
        )
    context.wait()
    seconds = time.perf_counter() - start
    return {"generation_seconds": seconds, "generated_tokens_per_s": rows * new / seconds}


def _known(name: str) -> bool:
    try:
        shape_of(name)
    except (ValueError, KeyError):
        return False
    return True


def _largest() -> str:
    from logra_lab.memory import MODELS

    shapes = MODELS.values() if isinstance(MODELS, dict) else MODELS
    return max(shapes, key=lambda shape: shape.parameters).name
