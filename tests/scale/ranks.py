"""What each of two gloo processes does for the tests of `logra_lab.scale.distributed`; results go to a file per rank.

Everything is float64 where a joined batch in one process must give the same numbers: what differs is then an error,
not rounding. `SCENARIOS` run one after another in one pair of processes, since starting a process costs seconds.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from logra_lab.method import LoGRA, Mismatch, TrustRegion
from logra_lab.scale.distributed import AllReduce, EmptyProbe, wire_bytes
from tests.method.worlds import llama, stack, tokens
from tests.scale import sharded_ranks

WORLD = 2
SHARE = {
    0: [slice(0, 3), slice(3, 6), slice(6, 7)],
    1: [slice(7, 10)],
}  # unequal micro-batches of ten sequences
EVEN = {0: [slice(0, 5)], 1: [slice(5, 8), slice(8, 10)]}
LONELY = {0: [slice(0, 10)], 1: []}


class Probe:
    """Every position of some sequences, in float64."""

    chunk = 7

    def __init__(self, ids: Tensor) -> None:
        self.ids = ids

    def features(self, model: nn.Module) -> Tensor:
        return model.model(input_ids=self.ids).last_hidden_state.flatten(0, 1)

    def logits(self, model: nn.Module, chunk: Tensor) -> Tensor:
        return model.lm_head(chunk)


def loss_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Summed next-token loss in float64; the caller divides."""
    logits = model(input_ids=ids).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def positions(ids: Tensor, slices: list[slice]) -> int:
    return sum(ids[rows][:, 1:].numel() for rows in slices)


def train(share: list[slice], reduce=None, *, divide="global", steps=3, mismatch=None, **options) -> dict:
    """Steps on this process's share of ten sequences; weights, moments and reports after them."""
    model = llama().double()
    optimizer = LoGRA(model, rank=5, reduce=reduce, **options)
    reports, rule_needs_tokens = [], options.get("rule") == "paper"
    for step in range(steps):
        ids = tokens(rows=10, seed=step)
        own, total = positions(ids, share), positions(ids, [slice(0, 10)])
        for rows in share:
            (loss_of(model, ids[rows]) / (total if divide == "global" else own)).backward()
        probe = None
        if optimizer.trust_region is not None:
            seen = torch.cat([ids[rows] for rows in share]) if share else None
            probe = Probe(seen) if share else EmptyProbe()
        calls = reduce.calls if reduce is not None else 0
        m_hat = mismatch(share, step) if mismatch else None
        between = reduce.calls - calls if reduce is not None else 0
        report = optimizer.step(probe=probe, tokens=own if rule_needs_tokens else None, mismatch=m_hat)
        reports.append(vars(report))
    used = reduce.calls - calls - between if reduce is not None else 0
    return {
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "moments": dict(optimizer.moments), "reports": reports, "calls": used, "wire": wire_bytes(optimizer),
    }  # fmt: skip


REGION = dict(rule="paper", update_ratio=2e-3, trust_region=TrustRegion(budget=1e-3, final_budget=1e-4))
CLIPPED = dict(rule="lr", lr=1e-3, weight_decay=0.1, max_grad_norm=0.3)


def differences(share: list[slice], step: int) -> Tensor:
    """Some log-prob differences [T] of the finished tokens of a share."""
    whole = torch.linspace(0, 1e-3 * (step + 1), 10, dtype=torch.float64)
    return torch.cat([whole[rows] for rows in share]) if share else whole[:0]


def paper_with_trust_region(rank: int) -> dict:
    return train(
        SHARE[rank], AllReduce(), mismatch=lambda share, step: Mismatch.of(differences(share, step)), **REGION
    )


def mismatch_of_one_rank_only(rank: int) -> dict:
    return train(
        LONELY[rank],
        AllReduce(),
        mismatch=lambda share, step: Mismatch.of(differences(share, step)),
        **REGION,
    )


def plain_mismatches(rank: int) -> dict:
    """A number that all ranks agree on is taken; numbers that differ are refused, and nothing moves."""
    agreed = train(SHARE[rank], AllReduce(), mismatch=lambda share, step: 3e-4, **REGION)
    model = llama().double()
    optimizer = LoGRA(model, rank=5, reduce=AllReduce(), **REGION)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.cat([tokens(rows=10)[rows] for rows in SHARE[rank]])
    loss_of(model, ids).backward()
    try:
        optimizer.step(probe=Probe(ids), tokens=9, mismatch=1e-4 * (rank + 1))
        message = "taken"
    except ValueError as error:
        message = str(error)
    kept = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return {"agreed": [report["mismatch"] for report in agreed["reports"]], "message": message, "kept": kept}


def clipped_with_decay(rank: int) -> dict:
    return train(SHARE[rank], AllReduce(), **CLIPPED)


def verified(rank: int) -> dict:
    region = TrustRegion(budget=1e-6, final_budget=1e-6, verify=True)
    return train(SHARE[rank], AllReduce(), rule="paper", update_ratio=2e-2, trust_region=region)


def mean_of_equal_shares(rank: int) -> dict:
    return train(EVEN[rank], AllReduce("mean"), divide="own", **CLIPPED)


def empty_rank(rank: int) -> dict:
    return train(LONELY[rank], AllReduce(), **REGION)


def no_signal_anywhere(rank: int) -> dict:
    return train([], AllReduce(), steps=2, rule="lr", lr=1e-3)


def train_native(
    share: list[slice], reduce=None, wrap: Callable = lambda model: model, factor: int = 1
) -> dict:
    """Rule "lr" with one norm trained by SGD; `factor` undoes the mean that DDP and "mean" take."""
    model = llama().double()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    norm = model.model.norm.weight.requires_grad_(True)
    wrapped = wrap(model)
    native = torch.optim.SGD([norm], lr=0.1)
    optimizer = LoGRA(wrapped, rank=5, reduce=reduce, rule="lr", lr=1e-3, native=native)
    for step in range(3):
        ids = tokens(rows=10, seed=step)
        for number, rows in enumerate(share):
            last = number == len(share) - 1
            if hasattr(wrapped, "require_backward_grad_sync"):
                wrapped.require_backward_grad_sync = last
            (loss_of(wrapped, ids[rows]) * factor / positions(ids, [slice(0, 10)])).backward()
        optimizer.step()
        wrapped.zero_grad()
    names = [target.name for target in optimizer.targets]
    return {"weights": {name: value.clone() for name, value in model.state_dict().items()}, "names": names}


def ddp_with_one_trainable_parameter(rank: int) -> dict:
    ddp = nn.parallel.DistributedDataParallel
    return train_native(SHARE[rank], AllReduce("mean"), ddp, factor=WORLD)


def nan_on_one_rank(rank: int) -> dict:
    model = stack((33, 20), (20, 33))
    optimizer = LoGRA(model, rank=4, rule="lr", lr=1e-3, reduce=AllReduce())
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(6, 20, generator=torch.Generator().manual_seed(rank))
    (model(x).sum() * (float("nan") if rank else 1.0)).backward()
    report = optimizer.step()
    kept = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model(x).sum().backward()
    return {"status": report.status, "message": report.message, "kept": kept, "next": optimizer.step().status}


def counted_on_the_wire(rank: int) -> dict:
    """Every all-reduce of a step as torch was asked for it, and what DDP's own hook sees of dense gradients."""
    sizes, original = [], dist.all_reduce

    def counting(tensor, *rest, **options):
        sizes.append(tensor.numel() * tensor.element_size())
        return original(tensor, *rest, **options)

    dist.all_reduce = counting
    try:
        reduce = AllReduce()
        train(SHARE[rank], reduce, steps=1, **REGION)
    finally:
        dist.all_reduce = original
    return {"sizes": sizes, "calls": reduce.calls, "bytes": reduce.bytes, "dense": dense_bytes()}


def dense_bytes() -> int:
    """Bytes of the targets' gradients in the buckets that DDP reduces when they are all trained."""
    model = llama().double()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_proj" in name)
    wrapped, seen = nn.parallel.DistributedDataParallel(model), []

    def hook(_, bucket):
        seen.append(bucket.buffer().numel() * bucket.buffer().element_size())
        return (
            dist.all_reduce(bucket.buffer(), async_op=True)
            .get_future()
            .then(lambda future: future.value()[0])
        )

    wrapped.register_comm_hook(None, hook)
    loss_of(wrapped, tokens(rows=2)).backward()
    return sum(seen)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        paper_with_trust_region, mismatch_of_one_rank_only, plain_mismatches, clipped_with_decay, verified,
        mean_of_equal_shares, empty_rank, no_signal_anywhere,
        ddp_with_one_trainable_parameter, nan_on_one_rank, counted_on_the_wire, *sharded_ranks.SCENARIOS,
    )
}  # fmt: skip


def main(rank: int, folder: str) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(folder, 'meet').as_posix()}", rank=rank, world_size=WORLD,
        timeout=datetime.timedelta(seconds=30),
    )  # fmt: skip
    results = {name: scenario(rank) for name, scenario in SCENARIOS.items()}
    torch.save(results, Path(folder, f"rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
