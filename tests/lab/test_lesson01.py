"""What lesson 01 counts agrees with the planner and the ledger, and its pictures say it in words."""

from __future__ import annotations

import pytest

from logra_lab.lab import lesson01, lesson01_figures
from logra_lab.lab.exercises.lesson01 import (
    MIXED,
    count_parameters,
    faulty_count,
    group_bytes,
    last_gain,
    resident_gib,
)
from logra_lab.lab.plots import png
from logra_lab.memory import CLASSES, NAMES, Settings, gib, shape_of
from logra_lab.memory.holdings import holdings

pytestmark = pytest.mark.lesson01


@pytest.fixture(scope="module")
def observed() -> dict[str, lesson01.Observed]:
    """One live step of each method on the small model."""
    return lesson01.observe()


@pytest.mark.parametrize("model", lesson01.MODELS)
def test_the_list_of_what_adamw_keeps_is_what_the_planner_holds(model) -> None:
    shape = shape_of(model)
    held = holdings(shape, Settings(method="adamw", precision="master"))
    assert resident_gib(shape.parameters, MIXED) == pytest.approx(
        gib(held.weights + held.gradients + held.state)
    )
    assert lesson01.weight_share(MIXED) == 1 / 8


def test_the_table_of_what_is_kept_adds_up() -> None:
    *parts, total = lesson01.kept_table(resident_gib, MIXED).splitlines()[2:]
    columns = [[float(cell) for cell in line.split()[-3:]] for line in (*parts, total)]
    for *addends, printed in zip(*columns, strict=True):
        assert sum(addends) == pytest.approx(printed, abs=0.3)


def test_the_forecast_of_a_live_step_is_within_two_per_cent_and_a_false_one_is_not(observed) -> None:
    for one in observed.values():
        assert abs(one.miss) < 0.02
        assert lesson01.wrong_plan_miss(one) < -0.05


def test_what_lives_between_steps_is_foretold_but_for_step_counters(observed) -> None:
    for one in observed.values():
        for name in ("optimizer state", "sketches", "projections"):
            assert 0 <= one.measured.peak.peak[name] - one.planned.peak[name] < 1024


def test_only_dense_training_has_gradients_at_the_step(observed) -> None:
    gradients = {name: one.measured.phases["step"].peak["gradients"] for name, one in observed.items()}
    assert gradients[NAMES["adamw"]] > 0 and gradients[NAMES["logra"]] == 0


def test_the_control_table_has_every_filled_class_and_the_totals(observed) -> None:
    text = lesson01.control_table(observed)
    for name in CLASSES:
        filled = any(one.planned.peak[name] or one.measured.peak.peak[name] for one in observed.values())
        assert (f"\n{name} " in text) == filled
    assert text.splitlines()[-1].startswith("all")


def test_groups_hold_the_seven_targets_by_their_input() -> None:
    found = lesson01.groups("7B")
    assert list(found) == ["q, k, v", "o", "gate, up", "down"]
    assert sum(d * k for shapes in found.values() for d, k in shapes) * 28 == shape_of("7B").target_parameters
    assert all(len({k for _, k in shapes}) == 1 for shapes in found.values())


def test_sketches_of_all_groups_are_the_planners() -> None:
    parts = [group_bytes(shapes, 64) for shapes in lesson01.groups("7B").values()]
    held = holdings(shape_of("7B"), Settings(method="logra", rank=64))
    assert 28 * sum(sketch for _, sketch, _ in parts) == held.sketches
    assert 28 * sum(projection for _, _, projection in parts) == 2 * held.projections  # cached in bf16
    assert "64.00  1.00" in lesson01.group_table(group_bytes, "7B", 64)


def test_the_wall_has_the_planners_bars_and_says_their_sizes() -> None:
    bars = lesson01.wall()
    assert [shape_of(name).name for name in lesson01.MODELS] == list(bars)
    picture = lesson01_figures.draw_wall(bars)
    for model, stacks in bars.items():
        assert stacks["the weights alone"].total == 2 * shape_of(model).parameters
        assert stacks["LoRA"].total < stacks["LoGRA"].total < stacks["dense AdamW"].total / 3
        assert f"dense AdamW {gib(stacks['dense AdamW'].total):.1f}" in picture.alt
    assert png(picture.figure) == png(lesson01_figures.draw_wall(bars).figure)


def test_the_picture_of_a_step_names_the_measured_peaks(observed) -> None:
    picture = lesson01_figures.draw_steps(observed)
    assert picture.caption.count("MiB") == 4 and "in the backward phase" in picture.alt
    assert [axis.get_title(loc="left") for axis in picture.figure.axes] == list(observed)


def test_the_count_of_gpus_is_where_the_two_lines_cross() -> None:
    sharded, replicated = lesson01.beside_weights("7B", 256)
    last = last_gain(sharded, replicated)
    assert sharded / last > replicated >= sharded / (last + 1)
    picture = lesson01_figures.draw_gpus(last_gain, "7B")
    assert f"rank 256 up to {last} GPUs" in picture.caption and "Right" in picture.alt


def test_more_gpus_and_lower_ranks_need_less_each() -> None:
    low, high = (lesson01.peaks_by_gpus("7B", "logra", rank, (1, 4, 16)) for rank in (64, 256))
    assert low == sorted(low, reverse=True) and all(a < b for a, b in zip(low, high))


def test_the_faulty_count_is_off_by_the_tied_table_and_the_repaired_one_is_the_ledgers_but_for_buffers() -> (
    None
):
    model = lesson01.tied_model()
    table = model.get_input_embeddings().weight.numel()
    assert faulty_count(model) - count_parameters(model) == table
    buffers = sum(buffer.numel() for buffer in model.buffers())
    assert lesson01.weights_found(model) // 4 == count_parameters(model) + buffers
    assert count_parameters(model) == lesson01.SMALL.parameters


def test_the_bug_costs_only_where_the_table_is_tied() -> None:
    rows = lesson01.cost_of_the_bug().splitlines()[2:]
    assert (
        [" yes " in row for row in rows] == [not row.endswith(" 0.0") for row in rows] == [True, False, True]
    )


def test_checkpointing_saves_more_than_the_host_and_a_higher_rank_costs_more() -> None:
    rows = {line[:24].strip(): line.split() for line in lesson01.variants("7B").splitlines()[2:]}
    total = {name: float(cells[-2]) for name, cells in rows.items()}
    assert total["without checkpointing"] > total["rank 256"] > total["as in the figure"]
    assert total["lower halves on the host"] < total["as in the figure"]
