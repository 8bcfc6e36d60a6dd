"""One source, two editions: how solutions are taken out and folded, and what a faulty source is told."""

from __future__ import annotations

import pytest

from tools.build_notebooks import is_widget_view, notebook, tidy
from tools.lesson_source import SourceError, cells

LESSON = '''\
# %% [markdown]
# # Title
# See [data](../data/README.md), [top](#top), [web](https://example.org).

# %% tags=["nbval-check-output"]
def twice(x):
    """Return 2x."""
    # SOLUTION
    y = x + x
    return y
    # STUB
    # y = ...
    #
    # return y  # replace the dots
    # END


print(twice(2))

# %% [markdown] tags=["hint"]
# Add it to itself.
'''


def test_the_solution_keeps_the_solved_lines_and_no_marker() -> None:
    code = cells(LESSON, "solution")[1].source
    assert "y = x + x\n    return y" in code and "..." not in code and "# END" not in code


def test_the_learner_gets_the_stub_with_its_comment_signs_taken_off() -> None:
    code = cells(LESSON, "learner")[1].source
    assert (
        '"""Return 2x."""\n    y = ...\n\n    return y  # replace the dots\n\n\nprint' in code
        and "x + x" not in code
    )


def test_without_a_stub_the_learner_gets_dots() -> None:
    text = (
        "# %%\ndef f():\n    # SOLUTION\n    return 1\n    # END\n\n# %% [markdown] tags=['hint']\n# One.\n"
    )
    assert cells(text, "learner")[0].source == "def f():\n    ...  # your code here"


def test_a_cell_may_hold_several_regions() -> None:
    region = "# SOLUTION\na = {}\n# END\n"
    text = (
        "# %%\n"
        + region.format(1)
        + "b = 0\n"
        + region.format(2)
        + '\n# %% [markdown] tags=["hint"]\n# Count.\n'
    )
    assert cells(text, "solution")[0].source == "a = 1\nb = 0\na = 2"
    assert cells(text, "learner")[0].source.count("your code here") == 2


def test_hint_and_solution_are_folded_for_the_learner_and_the_solution_needs_no_folding() -> None:
    learner, solution = cells(LESSON, "learner")[2].source, cells(LESSON, "solution")[2].source
    assert learner.count("<details>") == 2 and "```python\ndef twice(x):" in learner and "x + x" in learner
    assert solution.count("<details>") == 1 and "Add it to itself." in solution


def test_relative_links_go_one_folder_up_in_the_solution_and_others_stay() -> None:
    text = cells(LESSON, "solution")[0].source
    assert "(../../data/README.md)" in text and "(#top)" in text and "(https://example.org)" in text


def test_tags_are_kept_and_an_exercise_is_tagged() -> None:
    assert cells(LESSON, "learner")[1].tags == ("nbval-check-output", "exercise")


FAULTS = {
    "# %%\n# SOLUTION\n1\n": "not closed",
    "# %%\n# STUB\n# 1\n# END\n": "outside a region",
    "# %%\n# SOLUTION\n1\n# SOLUTION\n2\n# END\n": "after `# SOLUTION`",
    "# %%\n# SOLUTION\n1\n# STUB\nx = 2\n# END\n": "not commented out",
    "# %%\n# SOLUTION\n1\n# END\n": "not followed by a text cell tagged hint",
    '# %%\n1\n\n# %% [markdown] tags=["hint"]\n# Why?\n': "no exercise cell",
    "# %% [raw]\n# text\n": "raw cell",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_faulty_source_is_refused_with_the_remedy(text: str) -> None:
    with pytest.raises(SourceError, match=FAULTS[text]):
        cells(text, "learner")


def test_an_unknown_edition_is_refused() -> None:
    with pytest.raises(SourceError, match="'teacher'"):
        cells(LESSON, "teacher")


def test_two_builds_of_one_source_are_equal() -> None:
    first, second = (notebook(cells(LESSON, "learner")) for _ in range(2))
    assert first == second and [cell.id for cell in first.cells] == ["cell-000", "cell-001", "cell-002"]


def test_tidying_drops_widget_views_timings_and_foreign_metadata() -> None:
    built = notebook(cells(LESSON, "learner"))
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "x"}, "text/plain": "VBox()"}
    built.cells[1].outputs = [{"output_type": "display_data", "data": view, "metadata": {}}]
    built.cells[1].metadata["execution"] = {"iopub.status.busy": "2020"}
    built.metadata["widgets"] = {"state": {}}
    assert is_widget_view(built.cells[1].outputs[0])
    tidy(built)
    assert built.cells[1].outputs == [] and "widgets" not in built.metadata
    assert set(built.cells[1].metadata) == {"tags"}
