"""The README's promises: its snippet runs, its numbers are the recorded ones, its tables are complete."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import torch
from matplotlib.image import imread

from tools import licences, readme


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
    """The code under "Use it in your trainer"."""
    text = (repository / "README.md").read_text(encoding="utf-8")
    section = text.split("## Use it in your trainer")[1]
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


def test_every_base_dependency_is_explained_with_the_licence_that_it_declares(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (repository / "README.md").read_text(encoding="utf-8").split("## Dependencies")[1]
    lines = [re.split(r" \| ", line[2:]) for line in table.splitlines() if line.startswith("| ")]
    rows = {line[0].split()[0]: line[1] for line in lines}
    for dependency in project["dependencies"]:
        name = re.match(r"[\w-]+", dependency)[0]
        assert name in rows, f"{name} is missing in the README's table of dependencies"
        family = re.match(r"[A-Za-z]+", rows[name])[0]  # BSD, Apache, MIT, PSF
        full = {"PSF": "Python Software Foundation"}.get(family, family)
        found = licences.licence(name)
        assert full in found or found == "?", (
            f"{name}: {rows[name]} against {found}"
        )  # "?": not on this platform
    for extra in project["optional-dependencies"]:
        assert f"`{extra}`" in table


def test_every_package_of_the_lock_is_listed_with_its_licence(repository: Path) -> None:
    page = (repository / "docs" / "licences.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| (\S+) \| \S+ \| (.+) \|$", page, re.MULTILINE))
    locked = {requirement.name for requirement in licences.locked()}
    assert set(listed) - {"package"} == locked, "run `python -m tools.licences`"
    assert not [name for name in locked if "?" in listed[name]]
    here = [
        row for row in licences.table() if not row.endswith("| ? |")
    ]  # some exist on other platforms only
    assert not [row for row in here if row not in page], "run `python -m tools.licences`"


def test_a_package_that_is_not_installed_has_no_licence_made_up_for_it() -> None:
    assert licences.licence("no-such-package-as-this") == "?"


def test_no_package_forbids_commercial_use_but_the_one_the_readme_names(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    bound = [
        r.name for r in licences.locked() if re.search(r"NC\b|[Pp]roprietary|AGPL", licences.licence(r.name))
    ]
    assert bound == ["apollo-torch"] and "apollo-torch is CC-BY-NC" in text


def test_the_two_commands_come_before_anything_else_to_type(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    typed = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert typed[0].startswith("make lab") and typed[1].startswith("make test")


def test_every_table_of_results_is_what_was_recorded(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    assert readme.refreshed(text) == text, "run `python -m tools.readme`"
    assert re.findall(r"<!-- results: (\w+) -->", text) == list(readme.TABLES)


def test_a_changed_recording_changes_the_table_and_a_missing_one_says_so(
    repository: Path, tmp_path: Path
) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    record = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))
    record["table"][0]["final"] = {"mean": 0.123, "half_width": 0.004}
    (tmp_path / "tiny-math-arms.json").write_text(json.dumps(record), encoding="utf-8")
    changed = readme.refreshed(text, tmp_path)
    assert "| 12.3 ± 0.4 % |" in changed and "| 12.3 ± 0.4 % |" not in text
    assert "`data/runs/race.json` is not recorded yet" in changed
    assert "`data/runs/bench-cpu.json` is not recorded yet" in changed


def test_the_race_and_the_bench_become_tables_when_they_are_recorded(tmp_path: Path) -> None:
    row = {"panel": "equal KL", "label": "lora", "seeds": [0, 1], "final": {"mean": 0.9, "half_width": 0.01}}
    race = {"table": [row | {"verdict": "in words"}, row | {"panel": "tuning"}]}
    (tmp_path / "race.json").write_text(json.dumps(race), encoding="utf-8")
    assert "| equal KL | lora | 2 | 90.0 ± 1.0 % | in words |" in readme.race_table(tmp_path)
    assert "tuning" not in readme.race_table(tmp_path)
    spread = {"median": 0.5, "low": 0.4, "high": 0.61}
    bench = {
        "setting": {"width": 64, "layers": 2, "sequences": 2, "length": 8}, "rounds": 6,
        "micro_batches": 2,
        "figures": [{"name": "step time, r16 / dense AdamW, both in one pass", "value": 0.6, "interval": [0.5, 0.7]}],
        "machine": {"processor": "a CPU", "threads": 2},
        "arms": {"logra r16": {"time_ratio": spread, "peak_ratio": spread}},
    }  # fmt: skip
    (tmp_path / "bench-cpu.json").write_text(json.dumps(bench), encoding="utf-8")
    table = readme.bench_table(tmp_path)
    assert (
        "16 tokens a step in 2 micro-batches" in table
        and "both in one pass: r16 0.60 (0.50 to 0.70)." in table
        and "| LoGRA r = 16 | 0.50 (0.40 to 0.61) | 0.50 (0.40 to 0.61) |" in table
    )


def test_the_best_learning_rate_of_adamw_is_the_one_that_is_shown(repository: Path) -> None:
    recorded = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))["table"]
    grid = [row for row in recorded if row["label"].startswith("adamw")]
    best = max(grid, key=lambda row: row["final"]["mean"])["label"]
    assert len(grid) == 4 and best in [label for _, _, label in readme.ARM_ROWS]


def test_the_picture_is_the_recorded_one_and_says_in_words_what_it_shows(repository: Path) -> None:
    record = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))
    drawn, committed = readme.picture(record), (repository / readme.PICTURE).read_bytes()
    assert len(committed) < 150_000
    ours, theirs = (imread(io.BytesIO(data)) for data in (drawn, committed))
    assert ours.shape == theirs.shape and abs(ours - theirs).mean() < 0.02, "run `python -m tools.readme`"
    alt = re.search(
        r"!\[([^\]]+)\]\(docs/logra.png\)", (repository / "README.md").read_text(encoding="utf-8")
    )[1]
    steps, logra = readme.accuracies(record, "logra paper")
    assert "over 150 updates" in alt and steps[-1] == 150 and all(0.8 < curve[-1] < 0.95 for curve in logra)


def test_the_citation_is_the_same_everywhere(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cff = (repository / "CITATION.cff").read_text(encoding="utf-8")
    text = (repository / "README.md").read_text(encoding="utf-8")
    title = "LoGRA: Scaling LLM Reinforcement Learning with Low-Rank Gradient Sketches"
    for page in (cff, text):
        assert title in page and "2610.06647" in page and project["version"] in page
    assert project["license"] in cff and project["license"] in text


def test_the_table_of_lessons_names_each_with_the_minutes_that_the_lesson_says(repository: Path) -> None:
    text = (repository / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\d) \| \[[^\]]+\]\(notebooks/(\S+)\.ipynb\) \| (\d+) \|", text, re.MULTILINE)
    sources = sorted((repository / "notebooks" / "sources").glob("[0-9]*.py"))
    assert [name for _, name, _ in rows] == [path.stem for path in sources]
    for (_, _, minutes), path in zip(rows, sources, strict=True):
        opening = path.read_text(encoding="utf-8")[:2000]
        assert re.search(rf"\b{minutes}(?: |\n# )minutes\b", opening), f"{path.stem}: {minutes} minutes"


def test_every_recorded_seed_of_logra_gained_thirty_points(repository: Path) -> None:
    recorded = json.loads((repository / "data/runs/tiny-math-arms.json").read_text(encoding="utf-8"))["runs"]
    gains = [
        run["curves"]["accuracy"][-1] - run["start"]["accuracy"]
        for run in recorded
        if run["panel"] == "recipes" and run["label"].startswith("logra")
    ]
    assert len(gains) == 6 and min(gains) >= 0.3
