"""GSM8K: grade-school word problems from a local folder or the hub.

The folder is the argument, else the environment variable LOGRA_GSM8K; it holds `train*.jsonl` and `test*.jsonl`
with the fields `question` and `answer`, where the gold answer follows "####". Without a folder the hub's
`openai/gsm8k` is read through `datasets` (an optional extra). The project's own few problems in the same format
are in `data/problems`. Files are read where they lie and never copied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from logra_lab.rl.reading import parse_json, read_text
from logra_lab.rl.rewards import final_number, same_number
from logra_lab.rl.tasks import Problem, Task, check_gold

HUB_ID = "openai/gsm8k"
INSTRUCTION = (
    "{question}\nThink step by step. End with a line that holds #### and then the answer as a number.\n"
)


def gsm8k_task(
    folder: str | Path | None = None,
    *,
    template: str = INSTRUCTION,
    score: Callable[[str, str], float] = same_number,
    hub_id: str = HUB_ID,
) -> Task:
    """GSM8K as a task: its train split to learn from, its test split held out.

    `template` turns a question into a prompt; `score(response, gold_solution)` may be a `MathVerifier`.
    """
    if "{question}" not in template:
        raise ValueError(
            f"template={template!r} has no {{question}} in it; add it where the question belongs"
        )
    folder = folder if folder is not None else os.environ.get("LOGRA_GSM8K")
    splits = {split: _read_split(folder, split, hub_id) for split in ("train", "test")}
    train, held_out = (
        tuple(Problem(template.format(question=p.prompt), p.answer) for p in splits[split])
        for split in splits
    )
    # a worked solution may go on after its answer, so one that hit the length limit can still be right
    return Task("gsm8k", train, held_out, lambda text, problem: score(text, problem.answer), needs_stop=False)


def read_problems(path: str | Path) -> tuple[Problem, ...]:
    """Problems of one JSONL file; a line that can't be used (no JSON, no field, unreadable gold answer) is an error."""
    path = Path(path)
    lines = read_text(path).splitlines()
    problems = [_problem(line, f"{path.name}, line {number}") for number, line in enumerate(lines, start=1)]
    if not problems:
        raise ValueError(f"{path.name} holds no problems; it should have one JSON object per line")
    return check_gold(problems, _gold, path.name)


def _problem(line: str, where: str) -> Problem:
    record = parse_json(line, where)
    for field in ("question", "answer"):
        if not isinstance(record, dict) or not isinstance(record.get(field), str):
            raise ValueError(
                f"{where}: the field {field!r} is missing or no text; each line needs question and answer"
            )
    return Problem(record["question"], record["answer"])


def _gold(solution: str) -> object | None:
    return final_number(solution) if "####" in solution else None


def _read_split(folder: str | Path | None, split: str, hub_id: str) -> Iterable[Problem]:
    if folder is None:
        return _from_hub(split, hub_id)
    files = sorted(Path(folder).glob(f"{split}*.jsonl"))
    if not files:
        raise FileNotFoundError(
            f"no {split}*.jsonl in {str(folder)!r}; LOGRA_GSM8K (or folder=) must name "
            "the folder with GSM8K's JSONL files"
        )
    return tuple(problem for file in files for problem in read_problems(file))


def _from_hub(split: str, hub_id: str) -> tuple[Problem, ...]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise ImportError(
            "GSM8K from the hub needs datasets: pip install 'logra-lab[scale]', "
            "or set LOGRA_GSM8K to a folder with its JSONL files"
        ) from error
    rows: Any = load_dataset(hub_id, "main", split=split)
    problems = (Problem(row["question"], row["answer"]) for row in rows)
    return check_gold(problems, _gold, f"{hub_id} {split}")
