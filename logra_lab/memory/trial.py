"""Run a few real steps of a described run on random weights, with the ledger open: the planner's judge.

`measure` builds a model of the shape, warms up, runs one plain step whose phases are read off the process's own memory
figure, then one step under the ledger. In a child process (the default) that figure is honest (process.py).
Left out: 8-bit Adam (its library computes on GPUs), sharding, second copies of the weights: those stay arithmetic. The
steps measured lie between two refreshes of GaLore's (an SVD) and APOLLO's projections. In bf16 the CPU's matrix
library keeps some MiB of fp32 workspace that no tensor shows; on a model as small as tiny-math that is a sixth.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from logra_lab.method import LoGRA, Proposal, Verdict
from logra_lab.rl.generation import Sampling, sample_tokens
from logra_lab.rl.logprobs import token_scores
from logra_lab.rl.probe import LMProbe

from .arms import build_model, build_optimizer
from .ledger import Ledger
from .presets import ModelShape, shape_of
from .process import give_back, peak_bytes, reset_peak, resident_bytes, run_in_child
from .replay import Phase
from .settings import Settings
from .units import Bytes

WARM_UP = ModelShape(
    "warm-up", layers=1, width=64, ffn=128, heads=2, kv_heads=1, head_dim=32, vocab=64, tied=True
)


@dataclass(frozen=True)
class Measured:
    """What a trial found: phases by name, and the settings and shape they belong to."""

    shape: ModelShape
    settings: Settings
    phases: dict[str, Phase]

    @property
    def peak(self) -> Phase:
        """The phase with the highest peak."""
        return max(self.phases.values(), key=lambda phase: phase.peak.total)

    @property
    def process_peak(self) -> int | None:
        """The highest figure of the process itself, where it tells."""
        figures = [phase.process for phase in self.phases.values() if phase.process is not None]
        return max(figures, default=None)

    @property
    def unexplained(self) -> float | None:
        """The share of the process's peak that the classes do not explain (negative: they explain too much)."""
        return None if not self.process_peak else 1 - self.peak.peak.total / self.process_peak


class _Trial:
    """A model, its optimizer and one method per phase."""

    def __init__(self, shape: ModelShape, settings: Settings) -> None:
        self.settings, self.shape = settings, shape
        self.model = build_model(shape, settings)
        self.optimizer = build_optimizer(self.model, settings)
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, shape.vocab, (settings.batch, settings.context), generator=generator)
        self.mask = torch.ones_like(self.ids)
        self.mask[:, 0] = 0 if settings.padded else 1  # a mask of ones is dropped by transformers
        self.loss: Tensor | None = None
        self.proposal: Proposal | None = None
        self.verdict: Verdict | None = None

    def phases(self) -> list[tuple[str, Callable[[], None]]]:
        """What runs, in order, under which phase's name."""
        s = self.settings
        order: list[tuple[str, Callable[[], None]]] = (
            [("rollout", self.rollout)] if s.rollout == "transformers" else []
        )
        order += [("forward", self.forward), ("backward", self.backward)] * s.micro_batches
        if s.probe_tokens and s.method == "logra":
            return [*order, ("step", self.propose), ("probe", self.judge), ("step", self.commit)]
        return [*order, ("step", self.step)]

    def cast(self) -> AbstractContextManager:
        return torch.autocast("cpu", dtype=torch.bfloat16) if self.settings.autocast else nullcontext()

    def rollout(self) -> None:
        half = self.settings.context // 2
        prompts = self.ids[:1, :half].expand(self.settings.answers, half)
        sampling = Sampling(max_new_tokens=self.settings.context - half)
        with self.cast():
            sample_tokens(
                self.model,
                prompts,
                torch.ones_like(prompts),
                sampling,
                [-1],
                0,
                torch.Generator().manual_seed(0),
            )

    def forward(self) -> None:
        """The loss of an RL step: log-probs of sampled tokens, here all but the first, weighted by ones."""
        sampled = torch.ones_like(self.ids, dtype=torch.bool)
        sampled[:, :2] = False
        chunk = self.settings.loss_positions(self.shape.vocab)
        with self.cast():
            self.loss = -token_scores(self.model, self.ids, self.mask, sampled, chunk=chunk).log_probs.mean()

    def backward(self) -> None:
        loss, self.loss = self.loss, None
        assert loss is not None, "forward comes first"
        loss.backward()

    def step(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def logra(self) -> LoGRA:
        assert isinstance(self.optimizer, LoGRA), "only LoGRA steps in three phases"
        return self.optimizer

    def propose(self) -> None:
        self.proposal = self.logra.propose(tokens=self.settings.tokens)

    def judge(self) -> None:
        length = min(self.settings.context, self.settings.probe_tokens)
        ids = self.ids[: max(1, self.settings.probe_tokens // length), :length]
        sampled = torch.ones_like(ids, dtype=torch.bool)
        sampled[:, 0] = False
        probe = LMProbe(ids, torch.ones_like(ids), sampled, max_tokens=ids.numel())
        with self.cast():
            assert self.proposal is not None, "propose comes first"
            self.verdict = self.logra.judge(self.proposal, probe)

    def commit(self) -> None:
        assert self.proposal is not None and self.verdict is not None, "propose and judge come first"
        self.logra.commit(self.proposal, self.verdict.scale)
        self.proposal = None
        self.optimizer.zero_grad(set_to_none=True)

    def run(self, watch: Callable[[str], AbstractContextManager]) -> None:
        """One whole step, each phase inside `watch(name)`."""
        for name, action in self.phases():
            with watch(name):
                action()


def measure(
    model: object, settings: Settings | None = None, *, child: bool = True, **changes: Any
) -> Measured:
    """Measure one real step on the CPU by class and phase.

    Args: a model as for `plan`, settings or single ones by name, and `child`: a fresh process, whose own figure is then
    compared with the classes (without it `process` stays None).
    Raises ValueError for what only arithmetic can tell, ModuleNotFoundError for a missing extra.
    """
    shape, settings = (
        shape_of(model),
        settings.but(**changes) if settings else Settings(**{"device": "cpu", **changes}),
    )
    settings.check(shape)
    if settings.device != "cpu" or settings.gpus != 1 or settings.rollout in ("replica", "vllm"):
        raise ValueError(
            'Trials run on one CPU with one copy of the weights: device="cpu", gpus=1, no second engine.'
        )
    argument = {"shape": asdict(shape), "settings": asdict(settings)}
    result = (
        run_in_child("logra_lab.memory.trial:measure_here", argument)
        if child
        else measure_here(argument, False)
    )
    phases = {
        name: Phase(**p | {"peak": Bytes(p["peak"]), "end": Bytes(p["end"])}) for name, p in result.items()
    }
    return Measured(shape, settings, phases)


def measure_here(argument: dict, process: bool = True) -> dict:
    """Run the trial in this process; JSON in, JSON out. `process` also reads the process's own peaks."""
    settings, shape = Settings(**argument["settings"]), ModelShape(**argument["shape"])
    if process:  # imports, threads and libraries are up before the base is read
        _Trial(WARM_UP, settings.but(rank=4, batch=2, context=64, rollouts=2)).run(lambda name: nullcontext())
        give_back()
    base = resident_bytes() if process else None
    trial = _Trial(shape, settings)
    trial.run(lambda name: nullcontext())
    peaks: dict[str, int] = {}
    if base is not None:
        trial.run(lambda name: _ProcessPeak(name, base, peaks))
    ledger = Ledger(trial.model, trial.optimizer)
    trial.run(ledger.phase)
    return {
        name: asdict(phase) | {"peak": dict(phase.peak), "end": dict(phase.end), "process": peaks.get(name)}
        for name, phase in ledger.report().items()
    }


class _ProcessPeak:
    """Within it the process's peak above `base` is noted under the phase's name (the highest, if it recurs)."""

    def __init__(self, name: str, base: int, peaks: dict[str, int]) -> None:
        self.name, self.base, self.peaks = name, base, peaks

    def __enter__(self) -> None:
        give_back()
        self.known = reset_peak()

    def __exit__(self, *error: object) -> None:
        peak = peak_bytes()
        if self.known and peak is not None:
            self.peaks[self.name] = max(self.peaks.get(self.name, 0), peak - self.base)
