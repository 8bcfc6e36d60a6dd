"""LoGRA: propose → judge → commit. The optimizer orchestrates; every formula lives in a file of its own.

    loss.backward()                                   # sketches fill; p.grad of a target stays None
    proposal = optimizer.propose(tokens=n)            # S → RowAdam → factors; nothing is changed yet
    verdict = optimizer.judge(proposal, probe)        # predicted KL, budget, α
    optimizer.commit(proposal, verdict.scale)         # W ← W − αUA, adopt v, count, clear S

`optimizer.step(probe=…, tokens=…)` does the three. Left out: sharding and process groups (injected, see
`distributed.py`), checkpoints (`checkpoint.py`) and packets (`packet.py`).

Shapes: d output rows of a target, k its input columns, r rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from . import checkpoint, direction, guards
from .distributed import OneProcess, Reduce, Rows
from .guards import RefusesLossScaling
from .inspection import Inspection
from .judge import judge
from .merge import PRECISIONS
from .sketch import Projections, Sketcher
from .targets import DEFAULT_TARGETS, Target, find_targets
from .trust_region import Probe, TrustRegion
from .values import Mismatch, NonFiniteSketch, Proposal, StepReport, Update, Verdict
from .weights import WeightStore


class LoGRA(Inspection, RefusesLossScaling, torch.optim.Optimizer):
    """Trains the linear layers of `model` through low-rank gradient sketches (method.md).

    Args:
        model: its targets are sketched, everything that `native` doesn't own is frozen.
        rank: r of the sketches.
        seed: of every projection; a replica needs the same.
        rule: "paper" (the step is a fixed fraction of the weights, KL sets it) or "lr" (Adam-like).
        targets: last name parts, or whole names, of the `nn.Linear` modules to train.
        shared: layers that read one input share one A. False: one A per layer, as in the paper.
        refresh: draw A anew after each update. False keeps the first (an ablation).
        precision: how weights are kept: "fp32", "split", "stochastic" or "nearest" (method.md §6).
        update_ratio: ‖ΔW‖/‖W‖ proposed by rule "paper"; 6e-5 belongs to models of 1B and more.
        lr: the learning rate of rule "lr", 1e-6 unless given; rule "paper" has none.
        weight_decay: decoupled, rule "lr" only, taken off before the update.
        max_grad_norm: clips ‖S A‖ of all targets, rule "lr" only.
        beta2, eps: of the row moments.
        native: the optimizer of the other parameters; None freezes them.
        trust_region: judges each step by its KL; needs a frozen rest and no decay.
        probe_source: makes the probe for a bare `step()`.
        reduce, rows: the seams of `distributed.py`.
        factor_dtype: what αU is rounded to before it is merged, so that a replica merges the same.
        halves: where "split" keeps its lower halves, "device" or "host".

    Raises:
        ValueError, TypeError: naming the value and the remedy, before the model is touched.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        rank: int = 64,
        seed: int = 42,
        rule: str = "paper",
        targets: Sequence[str] = DEFAULT_TARGETS,
        shared: bool = True,
        refresh: bool = True,
        precision: str = "fp32",
        update_ratio: float = 6e-5,
        lr: float | None = None,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = None,
        beta2: float = 0.95,
        eps: float = 1e-8,
        native: torch.optim.Optimizer | None = None,
        trust_region: TrustRegion | None = None,
        probe_source: Callable[[], Probe] | None = None,
        reduce: Reduce | None = None,
        rows: Rows | None = None,
        factor_dtype: torch.dtype = torch.float32,
        halves: str = "device",
    ) -> None:
        config: dict[str, Any] = dict(
            rank=rank, seed=seed, rule=rule, shared=shared, refresh=refresh, precision=precision, beta2=beta2,
            eps=eps, factor_dtype=str(factor_dtype),
        )  # fmt: skip
        guards.check_arguments(
            config, targets, update_ratio, lr, weight_decay, max_grad_norm, native, trust_region, halves
        )
        self.targets: tuple[Target, ...] = find_targets(model, targets, shared=shared)
        self.rows, self.reduce = rows or OneProcess(), reduce or OneProcess()
        self.precision = PRECISIONS[precision](seed, halves)
        guards.check_model(model, self.targets, self.precision, self.rows, native)
        self.model, self.config, self.native = model, config, native
        self.trust_region, self.probe_source = trust_region, probe_source
        self.factor_dtype, self.max_grad_norm = factor_dtype, max_grad_norm

        self.updates, self.no_signal_steps, self.mismatch = 0, 0, 0.0
        self.on_commit: list[Callable[[Update], Any]] = []  # called with each update that moved the weights
        self._ticket: object = object()
        self._judged: tuple[object, Verdict] | None = None
        self._was_trainable = guards.freeze(model, self.targets, native)
        self.weights = WeightStore(self.targets, self.precision, self.rows)
        self.projections = Projections(seed, rank, refresh)
        self.sketcher = Sketcher(model, self.targets, self.projections)
        self.moments: dict[str, Tensor] = {n: s.new_zeros(len(s)) for n, s in self.sketches.items()}
        step_size = update_ratio if rule == "paper" else (1e-6 if lr is None else lr)
        defaults = {"lr": step_size, "weight_decay": weight_decay}
        super().__init__([target.weight for target in self.targets], defaults)

    @torch.no_grad()
    def propose(self, tokens: float | None = None) -> Proposal:
        """What the sketches collected so far would do; pure.

        Args:
            tokens: N, this process's valid generated tokens (rule "paper" only). 1 if not given.

        Raises:
            NonFiniteSketch: naming the target; sketches and state stay as they were.
        """
        sketches = self.sketcher.sketches.reduced(self.reduce)
        count = 1.0 if tokens is None else direction.total_tokens(tokens, self.reduce)
        group = self.param_groups[0]
        rule = direction.Rule(
            name=self.config["rule"], step_size=float(group["lr"]), step=self.updates + 1, tokens=count,
            beta2=self.config["beta2"], eps=self.config["eps"], max_grad_norm=self.max_grad_norm,
        )  # fmt: skip
        state = (self.targets, sketches, self.moments, self.projections, self.weights.square)
        result = direction.directions(rule, *state)
        decay = rule.step_size * group["weight_decay"] if rule.name == "lr" else 0.0
        return Proposal(
            self.updates, result.factors, result.moments, decay, result.norm, result.clip, self._ticket
        )

    def judge(self, proposal: Proposal, probe: Probe, mismatch: float | Mismatch | None = None) -> Verdict:
        """Predict the KL that the proposal would cause, and scale it to the budget; pure (method.md §3).

        Args:
            probe: the positions to judge at.
            mismatch: m̂ over tokens of finished responses, if measured; a `Mismatch` where processes differ.

        Raises:
            StaleProposal: if the optimizer's state has moved on.
            ValueError: without a trust region, for an empty probe, or a KL that is not finite.
        """
        self._refuse_stale(proposal)
        verdict = judge(self, proposal, probe, mismatch)
        self._judged = (proposal.ticket, verdict)
        return verdict

    @torch.no_grad()
    def commit(self, proposal: Proposal, scale: float = 1.0) -> Update:
        """W ← (1 − decay) W − αUA, adopt the moments, count, draw A anew, clear the sketches.

        Args:
            scale: α; αU is rounded to `factor_dtype` before it is merged.

        Raises:
            StaleProposal: naming both update numbers.
            ValueError: if the scale is negative or not finite.
        """
        self._refuse_stale(proposal)
        if not (math.isfinite(scale) and scale >= 0):
            raise ValueError(f"scale is {scale}: choose a finite number ≥ 0; nothing was changed")
        self._ticket = object()
        if not proposal.has_signal:
            self.no_signal_steps += 1
            self.sketcher.clear()
            return Update(self.updates, {}, 0.0)
        factors = {name: (factor * scale).to(self.factor_dtype) for name, factor in proposal.factors.items()}
        update = Update(self.updates, factors, proposal.decay)
        self.weights.merge(update, self.projections)
        self.moments.update(proposal.moments)
        if self._judged and self._judged[0] is proposal.ticket:
            self.mismatch = self._judged[1].mismatch
        self.updates += 1
        self.projections.advance(self.updates)
        self.sketcher.clear()
        if self.native is not None:
            self.native.step()
        for tell in self.on_commit:
            tell(update)
        return update

    def step(  # type: ignore[override]  # torch's returns the closure's loss; here it is a report
        self,
        closure: Callable[[], Any] | None = None,
        *,
        probe: Probe | None = None,
        tokens: float | None = None,
        mismatch: float | Mismatch | None = None,
    ) -> StepReport:
        """Propose, judge (with a trust region) and commit; then the sketches are clear.

        A step without signal, or with a non-finite gradient, changes nothing and says so in the report.

        Raises:
            ValueError: if there is a trust region but neither `probe` nor `probe_source`.
        """
        if closure is not None:
            with torch.enable_grad():
                closure()
        make_probe = guards.probe_maker(self.trust_region, probe, self.probe_source)
        try:
            proposal = self.propose(tokens)
        except NonFiniteSketch as error:
            self.sketcher.clear()
            return StepReport("non-finite", self.updates, f"update skipped: {error}")
        if not proposal.has_signal:
            reached = "every sketch is zero" if self.sketcher.touched else "no backward reached a target"
            self.commit(proposal)
            return StepReport("no signal", self.updates, f"nothing moved: {reached}", 0.0)
        verdict = None if make_probe is None else self.judge(proposal, make_probe(), mismatch)
        self.commit(proposal, 1.0 if verdict is None else verdict.scale)
        seen = {} if verdict is None else vars(verdict)
        return StepReport("updated", self.updates, "updated", proposal.sketch_norm, **seen)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the sketches and the native gradients. A proposal made before stays good."""
        self.sketcher.clear()
        if self.native is not None:
            self.native.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Everything a bit-identical resume needs beside the model's weights; safe for `torch.load`."""
        return checkpoint.state_dict(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume. Load the model's weights first.

        Raises:
            ValueError: naming each difference, if the state is of another configuration or other weights.
        """
        checkpoint.load_state_dict(self, state_dict)
        self.projections.advance(self.updates)
        self.sketcher.clear()
        self._ticket, self._judged = object(), None

    def detach(self) -> None:
        """Remove every hook and restore which parameters ask for gradients; the weights stay."""
        self.sketcher.detach()
        for parameter, flag in self._was_trainable:
            parameter.requires_grad_(flag)
