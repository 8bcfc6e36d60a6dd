"""The play widget of lesson 09 in a real browser."""

from __future__ import annotations


def test_lesson_09_runs_and_its_controls_change_what_is_said_of_the_floors(lesson) -> None:
    with lesson("09_kernels") as page:
        page.run_all(seconds=240)
        assert "Rank 64, 4096 columns, H100 SXM" in page.caption("rank r")
        assert "Rank 128," in page.press("rank r", "ArrowRight")
        assert "H200" in page.choose("card", "H200")
        assert page.screenshot("kernel_floors", "rank r").stat().st_size > 5000
        assert page.errors == [] and page.cell_errors() == []
