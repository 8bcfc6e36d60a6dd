"""The recorded race: made by the panels in the code, on eight paired seeds, its words made from its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from logra_lab.rl import panels
from logra_lab.rl.compare import Entry
from logra_lab.rl.config import RunConfig, config_hash
from logra_lab.rl.pretrain import PretrainConfig
from logra_lab.rl.summary import summarise
from logra_lab.rl.words import grids, in_words

FILE = Path(__file__).resolve().parents[2] / "data" / "runs" / "race.json"
SEEDS = 8


@pytest.fixture(scope="module")
def race():
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_the_file_holds_every_run_of_the_panels_with_the_hash_of_its_configuration(race):
    tuning = [Entry(*entry) for entry in panels.tuning_panel()]
    tuned = race["runs"][: len(tuning)]
    entries = tuning + [Entry(*entry) for entry in panels.race_panel(tuned, SEEDS)]
    assert [run["key"] for run in race["runs"]] == [entry.key for entry in entries]
    assert race["hash"] == config_hash({entry.key: entry.config.to_json() for entry in entries})
    assert race["model"] == PretrainConfig().hash()
    for run in race["runs"]:
        assert RunConfig.from_json(run["config"]).hash() == run["hash"]


def test_every_arm_ran_on_the_same_eight_seeds(race):
    rows = [row for row in race["table"] if row["panel"] != "tuning"]
    assert len(rows) == len(panels.RACE_ARMS) + len(panels.EQUAL_KL_ARMS) + len(panels.EQUAL_MEMORY_ARMS)
    assert all(row["seeds"] == list(range(SEEDS)) for row in rows)


def test_table_and_words_follow_from_the_runs(race):
    assert race["table"] == json.loads(json.dumps(summarise(race["runs"])))
    assert race["words"] == in_words(race["table"], race["runs"])


def test_each_arm_has_a_grid_of_at_least_three_step_sizes_and_raced_at_the_best(race):
    tried = grids(race["runs"])
    raced = {row["label"]: row["lr"] for row in race["table"] if row["panel"] == "at its best step size"}
    for label, *_ in panels.RACE_ARMS:
        assert len(tried[label]) >= 3 and raced[label] == max(tried[label], key=tried[label].__getitem__)


def test_seconds_per_step_and_memory_by_class_are_there_for_every_arm(race):
    for row in race["table"]:
        assert 0 < row["seconds_per_step"] < 10
        assert row["memory"]["weights"] > 0 and len(row["memory"]) >= 2
