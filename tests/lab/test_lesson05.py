"""What lesson 05 shows is measured on the method's own merges, and its pictures say what they show."""

from __future__ import annotations

import json

import pytest
import torch

from logra_lab.lab import lesson05, lesson05_figures, precision_run
from logra_lab.lab.exercises.lesson05 import decayed_step, row_moment
from logra_lab.method.merge import PRECISIONS
from logra_lab.rl.config import config_hash

RATIOS = (2e-5, 6e-5, 2e-4, 6e-4, 2e-3, 6e-3)


def mean(traces, field: str) -> torch.Tensor:
    """Mean over seeds of one curve."""
    return torch.tensor([getattr(trace, field) for trace in traces]).mean(0)


def test_at_a_refresh_row_moments_stand_and_coordinates_jump_or_lose_their_way() -> None:
    study = lesson05.refresh_study(row_moment, period=30, steps=60)
    rows, second, both = study.values()
    assert abs(mean(rows, "size")[30] - 1) < 0.2
    assert mean(second, "size")[30] > 1.3
    assert mean(both, "cosine")[30] < 0.4 * mean(both, "cosine")[29]
    assert mean(rows, "cosine")[30] > 0.9 * mean(rows, "cosine")[29]


def test_the_learner_s_row_moment_drives_the_study() -> None:
    def doubled(*arguments):
        following, rho = row_moment(*arguments)
        return following, 2 * rho

    right = lesson05.refresh_study(row_moment, period=5, steps=6)["one moment per row"]
    other = lesson05.refresh_study(doubled, period=5, steps=6)["one moment per row"]
    assert torch.allclose(mean(other, "size"), mean(right, "size") / 2, rtol=1e-4)


@pytest.mark.parametrize("ratio", RATIOS)
def test_split_is_fp32_bit_for_bit_at_every_step_size(ratio: float) -> None:
    kept = lesson05.stored_four_ways(ratio, steps=60)
    assert set(kept) == set(PRECISIONS)
    assert set(kept["split"].error) == {0.0} and set(kept["split"].share) == {1.0}


def test_nearest_loses_small_steps_and_hears_large_ones_while_stochastic_keeps_the_mean() -> None:
    small, large = (lesson05.stored_four_ways(ratio) for ratio in (6e-5, 6e-3))
    assert small["nearest"].share[-1] < 0.1 < 0.9 < large["nearest"].share[-1]
    assert abs(small["stochastic"].share[-1] - 1) < 0.1
    assert small["stochastic"].error[-1] > 1 > large["stochastic"].error[-1]


def test_the_proposed_step_is_the_stated_fraction_of_the_weights() -> None:
    one = lesson05.stored_four_ways(1e-3, steps=1, every=1)
    start = lesson05.bf16_weight(96, 128)
    assert one["fp32"].steps == (1,)
    store = lesson05.Stored("fp32", start)
    assert torch.equal(store.moved(), torch.zeros_like(start))


def test_neighbours_in_bf16_are_one_place_apart() -> None:
    number, gap = lesson05.bf16_neighbours(1.0)
    assert (number, gap) == (1.0, 2.0**-7)


def test_a_weight_under_decay_settles_where_the_order_says() -> None:
    sizes = lesson05.two_orders(decayed_step, decay=0.1)
    first, last = (values[-1] for values in sizes.values())
    assert first == pytest.approx(1e-3 / 0.1, rel=1e-3)
    assert last == pytest.approx(0.9 * first, rel=1e-3)
    assert "10% of every update" in lesson05_figures.decay_picture(sizes, 0.1).caption


def test_the_play_widget_s_sentence_follows_the_step_size_and_its_picture_the_choice() -> None:
    captions = {lesson05_figures.play_precision(ratio, "error").caption for ratio in RATIOS}
    assert len(captions) == len(RATIOS)
    alts = {lesson05_figures.play_precision(6e-5, shown).alt for shown in ("error", "displacement kept")}
    assert len(alts) == 2


def test_pictures_say_their_numbers() -> None:
    kept = lesson05.stored_four_ways(6e-5)
    assert f"{kept['nearest'].share[-1]:.1%}" in lesson05_figures.kept_picture(6e-5).caption
    study = lesson05.refresh_study(row_moment, period=4, steps=9, seeds=(0, 1))
    assert "cosine" in lesson05_figures.refresh_picture(study, 4).caption


def test_means_over_blocks_leave_an_unfinished_block_out() -> None:
    assert precision_run.block_means([1.0] * 5 + [0.5] * 5 + [9.0]) == [1.0, 0.5]


def test_a_missing_record_names_its_command(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="python -m logra_lab.lab.precision_run"):
        precision_run.read(tmp_path / "precision.json")


def test_the_record_belongs_to_the_configuration_in_the_code() -> None:
    record = precision_run.read()
    runs = {(run["precision"], run["seed"]) for run in record["runs"]}
    assert runs == {(p, s) for p in precision_run.PRECISIONS for s in precision_run.SEEDS}
    config = precision_run.recorded_config(record["model"])
    assert record["hash"] == config_hash(config)
    json.dumps(record)


def test_the_record_shows_split_like_fp32_and_nearest_behind_on_every_seed() -> None:
    record = precision_run.read()
    after = {(run["precision"], run["seed"]): run["after"] for run in record["runs"]}
    for seed in precision_run.SEEDS:
        assert abs(after["split", seed] - after["fp32", seed]) < 0.04
        assert after["nearest", seed] < after["split", seed] - 0.05


@pytest.mark.slow
def test_the_first_steps_of_the_record_can_be_run_again() -> None:
    record = precision_run.read()
    recorded = next(r["curve"] for r in record["runs"] if (r["precision"], r["seed"]) == ("split", 0))
    again = precision_run.block_means(precision_run.share_right(precision_run.start("split", 0), 5))
    if record["model"] == precision_run.model_hash():
        assert again[0] == pytest.approx(recorded[0], abs=0.03)
