"""What each of two gloo processes does with FSDP2's row shards; the rest as in `ranks.py`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from logra_lab.method import LoGRA
from logra_lab.method.replica import Replica
from logra_lab.method.sender import Sender
from logra_lab.scale.distributed import AllReduce, ShardedRows, reshard
from tests.method.worlds import stack

WORLD = 2
ONE_EACH = {
    0: [slice(0, 7)],
    1: [slice(7, 10)],
}  # under FSDP a forward is a collective: equally many on each rank


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


SCENARIOS = (rows_sharded, split_rows_sharded, unsharded_by_accident, sharded_trainer_feeds_a_replica)
