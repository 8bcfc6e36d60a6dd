"""The roadmap shows where you are, in the picture and in words."""

from __future__ import annotations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from logra_lab.lab.roadmap import STOPS, roadmap


@pytest.mark.parametrize("here", range(len(STOPS)))
def test_the_map_names_every_lesson_and_marks_the_current_one(here: int) -> None:
    picture = roadmap(here)
    texts = [text.get_text() for text in picture.figure.axes[0].texts]
    assert texts.count("▼ you are here") == 1
    assert all(f"{stop.number:02d} {stop.title}" in picture.alt for stop in STOPS)
    assert STOPS[here].title in picture.caption


@pytest.mark.parametrize("here", range(len(STOPS)))
def test_no_label_leaves_its_box_or_the_picture(here: int) -> None:
    figure = roadmap(here).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    axes = figure.axes[0]
    boxes = [patch.get_window_extent(renderer) for patch in axes.patches]
    for text in axes.texts:
        extent = text.get_window_extent(renderer)
        assert extent.x0 >= 0 and extent.x1 <= figure.bbox.width
        assert extent.y0 >= 0 and extent.y1 <= figure.bbox.height
    labels = [text.get_window_extent(renderer) for text in axes.texts if "\n" in text.get_text()]
    for label in labels:
        assert any(box.x0 <= label.x0 and label.x1 <= box.x1 for box in boxes)


def test_a_lesson_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="no lesson 11"):
        roadmap(11)
