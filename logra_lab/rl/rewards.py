"""Rewards: read a number out of an answer, exactly, and compare it with the gold one.

Three readers, from strict to lenient: `integer_value` takes a text that is one integer and nothing else (the
arithmetic tasks), `final_number` finds the final answer of a worked solution (GSM8K), and `math_equal` asks
math-verify whether two expressions are the same (competition problems), in a process of its own that is ended
when it takes too long.

Only the ASCII digits 0-9 are digits here. Python's `int` would accept "４６" and "٤٦" too, and a policy finds that.
"""

from __future__ import annotations

import multiprocessing
import re
from fractions import Fraction
from typing import Any

LONGEST_NUMBER = 40  # characters; longer ones are not answers, and Python refuses ints of over 4300 digits
TAIL = 4000  # characters read from the end of an answer without a marker

_GROUPED = r"\d{1,3}(?:,\d{3})+"
_INTEGER = re.compile(rf"[+-]?(?:{_GROUPED}|\d+)", re.ASCII)
# a number inside running text: not glued to letters, digits, points or commas that would make it another number
_NUMBER = re.compile(
    rf"(?<![\w.,/])(?:[+-]|[+-]?\$\s?[+-]?)?(?:{_GROUPED}|\d+)(?:\.\d+)?(?!\d|,\d|\.\d|/\d)", re.ASCII
)
_MARKER = "####"
_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_MINUS = str.maketrans({"\u2212": "-"})  # the typographic minus sign reads as a minus


def integer_value(text: str) -> int | None:
    """The integer that `text` is, surrounding white space apart; None when it is anything else.

    "1,234" and "+7" are read; "46.0", "46 apples", "4 6", "46=46" and "" are not.
    """
    stripped = text.strip(" \t\r\n")
    if len(stripped) > LONGEST_NUMBER or not _INTEGER.fullmatch(stripped):
        return None
    return int(stripped.replace(",", ""))


def exact_integer(response: str, gold: str) -> float:
    """1.0 if `response` is exactly the integer `gold`, else 0.0."""
    value = integer_value(response)
    return 1.0 if value is not None and value == integer_value(gold) else 0.0


def final_number(text: str) -> Fraction | None:
    r"""The final number of a worked solution; None when there is none or it is ambiguous.

    Looked for after the last "####" (on that line), else in the last \boxed{}, else at the end of the text (its last
    number). The first two must hold one number only, however often: "#### 18 or 19" is no answer.
    """
    text = text.translate(_MINUS)
    if _MARKER in text:
        return _only_number(text.rsplit(_MARKER, 1)[1].split("\n", 1)[0][:TAIL])
    if boxed := _BOXED.findall(text[-TAIL:]):
        return _only_number(boxed[-1])
    numbers = _numbers(text[-TAIL:])
    return numbers[-1] if numbers else None


def same_number(response: str, gold: str) -> float:
    """1.0 if the final numbers of `response` and `gold` are equal as exact fractions, else 0.0."""
    value = final_number(response)
    return 1.0 if value is not None and value == final_number(gold) else 0.0


def _only_number(span: str) -> Fraction | None:
    numbers = set(_numbers(span))
    return numbers.pop() if len(numbers) == 1 else None


def _numbers(span: str) -> list[Fraction]:
    found = (match.group().replace(",", "") for match in _NUMBER.finditer(span))
    return [Fraction(re.sub(r"[$\s]", "", number)) for number in found if len(number) <= LONGEST_NUMBER]


class MathVerifier:
    """Ask math-verify whether an answer equals the gold one, with a limit of `seconds` per question.

    math-verify's own limit needs signals and the main thread, so it is off; the question is asked in a worker
    process, which is ended and replaced when the time is over. Use it as a context manager, or call `close()`.
    Without the package: ImportError that names the extra.
    """

    def __init__(self, seconds: float = 5.0) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds={seconds} leaves no time to compare; use e.g. seconds=5")
        try:
            import math_verify  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "math-verify is missing; install the extra: pip install 'logra-lab[scale]'"
            ) from error
        self.seconds = seconds
        self._process: Any = None
        self._pipe: Any = None
        self._warm = False

    def __call__(self, response: str, gold: str) -> float:
        """1.0 if equal, 0.0 if not, if unreadable, or if the time was over."""
        self._start()
        self._pipe.send((response[-TAIL:], gold))
        if not self._pipe.poll(self.seconds + (0.0 if self._warm else 60.0)):
            self.close()
            return 0.0
        self._warm = True
        return 1.0 if self._pipe.recv() else 0.0

    def close(self) -> None:
        """End the worker; the next question starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        self._process = self._pipe = None

    def __enter__(self) -> MathVerifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_answer_questions, args=(theirs,), daemon=True)
        self._process.start()
        self._warm = self._ask_if_ready()

    def _ask_if_ready(self) -> bool:
        return self._pipe.poll(120.0) and self._pipe.recv() == "ready"


def math_equal(response: str, gold: str) -> bool:
    """Whether math-verify reads both as the same expression (no time limit here)."""
    from math_verify import parse, verify

    unlimited: Any = None
    answers = parse(response, parsing_timeout=unlimited)
    return bool(answers) and bool(
        verify(parse(gold, parsing_timeout=unlimited), answers, timeout_seconds=None)
    )


def _answer_questions(pipe) -> None:
    import logging

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    math_equal("1", "1")  # imports and grammars are built before the clock starts
    pipe.send("ready")
    while True:
        try:
            response, gold = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(math_equal(response, gold))
        except Exception:  # an answer that breaks the parser is a wrong answer
            pipe.send(False)
