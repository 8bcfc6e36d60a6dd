"""A notebook of a lesson's play cell alone, so that a browser test of its widget need not run the lesson."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from tools.lesson_source import cells

SOURCES = Path(__file__).resolve().parents[2] / "notebooks" / "sources"


def play_only(source: str, imports: str, folder: Path) -> Path:
    """Write the notebook: a cell of `imports` and whatever else the play cell needs, then the play cell."""
    text = (SOURCES / source).read_text(encoding="utf-8")
    found = [cell for cell in cells(text, "solution") if "widgets.play(" in cell.source]
    assert len(found) == 1
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    path = folder / f"play_{source[:2]}.ipynb"
    both = [new_code_cell(imports), new_code_cell(found[0].source)]
    nbformat.write(new_notebook(cells=both, metadata=metadata), path)
    return path
