"""Configurations, metrics, problems and checkpoints with damage in any place: a sentence each time."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil

import pytest
import torch

from logra_lab.rl import checkpoint as checkpoints
from logra_lab.rl.__main__ import main
from logra_lab.rl.checkpoint import CheckpointError
from logra_lab.rl.config import ArmConfig, RunConfig
from logra_lab.rl.gsm8k import read_problems
from logra_lab.rl.metrics import MetricsLog, read_metrics
from logra_lab.rl.reading import ReadingError, parse_json, read_json
from tests.damage import damaged_bytes, damaged_json
from tests.method.worlds import same
from tests.rl.models import llama

CONFIG = RunConfig(
    arm=ArmConfig(options=(("targets", ("q_proj",)),)), task_options=(("largest", 9),), micro_batch=4
)
LINES = [
    {"step": step, "right": 0.25, "status": "updated", "message": "ü", "accuracy": None} for step in (0, 1, 2)
]
PROBLEMS = [{"question": f"How many is {n} and 1?", "answer": f"One more.\n#### {n + 1}"} for n in (1, 2, 3)]


def test_five_hundred_damaged_configurations_are_refused_in_words_or_are_what_they_say(tmp_path) -> None:
    dice, file, refused = random.Random(1), tmp_path / "config.json", 0
    for _ in range(500):
        file.write_bytes(damaged_json(CONFIG.to_json(), dice))
        try:
            config = RunConfig.from_json(read_json(file))
        except ValueError as error:
            assert len(str(error)) > 20
            refused += 1
        else:
            written = json.loads(file.read_bytes())
            for name, value in config.to_json().items():
                assert name not in written or written[name] == value or name == "arm"
            assert RunConfig.from_json(config.to_json()) == config
    assert refused > 200


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": "ten"}, "steps is 'ten', and a whole number is expected"),
        ({"steps": True}, "steps is True, and a whole number is expected"),
        ({"steps": 2.0}, "steps is 2.0, and a whole number is expected"),
        ({"prompts": 10**30}, "prompts is 10{30}, and a whole number is expected"),
        ({"seed": 10**5000}, "seed is a number of thousands of digits"),
        ({"temperature": None}, "temperature is None, and a number is expected"),
        ({"use_std": 1}, "use_std is 1, and true or false is expected"),
        ({"micro_batch": "all"}, "micro_batch is 'all', and a whole number or null is expected"),
        ({"denominator": 3}, "denominator is 3, and one of 'batch_tokens'"),
        ({"arm": "adamw"}, "arm is 'adamw', and an object in braces is expected"),
        ({"arm": {"rank": "8"}}, "rank is '8', and a whole number is expected"),
        ({"arm": {"ranks": 8}}, "unknown settings .'ranks'."),
        ({"arm": {"options": [["beta2"]]}}, "the arm's options: .'beta2'. is no pair"),
        ({"task_options": {"largest": 9}}, "task_options is .'largest': 9., and a list is expected"),
    ],
)
def test_a_setting_of_another_type_is_named_with_what_is_expected(change, message) -> None:
    with pytest.raises(ReadingError, match=message):
        RunConfig.from_json(change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "c.json: 'nothing' is not JSON"),
        ('{"a": 1', "c.json: .* is not JSON .*line 1, column 8"),
        ('{"a": 1, "a": 2}', "c.json: the key 'a' stands twice in one object"),
        ('{"a": NaN}', "c.json: the number NaN is not finite"),
        ('{"a": 1e999}', "c.json: the number 1e999 is not finite"),
        ("[" * 100_000, "c.json: brackets are nested too deeply"),
        ("9" * 5000, "c.json: Exceeds the limit"),
    ],
)
def test_what_json_would_let_pass_is_refused(text: str, message: str) -> None:
    with pytest.raises(ReadingError, match=message):
        parse_json(text, "c.json")


def test_the_command_line_says_what_is_wrong_with_a_configuration_and_writes_nothing(
    tmp_path, capsys
) -> None:
    (tmp_path / "c.json").write_bytes(b'{"steps": 3, "steps": 4}')
    assert main(["--folder", str(tmp_path / "run"), "--config", str(tmp_path / "c.json")]) == 2
    assert "the key 'steps' stands twice" in capsys.readouterr().err
    (tmp_path / "c.json").write_bytes(b"\xff\xfe")
    assert main(["--folder", str(tmp_path / "run"), "--config", str(tmp_path / "c.json")]) == 2
    assert "c.json is no UTF-8 text (byte 0)" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_four_hundred_damaged_metrics_files_are_read_up_to_their_end_or_refused_with_the_line(
    tmp_path,
) -> None:
    dice, file, refused = random.Random(2), tmp_path / "metrics.jsonl", 0
    whole = [json.dumps(line).encode("utf-8") + b"\n" for line in LINES]
    for _ in range(400):
        number = dice.randrange(3)
        damaged = damaged_json(LINES[number], dice) + b"\n" if dice.random() < 0.5 else None
        lines = [damaged if damaged and n == number else line for n, line in enumerate(whole)]
        file.write_bytes(b"".join(lines) if damaged else damaged_bytes(b"".join(whole), dice))
        try:
            found = read_metrics(file)
        except ReadingError as error:
            assert "metrics.jsonl, line" in str(error)
            refused += 1
        else:
            assert all(type(line["step"]) is int for line in found)
            unharmed = [line for n, line in enumerate(LINES) if damaged is None or n != number]
            assert damaged is None or all(line in found for line in unharmed)
            MetricsLog(file, keep_steps=1)
    assert refused > 100


def test_a_line_of_metrics_without_a_step_is_named(tmp_path) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"right": 1.0}\n', encoding="utf-8")
    with pytest.raises(ReadingError, match="metrics.jsonl, line 2: the step is None"):
        MetricsLog(file, keep_steps=2)
    file.write_bytes(b'{"step": 1}\n\xff\n')
    with pytest.raises(ReadingError, match="metrics.jsonl, line 2 is no UTF-8 text"):
        read_metrics(file)
    assert file.read_bytes() == b'{"step": 1}\n\xff\n'


def test_three_hundred_damaged_problem_files_are_refused_with_the_line_or_read_whole(tmp_path) -> None:
    dice, file, refused = random.Random(3), tmp_path / "train.jsonl", 0
    for _ in range(300):
        number = dice.randrange(3)
        lines = [json.dumps(problem).encode("utf-8") for problem in PROBLEMS]
        lines[number] = damaged_json(PROBLEMS[number], dice)
        file.write_bytes(b"\n".join(lines) + b"\n")
        try:
            problems = read_problems(file)
        except ValueError as error:
            assert "train.jsonl" in str(error)
            refused += 1
        else:
            assert all(problem.prompt and "####" in problem.answer for problem in problems)
    assert refused > 100


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of an untrained model, one step old, and a folder that damaged copies of it may fill."""
    model = llama()
    arm = {"optimizer": {"state": {0: {"exp_avg": torch.ones(3)}}}, "updates": 1}
    state = {"config_hash": CONFIG.hash(), "baseline": 0.5, "feedback_factor": 1.0}
    return checkpoints.save(tmp_path / "run", 1, model, arm, state), tmp_path / "copy" / "step-000001"


def test_five_hundred_damaged_checkpoints_are_refused_and_the_model_stays_as_it_was(saved) -> None:
    (whole, copy), dice, model = saved, random.Random(4), llama(seed=5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    shutil.copytree(whole, copy)
    for number in range(500):
        file = copy / (checkpoints.STATE, checkpoints.ARM, checkpoints.WEIGHTS)[number % 3]
        good = (whole / file.name).read_bytes()
        bad = damaged_json(json.loads(good), dice) if number % 6 == 0 else damaged_bytes(good, dice)
        file.write_bytes(bad)
        try:
            checkpoints.load(copy, model, CONFIG.hash())
        except CheckpointError as error:
            assert "nothing was written over" in str(error)
            assert same(before, dict(model.state_dict()))
        else:  # white space in state.json may change, and the end of a file may be overwritten with itself
            assert bad == good or (file.name == checkpoints.STATE and json.loads(bad) == json.loads(good))
            model.load_state_dict(before)
        file.write_bytes(good)
    restored = checkpoints.load(copy, model, CONFIG.hash())
    assert restored.step == 1 and torch.equal(restored.arm["optimizer"]["state"][0]["exp_avg"], torch.ones(3))
    assert same(dict(llama().state_dict()), dict(model.state_dict()))


def test_a_checkpoint_without_a_file_names_it_and_the_older_one(saved) -> None:
    whole, copy = saved
    shutil.copytree(whole, copy)
    shutil.copytree(whole, copy.with_name("step-000000"))
    (copy / checkpoints.WEIGHTS).unlink()
    with pytest.raises(
        CheckpointError,
        match="model.safetensors is not as it was written; move it away and resume from step-000000",
    ):
        checkpoints.load(copy, llama(), CONFIG.hash())


def test_a_checkpoint_is_read_without_running_code_in_it(saved, tmp_path) -> None:
    whole, copy = saved

    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").write_text, ("x",))

    shutil.copytree(whole, copy)
    torch.save({"arm": Bomb(), "rng": torch.get_rng_state()}, copy / checkpoints.ARM)
    state = checkpoints.read_state(copy)
    state["files"][checkpoints.ARM] = checkpoints._digest(copy / checkpoints.ARM)  # as an attacker would
    (copy / checkpoints.STATE).write_text(json.dumps(checkpoints.sealed(state)), encoding="utf-8")
    with pytest.raises(CheckpointError, match="arm.pt can't be read without running code in it"):
        checkpoints.load(copy, llama(), CONFIG.hash())
    assert not (tmp_path / "ran").exists()


def test_the_fields_of_every_configuration_have_types_that_the_reader_knows() -> None:
    again = RunConfig.from_json(dataclasses.asdict(CONFIG))
    assert again == CONFIG
