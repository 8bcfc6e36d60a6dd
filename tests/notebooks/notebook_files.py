"""The built notebooks, read once for the hygiene tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "notebooks" / "sources").glob("[0-9][0-9]_*.py"))
LESSONS = [path.stem for path in SOURCES]
FILES = [f"notebooks/{name}.ipynb" for name in LESSONS] + [
    f"notebooks/solutions/{name}.ipynb" for name in LESSONS
]


@cache
def read(file: str) -> NotebookNode:
    """One built notebook, by its path from the repository's root."""
    return nbformat.read(ROOT / file, as_version=4)


def code_cells(file: str) -> list[NotebookNode]:
    """Its code cells."""
    return [cell for cell in read(file).cells if cell.cell_type == "code"]


def outputs(file: str) -> list[NotebookNode]:
    """All outputs of all its cells."""
    return [output for cell in code_cells(file) for output in cell.outputs]


def shown_text(file: str) -> str:
    """Everything a reader can read in it: sources, printed text, HTML without the pictures' data."""
    parts = [cell.source for cell in read(file).cells]
    for output in outputs(file):
        parts.append(output.get("text", ""))
        parts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)
