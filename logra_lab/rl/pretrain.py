"""Make `data/tiny-math`: a small Llama that adds two numbers to 99 and is right about a third of the time.

    python -m logra_lab.rl.pretrain

For each training pair of `tasks.sums` the model is shown the right sum for a share of the answers, and one of the
two operands, echoed, for the rest. The share of right answers starts high, so that the model learns to add, and
falls to `right_share`. Sampled at T = 1 it then answers in that mixture, also to pairs it never saw. So RL selects
a behaviour that is already there and finds no new skill, and the lessons say so.

Left out: anything but sums. The same seed gives the same file on the same machine and versions; elsewhere rounding
differs, and the accuracy window of the tests is what holds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from logra_lab.rl.batch import generator_for
from logra_lab.rl.config import config_hash
from logra_lab.rl.evaluation import evaluate
from logra_lab.rl.policy import Policy, Sampling
from logra_lab.rl.tasks import HELD_OUT_SHARE, SPLIT_SEED, Problem, Task, sums
from logra_lab.rl.tokenizer import character_tokenizer

RECIPE = "recipe.json"
IGNORED = -100  # label of a position that is not learned from


@dataclass(frozen=True)
class PretrainConfig:
    """How the checkpoint is made; its hash is stored with it."""

    seed: int = 0
    largest: int = 99
    split_seed: int = SPLIT_SEED
    held_out_share: float = HELD_OUT_SHARE
    hidden: int = 96
    feed_forward: int = 288
    layers: int = 2
    heads: int = 4
    batch: int = 256
    steps: int = 1700
    lr: float = 4e-3
    first_share: float = 0.95  # of right answers among those shown, for the first 30 % of the steps …
    right_share: float = 0.42  # … falling in a line to this one for the last 20 %

    def hash(self) -> str:
        """Twelve hex digits that name this recipe."""
        return config_hash(dataclasses.asdict(self))


def build_model(config: PretrainConfig, tokenizer: Any) -> LlamaForCausalLM:
    """An untrained model of the recipe's size, its weights drawn from the recipe's seed."""
    settings = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=config.hidden, intermediate_size=config.feed_forward,
        num_hidden_layers=config.layers, num_attention_heads=config.heads, num_key_value_heads=config.heads,
        max_position_embeddings=128, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return LlamaForCausalLM(settings)


def answer_table(problems: tuple[Problem, ...], tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Ids and labels [problems, 3, L]: each problem answered right, by its first and by its second operand."""
    rows = [_row(p, answer, tokenizer) for p in problems for answer in (p.answer, *map(str, p.data))]
    longest = max(len(ids) for ids, _ in rows)
    stop = tokenizer.eos_token_id
    ids = torch.tensor([ids + [stop] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([labels + [IGNORED] * (longest - len(labels)) for _, labels in rows])
    return ids.view(len(problems), 3, longest), labels.view(len(problems), 3, longest)


def pretrain(
    config: PretrainConfig, report: Callable[[str], None] = lambda line: None
) -> tuple[Policy, Task]:
    """The trained policy and its task; `report` receives a line now and then."""
    tokenizer = character_tokenizer()
    model: Any = build_model(config, tokenizer)
    task = sums(config.largest, config.held_out_share, config.split_seed)
    policy = Policy(model, tokenizer)
    table = answer_table(task.train, tokenizer)
    draws = _draws(table, config, generator_for(config.seed, 0, "pretraining"))
    _train(model, draws, config, report)
    return policy, task


def held_out_accuracy(policy: Policy, task: Task, config: PretrainConfig) -> dict[str, float]:
    """Sampled (T = 1) and greedy accuracy on every held-out pair."""
    generator = generator_for(config.seed, 0, "held-out accuracy")
    return evaluate(policy, task, Sampling(max_new_tokens=5), generator)


def save(policy: Policy, accuracy: dict[str, float], config: PretrainConfig, folder: Path) -> None:
    """Write model, tokenizer and `recipe.json` (configuration, hash, versions, accuracy)."""
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    recipe = {
        "command": "python -m logra_lab.rl.pretrain", "config": dataclasses.asdict(config), "hash": config.hash(),
        "held_out": accuracy, "parameters": sum(p.numel() for p in policy.model.parameters()),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }  # fmt: skip
    (folder / RECIPE).write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Command line: make the checkpoint."""
    parser = argparse.ArgumentParser(
        prog="python -m logra_lab.rl.pretrain", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument(
        "--out", type=Path, default=Path("data/tiny-math"), help="folder (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    config = PretrainConfig()
    policy, task = pretrain(config, report=lambda line: print(line, file=sys.stderr, flush=True))
    save(policy, held_out_accuracy(policy, task, config), config, options.out)


def _row(problem: Problem, answer: str, tokenizer: Any) -> tuple[list[int], list[int]]:
    prompt = tokenizer(problem.prompt)["input_ids"]
    reply = [*tokenizer(answer)["input_ids"], tokenizer.eos_token_id]
    return prompt + reply, [IGNORED] * len(prompt) + reply


def share_of_right(config: PretrainConfig, step: int) -> float:
    """The share of right answers shown at `step`."""
    fall = (step / config.steps - 0.3) / 0.5  # 0 at 30 % of the steps, 1 at 80 %
    return config.first_share + (config.right_share - config.first_share) * min(max(fall, 0.0), 1.0)


def _draws(
    table: tuple[Tensor, Tensor], config: PretrainConfig, generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """One batch per step; each answer is right with the probability of that step, else an operand."""
    ids, labels = table
    for step in range(config.steps):
        problem = torch.randint(len(ids), (config.batch,), generator=generator)
        echo = (torch.rand(config.batch, generator=generator) >= share_of_right(config, step)).long()
        answer = echo * torch.randint(1, 3, (config.batch,), generator=generator)
        yield ids[problem, answer], labels[problem, answer]


def _train(model, draws, config: PretrainConfig, report: Callable[[str], None]) -> None:
    """AdamW with a short warm-up and a cosine to 5 %."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), weight_decay=0.1)
    model.train()
    for step, (ids, labels) in enumerate(draws, start=1):
        cosine = 0.05 + 0.475 * (1 + math.cos(math.pi * step / config.steps))
        for group in optimizer.param_groups:
            group["lr"] = config.lr * min(1.0, step / 100) * cosine
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]  # [B, L - 1, V]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            report(f"step {step} of {config.steps}: loss {loss.item():.3f}")
    model.eval()


if __name__ == "__main__":
    main()
