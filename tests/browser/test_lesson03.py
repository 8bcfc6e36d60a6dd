"""Lesson 03 in a real browser: its slider moves the picture, from the keyboard too."""

from __future__ import annotations


def test_the_rank_slider_of_lesson_03_changes_error_bytes_and_cosine(lesson) -> None:
    with lesson("03_sketching") as page:
        page.run_all(240)
        first = page.caption("rank r")
        assert first.startswith("Rank 8, one sketch")
        assert page.press("rank r", "ArrowRight").startswith("Rank 16, one sketch")
        assert page.choose("steps averaged", "16").startswith("Rank 16, the mean of 16 sketches")
        assert page.choose("rank r", "64").startswith("Rank 64, the mean of 16 sketches")
        page.screenshot("lesson-03-widget", "rank r")
        assert page.errors == [] and page.cell_errors() == []
