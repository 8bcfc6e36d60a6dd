"""Every fast path of a step beside its plain twin, ready to be timed on the bench model's own tensors.

A pair is (name, before, after): two functions without arguments that give the same result, which
`tests/bench/test_profile.py` checks. Legend: d rows, k columns of a target, r rank, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from bench.settings import Setting
from bench.trial import Trial
from logra_lab.kernels import plain
from logra_lab.method import trust_region
from logra_lab.method.projection import gram, lift, lifted_square
from logra_lab.method.sketch import accumulate
from logra_lab.rl.logprobs import hidden_states, plain_score_tokens, score_tokens

Pair = tuple[str, Callable[[], Tensor], Callable[[], Tensor]]


def pairs(setting: Setting) -> list[Pair]:
    """All pairs, on a model of `setting` (LoGRA) with a sketch in it."""
    trial = Trial(replace(setting, probe=True))
    trial.loss(trial.ids, trial.advantages).backward()
    return [*thin_products(trial), *update(trial), probe(trial), head(trial)]


def thin_products(trial: Trial) -> list[Pair]:
    """What one block adds to forward and backward."""
    optimizer, shape = trial.logra, trial.setting.shape
    block = [target for target in optimizer.targets if target.name.startswith("model.layers.0.")]
    inputs = {k: torch.randn(trial.ids.numel(), k) for k in (shape.width, shape.ffn)}
    grads = [torch.randn(trial.ids.numel(), target.rows) for target in block]
    a = {target.group: optimizer.projection(target.name) for target in block}
    first = {target.group: target for target in block}
    kept = {name: inputs[target.columns] @ a[name].T for name, target in first.items()}
    own = [(inputs[target.columns], a[target.group]) for target in block]
    sketches = [torch.zeros(target.rows, optimizer.config["rank"]) for target in block]

    def one_per_target() -> Tensor:
        return torch.cat([x @ matrix.T for x, matrix in own])

    def one_per_group() -> Tensor:
        made = {name: inputs[target.columns] @ a[name].T for name, target in first.items()}
        return torch.cat([made[target.group] for target in block])

    def dense_then_projected() -> Tensor:
        return torch.cat([(grad.T @ x) @ matrix.T for grad, (x, matrix) in zip(grads, own, strict=True)])

    def from_projections() -> Tensor:
        for sketch, grad, target in zip(sketches, grads, block, strict=True):
            accumulate(sketch.zero_(), grad, kept[target.group], 1.0)
        return torch.cat(sketches)

    return [
        ("X Aᵀ once per group, not per target (a block)", one_per_target, one_per_group),
        ("Hᵀ(X Aᵀ) in place, not (Hᵀ X) Aᵀ (a block)", dense_then_projected, from_projections),
    ]


def update(trial: Trial) -> list[Pair]:
    """Norms and the merge over all targets; the merge moves a copy by nothing, so that it can be repeated."""
    optimizer = trial.logra
    targets, projections = optimizer.targets, optimizer.projections
    sketches = [(optimizer.sketches[target.name], optimizer.projection(target.name)) for target in targets]
    still = {target.name: torch.zeros(target.rows, optimizer.config["rank"]) for target in targets}

    def whole_norm() -> Tensor:
        return torch.stack([lift(s, a).square().sum() for s, a in sketches]).sum()

    def gram_norm() -> Tensor:
        return torch.stack([lifted_square(s, gram(a)) for s, a in sketches]).sum()

    def whole_merge() -> Tensor:
        for target in targets:
            plain.merge(target.weight.data, still[target.name], projections.key(target), kind="fp32")
        return targets[0].weight.detach()

    def block_merge() -> Tensor:
        for target in targets:
            signs = projections.signs(target, torch.device("cpu"), torch.float32)
            optimizer.precision.add_low_rank(
                target.name, target.weight.data, still[target.name], signs, 0.0, optimizer.updates
            )
        return targets[0].weight.detach()

    return [
        ("‖S A‖² from A Aᵀ, not from S A", whole_norm, gram_norm),
        ("W −= F A in place by row blocks, A kept, not whole", whole_merge, block_merge),
    ]


def probe(trial: Trial) -> Pair:
    """Forward mode with one product per weight, and left to itself."""
    optimizer, judged = trial.logra, trial.probe
    assert judged is not None, "the setting asks for a probe"
    proposal = optimizer.propose(trial.ids.numel())

    def predicted() -> Tensor:
        return torch.tensor(optimizer.judge(proposal, judged).predicted_kl)

    def left_to_itself() -> Tensor:
        with _swapped(trust_region, "constant_weights", lambda *_: nullcontext()):
            with _swapped(trust_region, "tangent_branch", naive_tangent_branch):
                return predicted()

    return "KL probe: value and tangent in one product", left_to_itself, predicted


def head(trial: Trial) -> Pair:
    """The loss and its gradient from chunks of logits, and from all of them."""
    with torch.no_grad():
        hidden = hidden_states(trial.model, trial.ids)[:, :-1].flatten(0, 1)  # [T, D]
    tokens = trial.ids[:, 1:].flatten()

    def gradient(score: Callable) -> Tensor:
        leaf = hidden.clone().requires_grad_()
        score(leaf, tokens, trial.model, 1.0, 128).log_probs.mean().backward()
        assert leaf.grad is not None
        return leaf.grad

    return (
        "head: chunks of logits, not [T, V]",
        lambda: gradient(plain_score_tokens),
        lambda: gradient(score_tokens),
    )


@contextmanager
def naive_tangent_branch(targets, factors, projections):
    """The tangent −(x Aᵀ)Uᵀ added to outputs while forward mode does all the rest."""
    import torch.autograd.forward_ad as forward_ad

    from logra_lab.method.side_branch import low_rank_term

    def hook_of(target):
        def hook(module, args, output):
            x = forward_ad.unpack_dual(args[0]).primal
            value, tangent = forward_ad.unpack_dual(output)
            own = -low_rank_term(x, factors[target.name], target, projections)
            return forward_ad.make_dual(value, own if tangent is None else tangent + own)

        return hook

    handles = [module.register_forward_hook(hook_of(t)) for t in targets for module in t.modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _swapped(module, name: str, value):
    """The module's attribute is another one inside."""
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)
