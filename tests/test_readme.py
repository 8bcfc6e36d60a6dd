"""The README's promises: its snippet runs, its links resolve, its table of dependencies is complete."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

PAGES = ("README.md", "CONTRIBUTING.md", "TROUBLESHOOTING.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def tiny_model() -> torch.nn.Module:
    """A random Llama of two layers, made from a configuration."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes))


def batches(count: int) -> list[SimpleNamespace]:
    """Rollouts of 4 answers of 6 tokens to prompts of 3, half of them good."""
    generator = torch.Generator().manual_seed(1)
    generated = torch.zeros(4, 9, dtype=torch.bool)
    generated[:, 3:] = True
    tokens = [torch.randint(0, 50, (4, 9), generator=generator) for _ in range(count)]
    advantages = torch.tensor([1.0, -1, 1, -1])
    mask = torch.ones(4, 9, dtype=torch.long)
    return [
        SimpleNamespace(input_ids=ids, attention_mask=mask, generated_mask=generated, advantages=advantages)
        for ids in tokens
    ]


def policy_loss(model: torch.nn.Module, batch: SimpleNamespace) -> torch.Tensor:
    """REINFORCE as the reader might write it: token mean of −advantage · log-prob."""
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1]
    taken = logits.log_softmax(-1).gather(-1, batch.input_ids[:, 1:, None]).squeeze(-1)
    mask = batch.generated_mask[:, 1:]
    return -(taken * batch.advantages[:, None] * mask).sum() / mask.sum()


def snippet(repository: Path) -> str:
    """The code under "LoGRA in your own loop"."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    section = text.split("## LoGRA in your own loop")[1]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


def test_the_snippet_has_ten_lines_at_most(repository: Path) -> None:
    assert len([line for line in snippet(repository).splitlines() if line.strip()]) <= 10


def test_the_snippet_trains_a_model_within_its_budget_and_makes_no_dense_gradient(
    repository: Path, capsys
) -> None:
    model = tiny_model()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    names = {"model": model, "rollouts": batches(3), "policy_loss": policy_loss}
    exec(compile(snippet(repository), "README.md", "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and all(line.startswith("updated") for line in printed)
    moved = [name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])]
    assert len(moved) == 14 and all("proj" in name for name in moved)
    assert all(weight.grad is None for name, weight in model.named_parameters() if "proj" in name)
    report = names["report"]
    assert report.scale**2 * report.predicted_kl <= 1.0001 * report.budget or report.scale == 3.0


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(repository: Path, page: str) -> None:
    for link in LINK.findall((repository / page).read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", link):
            assert (repository / link.split("#")[0]).exists(), f"{page}: {link} leads nowhere"


def test_every_base_dependency_is_explained(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (repository / "README.md").read_text(encoding="utf-8").split("## Dependencies")[1]
    for dependency in project["dependencies"]:
        assert re.match(r"[\w-]+", dependency)[0] in table
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in table


def test_the_two_commands_come_before_anything_else_to_type(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    typed = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert typed[0].startswith("make lab") and typed[1].startswith("make test")


RESULT_ROWS = {
    "LoGRA rank 8, the paper's recipe": ("recipes", "logra paper"),
    "LoGRA rank 8, rule `lr` with GRPO": ("recipes", "logra lr"),
    "dense AdamW, best of four learning rates": ("recipes", "adamw 3e-04"),
    "rule `lr`, a step 33 times too large": ("too large", "without trust region"),
    "the same with the trust region": ("too large", "with trust region"),
    "the paper's recipe, rewards shuffled": ("control", "logra paper, shuffled rewards"),
}


def test_the_table_of_results_is_what_was_recorded(repository: Path) -> None:
    recorded = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))["table"]
    rows = {(row["panel"], row["label"]): row for row in recorded}
    text = (repository / "README.md").read_text(encoding="utf-8")
    for arm, key in RESULT_ROWS.items():
        row = rows[key]
        kept = sum(size for kind, size in row["memory"].items() if kind != "weights") / 1024
        cells = f"| {arm} | {row['start']['mean']:.1%} | {row['final']['mean']:.1%} | {kept:.0f} KiB |"
        assert cells.replace("%", " %") in text, cells
    grid = [row for row in recorded if row["label"].startswith("adamw")]
    assert max(grid, key=lambda row: row["final"]["mean"])["label"] == "adamw 3e-04" and len(grid) == 4


def test_every_recorded_seed_of_logra_gained_thirty_points(repository: Path) -> None:
    recorded = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))["runs"]
    gains = [
        run["curves"]["accuracy"][-1] - run["start"]["accuracy"]
        for run in recorded
        if run["panel"] == "recipes" and run["label"].startswith("logra")
    ]
    assert len(gains) == 6 and min(gains) >= 0.3
