"""What lesson 10 shows of other people's trainers: steps of GRPOTrainer and Trainer on tiny-math, and the refusals.

The reader's function builds the trainer; here are the table, the reward and the quiet around it. Left out: what these
trainers print and draw themselves.
"""

from __future__ import annotations

import io
import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from logra_lab.data_files import located
from logra_lab.lab.lesson10 import wrapped
from logra_lab.rl.rewards import exact_integer
from logra_lab.rl.tasks import Problem, sums
from logra_lab.scale.trainers import reasons

SMALL: dict[str, Any] = {
    "per_device_train_batch_size": 16, "seed": 2, "bf16": False, "use_cpu": True, "report_to": [], "disable_tqdm": True,
    "save_strategy": "no", "logging_strategy": "no",
}  # fmt: skip
SMALL_GRPO: dict[str, Any] = SMALL | {"num_generations": 8, "max_completion_length": 5}
LENGTH = 10  # tokens of a padded sum with its answer


def try_grpo(train: Callable[..., Any]) -> str:
    """Run `train(model, tokenizer, table, reward, folder)` on tiny-math; what came of it, or which extra is missing."""
    if find_spec("trl") is None or find_spec("datasets") is None:
        return "TRL is missing here; the extra has it: logra-lab[scale]. Nothing was run."
    from datasets import Dataset

    model, tokenizer = _tiny()
    rows = [{"prompt": p.prompt, "gold": p.answer} for p in _problems()]

    def right(completions: Sequence[str], gold: Sequence[str], **_: Any) -> list[float]:
        return [exact_integer(text, answer) for text, answer in zip(completions, gold, strict=True)]

    return _quietly("GRPOTrainer", train, model, tokenizer, Dataset.from_list(rows), right)


def try_trainer(train: Callable[..., Any]) -> str:
    """Run `train(model, rows, folder)` on tiny-math, the rows being sums with labels; what came of it."""
    if find_spec("accelerate") is None:
        return "accelerate is missing here, which Trainer needs; the extra has it: logra-lab[scale]. Nothing was run."
    model, tokenizer = _tiny()
    rows = [labelled(tokenizer, problem) for problem in _problems()]
    return _quietly("Trainer", train, model, rows)


def labelled(tokenizer: Any, problem: Problem) -> dict[str, list[int]]:
    """A sum with its answer, padded to `LENGTH`; labels where the answer stands."""
    prompt, answer = (tokenizer(text)["input_ids"] for text in (problem.prompt, problem.answer))
    answer = [*answer, tokenizer.eos_token_id]
    used, pad = len(prompt) + len(answer), tokenizer.pad_token_id
    return {
        "input_ids": [*prompt, *answer] + [pad] * (LENGTH - used),
        "attention_mask": [1] * used + [0] * (LENGTH - used),
        "labels": [-100] * len(prompt) + answer + [-100] * (LENGTH - used),
    }


def refusals() -> str:
    """The reasons that `scale.trainers` gives, one a paragraph."""
    return "\n".join(wrapped(f"- {reason}") for reason in reasons())


def _tiny() -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = located("data/tiny-math").as_posix()
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def _problems() -> Sequence[Problem]:
    return sums(largest=20).train[:64]


def _quietly(name: str, train: Callable[..., Any], *arguments: Any) -> str:
    """`train(*arguments, folder)` with a folder that goes away, its output caught; the optimizer's state in words."""
    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as output,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        optimizer = train(*arguments, Path(output))
    gradients = sum(target.weight.grad is not None for target in optimizer.targets)
    return (
        f"{optimizer.updates} updates in {name}; {gradients} of {len(optimizer.targets)} targets hold a gradient"
        " after the last backward"
    )
