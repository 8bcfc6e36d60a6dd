"""Built notebooks equal their sources, none is left over, and solutions run."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_output

from tests.notebooks.notebook_files import LESSONS, ROOT, SOURCES
from tools.build_notebooks import differences, notebook
from tools.lesson_source import cells
from tools.run_notebook import execute, joined


@pytest.mark.parametrize("source", SOURCES, ids=LESSONS)
def test_both_editions_equal_their_source(source) -> None:
    assert differences(source) == []


def test_no_notebook_lacks_a_source() -> None:
    for folder in (ROOT / "notebooks", ROOT / "notebooks" / "solutions"):
        assert sorted(path.stem for path in folder.glob("*.ipynb")) == LESSONS


def test_the_course_begins_with_the_lesson_that_the_lab_opens() -> None:
    assert LESSONS and LESSONS[0] == "00_start_here"
    assert len({name[:2] for name in LESSONS}) == len(LESSONS), "two lessons share a number"


def test_text_before_and_after_a_figure_stays_before_and_after_it() -> None:
    said = [new_output("stream", name="stdout", text=text) for text in ("a", "b", "c")]
    figure = new_output("display_data", data={"text/plain": "figure"})
    found = joined([said[0], said[1], figure, said[2]])
    assert [output.get("text", "figure") for output in found] == ["ab", "figure", "c"]


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=LESSONS)
def test_the_solution_runs_from_top_to_bottom_within_its_time_and_memory(source) -> None:
    built = notebook(cells(source.read_text(encoding="utf-8"), "solution"))
    usage = execute(built, ROOT / "notebooks" / "solutions")
    assert usage.error is None
    assert usage.peak_mb < 1500
    printed = [output.get("text", "") for cell in built.cells for output in cell.get("outputs", [])]
    assert not [text for text in printed if "the lesson goes on with the reference" in text]
