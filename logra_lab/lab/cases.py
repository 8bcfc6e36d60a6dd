"""What an exercise is tested by: cases (equal the reference), laws (a property holds), slips (known mistakes)."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch

from logra_lab.lab.compare import ATOL, RTOL, difference
from logra_lab.lab.time_limit import TimeLimitReached, time_limit

NOTHING = "it returned {}; if you have written it, its `return` is missing"
DOTS = "a part of what it returned is still `...`"
UNWRITTEN = "it is not written yet"
NOT_THE_LEARNERS = (str(Path(__file__).parents[1]), str(sysconfig.get_path("stdlib")), "<frozen")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Finding:
    """Whether one claim holds, what was seen, a hint. `unwritten`: still a stub; `final`: trying on is no use."""

    claim: str
    holds: bool
    seen: str = ""
    hint: str = ""
    unwritten: bool = False
    final: bool = False

    def __str__(self) -> str:
        if self.holds:
            return f"  ✓ {self.claim}"
        hint = f"\n    Hint: {self.hint}" if self.hint else ""
        stop = "" if self.seen.endswith((".", "?", "!")) else "."
        return f"  ✗ {self.claim}: {self.seen}{stop}{hint}"


@dataclass(frozen=True)
class Case:
    """Holds if the answer equals the reference on the arguments that `make()` builds anew each time it is called.

    `make` returns a tuple of positional arguments, the same values at every call. `expected(*arguments)` stands in for
    the reference where another route to the result is better. `select` picks what is compared from what was returned.
    An argument that was changed in place fails the case, unless `mutates=True`: then it is compared with what the
    reference made of it, and the function may return None.
    """

    claim: str
    make: Callable[[], tuple]
    hint: str = ""
    expected: Function | None = None
    select: Callable[[Any], Any] | None = None
    rtol: float = RTOL
    atol: float = ATOL
    dtype: bool = True
    mutates: bool = False

    def judge(self, function: Function, reference: Function, seconds: float) -> Finding:
        """Run `function` on fresh arguments, for `seconds` at most, and compare with what is expected."""
        given = self.make()
        returned, failure = attempt(lambda: function(*given), seconds)
        if failure:
            return Finding(self.claim, False, failure.words, self.hint, failure.unwritten, failure.final)
        if returned is Ellipsis or (returned is None and not self.mutates):
            return Finding(self.claim, False, NOTHING.format(returned), self.hint, unwritten=True)
        if isinstance(returned, tuple) and any(part is Ellipsis for part in returned):
            return Finding(self.claim, False, DOTS, self.hint, unwritten=True)
        twin = self.make()
        changed = None if self.mutates else argument_change(given, twin)
        wanted = (self.expected or reference)(*twin)
        seen = self.difference(returned, wanted) or changed
        if seen is None and self.mutates:
            seen = argument_change(given, twin)
        return Finding(self.claim, seen is None, seen or "", self.hint)

    def difference(self, returned: Any, wanted: Any) -> str | None:
        """How two results differ under this case's tolerances, None if they don't."""
        if self.mutates and wanted is None:
            return None
        select = self.select
        if select is not None:
            if isinstance(wanted, tuple) and not same_count(returned, wanted):
                return difference(returned, wanted)
            picked, failure = attempt(lambda: select(returned), 5.0)
            if failure:
                return f"what it returned can't be used: {failure.words}"
            returned, wanted = picked, select(wanted)
        return difference(returned, wanted, rtol=self.rtol, atol=self.atol, dtype=self.dtype)

    def same_as(self, function: Function, other: Function, seconds: float) -> bool:
        """True if two functions return the same here (precision aside), or stop with the same error."""
        mine, failure = attempt(lambda: function(*self.make()), seconds)
        theirs, other_failure = attempt(lambda: other(*self.make()), seconds)
        if failure and other_failure:
            return failure.error is not None and failure.error == other_failure.error
        if failure or other_failure or mine is None:
            return False
        return difference(mine, theirs, rtol=self.rtol, atol=self.atol, dtype=False) is None


@dataclass(frozen=True)
class Law:
    """Holds if `holds(function)` returns True; False, or a sentence that says what was seen instead, means it fails."""

    claim: str
    holds: Callable[[Function], bool | str]
    hint: str = ""

    def judge(self, function: Function, reference: Function, seconds: float) -> Finding:
        """Try the law on `function`, for `seconds` at most; raises TypeError if the law itself gives no answer."""
        returned: list[Any] = []

        def watched(*arguments: Any, **named: Any) -> Any:
            returned[:] = [function(*arguments, **named)]
            return returned[0]

        answer, failure = attempt(lambda: self.holds(watched), seconds)
        if failure and not failure.final and returned and (returned[0] is None or returned[0] is Ellipsis):
            return Finding(self.claim, False, NOTHING.format(returned[0]), self.hint, unwritten=True)
        if failure:
            return Finding(self.claim, False, failure.words, self.hint, failure.unwritten, failure.final)
        if not isinstance(answer, bool | str) or answer == "":
            raise TypeError(
                f"The law {self.claim!r} returned {answer!r}. Let it return True, False or a sentence."
            )
        return Finding(
            self.claim, answer is True, answer if isinstance(answer, str) else "it does not", self.hint
        )


@dataclass(frozen=True)
class Slip:
    """A known wrong answer, and what to tell whoever gives it."""

    message: str
    function: Function


@dataclass(frozen=True)
class Failure:
    """Why a call gave no result; `error` is what was raised, its numbers left out."""

    words: str
    unwritten: bool = False
    final: bool = False
    error: str | None = None


def attempt(call: Callable[[], Any], seconds: float) -> tuple[Any, Failure | None]:
    """The result of `call()`, or None and why there is none; KeyboardInterrupt passes through."""
    try:
        with time_limit(seconds):
            return call(), None
    except TimeLimitReached:
        words = f"it was still running after {seconds:g} s and was stopped; does a loop never end?"
        return None, Failure(words, final=True)
    except NotImplementedError as error:
        return None, Failure(str(error) or UNWRITTEN, unwritten=True)
    except (Exception, SystemExit) as error:
        return None, Failure(describe_error(error), error=re.sub(r"\d+", "#", in_one_line(error)))


def in_one_line(error: BaseException) -> str:
    """An exception's name and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".rstrip(".: ")


def describe_error(error: BaseException) -> str:
    """An exception in one line, with the line of the learner's code that it comes from, if it passed through it."""
    own = [
        frame.line for frame in traceback.extract_tb(error.__traceback__) if of_the_learner(frame.filename)
    ]
    if not own or not own[-1]:
        return f"using it stopped with {in_one_line(error)}"
    line = own[-1] if len(own[-1]) <= 80 else own[-1][:77] + "..."
    return f"it stopped with {in_one_line(error)} (at `{line}`)"


def of_the_learner(filename: str) -> bool:
    """True unless the file belongs to this package, to Python or to an installed package."""
    return "site-packages" not in filename and not filename.startswith(NOT_THE_LEARNERS)


def same_count(returned: Any, wanted: tuple) -> bool:
    """True if as many values were returned as wanted."""
    return isinstance(returned, tuple | list) and len(returned) == len(wanted)


def argument_change(given: Sequence[Any], twin: Sequence[Any]) -> str | None:
    """Which argument is not what its twin is, as a sentence; things that can't be compared are passed over."""
    for number, (mine, theirs) in enumerate(zip(given, twin), start=1):
        if comparable(theirs) and difference(mine, theirs) is not None:
            return f"it changed its argument number {number} in a way that it should not; work on a copy"
    return None


def comparable(value: Any) -> bool:
    """True for tensors, arrays, numbers, strings and non-empty lists, tuples and dicts of them."""
    if isinstance(value, dict):
        return bool(value) and all(map(comparable, value.values()))
    if isinstance(value, list | tuple):
        return bool(value) and all(map(comparable, value))
    return isinstance(value, torch.Tensor | np.ndarray | Number | str)


def recognise(
    function: Function, tried: Sequence[Case | Law], slips: Sequence[Slip], seconds: float
) -> str | None:
    """The message of the first slip that does what `function` does in every case, if any."""
    cases = [case for case in tried if isinstance(case, Case)]
    if not cases:
        return None
    for slip in slips:
        if all(case.same_as(function, slip.function, seconds) for case in cases):
            return slip.message
    return None
