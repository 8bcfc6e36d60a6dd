"""Tasks: exact gold answers, and held-out operands that no training problem shares."""

from __future__ import annotations

import pytest

from logra_lab.rl.rewards import integer_value
from logra_lab.rl.tasks import Problem, chains, check_gold, is_held_out, make_task, products, sums


@pytest.mark.parametrize("task", [sums(30), products(12), chains(3, 9)], ids=lambda t: t.name)
def test_no_held_out_operands_are_trained_on_in_any_order(task):
    train = {tuple(sorted(p.data)) for p in task.train}
    held_out = {tuple(sorted(p.data)) for p in task.held_out}
    assert held_out and train and not train & held_out


def test_every_sum_product_and_chain_has_its_exact_answer():
    for problem in (*sums(20).train, *chains(4, 3).held_out):
        assert (
            int(problem.answer) == sum(problem.data)
            and problem.prompt == "+".join(map(str, problem.data)) + "="
        )
    for problem in products(12).train:
        assert int(problem.answer) == problem.data[0] * problem.data[1]


def test_the_sums_hold_out_about_the_share_that_was_asked_for():
    task = sums(99, share=0.15)
    assert len(task.train) + len(task.held_out) == 10_000
    assert 0.13 < len(task.held_out) / 10_000 < 0.17


def test_the_split_depends_on_the_seed_and_not_on_the_order_of_operands():
    pairs = [(a, b) for a in range(30) for b in range(30)]
    assert all(is_held_out((a, b)) == is_held_out((b, a)) for a, b in pairs)
    assert [is_held_out(p, seed=1) for p in pairs] != [is_held_out(p, seed=2) for p in pairs]


def test_an_answer_cut_at_the_length_limit_is_wrong_even_if_its_text_is_right():
    task = sums(9)
    problem = task.train[0]
    assert task.reward(problem.answer, problem, finished=True) == 1.0
    assert task.reward(problem.answer, problem, finished=False) == 0.0


def test_a_gold_answer_that_can_not_be_read_is_an_error_with_its_line():
    problems = [Problem("1+1=", "2"), Problem("2+2=", "four")]
    with pytest.raises(ValueError, match="made up, line 2: .*'four'.*correct or remove"):
        check_gold(problems, integer_value, "made up")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sums(0), "largest >= 1, got 0"),
        (lambda: sums(9, share=0.0), "share=0.0"),
        (lambda: sums(9, share=1.0), "share=1.0"),
        (lambda: sums(1, share=1e-6), "0 held-out problems"),
        (lambda: chains(1), "terms=1"),
        (lambda: chains(6, 99), "terms=6, largest=99"),
        (lambda: make_task("poems"), "unknown task 'poems'.*sums"),
    ],
)
def test_a_task_that_can_not_be_made_is_refused_with_value_and_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_reasoning_gym_tasks_score_their_own_gold_answers_and_keep_the_splits_apart():
    pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install 'logra-lab[tasks]'")
    task = make_task("gym:basic_arithmetic", train_size=60, held_out_size=20)
    assert len(task.held_out) == 20
    assert not {p.prompt for p in task.train} & {p.prompt for p in task.held_out}
    for problem in task.train[:10]:
        assert task.reward(problem.answer, problem, True) == 1.0
        assert task.reward(problem.answer + "1", problem, True) == 0.0


def test_an_unknown_reasoning_gym_task_names_itself():
    pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: pip install 'logra-lab[tasks]'")
    with pytest.raises(ValueError, match="no_such_task"):
        make_task("gym:no_such_task")
