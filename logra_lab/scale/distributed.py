"""The two seams of `method/distributed.py` over `torch.distributed`: sketches are reduced, rows may be sharded.

    LoGRA(model, reduce=AllReduce())                          # replicas of data parallelism (plain or DDP)
    LoGRA(model, reduce=AllReduce(), rows=ShardedRows())      # FSDP2 (`fully_shard`)

A step reduces one flat buffer of sketches, Σ d·r numbers instead of Σ d·k, and some scalars: the token
count, and with a trust region the mismatch and the KL sums. So every rank decides the same, also that a
sketch is NaN. A rank without data takes part with empty sketches: it must call `step()` all the same.

`op="sum"` where each rank's loss is divided by the global token count, `op="mean"` where it is a mean over
the rank's own tokens (Hugging Face's trainers). With unequal token counts only the first equals one process
on the joined batch.

Left out: overlap with backward, and splitting the state: sketches and moments are whole on every rank
(Σ d·r each), so the saving per GPU shrinks as GPUs are added. Shapes: d output rows, k columns, r rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from logra_lab.method import LoGRA


class AllReduce:
    """Sums (or averages) over the ranks of a process group, and counts what it sends.

    Args:
        op: "sum" or "mean", for sketches only; totals are always sums.
        group: the process group, the default one if None.

    Attributes:
        calls, bytes: collectives so far, and bytes of the buffers given to them by this rank.

    Raises:
        ValueError: for another op; RuntimeError: without a process group.
    """

    def __init__(self, op: str = "sum", group: dist.ProcessGroup | None = None) -> None:
        if op not in ("sum", "mean"):
            raise ValueError(f'op={op!r}: choose "sum" or "mean"')
        _refuse_no_group("AllReduce")
        self.op, self.group = op, group
        self.calls = self.bytes = 0

    def sketch(self, flat: Tensor) -> None:
        """Reduce one flat sketch buffer in place."""
        self._reduce(flat)
        if self.op == "mean":
            flat.div_(dist.get_world_size(self.group))

    def total(self, values: Tensor) -> Tensor:
        """The sum of a small tensor over all ranks, on the device it came from."""
        summed = values.detach().to(_wire_device(self.group), copy=True)
        self._reduce(summed)
        return summed.to(values.device)

    def _reduce(self, tensor: Tensor) -> None:
        self.calls += 1
        self.bytes += tensor.numel() * tensor.element_size()
        dist.all_reduce(tensor, group=self.group)


class ShardedRows:
    """Rows of FSDP2's `Shard(0)` weights: each rank merges the rows it holds, possibly none.

    Args:
        group: the ranks that hold the rows between them, the default group if None.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        _refuse_no_group("ShardedRows")
        self.group = group
        self._sums = AllReduce(group=group)

    def local(self, weight: Tensor) -> tuple[Tensor, int]:
        """The local rows [d', k] as writable memory, and the first one's index.

        Raises:
            RuntimeError: if the weight is whole now: an update to the shard would be lost silently.
            ValueError: if it is sharded otherwise than by rows over one mesh dimension.
        """
        if not isinstance(weight, DTensor):
            raise RuntimeError(
                f"a weight {list(weight.shape)} is not sharded now, so an update would miss the shard: "
                "call reshard(model) before the step, or leave out rows= for weights that aren't sharded"
            )
        if len(weight.placements) != 1 or not weight.placements[0].is_shard(0):
            raise ValueError(
                f"a weight is placed as {weight.placements}: shard it by rows over one mesh dimension, "
                f"fully_shard's default {Shard(0)}"
            )
        chunk = -(-weight.shape[0] // weight.device_mesh.size())  # as torch.chunk cuts
        offset = min(chunk * weight.device_mesh.get_local_rank(), weight.shape[0])
        return weight.to_local().detach(), offset

    def gather(self, part: Tensor, weight: Tensor) -> Tensor:
        """All rows [d, ...] of which `part` are this rank's, on every rank; a collective if `weight` is sharded."""
        if not isinstance(weight, DTensor):
            return part
        if part.dtype == torch.int16:  # lower halves; gloo and nccl know no 16-bit integers, but bytes
            return self.gather(part.contiguous().view(torch.uint8), weight).view(torch.int16)
        if not isinstance(part, DTensor):
            shape = torch.Size((weight.shape[0], *part.shape[1:]))
            part = DTensor.from_local(
                part, weight.device_mesh, weight.placements, shape=shape, stride=part.stride()
            )
        return part.full_tensor().detach()

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks that hold the other rows."""
        return self._sums.total(values)


def reshard(model: nn.Module) -> None:
    """Give the whole weights of every FSDP2 module back: before a step, after a no-grad forward or an error."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


class EmptyProbe:
    """The probe of a rank without answers in this step: it judges nothing and still takes part."""

    chunk = 1

    def features(self, model: nn.Module) -> Tensor:
        """No position [0, 1]; the model isn't run, so not for FSDP, where every rank must run it equally often."""
        return next(model.parameters()).detach().new_zeros(0, 1)

    def logits(self, model: nn.Module, chunk: Tensor) -> Tensor:
        """No logits [0, 1]."""
        return chunk


@dataclass(frozen=True)
class WireBytes:
    """Bytes of the buffers that one rank gives to the reductions of one step.

    Attributes:
        sketches: the flat sketches, Σ d·r numbers.
        gradients: what dense training would reduce, Σ d·k numbers in the gradient's type.
    """

    sketches: int
    gradients: int

    @property
    def ratio(self) -> float:
        """How many times more the gradients are."""
        return self.gradients / self.sketches


def wire_bytes(optimizer: LoGRA) -> WireBytes:
    """What data parallelism sends per step with sketches, beside dense gradients of the same targets."""
    sketches = sum(s.numel() * s.element_size() for s in optimizer.sketches.values())
    gradients = sum(t.rows * t.columns * t.weight.element_size() for t in optimizer.targets)
    return WireBytes(sketches, gradients)


def _wire_device(group: dist.ProcessGroup | None) -> torch.device:
    """Where this group's collectives want their buffers."""
    if "nccl" in str(dist.get_backend(group)):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _refuse_no_group(name: str) -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{name} needs a process group: start with torchrun and call "
            "torch.distributed.init_process_group() first"
        )
