"""data/tiny-math: made by the recipe that stands beside it, and right a third of the time on pairs it never saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from logra_lab.rl.batch import generator_for
from logra_lab.rl.evaluation import evaluate
from logra_lab.rl.policy import Policy, Sampling, load_policy
from logra_lab.rl.pretrain import IGNORED, PretrainConfig, answer_table, build_model, share_of_right
from logra_lab.rl.tasks import sums
from logra_lab.rl.tokenizer import CHARACTERS, character_tokenizer


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(__file__).resolve().parents[2] / "data" / "tiny-math"


@pytest.fixture(scope="module")
def tiny_math(folder) -> Policy:
    return load_policy(folder)


def test_sampled_at_temperature_one_it_is_right_30_to_45_percent_on_held_out_pairs(tiny_math):
    results = [
        evaluate(tiny_math, sums(), Sampling(max_new_tokens=5), generator_for(s, 0, "test")) for s in (0, 1)
    ]
    assert all(0.30 <= result["accuracy"] <= 0.45 for result in results)


def test_the_recorded_recipe_is_the_one_in_the_code_and_its_accuracy_is_what_comes_out(folder, tiny_math):
    recipe = json.loads((folder / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["hash"] == PretrainConfig().hash()
    assert PretrainConfig(**recipe["config"]) == PretrainConfig()
    generator = generator_for(recipe["config"]["seed"], 0, "held-out accuracy")
    again = evaluate(tiny_math, sums(), Sampling(max_new_tokens=5), generator)
    assert again["accuracy"] == pytest.approx(recipe["held_out"]["accuracy"], abs=0.02)


def test_it_loads_with_the_auto_classes_and_is_small(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "llama" and sum(p.numel() for p in model.parameters()) < 2_000_000
    assert [f.name for f in folder.glob("*.safetensors")] == ["model.safetensors"]
    assert tokenizer.decode(tokenizer("12+34=46")["input_ids"]) == "12+34=46"
    assert tokenizer.pad_token_id == tokenizer.eos_token_id


def test_every_character_is_one_token_and_others_are_unknown():
    tokenizer = character_tokenizer()
    ids = tokenizer(CHARACTERS)["input_ids"]
    assert len(set(ids)) == len(CHARACTERS) and tokenizer.decode(ids) == CHARACTERS
    assert tokenizer("٤x")["input_ids"] == [tokenizer.unk_token_id] * 2


def test_only_training_pairs_are_shown_and_only_answers_are_learned():
    task, tokenizer = sums(12), character_tokenizer()
    ids, labels = answer_table(task.train, tokenizer)
    held_out = {p.prompt for p in task.held_out}
    for row, label in zip(ids.flatten(0, 1).tolist(), labels.flatten(0, 1).tolist(), strict=True):
        prompt = tokenizer.decode([t for t, y in zip(row, label, strict=True) if y == IGNORED and t != 0])
        assert prompt not in held_out and prompt.endswith("=")
        answer = [y for y in label if y != IGNORED]
        assert answer[-1] == tokenizer.eos_token_id
        a, b = map(int, prompt[:-1].split("+"))
        assert int(tokenizer.decode(answer[:-1])) in (a + b, a, b)


def test_the_share_of_right_answers_falls_from_its_first_to_its_last_value():
    config = PretrainConfig()
    shares = [share_of_right(config, step) for step in range(config.steps)]
    assert shares[0] == config.first_share and shares[-1] == pytest.approx(config.right_share)
    assert all(a >= b for a, b in zip(shares, shares[1:]))


def test_the_first_weights_depend_on_the_recipes_seed_alone():
    torch.manual_seed(99)
    first = build_model(PretrainConfig(), character_tokenizer())
    second = build_model(PretrainConfig(), character_tokenizer())
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
