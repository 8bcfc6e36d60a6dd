"""The play widget of lesson 01 in a real browser."""

from __future__ import annotations


def test_lesson_01_runs_and_its_controls_change_what_is_said_of_the_card(lesson) -> None:
    with lesson("01_the_memory_wall") as page:
        page.run_all(seconds=240)
        first = page.caption("rank r")
        assert first.startswith("On a 48 GB card:") and "dense AdamW (by " in first
        assert page.press("rank r", "ArrowRight").startswith("On a 48 GB card:")
        assert "LoGRA r=128" in page.choose("method", "LoGRA")
        assert "LoGRA r=16" in page.choose("rank r", "16")
        assert "on a 24 GB card" in page.choose("card", "24 GB")
        assert page.screenshot("rank_memory", "rank r").stat().st_size > 5000
        assert page.errors == [] and page.cell_errors() == []
