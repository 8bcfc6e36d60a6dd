"""The framework of the checks, on an exercise of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from logra_lab.lab import checks, halves_laws
from logra_lab.lab.checks import Case, Law, Slip
from logra_lab.method.merge import split_halves


def matrix() -> tuple[torch.Tensor, torch.Tensor]:
    """X [5, 4] and A [2, 4], made anew at each call."""
    return torch.arange(20.0).reshape(5, 4), torch.tensor([[1.0, 2, 0, 0], [0, 1, 0, 3]])


def scales(function) -> bool:
    """Twice X gives twice the result."""
    x, a = matrix()
    return bool(torch.allclose(function(2 * x, a), 2 * function(x, a)))


def project(x, a):
    return x @ a.T


@pytest.fixture(autouse=True)
def demo(monkeypatch):
    """An exercise that exists during a test only."""
    monkeypatch.setattr(checks, "_REGISTRY", {})
    define = checks.exercise(
        "demo",
        Case("gives X Aᵀ [T, r]", matrix, hint="A is [r, k]."),
        Law("is linear in X", scales),
        slips=(Slip("You doubled it.", lambda x, a: 2 * x @ a.T),),
        seconds=0.3,
    )
    return define(project)


def test_a_right_answer_is_returned_and_said_to_be_right(capsys) -> None:
    def answer(x, a):
        return torch.einsum("tk,rk->tr", x, a)

    assert checks.check("demo", answer) is answer
    printed = capsys.readouterr().out
    assert printed.count("✓") == 2 and "demo: right" in printed


def test_a_wrong_answer_gives_the_reference_the_hint_and_where_it_is_off(capsys) -> None:
    assert checks.check("demo", lambda x, a: x @ a.T + 1) is project
    printed = capsys.readouterr().out
    assert "10 of its 10 values are off" in printed and "Hint: A is [r, k]." in printed


def test_long_lines_are_broken_between_words_and_indented(capsys) -> None:
    checks.exercise("long", Case("gives X Aᵀ, " + "and so on, " * 12, matrix))(project)
    checks.check("long", lambda x, a: x @ a.T + 1)
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert len(first) <= 110 and first.startswith("  ✗ gives") and second.startswith("      ")


def test_a_known_slip_is_recognised_by_what_it_returns() -> None:
    assert checks.judge("demo", lambda x, a: x @ a.T * 2).slip == "You doubled it."
    assert checks.judge("demo", lambda x, a: x @ a.T * 3).slip is None


def test_a_slip_that_fits_some_cases_only_is_not_named(monkeypatch) -> None:
    more = checks.exercise(
        "two",
        Case("zero", lambda: (0,)),
        Case("one", lambda: (1,)),
        slips=(Slip("You halved it.", lambda n: n / 2),),
    )
    more(lambda n: n + 1)
    assert checks.judge("two", lambda n: n / 2).slip == "You halved it."
    assert checks.judge("two", lambda n: n + 1 if n else 0).slip is None


def test_a_slip_may_stop_with_the_error_that_the_answer_stops_with() -> None:
    checks.exercise("fit", Case("adds", matrix), slips=(Slip("It takes a.T.", lambda x, a: x @ a),))(project)
    assert checks.judge("fit", lambda x, a: x @ a).slip == "It takes a.T."
    assert checks.judge("fit", lambda x, a: x + undefined).slip is None  # noqa: F821


def test_what_is_long_and_seen_again_is_told_once() -> None:
    checks.exercise("twice", Case("here", matrix), Case("and there", matrix))(project)
    report = str(checks.judge("twice", lambda x, a: x @ a))
    assert report.count("RuntimeError") == 1 and "and there: the same." in report


def test_an_answer_of_another_count_is_told_so_before_one_part_is_picked() -> None:
    checks.exercise("pair", Case("second", lambda: (1,), select=lambda pair: pair[1]))(lambda n: (n, 2 * n))
    assert "a number; 2 values were expected" in str(checks.judge("pair", lambda n: n))


def test_dots_left_in_a_tuple_and_none_inside_a_law_count_as_unwritten() -> None:
    checks.exercise("pair", Case("both", lambda: (1,)))(lambda n: (n, 2 * n))
    assert "still `...`" in str(checks.judge("pair", lambda n: (n, ...)))
    checks.exercise("law", Law("is even", lambda f: f() % 2 == 0))(lambda: 2)
    report = checks.judge("law", lambda: None)
    assert report.unwritten and "its `return` is missing" in str(report)


def test_an_error_outside_the_answer_is_told_without_the_line_of_the_check() -> None:
    checks.exercise("halves", Law("rejoins", halves_laws.rejoins))(split_halves)
    report = str(checks.judge("halves", lambda x: (x, x, x)))
    assert "using it stopped with ValueError: too many values to unpack" in report and "(at " not in report


def test_one_module_is_imported_for_one_exercise() -> None:
    script = (
        "import sys; from logra_lab.lab import checks; checks.get('resident_gib'); "
        "print(*sorted(n for n in sys.modules if '.exercises.lesson' in n))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["logra_lab.lab.exercises.lesson01"]


@pytest.mark.parametrize("nothing", [lambda x, a: None, lambda x, a: ..., None, ...])
def test_a_stub_is_called_unwritten(nothing) -> None:
    report = checks.judge("demo", nothing)
    assert report.unwritten and not report.right and "not written yet" in str(report)


def test_a_stub_that_raises_not_implemented_is_called_unwritten() -> None:
    def answer(x, a):
        raise NotImplementedError

    assert checks.judge("demo", answer).unwritten


def test_an_exception_is_told_with_the_line_it_comes_from() -> None:
    def answer(x, a):
        return x @ a

    assert "return x @ a" in str(checks.judge("demo", answer))


def test_leaving_the_program_is_told_and_does_not_leave() -> None:
    assert "SystemExit" in str(checks.judge("demo", lambda x, a: exit()))


def test_a_call_that_passes_the_result_instead_of_the_function_is_told_so() -> None:
    assert "Pass the function itself" in str(checks.judge("demo", 3.0))


def test_an_endless_loop_ends_even_if_it_swallows_exceptions() -> None:
    def answer(x, a):
        while True:
            try:
                x = x + 1
            except Exception:
                pass

    report = checks.judge("demo", answer)
    assert "still running after 0.3 s" in str(report) and len(report.findings) == 1


def test_changing_an_argument_in_place_fails_unless_the_case_allows_it(monkeypatch) -> None:
    def answer(x, a):
        result = x @ a.T
        x.zero_()
        return result

    assert "changed its argument number 1" in str(checks.judge("demo", answer))


def test_a_case_that_mutates_compares_what_became_of_the_arguments() -> None:
    checks.exercise("add", Case("adds in place", lambda: (torch.ones(2),), mutates=True))(
        lambda x: quiet(x.add_(1))
    )
    assert checks.judge("add", lambda x: quiet(x.mul_(2))).right
    assert not checks.judge("add", lambda x: None).right


def quiet(changed: torch.Tensor) -> None:
    """Let a lambda change its argument and return nothing."""


def test_a_right_value_in_another_dtype_or_shape_fails_with_both_named() -> None:
    assert "float64; float32 was expected" in str(checks.judge("demo", lambda x, a: (x @ a.T).double()))
    assert "[2, 5]; [5, 2] was expected" in str(checks.judge("demo", lambda x, a: a @ x.T))


def test_the_random_state_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    checks.judge("demo", lambda x, a: x @ a.T + torch.rand(1))
    assert torch.equal(torch.rand(2), expected)


def test_a_law_may_say_what_it_saw() -> None:
    checks.exercise("law", Law("is small", lambda f: "it is 9" if f() > 5 else True))(lambda: 1)
    assert "it is 9" in str(checks.judge("law", lambda: 9)) and checks.judge("law", lambda: 2).right


@pytest.mark.parametrize("nothing", [None, "", 1.0])
def test_a_law_that_answers_nothing_is_an_error_of_its_author(nothing) -> None:
    checks.exercise("law", Law("holds", lambda f: nothing))(lambda: 1)
    with pytest.raises(TypeError, match="True, False or a sentence"):
        checks.judge("law", lambda: 1)


def test_an_exercise_without_cases_is_refused() -> None:
    with pytest.raises(ValueError, match="no case"):
        checks.exercise("empty")


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(KeyError, match="demo"):
        checks.check("dmeo", project)


def test_a_second_exercise_of_the_same_name_elsewhere_is_refused() -> None:
    other = eval("lambda x: x", {"__name__": "another.module"})
    with pytest.raises(ValueError, match="already defined"):
        checks.exercise("demo", Case("c", lambda: (1,)))(other)
