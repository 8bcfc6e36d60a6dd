"""The sentences on a race say what its table holds, and no more."""

from __future__ import annotations

from logra_lab.rl.summary import summarise
from logra_lab.rl.words import grids, in_words, panel_words, tuning_words


def run(label, seed, accuracy, panel="p", lr=1e-3, status="finished"):
    return {
        "panel": panel, "label": label, "seed": seed, "status": status, "start": {"accuracy": 0.3, "greedy": 0.5},
        "curves": {"accuracy": [accuracy], "measured_kl": [None]}, "memory": {"weights": 1}, "peak_memory": 1,
        "seconds_per_step": 1.0, "config": {"model": "m", "arm": {"lr": lr}},
    }  # fmt: skip


def race():
    noise = (0.00, 0.01, 0.02, 0.01)
    runs = [run("logra paper", s, 0.80 + n) for s, n in enumerate(noise)]
    runs += [run("adamw", s, 0.85 + n) for s, n in enumerate(noise)]
    runs += [run("lora", s, 0.80 + n) for s, n in enumerate(reversed(noise))]
    runs += [run("sgd", s, 0.01, status="non-finite") for s in range(4)]
    return runs


def test_arms_are_sorted_into_above_below_and_not_told_apart():
    told, broken = panel_words(summarise(race()), "p")
    assert "above logra paper: adamw (+5.0 ± 0.0 points)" in told
    assert "not told apart from logra paper: lora" in told and "below logra paper: sgd" in told
    assert "4 paired seeds, 3 comparisons" in told
    assert broken == "p: diverged sgd on 4 of 4 seeds."


def test_one_seed_tells_nothing_apart():
    table = summarise([run("logra paper", 0, 0.5), run("adamw", 0, 0.9)])
    assert "not told apart from logra paper: adamw (+40.0 points)" in panel_words(table, "p")[0]


def test_a_panel_without_its_reference_says_nothing():
    assert panel_words(summarise([run("adamw", 0, 0.9)]), "p") == []


def test_the_grid_is_stated_and_its_edge_is_named():
    tuned = [
        run(f"adamw {lr:.0e}", 100, a, "tuning", lr) for lr, a in ((1e-4, 0.5), (3e-4, 0.7), (1e-3, 0.6))
    ]
    tuned += [run(f"lora, rank 2 {lr:.0e}", 100, a, "tuning", lr) for lr, a in ((1e-3, 0.5), (3e-3, 0.7))]
    assert grids(tuned)["lora, rank 2"] == {1e-3: 0.5, 3e-3: 0.7}
    adamw, lora = tuning_words(tuned)
    assert adamw == "adamw: 3e-04 of 1e-04, 3e-04, 1e-03."
    assert lora.startswith("lora, rank 2: 3e-03 of 1e-03, 3e-03 (the edge")


def test_all_sentences_end_with_what_is_not_shown():
    words = in_words(summarise(race()), race())
    assert words[-1].startswith("Not shown:") and "carries over from m" in words[-1]
