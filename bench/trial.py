"""A live model and optimizer for one setting, and one timed step of them.

All arms train the same weights (the targets; LoRA its factors), on the same tokens, through the same loss: a
policy gradient over log-probs with the head taken in chunks. Embeddings, norms and head are frozen.
Left out: sampling, which costs every arm the same.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn

from bench.settings import Setting
from logra_lab.memory.process import peak_bytes, reset_peak, resident_bytes
from logra_lab.method import LoGRA, TrustRegion
from logra_lab.rl.baselines import make_arm, target_weights
from logra_lab.rl.config import ArmConfig
from logra_lab.rl.logprobs import hidden_states, score_tokens
from logra_lab.rl.probe import LMProbe

CHUNK = 128  # positions whose logits exist at once
PACKAGES = {"lora": ("peft",), "galore": ("galore_torch",), "apollo": ("apollo_torch",)}


def build_model(setting: Setting) -> nn.Module:
    """The causal LM of a setting with random weights; the seed is always the same."""
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = setting.shape
    config = LlamaConfig(
        vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, tie_word_embeddings=True,
        max_position_embeddings=max(64, shape.length), bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    if setting.checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()


def build_optimizer(setting: Setting, model: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The optimizer of a setting, and the model as it trains (LoRA puts its factors into it).

    Raises ImportError naming the extra `race` where an arm's package is missing.
    """
    if setting.arm == "logra":
        return model, LoGRA(model, rank=setting.rank, trust_region=TrustRegion() if setting.probe else None)
    if setting.arm == "sgd":
        return model, torch.optim.SGD(target_weights(model), lr=1e-6)
    name = "adamw_targets" if setting.arm == "adamw" else setting.arm
    config = ArmConfig(name=name, lr=1e-6, rank=max(1, setting.rank), control="none")
    arm = make_arm(config, model, seed=0, steps=1)
    return arm.model, arm.optimizer


class Trial:
    """One arm, ready to step."""

    def __init__(self, setting: Setting) -> None:
        torch.set_num_threads(setting.threads)
        self.setting = setting
        for package in PACKAGES.get(setting.arm, ()):
            importlib.import_module(package)  # so that its code is in `base`
        model = build_model(setting)
        self.base = resident_bytes() or 0
        """Resident bytes before the first step, weights included, the optimizer not yet made."""
        self.model, self.optimizer = build_optimizer(setting, model)
        shape = setting.shape
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, shape.vocab, (shape.sequences, shape.length), generator=generator)
        self.advantages = torch.randn(shape.sequences, 1, generator=generator).expand(-1, shape.length - 1)
        self.probe = make_probe(self.ids[:1], shape.tokens // 16) if setting.probe else None

    @property
    def logra(self) -> LoGRA:
        """The optimizer, where it is LoGRA."""
        assert isinstance(self.optimizer, LoGRA), f"{self.setting.name} has another optimizer"
        return self.optimizer

    def loss(self, ids: Tensor, advantages: Tensor) -> Tensor:
        """One micro-batch's part of −mean advantage · log-prob over all tokens but each sequence's first."""
        hidden = hidden_states(self.model, ids)[:, :-1].flatten(0, 1)  # [T, D]
        log_probs = score_tokens(hidden, ids[:, 1:].flatten(), self.model, 1.0, CHUNK).log_probs  # [T]
        return -(advantages.flatten() * log_probs).sum() / self.advantages.numel()

    def step(self) -> dict[str, float]:
        """Seconds by section and in all, and the peak of resident bytes above `base`."""
        reset_peak()
        watch = Stopwatch()
        count = self.setting.micro_batches
        for ids, advantages in zip(self.ids.chunk(count), self.advantages.chunk(count), strict=True):
            loss = watch("forward", partial(self.loss, ids, advantages))
            watch("backward", loss.backward)
            del loss
        if isinstance(self.optimizer, LoGRA):
            self._three_phases(watch)
        else:
            with quick_subspace() if self.setting.arm == "galore" else nullcontext():
                watch("update", self.optimizer.step)
            watch("update", lambda: self.optimizer.zero_grad(set_to_none=True))
        peak = peak_bytes()
        return watch.seconds | {"seconds": sum(watch.seconds.values()), "peak": (peak or 0) - self.base}

    def _three_phases(self, watch: Stopwatch) -> None:
        tokens, optimizer, probe = self.advantages.numel(), self.logra, self.probe
        proposal = watch("propose", lambda: optimizer.propose(tokens))
        scale = 1.0
        if probe is not None:
            scale = watch("judge", lambda: optimizer.judge(proposal, probe)).scale
        watch("commit", lambda: optimizer.commit(proposal, scale))


@contextmanager
def quick_subspace() -> Iterator[None]:
    """GaLore's subspace at random instead of by SVD, which takes minutes here and comes once in many steps.

    A step between two SVDs costs the same; leaving the SVD out is in GaLore's favour.
    """

    def random_directions(matrix: Tensor, full_matrices: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        rows, columns = matrix.shape
        count = min(rows, columns, 256)
        left, right = (torch.linalg.qr(torch.randn(size, count)).Q for size in (rows, columns))
        return left, matrix.new_ones(count), right.T

    svd, torch.linalg.svd = torch.linalg.svd, random_directions
    try:
        yield
    finally:
        torch.linalg.svd = svd


class Stopwatch:
    """Adds up seconds by section."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, section: str, work: Callable):
        """What `work` returns; its time goes to `section`."""
        start = time.perf_counter()
        result = work()
        self.seconds[section] = self.seconds.get(section, 0.0) + time.perf_counter() - start
        return result


def make_probe(ids: Tensor, tokens: int) -> LMProbe:
    """A probe of one sequence's first `tokens` tokens, all but the first of them sampled."""
    ids = ids[:, : max(2, tokens)]
    generated = torch.ones_like(ids, dtype=torch.bool)
    generated[:, 0] = False
    return LMProbe(ids, torch.ones_like(ids), generated)
