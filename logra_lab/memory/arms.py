"""Live models and optimizers for a described run: what the ledger's trial sets in motion.

The optimizers are those of the kit's own race (`logra_lab.rl.baselines`): what is measured is what the lessons run.
Random weights of the right shape occupy what trained ones do. Left out: a native rest for LoRA, GaLore and APOLLO,
and 8-bit Adam, whose library computes on GPUs; the planner counts them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from .presets import ModelShape
from .settings import NAMES, Settings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def build_model(shape: ModelShape, settings: Settings) -> nn.Module:
    """A causal LM of `shape` with random weights in the precision of `settings`, on the CPU, in training mode.

    Raises ValueError for shapes that the Llama and Qwen2 classes can't express (Gemma's extra norms).
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if shape.block_norms != 2 or shape.head_norms:
        raise ValueError(
            f"{shape.name} has {shape.block_norms} norms per block; trials build Llama and Qwen2 models only."
        )
    config = AutoConfig.for_model(
        "qwen2" if shape.qkv_bias else "llama",
        vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if settings.checkpointing:
        _checkpoint(model)
    return model.train()


def _checkpoint(model: PreTrainedModel) -> None:
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def build_optimizer(model: nn.Module, s: Settings) -> torch.optim.Optimizer:
    """The optimizer of `s`, attached to `model` (LoRA's adapters are injected into it).

    Raises ValueError for what only the planner counts, ImportError naming the extra where a package is missing.
    """
    from logra_lab.method import DEFAULT_TARGETS
    from logra_lab.rl.baselines import make_arm
    from logra_lab.rl.config import ArmConfig

    if s.method == "adam8bit" or (s.method in ("lora", "galore", "apollo") and s.rest == "native"):
        raise ValueError(
            f"{NAMES[s.method]} with a {s.rest} rest is counted by the planner only; measure another arm."
        )
    if s.precision == "master":
        return MasterAdamW([p for p in model.parameters() if p.requires_grad])
    options: dict[str, object] = {}
    if s.method == "logra":
        options = {"precision": s.precision, "halves": s.halves, "shared": s.shared}
        if s.rest == "native":
            names = [n for n, _ in model.named_parameters() if n.split(".")[-2] not in DEFAULT_TARGETS]
            options["native"] = torch.optim.AdamW([model.get_parameter(name) for name in names], lr=1e-6)
    control = "trust_region" if s.method == "logra" and s.probe_tokens else "none"
    name = "adamw_targets" if s.method == "adamw" and s.rest == "frozen" else s.method
    arm = ArmConfig(name=name, lr=1e-6, rank=s.rank, control=control, options=tuple(options.items()))
    return make_arm(arm, model, seed=0, steps=10).optimizer


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on fp32 copies of low-precision weights: the usual mixed-precision recipe, one parameter at a time.

    The gradient is widened per parameter, so that no second full set of gradients exists.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float = 1e-6) -> None:
        super().__init__(parameters, {"lr": lr})
        self.masters = [p.detach().float().requires_grad_() for p in parameters]
        self.inner = torch.optim.AdamW(self.masters, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:  # type: ignore[override]  # torch's has an overload each
        """Copy each gradient to its master, step the masters one by one, round them back."""
        parameters = self.param_groups[0]["params"]
        for parameter, master in zip(parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            self.inner.step()  # only this master has a gradient now
            master.grad = None
            parameter.copy_(master)
