"""Right and wrong answers to every exercise, a module lessonNN.py per lesson.

Each module holds `ANSWERS: dict[str, Answers]` by exercise name. tests/lab/test_exercises.py demands for every
registered exercise: the reference and at least two right answers are accepted, at least three wrong ones are refused,
each with a report that contains the words given for it (what points at the fault).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answers:
    """Answers to one exercise: `right`, written differently; `wrong`, as (function, words in the report)."""

    right: tuple[Callable[..., Any], ...]
    wrong: tuple[tuple[Callable[..., Any], str], ...]
