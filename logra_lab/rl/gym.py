"""reasoning-gym: its procedurally made tasks behind our `Task` (optional extra `tasks`).

reasoning-gym scores between 0 and 1; only a full score counts as right here, as in every other task.
Training and held-out problems come from two seeds; problems that turn up in both are dropped from training.
"""

from __future__ import annotations

from typing import Any

from logra_lab.rl.tasks import Problem, Task


def gym_task(
    name: str, *, train_size: int = 2000, held_out_size: int = 200, seed: int = 0, **options: Any
) -> Task:
    """The reasoning-gym dataset `name` with `options`, `train_size` and `held_out_size` problems.

    Prompts shown as held out are removed from training, so training may hold fewer than asked for.
    """
    try:
        import reasoning_gym
    except ImportError as error:
        raise ImportError(
            "reasoning-gym is missing; install the extra: pip install 'logra-lab[tasks]'"
        ) from error
    for size_name, size in (("train_size", train_size), ("held_out_size", held_out_size)):
        if size < 1:
            raise ValueError(f"{size_name}={size} makes an empty split; use at least 1")
    try:
        datasets = [
            reasoning_gym.create_dataset(name, size=size, seed=which, **options)
            for size, which in ((train_size, 2 * seed), (held_out_size, 2 * seed + 1))
        ]
    except ValueError as error:
        raise ValueError(f"reasoning-gym could not make {name!r} with {options}: {error}") from error
    score_answer = datasets[0].score_answer
    train, held_out = ([_problem(entry) for entry in dataset] for dataset in datasets)
    seen = {problem.prompt for problem in held_out}
    train = [problem for problem in train if problem.prompt not in seen]
    if not train:
        raise ValueError(
            f"every training problem of {name!r} is also held out; widen its ranges or lower held_out_size"
        )

    def score(response: str, problem: Problem) -> float:
        return 1.0 if score_answer(response.strip(), problem.data) >= 1.0 else 0.0

    return Task(f"gym:{name}", tuple(train), tuple(held_out), score)


def _problem(entry: dict) -> Problem:
    return Problem(entry["question"], str(entry["answer"]), entry)
