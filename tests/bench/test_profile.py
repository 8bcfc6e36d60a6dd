"""Every fast path gives what its plain twin gives; the page holds what was measured and nothing else."""

from __future__ import annotations

import pytest
import torch

from bench import profile
from bench.settings import SMALL, Setting
from bench.twins import pairs

PAIRS = 6


@pytest.fixture(scope="module")
def small_pairs():
    return pairs(Setting("logra", 8, shape=SMALL, threads=1))


@pytest.mark.parametrize("number", range(PAIRS))
def test_a_fast_path_equals_its_plain_twin(small_pairs, number):
    assert len(small_pairs) == PAIRS
    name, before, after = small_pairs[number]
    slow, fast = before().double(), after().double()
    assert slow.norm() > 0
    assert (slow - fast).norm() <= 1e-5 * slow.norm(), name


def test_the_page_shows_the_measured_milliseconds(tmp_path, monkeypatch):
    rounds = [{"forward": 0.4, "backward": 0.5, "judge": 0.1, "seconds": 1.0, "peak": 1.0}]
    row = {
        "name": "a path",
        "seconds": {"before": 0.0123, "after": 0.0045},
        "peak": {"before": 2**20, "after": 0},
    }
    monkeypatch.setattr(profile, "race", lambda settings, rounds_, tell: {s.name: rounds for s in settings})
    monkeypatch.setattr(profile, "run_in_child", lambda *_, **__: {"rows": [row]})
    out = tmp_path / "profile.md"
    assert profile.main(["--small", "--threads", "1", "--out", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert "| a path | 12.3 | 4.5 | 1.0 | 0.0 |" in page
    assert "| judge | 100 (10.0 %) | 100 (10.0 %) | 100 (10.0 %) |" in page
    assert torch.__version__ in page
