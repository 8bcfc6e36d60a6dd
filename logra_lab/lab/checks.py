"""Check a learner's function: say what holds and what does not yet, and let the lesson go on either way.

    from logra_lab.lab import checks
    project = checks.check("project", project)

`check` returns the learner's function if every case holds, else the reference, so that the cells below always run
and a right answer really drives them. Exercises are defined in logra_lab/lab/exercises/lessonNN.py:

    @exercise(
        "project",
        Case("gives X Aᵀ [T, r]", lambda: (ones(5, 4), ones(2, 4)), hint="A is [r, k]: transpose it."),
        slips=(Slip("X comes first: this is A Xᵀ.", lambda x, a: a @ x.T),),
    )
    def project(x, a):
        return x @ a.T

A case compares with the reference on fresh arguments; a `Law` states a property (unbiased, right scale) of the function
itself. A slip is a known wrong answer: whoever gives what it gives in every case is told so. Leaves out: sandboxing.
The learner's code runs as it is, here.
"""

from __future__ import annotations

import importlib
import pkgutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import torch

from logra_lab.lab import exercises
from logra_lab.lab.cases import UNWRITTEN, Case, Finding, Law, Slip, recognise

__all__ = [
    "Case",
    "Exercise",
    "Finding",
    "Law",
    "Report",
    "Slip",
    "check",
    "exercise",
    "get",
    "judge",
    "names",
]

WAIT = "Until it is, the lesson goes on with the reference."
_REGISTRY: dict[str, Exercise] = {}


@dataclass(frozen=True)
class Exercise:
    """One exercise: its name, the reference, the cases that decide, known slips, and seconds allowed per case."""

    name: str
    reference: Callable[..., Any]
    cases: tuple[Case | Law, ...]
    slips: tuple[Slip, ...] = ()
    seconds: float = 10.0


@dataclass(frozen=True)
class Report:
    """What was found about one answer; `slip` is the message of the known mistake that it makes, if any."""

    name: str
    findings: tuple[Finding, ...]
    slip: str | None = None

    @property
    def right(self) -> bool:
        """True if every case holds."""
        return all(finding.holds for finding in self.findings)

    @property
    def unwritten(self) -> bool:
        """True if the function still is its stub."""
        return self.findings[0].unwritten

    def __str__(self) -> str:
        if self.unwritten:
            seen = self.findings[-1].seen
            why = "" if seen == UNWRITTEN else f" ({seen})"
            return f"{self.name}: not written yet{why}.\n{WAIT}"
        lines = [str(finding) for finding in shortened(self.findings)]
        if self.slip:
            lines.append(f"    A likely reason: {self.slip}")
        if self.right:
            lines.append(f"{self.name}: right. The lesson goes on with your function.")
        else:
            lines += [f"{self.name}: not yet.", WAIT]
        return "\n".join(lines)


def shortened(findings: tuple[Finding, ...]) -> list[Finding]:
    """The findings; what is long and was seen before stands there once only."""
    shown: list[Finding] = []
    known: set[str] = set()
    for finding in findings:
        again = finding.seen in known and len(finding.seen) > 35
        shown.append(replace(finding, seen="the same") if again else finding)
        known.add(finding.seen)
    return shown


def exercise(
    name: str, *cases: Case | Law, slips: tuple[Slip, ...] = (), seconds: float = 10.0
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the reference of exercise `name`; raises ValueError without a case."""
    if not cases:
        raise ValueError(
            f"The exercise {name!r} has no case, so any answer would pass. Give at least one Case or Law."
        )

    def register(reference: Callable[..., Any]) -> Callable[..., Any]:
        there = _REGISTRY.get(name)
        if there is not None and there.reference.__module__ != reference.__module__:
            raise ValueError(
                f"The exercise {name!r} is already defined in {there.reference.__module__}. Rename one."
            )
        _REGISTRY[name] = Exercise(name, reference, cases, slips, seconds)
        return reference

    return register


def modules() -> list[str]:
    """Names of the modules logra_lab.lab.exercises.lessonNN."""
    return [module.name for module in pkgutil.iter_modules(exercises.__path__)]


def names() -> list[str]:
    """Names of all exercises, sorted; imports all their modules."""
    for module in modules():
        importlib.import_module(f"{exercises.__name__}.{module}")
    return sorted(_REGISTRY)


def get(name: str) -> Exercise:
    """The exercise called `name`; raises KeyError with the names there are.

    Imports the module whose text holds the name, and all of them only if that one does not define it.
    """
    for module in [] if name in _REGISTRY else modules():
        text = (resources.files(exercises) / f"{module}.py").read_text(encoding="utf-8")
        if f'"{name}",\n' in text:
            importlib.import_module(f"{exercises.__name__}.{module}")
    if name not in _REGISTRY and name not in names():
        raise KeyError(f"There is no exercise {name!r}. There are: {', '.join(sorted(_REGISTRY)) or 'none'}.")
    return _REGISTRY[name]


def judge(name: str, function: Any) -> Report:
    """Try `function` on every case of exercise `name`; prints nothing, leaves torch's random state as it was."""
    task = get(name)
    if not callable(function):
        words = f"this is {function!r}, not a function. Pass the function itself, without brackets after it."
        return Report(name, (Finding("is a function", False, words, unwritten=function in (None, ...)),))
    with torch.random.fork_rng(devices=[]):
        findings: list[Finding] = []
        for case in task.cases:
            findings.append(case.judge(function, task.reference, task.seconds))
            if findings[0].unwritten or findings[-1].final:
                break
        told = findings[0].unwritten or findings[-1].final or all(finding.holds for finding in findings)
        slip = None if told else recognise(function, task.cases, task.slips, task.seconds)
    return Report(name, tuple(findings), slip)


def check(name: str, function: Any) -> Callable[..., Any]:
    """Print what holds for the learner's `function`; return it if it is right, else the reference."""
    report = judge(name, function)
    for line in str(report).splitlines():
        print(
            textwrap.fill(
                line, 110, subsequent_indent="      ", break_long_words=False, break_on_hyphens=False
            )
        )
    return function if report.right else get(name).reference
