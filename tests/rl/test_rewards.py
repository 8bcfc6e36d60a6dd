"""Rewards: near misses stay wrong, and what is right however it is written counts."""

from __future__ import annotations

import multiprocessing
import time
from fractions import Fraction

import pytest

from logra_lab.rl.rewards import MathVerifier, exact_integer, final_number, integer_value, same_number


@pytest.mark.parametrize(
    ("response", "gold", "right"),
    [
        ("46", "46", True),
        (" 46\n", "46", True),
        ("+46", "46", True),
        ("046", "46", True),
        ("1,234", "1234", True),
        ("-7", "-7", True),
        ("46", "-46", False),
        ("-46", "46", False),
        ("--46", "46", False),
        ("1,23", "123", False),
        ("12,34", "1234", False),
        ("46.0", "46", False),
        ("46.", "46", False),
        ("4.6e1", "46", False),
        ("46 apples", "46", False),
        ("46=", "46", False),
        ("=46", "46", False),
        ("46 46", "46", False),
        ("4 6", "46", False),
        ("46 47", "46", False),
        ("12+34=46", "46", False),
        ("464", "46", False),
        ("4", "46", False),
        ("", "46", False),
        ("   ", "46", False),
        ("٤٦", "46", False),
        ("４６", "46", False),
        ("46\u00a0", "46", False),
        ("4_6", "46", False),
        ("0x2E", "46", False),
        ("0" * 5000 + "46", "46", False),
        ("9" * 10_000, "46", False),
        ("forty-six", "46", False),
    ],
)
def test_an_integer_answer_is_right_only_if_it_is_that_integer_and_nothing_else(response, gold, right):
    assert exact_integer(response, gold) == (1.0 if right else 0.0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("She has 3 left.\n#### 18", 18),
        ("#### 18.00", 18),
        ("#### $1,800", 1800),
        ("#### 18 dollars", 18),
        ("#### -18", -18),
        ("#### \u221218", -18),
        ("#### -$5", -5),
        ("#### 0.5", Fraction(1, 2)),
        ("#### 18 = 18", 18),
        ("#### 18\nSo I am sure it is 20.", 18),
        ("#### 20\n#### 18", 18),
        (r"so \boxed{42}", 42),
        ("It costs 3 and 4, in all 7.", 7),
        ("the total is 1,234,567", 1234567),
        ("#### 18 or 19", None),
        ("####", None),
        ("#### eighteen", None),
        ("#### １８", None),
        ("#### 1/2", None),
        ("#### 12,34", None),
        ("no number at all", None),
        ("", None),
        ("#### " + "9" * 5000, None),
        ("x" * 100_000 + " 5", 5),
    ],
)
def test_the_final_number_of_a_worked_solution_is_read_exactly_or_not_at_all(text, value):
    assert final_number(text) == value


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("#### 18", True),
        ("18.0", True),
        ("$18.", True),
        ("#### 18.1", False),
        ("#### 81", False),
        ("#### -18", False),
        ("", False),
    ],
)
def test_a_solution_is_right_when_its_final_number_equals_the_gold_one(response, right):
    assert same_number(response, "16 - 3 + 5 = <<16-3+5=18>>18\n#### 18") == (1.0 if right else 0.0)


def test_two_unreadable_answers_are_not_equal():
    assert same_number("none", "none") == 0.0
    assert exact_integer("none", "none") == 0.0
    assert integer_value("none") is None


def test_math_verify_compares_expressions_within_its_time_limit():
    pytest.importorskip("math_verify", reason="needs math-verify: pip install 'logra-lab[scale]'")
    with MathVerifier(seconds=5) as verifier:
        assert verifier(r"so it is $\frac{1}{2}$", "$0.5$") == 1.0
        assert verifier("$0.51$", r"$\frac{1}{2}$") == 0.0
        assert verifier("", "$1$") == 0.0


def test_math_verify_ends_the_worker_when_the_time_is_over_and_answers_the_next_question():
    pytest.importorskip("math_verify", reason="needs math-verify: pip install 'logra-lab[scale]'")
    others = set(multiprocessing.active_children())
    with MathVerifier(seconds=2) as verifier:
        assert verifier("$7$", "$7$") == 1.0
        (worker,) = set(multiprocessing.active_children()) - others
        started = time.monotonic()
        assert verifier("$2^{10^9}$", "$3^{10^9}$") == 0.0  # left alone, it counts for minutes
        assert 2 <= time.monotonic() - started < 20
        assert not worker.is_alive()
        assert verifier("$7$", "$7$") == 1.0


def test_a_verifier_without_time_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match="seconds=0 .*use e.g. seconds=5"):
        MathVerifier(seconds=0)
