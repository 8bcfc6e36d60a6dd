"""Every exercise of every lesson: right answers pass, wrong ones are told why, odd ones are met kindly."""

from __future__ import annotations

import importlib
import pkgutil

import pytest
import torch

from logra_lab.lab import checks
from tests.lab import answers
from tests.lab.answers import Answers


def marked(name: str):
    """The exercise's name as a parameter that carries the marker of its lesson."""
    module = checks.get(name).reference.__module__.rpartition(".")[2]  # lessonNN or lessonNN_part
    return pytest.param(name, marks=getattr(pytest.mark, module.partition("_")[0]))


NAMES = checks.names()
MARKED = [marked(name) for name in NAMES]


def collect() -> dict[str, Answers]:
    """All answers of all lessons."""
    found: dict[str, Answers] = {}
    for module in pkgutil.iter_modules(answers.__path__):
        found.update(importlib.import_module(f"{answers.__name__}.{module.name}").ANSWERS)
    return found


ANSWERS = collect()


def test_every_answer_belongs_to_an_exercise() -> None:
    assert set(ANSWERS) <= set(NAMES)


@pytest.mark.parametrize("name", MARKED)
def test_the_reference_is_accepted(name: str) -> None:
    report = checks.judge(name, checks.get(name).reference)
    assert report.right, str(report)


@pytest.mark.parametrize("name", MARKED)
def test_two_or_more_other_right_answers_are_accepted(name: str) -> None:
    assert name in ANSWERS, f"Write answers for {name} in tests/lab/answers."
    assert len(ANSWERS[name].right) >= 2
    for answer in ANSWERS[name].right:
        report = checks.judge(name, answer)
        assert report.right, str(report)


@pytest.mark.parametrize("name", MARKED)
def test_three_or_more_wrong_answers_are_refused_with_words_that_point_at_the_fault(name: str) -> None:
    assert name in ANSWERS, f"Write answers for {name} in tests/lab/answers."
    assert len(ANSWERS[name].wrong) >= 3
    for answer, words in ANSWERS[name].wrong:
        report = checks.judge(name, answer)
        assert not report.right, f"{name} accepts a wrong answer that should be told: {words}"
        assert words and words in str(report), str(report)


def endless(*arguments: object) -> None:
    """Never ends."""
    while True:
        pass


def stub(*arguments: object) -> None:
    """As the learner finds it."""
    ...  # your code here


def raising(*arguments: object) -> None:
    """Fails."""
    raise ZeroDivisionError("division by zero")


ODD = {
    "a stub": stub,
    "an exception": raising,
    "a wrong shape": lambda *arguments: torch.zeros(1, 2, 3, 1),
    "a wrong type": lambda *arguments: "seven",
    "the wrong number of arguments": lambda: 0,
    "no function": 7,
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", MARKED)
def test_an_odd_answer_is_met_with_a_sentence_and_the_reference(name: str, odd: str, capsys) -> None:
    assert checks.check(name, ODD[odd]) is checks.get(name).reference
    assert "the lesson goes on with the reference" in capsys.readouterr().out


@pytest.mark.parametrize("name", MARKED)
def test_an_endless_answer_is_stopped(name: str, monkeypatch) -> None:
    task = checks.get(name)
    quick = checks.Exercise(task.name, task.reference, task.cases, task.slips, seconds=0.2)
    monkeypatch.setitem(checks._REGISTRY, name, quick)
    assert "still running" in str(checks.judge(name, endless))
