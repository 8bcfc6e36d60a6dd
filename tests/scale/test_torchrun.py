"""The command of docs/scale.md as one types it: torchrun with two processes, then one that goes on from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sources import ROOT

SETTINGS = dict(
    model=str(ROOT / "data" / "tiny-math"), steps=2, prompts=16, micro_batch=8, eval_every=2, eval_problems=8,
    checkpoint_every=1, pass_problems=8,
)  # fmt: skip
TRAIN = ("-m", "logra_lab.scale.train")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def train(launcher: tuple[str, ...], folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    settings = [f"{name}={json.dumps(value)}" for name, value in SETTINGS.items()]
    command = [
        sys.executable,
        *launcher,
        *TRAIN,
        "--model",
        "tiny",
        "--folder",
        str(folder),
        "--task",
        "sums",
        *more,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "--set", *settings], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )


def steps_in(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sharding", ["replicated", "fsdp"])
def test_two_processes_train_save_once_and_one_process_goes_on(sharding: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = train(TORCHRUN, folder, "--sharding", sharding)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("finished: all 2 steps done") == 1, "only the first process speaks"
    assert steps_in(folder) == [0, 1, 2]
    assert (folder / "model" / "model.safetensors").exists()

    shutil.rmtree(folder / "step-000002")  # as if both had been killed in the second step
    again = train((), folder, "--resume", "--save", str(tmp_path / "again"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert steps_in(folder) == [0, 1, 2] and (tmp_path / "again" / "model.safetensors").exists()


@pytest.mark.slow
def test_bad_input_ends_torchrun_with_the_reason_among_its_words(tmp_path: Path) -> None:
    done = train(TORCHRUN, tmp_path / "run", "--precision", "split")
    assert done.returncode != 0
    assert "logra-train: precision='split' keeps bf16 weights" in done.stderr
