"""A play widget in JupyterLab in a real browser: this is the pattern for the widget of each lesson."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

WIDGET = """\
from logra_lab.lab.plots import Picture, new_figure
from logra_lab.lab.widgets import Choice, Slider, play

def draw(rank, method):
    figure, axes = new_figure(6, 2.5)
    axes.plot([0, 1, 2], [0, rank, rank / 2])
    axes.set(xlabel="step", ylabel="size", title="A line")
    if rank == 32:
        raise ValueError("rank 32 is refused")
    return Picture(figure, f"A line that climbs to {rank}.", f"Rank {rank} with {method}.")

player = play(draw, rank=Slider("rank r", (4, 8, 16, 32), 8), method=Choice("method", ("LoGRA", "AdamW"), "LoGRA"))
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Path:
    """A notebook of one widget."""
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = tmp_path / "widget.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(WIDGET)], metadata=metadata), path)
    return path


def test_a_slider_moved_by_keyboard_and_a_drop_down_change_the_sentence_below_the_figure(
    lesson, notebook
) -> None:
    with lesson(notebook) as page:
        page.run_all()
        assert page.caption("rank r") == "Rank 8 with LoGRA."
        assert page.press("rank r", "ArrowRight") == "Rank 16 with LoGRA."
        assert page.choose("rank r", "4") == "Rank 4 with LoGRA."
        assert page.choose("method", "AdamW") == "Rank 4 with AdamW."
        assert page.cell("rank r").locator("img").first.get_attribute("alt") == "A line that climbs to 4."
        assert page.screenshot("widget", "rank r").stat().st_size > 5000
        assert page.errors == [] and page.cell_errors() == []


def test_the_first_lesson_runs_in_the_browser_without_an_error(lesson) -> None:
    with lesson("00_start_here") as page:
        page.run_all()
        page.screenshot("lesson-00")
        assert page.errors == [] and page.cell_errors() == []
