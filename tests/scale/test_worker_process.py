"""A worker that is a real process: late, killed and restarted, it answers from the trainer's weights."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys

import pytest
import torch

from logra_lab.method.chain import Terms
from logra_lab.scale.transport import Directory, Server
from logra_lab.scale.worker import load_model
from tests.method.worlds import llama
from tests.scale.trainers import Trainer


@contextlib.contextmanager
def worker_process(model_path, *where: str):
    command = [
        sys.executable,
        "-m",
        "logra_lab.scale.worker",
        "--model",
        str(model_path),
        "--idle",
        "120",
        *where,
    ]
    threads = ["--threads", str(torch.get_num_threads())]
    process = subprocess.Popen(
        [*command, *threads],
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        process.kill()
        output = process.communicate()[0].decode()
        assert "Traceback" not in output, output


@pytest.mark.parametrize("kind", [pytest.param("directory", marks=pytest.mark.slow), "socket"])
def test_late_start_kill_and_restart_each_end_in_a_resync_and_right_answers(
    tmp_path, kind, precision="split"
):
    path = tmp_path / "model"
    llama().bfloat16().save_pretrained(path)
    model = load_model(path, Terms("logra", 42, 4, True, precision, "torch.bfloat16", ()))
    transport = Directory(tmp_path / "box", "trainer") if kind == "directory" else Server()
    if kind == "directory":
        where = ["--directory", str(tmp_path / "box")]
    else:
        where = ["--connect", "{}:{}".format(*transport.address)]
    trainer = Trainer(transport, model=model, timeout=120.0, precision=precision)
    trainer.train(2)
    if kind == "directory":  # a late worker would find both packets there: lose the first
        sorted(transport.outbox.iterdir())[0].unlink()
    with worker_process(path, *where):
        assert trainer.answers_are_right()
        assert len(trainer.resyncs()) >= 1  # late
        late = len(trainer.resyncs())
        trainer.train(2)
        assert trainer.answers_are_right() and len(trainer.resyncs()) == late
    trainer.train(1)  # while it is dead
    with worker_process(path, *where) as process:
        assert trainer.answers_are_right()
        assert len(trainer.resyncs()) > late  # restarted
        trainer.train(1)
        restarted = len(trainer.resyncs())
        assert trainer.answers_are_right() and len(trainer.resyncs()) == restarted
        trainer.remote.stop()
        assert process.wait(30) == 0
    transport.close()
    assert all(math.isfinite(sync.seconds) for sync in trainer.remote.syncs)
