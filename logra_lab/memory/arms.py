"""Live models and optimizers for a described run: what the ledger's trial sets in motion.

Random weights of the right shape occupy what trained ones do. Left out: the quality of anything learnt here.
Needs the extra `race` for LoRA, GaLore and APOLLO; a missing package is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .presets import ModelShape
from .settings import Settings

PACKAGES = {"lora": "peft", "galore": "galore_torch", "apollo": "apollo_torch"}


def build_model(shape: ModelShape, settings: Settings, generator: torch.Generator | None = None) -> nn.Module:
    """A causal LM of `shape` with random weights in the precision of `settings`, on the CPU.

    Raises ValueError for shapes that Llama and Qwen2 classes can't express (Gemma's extra norms).
    """
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    if shape.block_norms != 2 or shape.head_norms:
        raise ValueError(f"{shape.name} has {shape.block_norms} norms per block; trials build Llama and Qwen2 models only.")
    kind = Qwen2Config if shape.qkv_bias else LlamaConfig
    config = kind(
        vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied, bos_token_id=0, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    dtype = torch.float32 if settings.precision == "fp32" else torch.bfloat16
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    if settings.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def build_optimizer(model: nn.Module, settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The optimizer of `settings.method`, and the model as it trains (LoRA wraps it).

    Raises ModuleNotFoundError naming the extra, and ValueError for 8-bit Adam, which computes on GPUs only.
    """
    builders = {"adamw": _adamw, "logra": _logra, "lora": _lora, "galore": _projected, "apollo": _projected}
    if settings.method not in builders:
        raise ValueError("8-bit Adam keeps its states on a GPU; the planner counts it, a trial can't run it here.")
    return builders[settings.method](model, settings)


def _package(method: str) -> ModuleType:
    try:
        return import_module(PACKAGES[method])
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{PACKAGES[method]} is missing: pip install logra-lab[race].") from None


def _targets(model: nn.Module) -> list[nn.Parameter]:
    from logra_lab.method import DEFAULT_TARGETS

    return [m.weight for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in DEFAULT_TARGETS]


def _rest(model: nn.Module, targets: list[nn.Parameter], settings: Settings) -> list[nn.Parameter]:
    """The parameters outside the targets, frozen unless the rest is native."""
    chosen = {id(p) for p in targets}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    for parameter in rest:
        parameter.requires_grad_(settings.rest == "native")
    return rest if settings.rest == "native" else []


def _adamw(model: nn.Module, settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    targets = _targets(model)
    parameters = targets + _rest(model, targets, settings)
    if settings.precision == "master":
        return model, MasterAdamW(parameters)
    return model, torch.optim.AdamW(parameters, lr=1e-6)


def _logra(model: nn.Module, settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    from logra_lab.method import LoGRA, TrustRegion

    rest = _rest(model, _targets(model), settings)
    native = torch.optim.AdamW(rest, lr=1e-6) if rest else None
    region = TrustRegion() if settings.probe_tokens else None
    optimizer = LoGRA(
        model, rank=settings.rank, precision=settings.precision, halves=settings.halves, shared=settings.shared,
        native=native, trust_region=region,
    )  # fmt: skip
    return model, optimizer


def _lora(model: nn.Module, settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    from logra_lab.method import DEFAULT_TARGETS

    peft = _package("lora")
    config = peft.LoraConfig(r=settings.rank, target_modules=list(DEFAULT_TARGETS), lora_alpha=settings.rank)
    wrapped = peft.get_peft_model(model, config)
    trained = [p for name, p in wrapped.named_parameters() if "lora_" in name]
    if settings.rest == "native":
        frozen = {id(p) for p in _base_targets(wrapped)}
        trained = [p.requires_grad_() for p in wrapped.parameters() if id(p) not in frozen]
    return wrapped, torch.optim.AdamW(trained, lr=1e-6)


def _base_targets(model: nn.Module) -> Iterator[nn.Parameter]:
    yield from (m.weight for name, m in model.named_modules() if name.endswith("base_layer"))


def _projected(model: nn.Module, settings: Settings) -> tuple[nn.Module, torch.optim.Optimizer]:
    """GaLore or APOLLO on the targets, plain Adam of the same class on the rest."""
    targets = _targets(model)
    rest = _rest(model, targets, settings)
    module = _package(settings.method)
    low_rank = {"params": targets, "rank": settings.rank, "update_proj_gap": 200, "scale": 0.25, "proj_type": "std"}
    groups = [low_rank | ({"proj": "random", "scale_type": "channel"} if settings.method == "apollo" else {})]
    groups += [{"params": rest}] if rest else []
    kind = module.GaLoreAdamW if settings.method == "galore" else module.APOLLOAdamW
    return model, kind(groups, lr=1e-6, no_deprecation_warning=True)


class MasterAdamW(torch.optim.Optimizer):
    """AdamW on fp32 copies of low-precision weights: the usual mixed-precision recipe, one parameter at a time.

    The gradient is widened per parameter, so that no second full set of gradients exists.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: float = 1e-6) -> None:
        super().__init__(parameters, {"lr": lr})
        self.masters = [p.detach().float().requires_grad_() for p in parameters]
        self.inner = torch.optim.AdamW(self.masters, lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> None:
        """Copy each gradient to its master, step the masters one by one, round them back."""
        parameters = self.param_groups[0]["params"]
        for parameter, master in zip(parameters, self.masters, strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
            self.inner.step()  # only this master has a gradient now
            master.grad = None
            parameter.copy_(master)


def token_loss(body: nn.Module, head: nn.Module, ids: Tensor, mask: Tensor | None, chunk: int | None) -> Tensor:
    """Mean negative log-prob of each next token, with the head on `chunk` positions at a time (None: on all).

    Each chunk is checkpointed: its logits are made again in backward, so [T, V] never exists.
    """
    hidden = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state[:, :-1]  # [B, C-1, D]
    hidden, labels = hidden.reshape(-1, hidden.shape[-1]), ids[:, 1:].reshape(-1)  # [T, D], [T]

    def negative_log_prob(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(head(x).float(), y, reduction="sum")

    if chunk is None:
        return negative_log_prob(hidden, labels) / len(labels)
    pieces = zip(hidden.split(chunk), labels.split(chunk), strict=True)
    return sum(checkpoint(negative_log_prob, x, y, use_reentrant=False) for x, y in pieces) / len(labels)
