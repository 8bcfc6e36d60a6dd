"""Lesson 10 in a real browser: the planner's picture answers to model, card and rank."""

from __future__ import annotations


def test_the_planner_of_lesson_10_answers_to_model_card_and_rank(lesson) -> None:
    with lesson("10_full_scale") as page:
        page.run_all(240)
        assert page.caption("rank r").startswith("Qwen2.5-Math-7B on one 80 GB card, rank 64: LoGRA fits")
        assert "rank 256" in page.press("rank r", "ArrowRight")
        assert "on one 24 GB card" in page.choose("card", "24 GB")
        assert page.choose("model", "27B").startswith("Gemma-3-27B on one 24 GB card, rank 256: LoGRA is")
        page.screenshot("lesson-10-widget", "rank r")
        assert page.errors == [] and page.cell_errors() == []
