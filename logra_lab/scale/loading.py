"""From a name to a policy that LoGRA can train, or a message that says what is missing and what to do.

    choice = choose_device(config.device, config.dtype)
    loaded = load(config, choice)                 # looks at config, tokenizer and memory before any weight is read
    loaded.policy, loaded.config, loaded.plan, loaded.notes

Weights are kept in bf16 for "split", "stochastic" and "nearest"; "fp32" keeps fp32 and computes in the dtype chosen by
autocast. Left out: quantised checkpoints, remote code, and loading straight into shards: under FSDP each process reads
the whole model into host memory first, once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoTokenizer

from logra_lab.data_files import located
from logra_lab.memory import Card, Plan, card_here, shape_of, size
from logra_lab.method import DEFAULT_TARGETS
from logra_lab.method.targets import canonical_name, linear_names
from logra_lab.rl.policy import Policy, load_policy
from logra_lab.scale.device import DeviceChoice
from logra_lab.scale.fitting import TooLarge, fitted, room
from logra_lab.scale.presets import ScaleConfig

CPU_PARAMETERS = 10**9  # above, a CPU is used only where it was asked for
OTHER_TOWERS = ("vision", "visual", "audio", "image", "multi_modal")
ELSEWHERE = {  # linear layers of families whose names are not Llama's
    "query_key_value": ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"),
    "qkv_proj": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "fc1": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
}


class CannotLoad(RuntimeError):
    """A model or tokenizer can't be used; the message names what was found and the remedy."""


@dataclass(frozen=True)
class Loaded:
    """A policy ready for training; `plan` is None without a card, or for a shape that the planner doesn't know."""

    policy: Policy
    config: ScaleConfig
    choice: DeviceChoice
    plan: Plan | None = None
    notes: tuple[str, ...] = field(default=())


def load(
    config: ScaleConfig, choice: DeviceChoice, *, card: Card | None = None, gpus: int = 1, force: bool = False
) -> Loaded:
    """Load the model of `config` for training on `choice`.

    Args:
        card: to fit the run on; the CUDA card of this machine if None.
        gpus: processes that share the work.
        force: go on although the planner says that it won't fit.

    Raises:
        CannotLoad: for a hub out of reach, a folder without a model or tokenizer, a missing chat template, quantised
            weights, no target names, a large model without a GPU. TooLarge: if the card is too small.
    """
    name = config.run.model
    found = read_config(name)
    if config.device == "auto" and choice.device.type == "cpu":
        check_host(found, name)
    check_chat(read_tokenizer(name), config.chat, name)
    precision = config.options.get("precision") or choice.precision
    precision = precision if config.run.arm.name == "logra" else "fp32"  # dense arms keep what they step on
    check_precision(precision, choice)
    options = {"precision": precision} | (
        {"halves": config.options["halves"]} if "halves" in config.options else {}
    )
    config, made, notes = _fit(config.but(**options), found, choice, card, gpus, force)
    policy = _read_weights(name, config, choice, precision, gpus)
    targets = check_targets(policy.model, config.options.get("targets", DEFAULT_TARGETS))
    if targets != DEFAULT_TARGETS:
        config = config.but(targets=targets)
    return Loaded(policy, config, choice, made, (choice.because, *notes))


def read_config(path: str) -> Any:
    """The model's configuration; CannotLoad if there is none, or if its weights are quantised."""
    try:
        config = AutoConfig.from_pretrained(located(path).as_posix(), trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CannotLoad(why(path, error, "config.json")) from error
    if getattr(config, "quantization_config", None) is not None:
        raise CannotLoad(
            f"{path!r} has quantised weights, which can't be trained here; load the unquantised model"
        )
    return config


def read_tokenizer(path: str) -> Any:
    """The model's tokenizer; CannotLoad with the remedy if there is none."""
    try:
        return AutoTokenizer.from_pretrained(located(path).as_posix(), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CannotLoad(
            f"{path!r} has no tokenizer that can be read: {_first_line(error)}. "
            "Save the one it was trained with beside it: AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        ) from error


def check_chat(tokenizer: Any, chat: bool | None, path: str) -> None:
    """CannotLoad if the chat template that is asked for isn't there."""
    if chat and not getattr(tokenizer, "chat_template", None):
        raise CannotLoad(
            f"{path!r} has no chat template, but chat=True asks for it; use chat=False (a base model completes the "
            "prompt as it stands), or set tokenizer.chat_template and save the tokenizer beside the model"
        )


def check_host(found: Any, path: str) -> None:
    """CannotLoad for a model that nobody trains on a CPU by choice: no GPU was found, and no device asked for."""
    try:
        parameters = shape_of(found).parameters
    except ValueError:  # the planner doesn't know the shape; then nobody can say
        return
    if parameters > CPU_PARAMETERS:
        raise CannotLoad(
            f"no GPU was found, and {path!r} has {parameters / 1e9:.1f} billion parameters "
            f"({size(4 * parameters)} of weights in fp32), too many for a CPU; check nvidia-smi and "
            "torch.cuda.is_available(), take the preset 'tiny', or insist with device='cpu'"
        )


def check_precision(precision: str, choice: DeviceChoice) -> None:
    """ValueError for bf16 weights under fp32 compute."""
    if precision != "fp32" and choice.dtype != torch.bfloat16:
        raise ValueError(
            f"precision={precision!r} keeps bf16 weights, but {choice.device} computes in fp32; "
            "use precision='fp32', or dtype='bf16' where the device has it"
        )


def check_targets(model: nn.Module, targets: Sequence[str]) -> tuple[str, ...]:
    """The names to sketch; whole names of the text part where a model has other towers with the same layers.

    Raises:
        CannotLoad: if no linear layer is called so, with what there is and what to pass as `targets=`.
    """
    modules = [(canonical_name(name), module) for name, module in model.named_modules()]
    linear = [name for name, module in modules if isinstance(module, nn.Linear)]
    matched = [name for name in linear if name in targets or name.rsplit(".", 1)[-1] in targets]
    if not matched:
        there = linear_names(model)
        known = (names for key, names in ELSEWHERE.items() if key in there)
        proposed = next(known, tuple(name for name in there if name not in ("lm_head", "embed_out", "score")))
        remedy = (
            f"pass targets={proposed!r}"
            if proposed
            else "it has none that could be sketched; choose another model"
        )
        raise CannotLoad(
            f"{type(model).__name__} has no linear layer called {', '.join(targets)}. "
            f"Its linear layers are {', '.join(there) or 'none'}: {remedy}"
        )
    text = tuple(name for name in matched if not any(part in name for part in OTHER_TOWERS))
    return tuple(targets) if len(text) == len(matched) else text


def why(path: str, error: BaseException, needed: str) -> str:
    """What went wrong when reading `path`, and the remedy."""
    if located(path).is_dir():
        problem = f"the folder {path!r} holds no model that can be read ({needed}): {_first_line(error)}"
        return f"{problem}. Save one with save_pretrained"
    text = str(error)
    if any(
        word in text
        for word in ("not a valid model identifier", "gated", "401", "403", "Repository Not Found")
    ):
        return (
            f"{path!r} is no folder here and no model that the hub would give us: {_first_line(error)}. "
            "Check the name; for a gated model accept its terms and run: hf auth login"
        )
    return (
        f"{path!r} is no folder here, and the hub can't be reached ({type(error).__name__}). "
        "Go online, or copy the model's folder to this machine and pass its path; nothing was changed"
    )


def _fit(config, found, choice: DeviceChoice, card: Card | None, gpus: int, force: bool):
    """The configuration lowered to the card, the plan, and what to tell."""
    card = card or (card_here(choice.device.index or 0) if choice.device.type == "cuda" else None)
    if card is None:
        return config, None, ("No CUDA card here, so nothing was planned for one.",)
    try:
        shape = shape_of(found)
    except ValueError as error:
        return config, None, (f"The planner can't say whether it fits: {error}",)
    if force:
        return config, None, ("force=True: the planner was not asked.",)
    lowered, made = fitted(config, shape, card, choice.name, gpus)
    return lowered, made, (room(made, card),)


def _read_weights(path: str, config: ScaleConfig, choice: DeviceChoice, precision: str, gpus: int) -> Policy:
    sharded = config.sharding == "fsdp" and gpus > 1
    try:
        policy = load_policy(
            located(path).as_posix(), dtype=torch.float32 if precision == "fp32" else torch.bfloat16,
            device="cpu" if sharded else choice.device, chat=config.chat, prefill=config.prefill,
            attention=config.attention,
        )  # fmt: skip
    except ImportError as error:
        raise CannotLoad(
            f"attention={config.attention!r} needs a package that is missing: {_first_line(error)}. "
            "Use attention='sdpa'"
        ) from error
    except torch.OutOfMemoryError as error:
        raise TooLarge(
            f"the weights of {path!r} alone don't fit on {choice.device}: {_first_line(error)}. Take a smaller model, "
            "end other processes on the card (nvidia-smi), or shard over more GPUs with sharding='fsdp'"
        ) from error
    except (OSError, SafetensorError) as error:
        raise CannotLoad(why(path, error, "model.safetensors")) from error
    if config.checkpointing:
        enable = (
            getattr(policy.model, "activation_checkpointing_enable", None)
            or policy.model.gradient_checkpointing_enable
        )
        enable({"use_reentrant": False})
        policy.model.train()  # transformers checkpoints in training mode only; dropout is off for good
    return policy


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
