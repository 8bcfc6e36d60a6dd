"""The recorded bench (data/runs/bench-cpu.json) shows what README and the lessons 04 and 09 say of it in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.sources import ROOT

RECORD: dict[str, Any] = json.loads((ROOT / "data" / "runs" / "bench-cpu.json").read_text(encoding="utf-8"))
FIGURES = {figure["name"]: figure for figure in RECORD["figures"]}


def curve(varies: str, what: str = "ratio") -> list[float]:
    """One curve's ratios in the order of what varies."""
    rows = [row for row in RECORD["costs"] if row["varies"] == varies]
    return [row[what] for row in sorted(rows, key=lambda row: row[varies])]


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if figure["hard"]])
def test_every_hard_figure_holds(name: str) -> None:
    assert FIGURES[name]["value"] <= FIGURES[name]["limit"] and FIGURES[name]["holds"]


@pytest.mark.parametrize("rank", ["r16", "r64"])
def test_one_pass_saves_less_than_micro_batches(rank: str) -> None:
    pieces = FIGURES[f"step time, {rank} / dense AdamW"]["value"]
    assert pieces < FIGURES[f"step time, {rank} / dense AdamW, both in one pass"]["value"] < 1


def test_a_rank_near_the_width_saves_nothing_and_a_small_one_does() -> None:
    ratios = curve("rank")
    assert ratios[-1] > 1 > ratios[0] and ratios[1] - ratios[0] < 0.05


def test_more_tokens_raise_the_ratio_and_more_micro_batches_lower_it() -> None:
    tokens, pieces = curve("tokens"), curve("micro_batches")
    assert tokens == sorted(tokens)
    assert pieces[0] > pieces[1] > min(pieces[2:]) and pieces[0] > pieces[-1]


def test_the_wider_the_model_the_nearer_the_model_of_flops_and_bytes() -> None:
    gaps = [seen - told for seen, told in zip(curve("width"), curve("width", "model_ratio"), strict=True)]
    assert gaps == sorted(gaps, reverse=True)


def test_every_recorded_run_is_described_with_its_command() -> None:
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    assert [
        file.name for file in (ROOT / "data" / "runs").glob("*.json") if f"`{file.name}`" not in text
    ] == []
