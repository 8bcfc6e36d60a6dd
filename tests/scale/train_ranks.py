"""What each of two gloo processes does for the tests of `logra_lab.scale.trainer`; results go to a file per rank."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist

from logra_lab.rl.generation import Sampled, sample_tokens
from logra_lab.rl.tasks import sums
from logra_lab.scale import vllm_engine
from logra_lab.scale.device import choose_device
from logra_lab.scale.engines import joined
from logra_lab.scale.loading import load
from logra_lab.scale.presets import ScaleConfig, preset
from logra_lab.scale.saving import save_pretrained
from logra_lab.scale.train import prepare
from logra_lab.scale.trainer import ScaleTrainer
from logra_lab.scale.world import World, WrongWorld

WORLD = 2
SMALL = dict(
    steps=4, prompts=16, micro_batch=4, probe_sequences=8, eval_every=2, eval_problems=8, checkpoint_every=2,
    pass_problems=7,
)  # fmt: skip


class RowByRow:
    """Samples each sequence by itself, with noise that only its prompt decides: the same in any share."""

    name, syncs = "transformers", ()

    def __init__(self, everywhere=bool) -> None:
        self.everywhere = everywhere

    def attach(self, optimizer) -> None:
        """Nothing to follow."""

    def sample(self, model, input_ids, attention_mask, sampling, stop_ids, pad, generator) -> Sampled:
        parts = []
        for ids, mask in zip(input_ids, attention_mask, strict=True):
            prompt = ids[mask.bool()]
            digest = hashlib.sha256(str(prompt.tolist()).encode()).digest()
            noise = torch.Generator().manual_seed(int.from_bytes(digest[:6], "big"))
            row = (prompt[None], torch.ones(1, len(prompt), dtype=torch.bool))
            parts.append(
                sample_tokens(model, *row, sampling, stop_ids, pad, noise, everywhere=self.everywhere)
            )
        return joined(parts, pad)

    def close(self) -> None:
        """Nothing to end."""


def config(model: str, **changes) -> ScaleConfig:
    return preset("tiny", **SMALL | {"model": model} | changes)


def trainer(model: str, world: World, folder=None, resume=False, dtype="fp32", **changes) -> ScaleTrainer:
    wanted = config(model, **changes)
    everywhere = world.everywhere if wanted.sharding == "fsdp" and world.size > 1 else bool
    loaded = load(wanted, choose_device("cpu", dtype), gpus=world.size)
    return ScaleTrainer(
        loaded, task=sums(largest=20), world=world, engine=RowByRow(everywhere), folder=folder, resume=resume
    )


def weights(made: ScaleTrainer) -> dict[str, torch.Tensor]:
    """Every target's fp32 value, whole."""
    optimizer = made.arm.optimizer
    return {
        target.name: optimizer.rows.gather(optimizer.weight(target.name), target.weight).clone()
        for target in optimizer.targets
    }


KEPT = (
    "status",
    "reward",
    "right",
    "no_signal",
    "length",
    "predicted_kl",
    "scale",
    "budget",
    "mismatch",
    "sketch_norm",
)


def steps(made: ScaleTrainer, count: int) -> dict:
    metrics = [{name: line[name] for name in KEPT} for line in (made.train_step() for _ in range(count))]
    return {"metrics": metrics, "weights": weights(made), "baseline": made.baseline}


FSDP = dict(sharding="fsdp")
SPLIT = dict(dtype="bf16", precision="split")


def scenarios(world: World, folder: Path, model: str) -> dict:
    replicated = trainer(model, world)
    results = {"replicated": steps(replicated, 3)}
    results["passes"] = {"found": replicated.evaluate_passes(), "accuracy": replicated.evaluate(None)}
    results["fsdp"] = steps(trainer(model, world, **FSDP), 3)
    checkpointed = trainer(model, world, checkpointing=True, **FSDP)
    results["fsdp, checkpointing"] = steps(checkpointed, 1)
    results["passes under fsdp"] = {"found": trainer(model, world, **FSDP).evaluate_passes()}

    split = trainer(model, world, folder / "two", **FSDP, **SPLIT)
    results["split"] = steps(split, 2)
    results["local rows"] = [len(split.arm.optimizer.weights.local(t)) for t in split.arm.optimizer.targets]
    split.save()
    save_pretrained(split.policy, split.arm.optimizer, folder / "exported", world, torch.float32)
    results["split, after its checkpoint"] = steps(split, 1)
    results["resumed from one"] = {
        "start": (resumed := trainer(model, world, folder / "one", True, **FSDP, **SPLIT)).step
    }
    results["resumed from one"] |= steps(resumed, 1)
    return results | {"stop": stopped(world, folder, model), "refused": refusals(world, model)}


def stopped(world: World, folder: Path, model: str) -> dict:
    """Only the second process is asked to stop, after its first step."""
    made = trainer(model, world, folder / "stopped", eval_problems=4)
    import logra_lab.scale.stopping as module

    stop = module.AgreedStop(world)
    module.AgreedStop, original = (lambda _: stop), module.AgreedStop
    try:
        result = made.run(lambda metrics: setattr(stop, "requested", world.rank == 1))
    finally:
        module.AgreedStop = original
    return {
        "status": result.status,
        "step": made.step,
        "checkpoint": result.checkpoint.name,
        "lines": len(result.history),
    }


def refusals(world: World, model: str) -> dict[str, str]:
    wrong = {
        "prompts": lambda: trainer(model, world, prompts=15),
        "vllm": lambda: prepare(config(model, engine="vllm"), task=sums(largest=20), world=world),
        "configurations": lambda: trainer(model, world, rank=4 + world.rank),
        "measured KL": lambda: trainer(model, world, measure_kl=True, **FSDP),
    }
    found = {}
    for name, attempt in wrong.items():
        try:
            attempt()
        except WrongWorld as error:
            found[name] = str(error)
    for name, engine in (("server", vllm_engine.server), ("colocated", vllm_engine.colocated)):
        try:
            engine(None, "here", **({"address": "here"} if name == "server" else {}))
        except WrongWorld as error:
            found[name] = str(error)
    return found


def main(rank: int, folder: str, model: str) -> None:
    """One of the two processes."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{Path(folder, 'meet').as_posix()}", rank=rank, world_size=WORLD,
        timeout=datetime.timedelta(seconds=120),
    )  # fmt: skip
    torch.save(scenarios(World(rank, WORLD, rank), Path(folder), model), Path(folder, f"rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()
