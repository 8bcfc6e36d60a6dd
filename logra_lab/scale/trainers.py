"""LoGRA inside Hugging Face's `Trainer` and TRL's `GRPOTrainer`: rule "lr", in their own loop.

    optimizer = logra_for(model, args, rank=64, trust_region=TrustRegion(budget=2e-4))
    trainer = GRPOTrainer(model=model, args=args, optimizers=(optimizer, None), …)

Learning rate, decay and clipping come from `args`; the scheduler acts on the optimizer as on any other. These trainers
call a bare `step()`, so the probe of the KL brake is made from the inputs of the last training forward; a hook catches
them.

Left out: rule "paper", which needs the step's token count and mismatch that these trainers don't hand over (the loop of
`train.py` does), and their own FSDP and DeepSpeed: `refuse` says by name what doesn't work and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from logra_lab.method import DEFAULT_TARGETS, LoGRA
from logra_lab.rl.policy import switch_dropout_off
from logra_lab.rl.probe import LMProbe
from logra_lab.scale.distributed import AllReduce
from logra_lab.scale.loading import check_targets


class Refused(ValueError):
    """A trainer's setting that sketches can't live with; the message names it, the reason and the remedy."""


def logra_for(
    model: nn.Module, args: Any, *, probe_sequences: int = 2, probe_tokens: int = 2048, **options: Any
) -> LoGRA:
    """An optimizer for `optimizers=(optimizer, None)`, with what `args` says of learning rate, decay and clipping.

    Args:
        model: the trainer's model, not wrapped yet.
        args: `TrainingArguments`, `GRPOConfig` or the like.
        probe_sequences, probe_tokens: of the last batch, for the trust region if there is one.
        options: LoGRA's own (rank, targets, precision, trust_region, …).

    Raises:
        Refused: naming the setting.
    """
    refuse(model, args)
    switch_dropout_off(model)
    settings: dict[str, Any] = {
        "rule": "lr", "lr": args.learning_rate, "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm or None,
        "targets": check_targets(model, options.get("targets", DEFAULT_TARGETS)),
        "precision": "fp32" if next(model.parameters()).dtype == torch.float32 else "split",
    }  # fmt: skip
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        settings["reduce"] = AllReduce("mean")  # their loss is a mean over each rank's own tokens
    if options.get("trust_region") is not None and "probe_source" not in options:
        temperature = float(getattr(args, "temperature", None) or 1.0)
        settings["probe_source"] = LastInputs(model, probe_sequences, probe_tokens, temperature)
    return LoGRA(model, **settings | options)


class LastInputs:
    """Catches the inputs of each training forward, and makes a probe of the last ones when the optimizer asks.

    A token counts as sampled where `labels` isn't −100; without labels, if it is among the last `logits_to_keep` − 1
    (that is how GRPO asks for its completions); else everywhere after the first. `close()` removes the hook.
    """

    def __init__(
        self, model: nn.Module, sequences: int = 2, tokens: int = 2048, temperature: float = 1.0
    ) -> None:
        self.sequences, self.tokens, self.temperature = sequences, tokens, temperature
        self._inputs: dict[str, Any] | None = None
        self._handle = model.register_forward_pre_hook(self._catch, with_kwargs=True)

    def __call__(self) -> LMProbe:
        """The probe. RuntimeError before the first training forward."""
        if self._inputs is None:
            raise RuntimeError(
                "no training forward was seen yet: make the optimizer for the model that the trainer runs"
            )
        ids, attended = self._inputs["input_ids"], self._inputs["attention_mask"]
        generated = _generated(ids, attended.bool(), self._inputs["labels"], self._inputs["keep"])
        return LMProbe(ids, attended, generated, self.temperature, max_tokens=self.tokens)

    def close(self) -> None:
        """Remove the hook."""
        self._handle.remove()

    def _catch(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return  # generation, evaluation, and the probe itself
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            return
        rows = slice(0, self.sequences)
        mask, labels = kwargs.get("attention_mask"), kwargs.get("labels")
        self._inputs = {
            "input_ids": ids[rows].detach(),
            "attention_mask": torch.ones_like(ids[rows]) if mask is None else mask[rows].detach(),
            "labels": None if labels is None else labels[rows].detach(),
            "keep": kwargs.get("logits_to_keep"),
        }


def _generated(ids: Tensor, attended: Tensor, labels: Tensor | None, keep: Any) -> Tensor:
    if labels is not None:
        sampled = labels != -100
    elif isinstance(keep, int) and keep > 1:
        sampled = torch.arange(ids.shape[1], device=ids.device) >= ids.shape[1] - (keep - 1)
    else:
        sampled = torch.ones_like(attended)
    before = nn.functional.pad(attended, (1, 0))[:, :-1]
    return sampled & attended & before


def refuse(model: nn.Module, args: Any) -> None:
    """Refused for the first setting of `args`, or trait of `model`, that LoGRA can't work with."""
    for applies, message in _REASONS:
        if applies(model, args):
            raise Refused(message)


def reasons() -> tuple[str, ...]:
    """What is refused, and why, in words."""
    return tuple(message for _, message in _REASONS)


def _set(name: str) -> Callable[[nn.Module, Any], bool]:
    return lambda model, args: bool(getattr(args, name, None))


def _quantised(model: nn.Module, args: Any) -> bool:
    return bool(getattr(model, "is_quantized", False) or getattr(model, "quantization_method", None))


def _adapted(model: nn.Module, args: Any) -> bool:
    return hasattr(model, "peft_config") or any(hasattr(module, "base_layer") for module in model.modules())


def _offloaded(model: nn.Module, args: Any) -> bool:
    places = set((getattr(model, "hf_device_map", None) or {}).values())
    offload = getattr(args, "fsdp", None) and "offload" in str(args.fsdp)
    return bool(places & {"cpu", "disk"} or offload)


_REASONS: tuple[tuple[Callable[[nn.Module, Any], bool], str], ...] = (
    (
        _set("deepspeed"),
        "args.deepspeed: DeepSpeed ZeRO owns the gradients and the optimizer, and sketches leave it none to share out; "
        "train without it: LoGRA keeps no dense gradient and no Adam state that ZeRO could save",
    ),
    (
        _offloaded,
        "CPU offload (args.fsdp or the model's device map): weights that come and go would miss the merge; "
        "keep them on the card, and the lower halves on the host with precision='split', halves='host'",
    ),
    (
        _set("fsdp"),
        "args.fsdp: this trainer's FSDP wraps the model after the optimizer is made; use logra-train --sharding fsdp, "
        "or fully_shard the model first and pass rows=ShardedRows(), reduce=AllReduce('mean')",
    ),
    (
        _quantised,
        "quantised weights (bitsandbytes, GPTQ, AWQ, torchao, …): a step of 1e-6 can't be merged into 8 or 4 bits; "
        "load the model in bf16 and use precision='split'",
    ),
    (
        _adapted,
        "a peft adapter on the model: its layers hide the weights that LoGRA trains; merge_and_unload() it first",
    ),
    (
        _set("fp16"),
        "args.fp16: it scales the loss, and the scale would stay in the sketches; set bf16=True, or neither",
    ),
    (
        _set("torch_compile"),
        "args.torch_compile: the trainer compiles without the hooks that fill the sketches; leave it off",
    ),
    (
        lambda model, args: (getattr(args, "n_gpu", 1) or 1) > 1,
        "args.n_gpu: several GPUs in one process are nn.DataParallel, whose copies of the model fill no sketch; start "
        "with torchrun, or show one GPU only (CUDA_VISIBLE_DEVICES=0)",
    ),
    (
        lambda model, args: getattr(args, "auto_find_batch_size", False),
        "args.auto_find_batch_size: after an out-of-memory it runs a batch whose sketches are filled; fix the size",
    ),
)
