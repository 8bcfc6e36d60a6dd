"""GSM8K: read where it lies, checked line by line when it is loaded."""

from __future__ import annotations

import json

import pytest

from logra_lab.rl.gsm8k import gsm8k_task, read_problems


def write(path, *records):
    path.write_text(
        "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records), encoding="utf-8"
    )
    return path


GOOD = {"question": "1 + 1?", "answer": "1+1 = 2\n#### 2"}


def test_the_projects_own_problems_load_and_their_gold_solutions_are_right(repository):
    task = gsm8k_task(repository / "data" / "problems")
    assert len(task.train) == 8 and len(task.held_out) == 4
    for problem in (*task.train, *task.held_out):
        assert task.score(problem.answer, problem) == 1.0
        assert task.score(problem.answer + "1", problem) == 0.0
        assert problem.prompt.endswith("as a number.\n")


def test_every_calculation_in_the_projects_own_problems_is_right(repository):
    import re

    for file in (repository / "data" / "problems").glob("*.jsonl"):
        for problem in read_problems(file):
            for left, right in re.findall(r"<<([0-9+\-*/.]+)=(-?[0-9.]+)>>", problem.answer):
                assert eval(left) == float(right), problem.prompt


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"question": "?", "answer": "no marker 5"}, "line 2: the gold answer .* can't be read"),
        ({"question": "?", "answer": "#### five"}, "line 2: the gold answer"),
        ({"question": "?", "answer": "#### 5 or 6"}, "line 2: the gold answer"),
        ({"question": "?"}, "line 2: the field 'answer' is missing"),
        ({"question": 3, "answer": "#### 5"}, "line 2: the field 'question'"),
        ("not json", "line 2: 'not json' is not JSON"),
        ("[1]", "line 2: the field"),
    ],
)
def test_a_line_that_can_not_be_used_is_named_when_the_file_is_read(tmp_path, bad, message):
    with pytest.raises(ValueError, match=message):
        read_problems(write(tmp_path / "train.jsonl", GOOD, bad))


def test_an_empty_file_a_missing_file_and_a_template_without_question_are_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no problems"):
        read_problems(write(tmp_path / "empty.jsonl"))
    with pytest.raises(FileNotFoundError, match="LOGRA_GSM8K"):
        gsm8k_task(tmp_path)
    with pytest.raises(ValueError, match="question"):
        gsm8k_task(tmp_path, template="answer this")


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write(tmp_path / "train.jsonl", GOOD)
    write(tmp_path / "test.jsonl", GOOD, GOOD)
    monkeypatch.setenv("LOGRA_GSM8K", str(tmp_path))
    assert len(gsm8k_task().held_out) == 2


def test_real_gsm8k_gold_solutions_are_all_readable_and_right(gsm8k):
    task = gsm8k_task(gsm8k)
    assert len(task.held_out) > 1000
    assert all(task.score(problem.answer, problem) == 1.0 for problem in (*task.train, *task.held_out))
