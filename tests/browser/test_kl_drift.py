"""The play widget of lesson 06 in a real browser."""

from __future__ import annotations


def test_lesson_06_runs_and_its_controls_change_what_is_said_of_the_run(lesson) -> None:
    with lesson("06_the_trust_region") as page:
        page.run_all(seconds=240)
        assert "Step size 0.003, rank 8, budget 0.01" in page.caption("step size")
        assert "Step size 0.01," in page.press("step size", "ArrowRight")
        assert "rank 32," in page.choose("rank r", "32")
        assert "no budget" in page.choose("KL budget", "no budget")
        assert page.screenshot("kl_drift", "step size").stat().st_size > 5000
        assert page.errors == [] and page.cell_errors() == []
