"""The processes of a run, as the trainer sees them: how many, which one this is, and the little they tell each other.

    world = start_world("cuda")        # torchrun's environment; one process without it
    model = shard_layers(model, world) # FSDP2: each decoder layer's weights by rows

Sketches and KL sums go through `distributed.AllReduce`; here are rewards, flags and counts. Under FSDP every process
must run the model equally often, so `everywhere` keeps them in step while they sample.

Left out: tensor and pipeline parallelism. Embedding, head and final norm stay whole on every GPU (they are frozen and
need no sync); that costs their bytes once per GPU, and keeps the chunked head a plain product.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from logra_lab.rl.logprobs import decoder_body, hidden_states
from logra_lab.rl.probe import LMProbe

if TYPE_CHECKING:
    from logra_lab.scale.presets import ScaleConfig

TIMEOUT = datetime.timedelta(minutes=30)


class WrongWorld(RuntimeError):
    """The processes of a run don't fit each other or the run; the message says what differs."""


@dataclass(frozen=True)
class World:
    """`rank` of `size` processes, `local_rank` on this machine; a single process needs no process group."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process writes files and speaks."""
        return self.rank == 0

    def gather(self, values: Tensor) -> Tensor:
        """Equally long vectors [n] of all processes, joined [size n], in the order of ranks."""
        if self.size == 1:
            return values
        own = values.detach().to(_wire())
        parts = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(parts, own)
        return torch.cat(parts).to(values.device)

    def gather_objects(self, value: Any) -> list[Any]:
        """A small picklable value of each process."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def everywhere(self, flag: bool) -> bool:
        """Whether it is so in all processes."""
        return bool(self.gather(torch.tensor([float(flag)])).min())

    def anywhere(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return bool(self.gather(torch.tensor([float(flag)])).max())

    def agree(self, what: str, value: str) -> None:
        """WrongWorld, in every process, unless all give the same value."""
        found = self.gather_objects(value)
        if len(set(found)) > 1:
            told = ", ".join(f"rank {rank}: {text}" for rank, text in enumerate(found))
            raise WrongWorld(
                f"the processes differ in {what} ({told}); start all with the same settings and files"
            )

    def wait(self) -> None:
        """Until all processes are here."""
        if self.size > 1:
            dist.barrier()


def start_world(device_type: str = "cpu") -> World:
    """The world that torchrun described, its process group started if it wasn't; a world of one without torchrun.

    Raises:
        WrongWorld: for an environment that names only a part of it.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 and not dist.is_initialized():
        return World()
    if dist.is_initialized():
        local = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        return World(dist.get_rank(), dist.get_world_size(), local)
    missing = [
        name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
    ]
    if missing:
        raise WrongWorld(
            f"WORLD_SIZE={size}, but {', '.join(missing)} is not set; start with "
            f"torchrun --nproc-per-node {size} -m logra_lab.scale.train …"
        )
    local = int(os.environ["LOCAL_RANK"])
    if device_type == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device_type == "cuda" else "gloo", timeout=TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size(), local)


def check_run(config: ScaleConfig, world: World, engine: str) -> None:
    """WrongWorld where a run, its engine and its processes don't fit each other."""
    run, sharded = config.run, config.sharding == "fsdp" and world.size > 1
    if run.prompts % world.size:
        raise WrongWorld(
            f"prompts={run.prompts} can't be shared equally by {world.size} processes; "
            f"use prompts={max(1, round(run.prompts / world.size)) * world.size}"
        )
    if run.arm.name != "logra" and world.size > 1:
        raise WrongWorld(
            f"the arm {run.arm.name!r} runs in one process here; use its own trainer for {world.size}"
        )
    if run.arm.name != "logra" and engine != "transformers":
        raise WrongWorld(
            f"engine={engine!r} follows LoGRA's commits; the arm {run.arm.name!r} needs 'transformers'"
        )
    if engine == "vllm":
        refuse_several(world.size)
    if sharded and (run.measure_kl or run.reference_kl):
        raise WrongWorld(
            "sharding='fsdp' can't measure the KL around a step, nor hold a reference; use 'replicated'"
        )
    if sharded and engine != "transformers":
        raise WrongWorld(
            f"engine={engine!r} follows whole weights; use sharding='replicated' or engine='transformers'"
        )


def refuse_several(size: int) -> None:
    """WrongWorld for vLLM beside several trainer processes: only one may send it weights, and the others would wait."""
    if size > 1:
        raise WrongWorld(
            f"engine='vllm' takes weights from one trainer process, and here are {size}; start one process, "
            "or use engine='worker' with a worker for each, or engine='transformers'"
        )


def shard_layers(model: nn.Module, world: World, device: torch.device) -> nn.Module:
    """Shard each decoder layer by rows over all processes (FSDP2); what is outside stays whole on `device`."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (world.size,))
    layers = decoder_layers(model)
    inside = {id(parameter) for layer in layers for parameter in layer.parameters()}
    model.requires_grad_(False)
    for layer in layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    outside = {
        parameter
        for parameter in model.parameters()
        if id(parameter) not in inside and not _sharded(parameter)
    }
    for parameter in outside:
        parameter.data = parameter.data.to(device)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(device)
    fully_shard(model, mesh=mesh, ignored_params=outside)
    return model


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of the body; WrongWorld for a model without a `layers` list."""
    body = decoder_body(model)
    body = getattr(body, "language_model", body)
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise WrongWorld(
            f"{type(body).__name__} has no list called layers to shard; use sharding='replicated'"
        )
    return list(layers)


class EvenProbe(LMProbe):
    """A probe that runs the model as often as the probe with most passes among all processes (FSDP needs that)."""

    def prepare(self, world: World) -> EvenProbe:
        """Agree on the number of passes; call it in every process."""
        own = sum(1 for _ in self._passes())
        self._extra = int(world.gather(torch.tensor([float(own)])).max()) - own
        return self

    def features(self, model: nn.Module) -> Tensor:
        """As `LMProbe.features`; the passes that only keep step are thrown away."""
        found = super().features(model)
        for _ in range(self._extra):
            hidden_states(model, self._rows[0][0][None])
        return found


def _sharded(parameter: Tensor) -> bool:
    from torch.distributed.tensor import DTensor

    return isinstance(parameter, DTensor)


def _wire() -> torch.device:
    if "nccl" in str(dist.get_backend()):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
