"""The play widgets of lessons 04 and 05 answer in JupyterLab in a real browser."""

from __future__ import annotations

import pytest

from tests.browser.play_cell import play_only


@pytest.mark.browser
def test_saved_bytes_follow_model_rank_and_checkpointing(lesson, tmp_path) -> None:
    imports = "from logra_lab.lab import lesson04_figures, widgets"
    with lesson(play_only("04_backward_without_a_gradient.py", imports, tmp_path)) as page:
        page.run_all()
        first = page.caption("rank r")
        assert first.startswith("Qwen2.5-Math-7B, rank 64, without checkpointing")
        assert "rank 256" in page.press("rank r", "ArrowRight")
        assert "with gradient checkpointing" in page.choose("checkpointing", "on")
        assert page.errors == [] and page.cell_errors() == []


@pytest.mark.browser
def test_displacement_kept_follows_the_step_size(lesson, tmp_path) -> None:
    imports = "from logra_lab.lab import lesson05_figures, widgets"
    with lesson(play_only("05_row_adam_and_merging.py", imports, tmp_path)) as page:
        page.run_all()
        assert "each 6e-05 of the weights" in page.caption("step / weights")
        assert "each 2e-04 of the weights" in page.press("step / weights", "ArrowRight")
        assert "each 6e-03 of the weights" in page.choose("step / weights", "6e-03")
        assert page.errors == [] and page.cell_errors() == []
