"""The command line of `logra-train`: its options, the configuration and engine they mean, plan and progress line."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from logra_lab.memory import CARDS, card_here, shape_of
from logra_lab.rl.metrics import progress_line
from logra_lab.rl.reading import read_json
from logra_lab.scale.engines import Engine, Worker
from logra_lab.scale.fitting import TooLarge, dense_verdict, fitted, room
from logra_lab.scale.loading import read_config
from logra_lab.scale.presets import ENGINES, HUB, SHARDINGS, ScaleConfig, preset, preset_for
from logra_lab.scale.transport import Directory
from logra_lab.scale.world import World


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="logra-train", description="Train at any size with LoGRA; see docs/scale.md."
    )
    made.add_argument("--model", help="tiny, 1.5B, 7B, 27B, a hub id or a folder (default: by the GPU found)")
    made.add_argument("--config", type=Path, help="JSON of a whole configuration, as config.json holds it")
    made.add_argument("--folder", type=Path, required=True, help="receives metrics.jsonl and checkpoints")
    made.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in the folder")
    made.add_argument("--save", type=Path, help="where to save the trained model (default: FOLDER/model)")
    made.add_argument("--task", help="gsm8k, math, sums, gym:NAME, … (default: the preset's)")
    made.add_argument("--steps", type=int)
    made.add_argument("--prompts", type=int, help="per step, all processes together")
    made.add_argument("--device", choices=("auto", "cuda", "mps", "cpu"))
    made.add_argument("--precision", choices=("fp32", "split", "stochastic", "nearest"))
    made.add_argument("--sharding", choices=SHARDINGS)
    made.add_argument("--engine", choices=ENGINES)
    made.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="any other setting, the value as JSON"
    )
    made.add_argument("--worker-folder", type=Path, help="engine worker: folder shared with the worker")
    made.add_argument("--vllm-url", help="engine vllm: a server's address; without it vLLM runs on this card")
    made.add_argument(
        "--vllm-address", default="127.0.0.1", help="this machine as the vLLM server reaches it"
    )
    made.add_argument("--force", action="store_true", help="load although the planner says that it won't fit")
    made.add_argument(
        "--plan", action="store_true", help="say what would be done, and whether it fits; then end"
    )
    return made


def configuration(options: argparse.Namespace) -> ScaleConfig:
    """The configuration that a command line asks for."""
    if options.config is not None:
        config = ScaleConfig.from_json(read_json(options.config))
    else:
        config = preset(options.model) if options.model else preset_for()
    names = ("task", "steps", "prompts", "device", "precision", "sharding", "engine")
    changes = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    for text in options.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise ValueError(f"--set {text!r} has no value; write NAME=VALUE, such as --set rank=128")
        changes[name] = _value(value)
    config = config.but(**changes)
    if config.engine == "worker" and options.worker_folder is None:
        raise ValueError(
            "--engine worker needs --worker-folder, which python -m logra_lab.scale.worker reads too"
        )
    return config


def make_engine(
    options: argparse.Namespace, trainer_model: Any, config: ScaleConfig, world: World
) -> Engine | None:
    """The engine that the command line describes; None for the one in process."""
    if config.engine == "worker":
        return Worker(Directory(options.worker_folder / f"rank{world.rank}", "trainer"))
    if config.engine == "vllm":
        from logra_lab.scale import vllm_engine

        if options.vllm_url is None:
            return vllm_engine.colocated(trainer_model, config.run.model)
        return vllm_engine.server(trainer_model, options.vllm_url, address=options.vllm_address)
    return None


class Progress:
    """One line of a terminal, rewritten; elsewhere a line per evaluation. Only the first process writes."""

    def __init__(self, trainer: Any) -> None:
        self.steps, self.first, self.started = trainer.config.steps, trainer.step, time.perf_counter()
        self.speaks = trainer.world.first

    def __call__(self, metrics: dict[str, Any]) -> None:
        if not self.speaks:
            return
        line = progress_line(
            metrics, self.steps, time.perf_counter() - self.started, metrics["step"] - self.first
        )
        line += f"  {metrics['total_tokens_per_second']:.0f} tokens/s"
        if sys.stderr.isatty():
            print(f"\r{line:<125}", end="", file=sys.stderr, flush=True)
        elif metrics.get("accuracy") is not None:
            print(line, file=sys.stderr, flush=True)


def print_plan(config: ScaleConfig) -> int:
    """Print what the planner says of the card here, or of all cards without one; 0."""
    shape = shape_of(config.name if config.name in HUB else read_config(config.run.model))
    here = card_here()
    for card in [here] if here else CARDS.values():
        try:
            lowered, made = fitted(config, shape, card)
            print(f"{room(made, card)}; {json.dumps(lowered.options)}, micro-batch {lowered.run.micro_batch}")
        except TooLarge as error:
            print(error)
        print(f"  dense: {dense_verdict(config, shape, card)[1]}")
    return 0


def _value(text: str) -> Any:
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        return text
    return tuple(found) if isinstance(found, list) else found
