"""From one lesson source to the cells of its two editions: the learner's and the solution's.

A source is a percent-format file (`# %%` opens a code cell, `# %% [markdown]` a text cell) and runs as it stands, with
the solutions in it. An exercise is a code cell that holds one or more regions:

    def project(x, a):
        \"\"\"Return X Aᵀ [T, r].\"\"\"
        # SOLUTION
        return x @ a.T
        # STUB
        # return ...  # replace the dots
        # END

The solution's edition keeps the lines after SOLUTION. The learner's edition gets the lines after STUB with one "# "
taken off, or `...  # your code here` where there is no STUB. After the exercise and its check stands one text cell
tagged hint (`# %% [markdown] tags=["hint"]`): it is folded, and in the learner's edition the solution is folded
below it. Nothing here executes anything; tools/build_notebooks.py does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jupytext

Edition = Literal["learner", "solution"]
EDITIONS: tuple[Edition, ...] = ("learner", "solution")
DEFAULT_STUB = "...  # your code here"
MARKERS = ("SOLUTION", "STUB", "END")
MARKER = re.compile(r"^(\s*)# (SOLUTION|STUB|END)\s*$")
RELATIVE_LINK = re.compile(r"""(\]\(|\b(?:src|href)=["'])(?![a-z]+:|\#|/)""")


class SourceError(ValueError):
    """A lesson source that can't be built; the message names the cell and the remedy."""


@dataclass(frozen=True)
class Cell:
    """One cell of a notebook before execution."""

    kind: Literal["markdown", "code"]
    source: str
    tags: tuple[str, ...] = ()


def cells(text: str, edition: Edition) -> list[Cell]:
    """The cells of one edition of the lesson source `text`; raises SourceError."""
    if edition not in EDITIONS:
        raise SourceError(f"There is no edition {edition!r}: choose one of {EDITIONS}.")
    result: list[Cell] = []
    unfolded: list[str] = []
    for number, cell in enumerate(read_cells(text)):
        if cell.kind == "code" and any(MARKER.match(line) for line in cell.source.splitlines()):
            solved = fill(cell.source, "solution", number)
            unfolded.append(solved)
            source = solved if edition == "solution" else fill(cell.source, "learner", number)
            result.append(Cell("code", source, (*cell.tags, "exercise")))
        elif "hint" in cell.tags:
            result.append(fold(cell, unfolded, edition, number))
            unfolded = []
        else:
            result.append(cell)
    if unfolded:
        raise SourceError(
            f"An exercise is not followed by a text cell tagged hint: {unfolded[0].splitlines()[0]!r}. "
            'Add one: `# %% [markdown] tags=["hint"]`.'
        )
    return [shifted(cell) for cell in result] if edition == "solution" else result


def read_cells(text: str) -> Iterator[Cell]:
    """The cells of a percent-format file as they stand."""
    for cell in jupytext.reads(text, fmt="py:percent").cells:
        if cell.cell_type not in ("markdown", "code"):
            raise SourceError(f"A {cell.cell_type} cell can't be built: make it markdown or code.")
        yield Cell(cell.cell_type, cell.source.rstrip(), tuple(cell.metadata.get("tags", ())))


def fill(source: str, edition: Edition, number: int) -> str:
    """Replace each region of an exercise cell by its solution's or its stub's lines."""
    lines: list[str] = []
    region = "END"
    stub: list[str] = []
    for line in source.splitlines():
        marker = MARKER.match(line)
        if marker:
            region = entered(marker[2], region, number)
            if region == "SOLUTION":
                stub = []
            elif region == "END" and edition == "learner":
                lines += stub or [marker[1] + DEFAULT_STUB]
        elif region == "STUB":
            stub.append(uncommented(line, number))
        elif region == "END" or edition == "solution":
            lines.append(line)
    if region != "END":
        raise SourceError(f"Cell {number}: the region {region} is not closed. Add a line `# END`.")
    return "\n".join(lines)


def entered(marker: str, region: str, number: int) -> str:
    """The region after `marker`, given the one before; raises SourceError on a wrong order."""
    allowed = {"END": ("SOLUTION",), "SOLUTION": ("STUB", "END"), "STUB": ("END",)}[region]
    if marker not in allowed:
        before = "outside a region" if region == "END" else f"after `# {region}`"
        raise SourceError(
            f"Cell {number}: `# {marker}` {before}. Expected here: {' or '.join(f'`# {name}`' for name in allowed)}."
        )
    return marker


def uncommented(line: str, number: int) -> str:
    """A stub's line without its comment sign."""
    found = re.match(r"^(\s*)#(?: (.*))?$", line)
    if found is None:
        raise SourceError(
            f"Cell {number}: the stub's line {line!r} is not commented out. Begin it with `# `."
        )
    return (found[1] + found[2]).rstrip() if found[2] else ""


def fold(hint: Cell, solutions: list[str], edition: Edition, number: int) -> Cell:
    """The folded hint and, for the learner, the folded solution of the exercises before it."""
    if not solutions:
        raise SourceError(f"Cell {number}: this hint has no exercise cell (with `# SOLUTION`) before it.")
    parts = [details("Hint", hint.source)]
    if edition == "learner":
        parts.append(
            details("Solution", "\n\n".join(f"```python\n{solution}\n```" for solution in solutions))
        )
    return Cell("markdown", "\n\n".join(parts), ("hint",))


def details(summary: str, body: str) -> str:
    """Markdown that a page shows folded under `summary`."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def shifted(cell: Cell) -> Cell:
    """The cell with relative links that hold one folder deeper, where the solutions lie."""
    if cell.kind == "code":
        return cell
    return Cell(cell.kind, RELATIVE_LINK.sub(r"\1../", cell.source), cell.tags)
