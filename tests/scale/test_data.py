"""Problems at full scale: DAPO-Math and MATH-500 style files, reasoning-gym, GSM8K; offline and broken input."""

from __future__ import annotations

import json
import time

import pytest

from logra_lab.rl import rewards
from logra_lab.scale import data
from logra_lab.scale.data import answer_of, math_task, question_of, task_for
from tests.scale.slow_judge import answer_slowly

DAPO = {
    "prompt": [{"role": "user", "content": "Solve 1+1. Answer: $Answer"}],
    "reward_model": {"ground_truth": "2", "style": "rule"},
}
MATH500 = {
    "problem": "What is $\\frac{1}{2}+\\frac{1}{4}$?",
    "solution": "… \\boxed{\\frac{3}{4}}",
    "answer": "\\frac{3}{4}",
}


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    return write(tmp_path / "dapo.jsonl", [DAPO]), write(tmp_path / "math500.jsonl", [MATH500])


def test_both_styles_become_problems(files):
    task = math_task(*files, score=lambda text, gold: float(text == gold))
    assert (
        task.train[0].prompt.startswith("Solve 1+1") and task.train[0].answer == "$2$"
    )  # a chat stands as it is
    assert task.held_out[0].prompt.startswith("What is") and "\\boxed{}" in task.held_out[0].prompt
    assert task.held_out[0].answer == "$\\frac{3}{4}$"


def test_math_verify_judges_with_a_time_limit(files):
    pytest.importorskip("math_verify", reason="math-verify is missing: pip install 'logra-lab[scale]'")
    task = task_for("math", train=files[0], held_out=files[1], seconds=10.0)
    problem = task.held_out[0]
    assert task.reward("So it is \\boxed{0.75}", problem, finished=False) == 1.0
    assert task.reward("So it is \\boxed{0.7}", problem, finished=True) == 0.0
    assert task.reward("no idea", problem, finished=True) == 0.0


def test_an_answer_that_takes_too_long_is_wrong_and_the_next_one_is_judged(files, monkeypatch):
    pytest.importorskip("math_verify", reason="math-verify is missing: pip install 'logra-lab[scale]'")
    monkeypatch.setattr(rewards, "_answer_questions", answer_slowly)
    task = task_for("math", train=files[0], held_out=files[1], seconds=1.5)
    problem = task.held_out[0]
    assert task.reward("\\boxed{0.75}", problem, finished=True) == 1.0  # the worker is warm now
    started = time.monotonic()
    assert task.reward("slow, and right: \\boxed{0.75}", problem, finished=True) == 0.0
    assert 1.5 <= time.monotonic() - started < 30.0
    assert task.reward("\\boxed{0.75}", problem, finished=True) == 1.0
    with pytest.raises(ValueError, match="seconds=0.0 leaves no time"):
        task_for("math", train=files[0], held_out=files[1], seconds=0.0)


def test_problems_shown_in_both_splits_are_held_out(tmp_path):
    other = {"problem": "another", "answer": 3}
    train, held_out = write(tmp_path / "a.jsonl", [MATH500, other]), write(tmp_path / "b.jsonl", [MATH500])
    task = math_task(train, held_out, score=lambda *_: 0.0)
    assert [problem.answer for problem in task.train] == ["$3$"]
    with pytest.raises(ValueError, match="every problem of .*name two different sets"):
        math_task(held_out, held_out, score=lambda *_: 0.0)


def test_a_limit_takes_the_first(tmp_path):
    many = [{"question": f"q{n}", "answer": n} for n in range(5)]
    task = math_task(
        write(tmp_path / "a.jsonl", many),
        write(tmp_path / "b.jsonl", [MATH500]),
        limit=2,
        score=lambda *_: 0.0,
    )
    assert len(task.train) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"problem": "x", "answer": "1"', "dapo.jsonl, line 1: .* is not JSON"),
        ("[1, 2]", "line 1: .* is no JSON object"),
        (
            '{"text": "x", "answer": "1"}',
            "none of problem, question, prompt holds a question; it has text, answer",
        ),
        ('{"problem": "x", "gold": "1"}', "none of answer, .* holds an answer; it has problem, gold"),
        ("", "holds no problems"),
    ],
)
def test_a_broken_file_is_told_by_line_and_field(files, text, words):
    files[0].write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        math_task(*files, score=lambda *_: 0.0)


def test_a_template_needs_the_question(files):
    with pytest.raises(ValueError, match="has no {question} in it"):
        math_task(*files, template="Solve it.", score=lambda *_: 0.0)


def test_a_missing_file_is_no_hub_id(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        math_task(tmp_path / "none.jsonl", tmp_path / "none.jsonl")


def test_offline_the_message_says_how_to_do_without(monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is missing: pip install 'logra-lab[scale]'")

    def unreachable(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        ConnectionError, match="can't be fetched from the hub .*name a JSONL file.*gym:chain_sum"
    ):
        task_for("math")
    monkeypatch.delenv("LOGRA_GSM8K", raising=False)
    with pytest.raises(ConnectionError, match="'gsm8k' can't be fetched.*set LOGRA_GSM8K"):
        task_for("gsm8k")


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ImportError, match="needs datasets: pip install 'logra-lab\\[scale\\]'"):
        data.math_task("some/id")


def test_reasoning_gym_needs_no_download():
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is missing: pip install 'logra-lab[tasks]'")
    task = task_for("gym:chain_sum", train_size=20, held_out_size=5)
    assert task.score(task.train[0].answer, task.train[0]) == 1.0


def test_gsm8k_comes_from_its_folder(repository):
    task = task_for("gsm8k", folder=repository / "data" / "problems")
    assert task.held_out and task.score("#### 0.123", task.held_out[0]) == 0.0


def test_questions_and_answers_are_found_where_each_style_keeps_them():
    assert question_of(DAPO, "here").startswith("Solve") and answer_of(DAPO, "here") == "$2$"
    assert answer_of({"solution": "so \\boxed{7}"}, "here") == "so \\boxed{7}"
