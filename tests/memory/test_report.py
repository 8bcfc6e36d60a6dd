"""Tables and pictures hold the numbers they were given; probing a card answers None where there is none."""

import json
from dataclasses import asdict

import pytest
import torch

from logra_lab.lab.plots import new_figure, png
from logra_lab.memory import (
    CARDS,
    CLASSES,
    GIB,
    Card,
    ModelShape,
    Settings,
    card_here,
    comparison_table,
    draw_stacks,
    draw_timeline,
    free_bytes,
    measure,
    measured_table,
    nearest_preset,
    plan,
    plan_table,
    size,
)

SHAPE = ModelShape("small", 2, 64, 128, 4, 2, 16, 100, tied=True)
SETTINGS = Settings(method="logra", rank=4, dtype="fp32", device="cpu", batch=2, context=16)


@pytest.fixture(scope="module")
def measured():
    return measure(SHAPE, SETTINGS, child=False)


def test_a_plan_s_table_adds_up_and_states_its_unit():
    made = plan("7B", "adamw", batch=1, checkpointing=True)
    text = plan_table(made)
    assert text.startswith("GiB at the peak of")
    columns = [line.split("  ") for line in text.splitlines()[2:]]
    values = {row[0].strip(): float(row[-1]) for row in columns}
    parts = sum(value for name, value in values.items() if name != "sum of classes")
    assert parts == pytest.approx(values["sum of classes"], abs=0.05)


def test_a_measured_table_says_when_the_process_does_not_tell(measured):
    text = measured_table(measured)
    assert (
        "The process's own figure is not available here." in text and "The peak of backward came with" in text
    )


def test_a_comparison_shows_each_class_and_the_whole(measured):
    text = comparison_table(plan(SHAPE, SETTINGS), measured)
    assert "saved activations" in text and text.splitlines()[-1].startswith("all") and "%" in text


def test_stacked_bars_end_at_the_plan_s_total():
    made = plan("7B", "logra", batch=1, checkpointing=True)
    figure, axes = new_figure()
    draw_stacks(axes, {"LoGRA": made.peak}, list(CARDS.values()))
    end = max(bar.get_x() + bar.get_width() for bar in axes.patches)
    assert end == pytest.approx(made.peak.total / GIB)
    assert set(axes.get_legend_handles_labels()[1]) == {name for name in CLASSES if made.peak[name]}
    assert png(figure)


def test_a_timeline_covers_every_phase(measured):
    figure, axes = new_figure()
    draw_timeline(axes, measured.phases)
    assert [note.get_text() for note in axes.texts] == list(measured.phases)
    highest = max(sum(point.values()) for phase in measured.phases.values() for point in phase.timeline)
    assert axes.get_ylim()[1] * GIB >= highest
    assert png(figure)


def test_phases_travel_as_json(measured):
    phase = asdict(measured.phases["step"]) | {"peak": dict(measured.phases["step"].peak), "end": {}}
    assert json.loads(json.dumps(phase))["name"] == "step"


def test_sizes_are_words_in_gib():
    assert (size(3 * GIB), size(GIB / 16)) == ("3.00 GiB", "0.0625 GiB")


def test_a_card_at_hand_resembles_the_largest_preset_that_is_no_larger():
    assert nearest_preset(Card("mine", "A100", int(79.2 * GIB))) is CARDS["80 GB"]
    assert nearest_preset(Card("mine", "T4", int(14.6 * GIB))) is None and nearest_preset(None) is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a card")
def test_without_a_card_probing_answers_none():
    assert card_here() is None and free_bytes() is None
