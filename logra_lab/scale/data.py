"""Where problems come from at full scale, behind the loop's `Task`.

    task_for("gsm8k")                                             # the hub, or the folder in LOGRA_GSM8K
    task_for("math", train="dapo.jsonl", held_out="math500.jsonl")  # DAPO-Math / MATH-500 style, files or hub ids
    task_for("gym:chain_sum")                                     # reasoning-gym, no download at all
    task_for("sums")                                              # the twin's

Math answers are compared by math-verify in a process of its own, ended when an answer takes too long (rl/rewards.py).
Left out: images, multiple choice, and partial credit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from logra_lab.rl.reading import parse_json, read_text
from logra_lab.rl.rewards import MathVerifier
from logra_lab.rl.tasks import Problem, Task, make_task

DAPO = "BytedTsinghua-SIA/DAPO-Math-17k"
MATH500 = "HuggingFaceH4/MATH-500"
TEMPLATE = "{question}\nThink step by step, and put the final answer within \\boxed{{}}."
QUESTIONS = ("problem", "question", "prompt")
ANSWERS = ("answer", "ground_truth", "solution", "final_answer")


def task_for(name: str, **options: Any) -> Task:
    """The task called `name`, with its `options`.

    Raises:
        ConnectionError: where the data is on a hub that can't be reached, with the ways to do without.
    """
    if name == "math":
        return math_task(**options)
    try:
        return make_task(name, **options)
    except (ConnectionError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ConnectionError(
            offline(name, error, "set LOGRA_GSM8K to a folder with its JSONL files")
        ) from error


def math_task(
    train: str | Path = DAPO,
    held_out: str | Path = MATH500,
    *,
    template: str = TEMPLATE,
    seconds: float = 5.0,
    limit: int | None = None,
    score: Callable[[str, str], float] | None = None,
) -> Task:
    """Competition problems: `train` and `held_out` are JSONL or JSON files, or hub ids.

    Args:
        template: turns a question into a prompt; a prompt that is a chat already is taken as it stands.
        seconds: math-verify's time per answer; what takes longer is wrong.
        limit: of problems in each split.
        score: compares an answer with the gold one, math-verify if None.

    Raises:
        ValueError: naming file, line and field that can't be read, or a training problem that is also held out.
    """
    if "{question}" not in template:
        raise ValueError(
            f"template={template!r} has no {{question}} in it; add it where the question belongs"
        )
    splits = [tuple(_problems(source, template, limit)) for source in (train, held_out)]
    shown = {problem.prompt for problem in splits[1]}
    kept = tuple(problem for problem in splits[0] if problem.prompt not in shown)
    if not kept:
        raise ValueError(
            f"every problem of {str(train)!r} is also in {str(held_out)!r}; name two different sets"
        )
    judge = score or MathVerifier(seconds)
    return Task("math", kept, splits[1], lambda text, problem: judge(text, problem.answer), needs_stop=False)


def offline(name: str, error: BaseException, instead: str) -> str:
    """The message for data that can't be fetched."""
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return f"{name!r} can't be fetched from the hub ({first}); go online once, or {instead}, or use 'gym:chain_sum'"


def question_of(record: dict[str, Any], where: str) -> str:
    """The question of a record: text, or the user's turn of a chat. ValueError with the fields found."""
    for field in QUESTIONS:
        value = record.get(field)
        if isinstance(value, str) and value.strip():
            return value
        turns = [turn for turn in value if _is_turn(turn)] if isinstance(value, list) else []
        if turns:
            users = [turn["content"] for turn in turns if turn.get("role") == "user"]
            return users[-1] if users else turns[-1]["content"]
    raise ValueError(f"{where}: none of {', '.join(QUESTIONS)} holds a question; it has {', '.join(record)}")


def _is_turn(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("content"), str)


def answer_of(record: dict[str, Any], where: str) -> str:
    """The gold answer of a record, in LaTeX where it is: math-verify reads both. ValueError with the fields found."""
    inner = record.get("reward_model")
    inner = inner if isinstance(inner, dict) else {}
    for source in (record, inner):
        for field in ANSWERS:
            if isinstance(source.get(field), (str, int, float)) and str(source[field]).strip():
                text = str(source[field])
                return text if "\\boxed" in text or "$" in text else f"${text}$"
    raise ValueError(f"{where}: none of {', '.join(ANSWERS)} holds an answer; it has {', '.join(record)}")


def _problems(source: str | Path, template: str, limit: int | None) -> Iterator[Problem]:
    count = 0
    for where, record in _records(source):
        if limit is not None and count >= limit:
            return
        count += 1
        chat = isinstance(record.get("prompt"), list)
        question = question_of(record, where)
        yield Problem(question if chat else template.format(question=question), answer_of(record, where))
    if not count:
        raise ValueError(f"{str(source)!r} holds no problems; one JSON object per line is expected")


def _records(source: str | Path) -> Iterator[tuple[str, dict[str, Any]]]:
    path = Path(source)
    if path.is_file():
        for number, line in enumerate(read_text(path).split("\n"), start=1):
            if line.strip():
                yield f"{path.name}, line {number}", _parsed(line, f"{path.name}, line {number}")
        return
    if path.suffix in (".json", ".jsonl") or str(source).startswith((".", "/")):
        raise FileNotFoundError(
            f"there is no file {str(source)!r}; name a JSONL file, or a hub id such as {MATH500!r}"
        )
    for number, row in enumerate(_hub_rows(str(source)), start=1):
        yield f"{source}, row {number}", dict(row)


def _parsed(line: str, where: str) -> dict[str, Any]:
    record = parse_json(line, where, finite=False)
    if not isinstance(record, dict):
        raise ValueError(f"{where}: {line[:60]!r} is no JSON object; one object per line is expected")
    return record


def _hub_rows(name: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            f"{name!r} from the hub needs datasets: pip install 'logra-lab[scale]', or name a JSONL file"
        ) from error
    try:
        found = load_dataset(name)
    except (OSError, ValueError) as error:
        raise ConnectionError(offline(name, error, "name a JSONL file on this machine")) from error
    return found["test" if "test" in found else "train"]
