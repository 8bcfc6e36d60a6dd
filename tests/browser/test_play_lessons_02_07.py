"""The play widgets of lessons 02 and 07 answer in JupyterLab in a real browser."""

from __future__ import annotations

from tests.browser.play_cell import play_only

LESSON_02 = """\
from logra_lab.lab import lesson02, lesson02_play, small_world, widgets
from logra_lab.lab.exercises.lesson02 import policy_gradient_loss
from logra_lab.lab.exercises.lesson02_advantages import running_advantages

policy = small_world.start(seed=4)
rules = {"no baseline": lesson02.no_baseline, "running mean": running_advantages}
"""
LESSON_07 = """\
from logra_lab.lab import lesson07, lesson07_play, widgets

summary = lesson07.recorded()
"""


def test_a_bonus_for_everybody_shakes_the_estimator_without_a_baseline_only(lesson, tmp_path) -> None:
    with lesson(play_only("02_learning_from_one_bit.py", LESSON_02, tmp_path)) as page:
        page.run_all()
        assert page.caption("bonus").startswith("Estimator: no baseline; 64 answers a step, 1 added")
        assert "128 answers a step" in page.press("answers", "ArrowRight")
        shaken = page.choose("bonus", "10")
        steady = page.choose("estimator", "running mean")
        assert "10 added to every reward" in shaken and "Estimator: running mean" in steady
        assert noise(shaken) > 3 * noise(steady)
        assert page.errors == [] and page.cell_errors() == []


def noise(caption: str) -> float:
    """The number in "Their noise is 0.94 times their mean"."""
    return float(caption.partition("Their noise is ")[2].partition(" times")[0])


def test_two_recorded_arms_are_compared_in_another_metric_and_seed(lesson, tmp_path) -> None:
    with lesson(play_only("07_the_full_loop.py", LESSON_07, tmp_path)) as page:
        page.run_all()
        first = page.caption("metric")
        assert "too large / without trust region: entropy" in first
        assert "share of right held-out answers ends at" in page.choose("metric", "accuracy")
        one = page.choose("seed", "1")
        assert one.count("%") < first.count("%")
        assert "recipes / logra paper: share of right" in page.choose("second arm", "recipes / logra paper")
        assert page.errors == [] and page.cell_errors() == []
