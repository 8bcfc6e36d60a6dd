"""The list of bad inputs: each ends with one sentence and the remedy, and a folder with an older run stays as it is."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, GPTNeoXConfig, GPTNeoXForCausalLM

from logra_lab.memory import Card
from logra_lab.rl.tasks import sums
from logra_lab.scale.fitting import TooLarge
from logra_lab.scale.loading import CannotLoad
from logra_lab.scale.presets import preset
from logra_lab.scale.train import main, prepare

SMALL = dict(
    steps=1, prompts=8, micro_batch=8, eval_every=1, eval_problems=8, checkpoint_every=1, pass_problems=4
)


@pytest.fixture(scope="module")
def tiny_math(repository):
    return repository / "data" / "tiny-math"


@pytest.fixture(scope="module")
def finished(tiny_math, tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    config = preset("tiny", **SMALL | {"model": str(tiny_math)})
    prepare(config, folder=folder, task=sums(largest=20)).run()
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def neox(tiny_math, tmp_path):
    """A model of another family, whose linear layers have other names."""
    folder = tmp_path / "neox"
    tokenizer = AutoTokenizer.from_pretrained(tiny_math)
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)
    config = GPTNeoXConfig(
        vocab_size=len(tokenizer), **sizes, eos_token_id=tokenizer.eos_token_id, pad_token_id=0
    )
    torch.manual_seed(0)
    GPTNeoXForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def content(folder) -> dict:
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()
    }


def refused(capsys, run, *options: str) -> str:
    """The line that `logra-train` ends with, after what the libraries say; the folder is as it was."""
    before = content(run)
    assert main(["--folder", str(run), "--resume", "--task", "sums", *options]) == 2
    assert content(run) == before
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.startswith("logra-train: ")
    return told


def test_no_gpu(run, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    told = refused(capsys, run, "--model", "tiny", "--device", "cuda")
    assert "sees no CUDA GPU; use device='cpu' with the preset 'tiny'" in told and "nvidia-smi" in told


def test_too_small_a_gpu(run, tiny_math):
    before, small = content(run), Card("small", "small", 2**28)
    with pytest.raises(TooLarge, match="does not fit by .*smaller model, or more GPUs with sharding='fsdp'"):
        prepare(preset("tiny", model=str(tiny_math)), folder=run, resume=True, card=small)
    assert content(run) == before


def test_a_model_without_the_target_names_is_told_what_to_pass_and_that_works(run, neox, capsys, tmp_path):
    told = refused(capsys, run, "--model", str(neox), "--device", "cpu", "--precision", "fp32")
    assert "has no linear layer called q_proj, k_proj" in told
    assert "Its linear layers are" in told and "dense_4h_to_h" in told
    proposed = re.search(r"pass targets=\((.*)\)$", told)[1].replace("'", '"')
    small = {name: value for name, value in SMALL.items() if name != "pass_problems"}
    config = preset(str(neox), device="cpu", precision="fp32", targets=tuple(json.loads(f"[{proposed}]")))
    config = config.but(**small, max_new_tokens=5, probe_tokens=64, pass_problems=4)
    trainer = prepare(config, folder=tmp_path / "neox-run", task=sums(largest=20))
    assert len(trainer.arm.optimizer.targets) == 8 and trainer.run().status == "finished"


def test_a_missing_tokenizer(run, tiny_math, capsys, tmp_path):
    model = shutil.copytree(tiny_math, tmp_path / "model")
    for file in model.glob("tokenizer*"):
        file.unlink()
    told = refused(capsys, run, "--model", str(model))
    assert "has no tokenizer that can be read" in told and "save_pretrained(folder)" in told


def test_a_missing_chat_template(run, tiny_math, capsys):
    told = refused(capsys, run, "--model", str(tiny_math), "--set", "chat=true")
    assert "has no chat template, but chat=True asks for it; use chat=False" in told


def test_a_hub_that_can_not_be_reached_for_the_model(run, capsys):
    told = refused(capsys, run, "--model", "nobody/nothing-here")
    assert "the hub can't be reached" in told and "pass its path; nothing was changed" in told


def test_a_gated_model(run, monkeypatch, capsys):
    def gated(*_, **__):
        raise OSError("You are trying to access a gated repo.\nMake sure to have access to it")

    monkeypatch.setattr(AutoConfig, "from_pretrained", gated)
    with pytest.raises(CannotLoad, match="accept its terms and run: hf auth login"):
        prepare(preset("27B"), folder=run, resume=True, task=sums(largest=20))


def test_a_corrupt_checkpoint(run, tiny_math, capsys):
    shard = next(run.glob("step-*/shards/*.distcp"))
    data = bytearray(shard.read_bytes())
    data[-1000] ^= 4
    shard.write_bytes(data)
    settings = [f"{name}={value}" for name, value in SMALL.items()] + [f"model={json.dumps(str(tiny_math))}"]
    told = refused(capsys, run, "--model", "tiny", "--set", *settings)
    assert f"step-000001 is damaged: {shard.name} is not as it was written" in told
    assert "there is no other checkpoint in its folder; nothing was written over" in told


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORLD_SIZE": "2"}, "RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not set; start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}, "MASTER_ADDR, MASTER_PORT is not set"),
    ],
)
def test_a_wrong_world_size(run, capsys, monkeypatch, environment, words):
    for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert words in refused(capsys, run, "--model", "tiny")


def test_a_card_that_is_full_in_the_middle_of_a_run_is_an_ending_with_advice(tiny_math, tmp_path):
    config = preset("tiny", **SMALL | {"model": str(tiny_math), "steps": 2})
    trainer = prepare(config, folder=tmp_path / "run", task=sums(largest=20))
    loss, count = trainer._loss, iter(range(10))

    def full(*arguments):
        if next(count) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
        return loss(*arguments)

    trainer._loss = full
    result = trainer.run()
    assert result.status == "out of memory" and result.checkpoint.name == "step-000001"
    assert (
        "step 2: CUDA out of memory" in result.message and "Lower micro_batch or rollouts" in result.message
    )
    trainer._loss = loss
    assert trainer.run().status == "finished"
