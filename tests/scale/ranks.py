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

from logra_lab.method import LoGRA, TrustRegion
from logra_lab.method.replica import Replica
from logra_lab.method.sender import Sender
from logra_lab.scale.distributed import (
    AllReduce,
    EmptyProbe,
    ShardedRows,
    joint_mismatch,
    reshard,
    wire_bytes,
)
from tests.method.worlds import llama, stack, tokens

WORLD = 2
SHARE = {
    0: [slice(0, 3), slice(3, 6), slice(6, 7)],
    1: [slice(7, 10)],
}  # unequal micro-batches of ten sequences
EVEN = {0: [slice(0, 5)], 1: [slice(5, 8), slice(8, 10)]}
ONE_EACH = {
    0: [slice(0, 7)],
    1: [slice(7, 10)],
}  # under FSDP a forward is a collective: equally many on each rank
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
    reduce = AllReduce()
    return train(
        SHARE[rank],
        reduce,
        mismatch=lambda share, step: joint_mismatch(differences(share, step), reduce),
        **REGION,
    )


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


def sharded_model(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (WORLD,))
    for layer in getattr(model, "layers", []):
        fully_shard(layer["q_proj"], mesh=mesh)
    return fully_shard(model, mesh=mesh)


SHAPES = ((33, 20), (1, 33), (47, 1))  # uneven rows, and a weight of which one rank has none


def train_stack(
    model: nn.Module, share: list[slice], steps=4, inspect=lambda optimizer, update: None, **options
):
    optimizer = LoGRA(model, rank=4, **options)
    optimizer.on_commit.append(lambda update: inspect(optimizer, update))
    for step in range(steps):
        x = torch.randn(10, 20, generator=torch.Generator().manual_seed(step)).to(
            next(model.parameters()).dtype
        )
        for rows in share:
            (model(x[rows]).square().sum() / 10).backward()
        reshard_if_needed(model)
        optimizer.step(tokens=sum(rows.stop - rows.start for rows in share))
    return optimizer


def reshard_if_needed(model: nn.Module) -> None:
    if dist.is_initialized():
        reshard(model)


def whole_weights(optimizer: LoGRA) -> dict[str, Tensor]:
    rows = optimizer.rows
    return {t.name: rows.gather(optimizer.weight(t.name), t.weight).clone() for t in optimizer.targets}


def rows_sharded(rank: int) -> dict:
    model = sharded_model(stack(*SHAPES, dtype=torch.float64))
    optimizer = train_stack(model, ONE_EACH[rank], reduce=AllReduce(), rows=ShardedRows(), update_ratio=1e-2)
    local = [len(optimizer.weights.local(target)) for target in optimizer.targets]
    return {"weights": whole_weights(optimizer), "local": local}


def split_rows_sharded(rank: int) -> dict:
    """The same sketches on both ranks, so that only the merge differs from one process."""
    model = sharded_model(stack(*SHAPES).bfloat16())
    optimizer = LoGRA(
        model, rank=4, precision="split", reduce=AllReduce("mean"), rows=ShardedRows(), update_ratio=1e-3
    )
    fill_and_commit(optimizer, 5)
    return {"weights": whole_weights(optimizer)}


def fill_and_commit(optimizer: LoGRA, steps: int) -> None:
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for sketch in optimizer.sketches.values():
            sketch.copy_(torch.randn(sketch.shape, generator=generator))
        optimizer.commit(optimizer.propose(tokens=5), 0.7)


def unsharded_by_accident(rank: int) -> dict:
    model = sharded_model(stack((8, 20)))
    optimizer = LoGRA(model, rank=4, reduce=AllReduce(), rows=ShardedRows())
    (model(torch.ones(2, 20)).sum()).backward()
    for module in model.modules():
        if hasattr(module, "unshard"):
            module.unshard()
    try:
        optimizer.step()
    except RuntimeError as error:
        message = str(error)
    reshard(model)
    return {"message": message, "after": optimizer.step().status}


def sharded_trainer_feeds_a_replica(rank: int) -> dict:
    """The replica is whole, in the same process; the packets are the sharded trainer's."""
    result = {}
    for precision in ("fp32", "split"):
        kind = torch.float32 if precision == "fp32" else torch.bfloat16
        model, twin = sharded_model(stack(*SHAPES, bias=True).to(kind)), stack(*SHAPES, bias=True).to(kind)
        optimizer = LoGRA(
            model,
            rank=4,
            precision=precision,
            reduce=AllReduce("mean"),
            rows=ShardedRows(),
            update_ratio=1e-3,
        )
        sender, replica = Sender(optimizer, checksum_every=1), Replica(twin, rank=4, precision=precision)
        receipts: list = []
        optimizer.on_commit.append(lambda u, s=sender, r=replica, to=receipts: to.append(r.apply(s.pack(u))))
        fill_and_commit(optimizer, 5)
        late = Replica(stack(*SHAPES, bias=True, seed=9).to(kind), rank=4, precision=precision)
        late.resync(sender.full())
        weights = whole_weights(optimizer)
        result[precision] = {
            "status": [receipt.status for receipt in receipts],
            "drift": max(receipt.drift for receipt in receipts),
            "late": all(torch.equal(late.weight(name), weights[name]) for name in weights),
            "others": all(
                torch.equal(a.bias, b.bias) for a, b in zip(late_layers(late), late_layers(replica))
            ),
        }
    return result


def late_layers(replica: Replica) -> list[nn.Linear]:
    return [layer["q_proj"] for layer in replica.model.layers]


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        paper_with_trust_region, clipped_with_decay, verified, mean_of_equal_shares, empty_rank, no_signal_anywhere,
        ddp_with_one_trainable_parameter, nan_on_one_rank, rows_sharded, split_rows_sharded,
        unsharded_by_accident, sharded_trainer_feeds_a_replica,
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
