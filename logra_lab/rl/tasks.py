"""Tasks: problems with an exact answer, split so that the held-out ones are never trained on.

A `Task` is a list of training problems, a list of held-out problems and a score that says right (1.0) or
wrong (0.0). The arithmetic tasks are made here; `gsm8k.py` reads word problems, `gym.py` adapts
reasoning-gym. Whether a pair of operands is held out is a function of the operands and a seed, so
pretraining, RL training and evaluation agree without a file passing between them.

Left out: partial credit and rewards for format. Every answer here is right or wrong.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from logra_lab.rl.rewards import exact_integer, integer_value

SPLIT_SEED = 7
HELD_OUT_SHARE = 0.15


@dataclass(frozen=True)
class Problem:
    """One question (`prompt`), its gold `answer`, and whatever else its task needs to score it (`data`)."""

    prompt: str
    answer: str
    data: Any = None


@dataclass(frozen=True)
class Task:
    """Training and held-out problems with one score.

    `score(response, problem)` is 1.0 or 0.0. With `needs_stop` an answer that ran into the length limit is wrong:
    its text may be the beginning of another answer.
    """

    name: str
    train: tuple[Problem, ...]
    held_out: tuple[Problem, ...]
    score: Callable[[str, Problem], float]
    needs_stop: bool = True

    def reward(self, response: str, problem: Problem, finished: bool) -> float:
        """Right (1.0) or wrong (0.0), counting an unfinished answer as wrong where `needs_stop`."""
        return self.score(response, problem) if finished or not self.needs_stop else 0.0


def is_held_out(operands: Sequence[int], share: float = HELD_OUT_SHARE, seed: int = SPLIT_SEED) -> bool:
    """True where these operands belong to the held-out side, whatever their order (3+4 and 4+3 stay together)."""
    key = f"{seed}:{','.join(str(n) for n in sorted(operands))}"
    digest = hashlib.sha256(key.encode("utf-8")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def sums(largest: int = 99, share: float = HELD_OUT_SHARE, seed: int = SPLIT_SEED) -> Task:
    """All sums a+b= of two numbers from 0 to `largest`."""
    _check_largest("sums", largest)
    pairs = itertools.product(range(largest + 1), repeat=2)
    return _arithmetic("sums", pairs, "+", sum, share, seed)


def products(largest: int = 12, share: float = HELD_OUT_SHARE, seed: int = SPLIT_SEED) -> Task:
    """All products a*b= of two numbers from 0 to `largest`."""
    _check_largest("products", largest)
    pairs = itertools.product(range(largest + 1), repeat=2)
    return _arithmetic("products", pairs, "*", lambda ab: ab[0] * ab[1], share, seed)


def chains(terms: int = 3, largest: int = 9, share: float = HELD_OUT_SHARE, seed: int = SPLIT_SEED) -> Task:
    """All sums of `terms` numbers from 0 to `largest`, a+b+c=; refused above 200,000 problems."""
    _check_largest("chains", largest)
    if terms < 2:
        raise ValueError(f"a chain needs at least 2 terms, got terms={terms}; use terms=3")
    if (count := (largest + 1) ** terms) > 200_000:
        raise ValueError(
            f"terms={terms}, largest={largest} make {count} problems; keep (largest + 1)**terms <= 200000"
        )
    return _arithmetic("chains", itertools.product(range(largest + 1), repeat=terms), "+", sum, share, seed)


TASKS: dict[str, Callable[..., Task]] = {"sums": sums, "products": products, "chains": chains}


def make_task(name: str, **options: Any) -> Task:
    """The task called `name` ("sums", "products", "chains", "gsm8k", or "gym:<reasoning-gym name>")."""
    if name.startswith("gym:"):
        from logra_lab.rl.gym import gym_task

        return gym_task(name.removeprefix("gym:"), **options)
    if name == "gsm8k":
        from logra_lab.rl.gsm8k import gsm8k_task

        return gsm8k_task(**options)
    if name not in TASKS:
        known = ", ".join([*TASKS, "gsm8k", "gym:<name>"])
        raise ValueError(f"unknown task {name!r}; use one of {known}")
    return TASKS[name](**options)


def check_gold(
    problems: Iterable[Problem], parse: Callable[[str], object | None], source: str
) -> tuple[Problem, ...]:
    """The problems as a tuple, after each gold answer was parsed; an unreadable one is an error with its line."""
    checked = tuple(problems)
    for line, problem in enumerate(checked, start=1):
        if parse(problem.answer) is None:
            raise ValueError(
                f"{source}, line {line}: the gold answer {problem.answer[:60]!r} can't be read as a number; "
                "correct or remove that line"
            )
    return checked


def _arithmetic(name, operand_lists, sign, value, share, seed) -> Task:
    if not 0.0 < share < 1.0:
        raise ValueError(
            f"share={share} leaves one side of the split empty; use a share between 0 and 1, e.g. 0.15"
        )
    train: list[Problem] = []
    held_out: list[Problem] = []
    for operands in operand_lists:
        problem = Problem(sign.join(str(n) for n in operands) + "=", str(value(operands)), tuple(operands))
        (held_out if is_held_out(operands, share, seed) else train).append(problem)
    if not train or not held_out:
        raise ValueError(
            f"{name}: {len(train)} training and {len(held_out)} held-out problems; use a larger range"
        )
    for side in (train, held_out):
        check_gold(side, integer_value, name)
    return Task(
        name, tuple(train), tuple(held_out), lambda response, problem: exact_integer(response, problem.answer)
    )


def _check_largest(name: str, largest: int) -> None:
    if largest < 1:
        raise ValueError(f"{name} needs largest >= 1, got {largest}; use e.g. largest=9")
