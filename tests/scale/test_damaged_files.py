"""Configurations, data and checkpoints of full scale with damage in any place: a sentence each time."""

from __future__ import annotations

import json
import pickle
import random
import shutil

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from logra_lab.method import LoGRA
from logra_lab.rl import checkpoint as plain
from logra_lab.rl.checkpoint import CheckpointError
from logra_lab.rl.reading import read_json
from logra_lab.scale import checkpoints
from logra_lab.scale.data import task_for
from logra_lab.scale.presets import ScaleConfig, preset
from logra_lab.scale.safe_reader import SafeReader
from logra_lab.scale.world import World
from tests.damage import damaged_bytes, damaged_json
from tests.method.worlds import same, snapshot, stack

RECORDS = [
    {"problem": f"What is {n} + 1?", "answer": str(n + 1), "reward_model": {"ground_truth": str(n + 1)}}
    for n in (1, 2)
]
CHAT = {"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "answer": "4"}


def test_four_hundred_damaged_configurations_are_refused_in_words_or_are_what_they_say(tmp_path) -> None:
    dice, file, refused = random.Random(1), tmp_path / "config.json", 0
    for _ in range(400):
        file.write_bytes(damaged_json(preset("7B").to_json(), dice))
        try:
            config = ScaleConfig.from_json(read_json(file))
        except ValueError as error:
            assert len(str(error)) > 20
            refused += 1
        else:
            assert ScaleConfig.from_json(config.to_json()) == config
    assert refused > 150


def test_three_hundred_damaged_data_files_are_refused_with_the_line_or_read(tmp_path) -> None:
    dice, train, held_out, refused = random.Random(2), tmp_path / "train.jsonl", tmp_path / "test.jsonl", 0
    held_out.write_text('{"problem": "other", "answer": "7"}\n', encoding="utf-8")
    for number in range(300):
        record = CHAT if number % 2 else RECORDS[0]
        train.write_bytes(damaged_json(record, dice) + b"\n" + json.dumps(RECORDS[1]).encode("utf-8") + b"\n")
        try:
            task = task_for("math", train=train, held_out=held_out, score=lambda text, answer: 0.0)
        except ValueError as error:
            assert "train.jsonl" in str(error)
            refused += 1
        else:
            assert all(problem.prompt and problem.answer for problem in task.train)
    assert refused > 100


@pytest.fixture
def saved(tmp_path):
    """A model in two halves with one update done, its checkpoint, and the place of a copy to damage."""
    model = stack((9, 5), (5, 9)).bfloat16()
    optimizer = LoGRA(model, rank=3, seed=1, precision="split")
    model(torch.ones(4, 5, dtype=torch.bfloat16)).sum().backward()
    optimizer.step(tokens=4)
    state = {"config_hash": "abc", "baseline": 0.5}
    path = checkpoints.save(tmp_path / "run", 1, model, optimizer, state, World())
    return model, optimizer, path, shutil.copytree(path, tmp_path / "copy" / path.name)


def test_two_hundred_damaged_states_are_refused_and_the_model_stays_as_it_was(saved) -> None:
    model, optimizer, whole, copy = saved
    dice, before = random.Random(3), snapshot(model, optimizer)
    good = (whole / plain.STATE).read_bytes()
    for number in range(200):
        bad = damaged_json(json.loads(good), dice) if number % 2 else damaged_bytes(good, dice)
        (copy / plain.STATE).write_bytes(bad)
        try:
            checkpoints.load(copy, model, optimizer, "abc", World())
        except CheckpointError as error:
            assert "nothing was written over" in str(error)
        else:
            assert json.loads(bad) == json.loads(good)
        assert same(before, snapshot(model, optimizer))


def test_sixty_damaged_shards_are_named_or_read_as_they_were_written(saved) -> None:
    model, optimizer, whole, copy = saved
    dice, before = random.Random(4), snapshot(model, optimizer)
    files = [file.name for file in sorted((whole / checkpoints.SHARDS).iterdir())]
    refused = 0
    for number in range(60):
        name = files[number % len(files)]
        good = (whole / checkpoints.SHARDS / name).read_bytes()
        (copy / checkpoints.SHARDS / name).write_bytes(damaged_bytes(good, dice))
        try:
            checkpoints.load(copy, model, optimizer, "abc", World())
        except CheckpointError as error:
            assert copy.name in str(error)
            refused += 1
        else:
            assert same(before, snapshot(model, optimizer))
        (copy / checkpoints.SHARDS / name).write_bytes(good)
        checkpoints.load(copy, model, optimizer, "abc", World())
        assert same(before, snapshot(model, optimizer))
    assert refused > 30


def test_an_index_that_would_run_code_is_refused_and_runs_nothing(saved, tmp_path) -> None:
    _, _, whole, _ = saved
    index = whole / checkpoints.SHARDS / ".metadata"

    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").write_text, ("x",))

    index.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="which may run code, so it isn't read"):
        SafeReader(str(index.parent)).read_metadata()
    assert not (tmp_path / "ran").exists()


def test_an_index_of_anything_but_tensors_is_refused(saved) -> None:
    _, _, whole, _ = saved
    index = whole / checkpoints.SHARDS / ".metadata"
    found = SafeReader(str(index.parent)).read_metadata()
    found.state_dict_metadata["extra"] = BytesStorageMetadata()  # torch would unpickle such an entry
    index.write_bytes(pickle.dumps(found))
    with pytest.raises(ValueError, match="BytesStorageMetadata, which may run code"):
        SafeReader(str(index.parent)).read_metadata()


def test_three_hundred_damaged_indexes_are_refused_or_are_an_index(saved) -> None:
    _, _, whole, copy = saved
    index, dice, refused = copy / checkpoints.SHARDS / ".metadata", random.Random(5), 0
    good = (whole / checkpoints.SHARDS / ".metadata").read_bytes()
    for _ in range(300):
        index.write_bytes(damaged_bytes(good, dice))
        try:
            assert SafeReader(str(index.parent)).read_metadata().storage_data
        except ValueError as error:
            assert ".metadata is no index" in str(error)
            refused += 1
    assert refused > 150
