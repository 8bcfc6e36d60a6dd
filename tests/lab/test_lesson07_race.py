"""The race and the real model of lesson 07: pictures and tables say what the records hold."""

from __future__ import annotations

import json

from logra_lab.lab import lesson07, lesson07_race


def row(label: str, mean: float, difference: tuple[float, float] | None, panel: str = "equal KL") -> dict:
    return {
        "panel": panel, "label": label, "seeds": list(range(8)), "final": {"mean": mean, "half_width": 0.01},
        "difference": None if difference is None else {"mean": difference[0], "half_width": difference[1]},
        "verdict": "above", "measured_kl": 1e-3, "memory": {"weights": 4096, "sketches": 2048, "moments": 1024},
        "seconds_per_step": 0.1, "diverged": [], "lr": 1e-3,
    }  # fmt: skip


def summary() -> dict:
    rows = [
        row(label, mean, difference, panel)
        for panel in lesson07_race.PANELS
        for label, mean, difference in (
            ("adamw", 0.93, (0.04, 0.01)),
            ("logra paper", 0.89, None),
            ("logra paper, no KL control", 0.885, (-0.005, 0.01)),
        )
    ]
    return {"table": rows}


def record() -> dict:
    curves = {"right": [0.1, 0.5], "accuracy": [None, 0.75], "greedy": [None, 0.8]}
    run = {
        "label": "logra",
        "seed": 0,
        "start": {"accuracy": 0.25, "greedy": 0.5},
        "curves": curves,
        "seconds": 90.0,
        "peak": 2.5e9,
    }
    return {"model": "SmolLM2", "held_out": 26, "runs": [run, run | {"label": "adamw", "seed": 1}]}


def test_the_reference_comes_first_and_the_others_by_accuracy():
    assert [r["label"] for r in lesson07_race.rows_of(summary(), "equal KL")] == [
        "logra paper", "adamw", "logra paper, no KL control",
    ]  # fmt: skip


def test_the_picture_counts_the_intervals_that_leave_zero_out():
    picture = lesson07_race.race_picture(summary())
    assert "8 paired seeds" in picture.caption and "1 of 2 intervals leave zero out" in picture.caption
    names = [text.get_text() for text in picture.figure.axes[0].get_yticklabels()]
    assert names[0] == "logra paper" and len(picture.figure.axes) == 3


def test_the_table_shows_what_is_kept_without_the_weights():
    text = lesson07_race.race_table(summary(), "equal KL")
    assert "3 KiB" in text and "+4.0 ± 1.0" in text and "(reference)" in text


def test_the_paper_s_remark_stands_beside_our_result():
    told = lesson07_race.no_control_words(summary())
    assert "equally stable" in told and "0 of 8 seeds diverged" in told


def test_the_real_model_s_gain_time_and_memory_are_said_for_every_run():
    picture = lesson07_race.real_picture(record())
    assert "logra, seed 0: 25% → 75% sampled, 50% → 80% greedy, 1.5 min, peak 2.5 GB" in picture.caption
    assert "adamw, seed 1" in picture.caption


def test_without_a_race_one_sentence_says_how_to_record_it(capsys):
    lesson07_race.show_race("data/runs/none.json")
    assert "python -m logra_lab.rl.compare race" in capsys.readouterr().out


def test_a_recorded_race_is_shown_with_its_words(monkeypatch, tmp_path, capsys):
    path = tmp_path / "race.json"
    told = {"command": "c", "versions": {}, "hash": "h", "words": ["These words."]}
    path.write_text(json.dumps(summary() | told), encoding="utf-8")
    monkeypatch.setattr(lesson07_race, "show", lambda figure, alt, caption: print(caption))
    lesson07_race.show_race(str(path))
    shown = capsys.readouterr().out
    assert "These words." in shown and "8 paired seeds" in shown and "equally stable" in shown


def test_the_real_model_s_recording_is_there_with_its_provenance():
    assert "python -m logra_lab.rl.smollm" in lesson07.provenance(lesson07.recorded(lesson07_race.REAL))
