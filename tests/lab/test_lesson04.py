"""What lesson 04 measures is measured right, and its pictures say what they show."""

from __future__ import annotations

import json

import pytest
import torch

from logra_lab.lab import bench_costs, bench_figure, lesson04, lesson04_figures
from logra_lab.lab.exercises.lesson04 import flops, inputs_kept
from logra_lab.memory.units import size

SIZES = dict(width=48, ffn=80, heads=4, vocab=50)


@pytest.fixture(scope="module")
def ids() -> torch.Tensor:
    return lesson04.random_tokens(rows=4, length=16, vocab=50)


@pytest.fixture
def dense():
    return lesson04.dense_arm(**SIZES)


@pytest.fixture
def sketched():
    return lesson04.sketched_arm(4, **SIZES)


def test_parts_of_a_batch_add_up_to_the_loss_of_the_whole(dense, ids) -> None:
    whole = lesson04.next_token_loss(dense, ids)
    total = ids[:, 1:].numel()
    parts = sum(lesson04.next_token_loss(dense, part, total) for part in ids.chunk(4))
    assert torch.allclose(whole, parts)


def test_the_sketch_agrees_with_its_own_projection_and_with_no_other(dense, sketched, ids) -> None:
    model, optimizer = sketched
    for arm in (dense, model):
        lesson04.next_token_loss(arm, ids).backward()
    gradients = lesson04.dense_gradients(dense)
    assert set(gradients) == set(optimizer.sketches)
    assert lesson04.largest_error(optimizer.sketches, gradients, optimizer.projection) < 1e-5
    _, stranger = lesson04.sketched_arm(4, seed=43, **SIZES)
    assert lesson04.largest_error(optimizer.sketches, gradients, stranger.projection) > 0.5


def test_the_census_finds_a_gradient_per_target_in_the_dense_arm_and_none_in_the_other(
    dense, sketched, ids
) -> None:
    model, optimizer = sketched
    born = lesson04.weight_shaped(dense, lambda: lesson04.next_token_loss(dense, ids))
    assert len(born) == len(optimizer.targets) == 14
    assert lesson04.weight_shaped(model, lambda: lesson04.next_token_loss(model, ids)) == []


def test_births_note_new_memory_and_neither_views_nor_results_in_place() -> None:
    x = torch.ones(2, 3)
    with lesson04.births() as born:
        x.T.view(3, 2)
        x.add_(1)
        x @ x.T
    assert [shape for _, shape in born] == [(2, 2)]


def test_the_exercise_s_count_agrees_with_the_live_model_to_the_byte(dense, sketched, ids) -> None:
    model, _ = sketched
    kept = [
        lesson04.kept_bytes(arm, lambda a=arm: lesson04.next_token_loss(a, ids)) for arm in (dense, model)
    ]
    readers = lesson04.input_readers(model)
    others = [reader for reader in readers if not reader[0].endswith("o_proj")]
    x, p = inputs_kept(others, ids.numel(), 4, 4)[0], inputs_kept(readers, ids.numel(), 4, 4)[1]
    assert kept[0] - kept[1] == x - p


def test_the_exercise_s_flops_agree_with_the_live_count(dense, ids) -> None:
    model, _ = lesson04.sketched_arm(4, shared=False, **SIZES)
    counted = [
        lesson04.counted_flops(lambda a=arm: lesson04.next_token_loss(a, ids)) for arm in (dense, model)
    ]
    yours = lesson04.linear_flops(model, ids.numel(), flops, 4)
    assert counted[0] - counted[1] == yours[0] - yours[1]


def test_runs_are_timed_in_turns_and_the_threads_are_given_back() -> None:
    turns, threads = [], torch.get_num_threads()
    runs = {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}
    seconds = lesson04.paired_seconds(runs, repeats=2)
    assert turns == ["a", "b"] * 3 and [len(values) for values in seconds.values()] == [2, 2]
    assert torch.get_num_threads() == threads


def test_the_rank_picture_states_what_was_measured() -> None:
    rows = [lesson04.RankRow(4, 60, (0.7, 0.8, 0.9)), lesson04.RankRow(64, 90, (1.0, 1.1, 1.2))]
    picture = lesson04_figures.rank_picture(100, rows, lambda rank: 60.0, lambda rank: 0.7)
    assert "40% fewer bytes" in picture.caption and "0.80" in picture.caption and "1.10" in picture.caption


@pytest.mark.parametrize("model", lesson04_figures.MODELS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_play_widget_s_sentence_follows_its_controls(model: str, checkpointing: bool) -> None:
    captions = {lesson04_figures.play_saved(model, rank, checkpointing).caption for rank in (4, 64, 512)}
    assert len(captions) == 3


def test_the_play_widget_adds_its_parts_up() -> None:
    shape = lesson04_figures.MODELS["Qwen2.5-Math-7B"]
    parts = lesson04_figures.saved_parts(shape, lesson04_figures.settings("logra", 64, False))
    assert parts["X Aᵀ"] == shape.layers * 1024 * 4 * 64 * 2
    assert size(sum(parts.values())) in lesson04_figures.play_saved("Qwen2.5-Math-7B", 64, False).caption


def test_checkpointing_shrinks_what_sketching_saves() -> None:
    shape = lesson04_figures.MODELS["Qwen2.5-Math-7B"]

    def gap(checkpointing: bool) -> int:
        dense, sketched = (lesson04_figures.settings(name, 64, checkpointing) for name in ("adamw", "logra"))
        return sum(lesson04_figures.saved_parts(shape, dense).values()) - sum(
            lesson04_figures.saved_parts(shape, sketched).values()
        )

    assert 0 < gap(True) < gap(False) / 10


def arm(seconds: float, peak: float) -> dict:
    """One arm of the bench's record."""
    ratios = {"time_ratio": seconds, "peak_ratio": peak}
    return {key: {"median": value, "low": 0.9 * value, "high": 1.1 * value} for key, value in ratios.items()}


RECORD = {
    "command": "make bench",
    "machine": {"processor": "a processor", "threads": 2},
    "setting": {"width": 1024, "layers": 6, "sequences": 4, "length": 256},
    "rounds": 7,
    "micro_batches": 4,
    "arms": {"adamw": arm(1.0, 1.0), "logra r16": arm(0.5, 0.4), "logra r16 probe": arm(0.52, 0.41)},
}
ONE_PASS = {
    "name": "step time, r16 / dense AdamW, both in one pass", "value": 0.62, "limit": 0.6, "hard": False,
    "holds": False, "interval": [0.6, 0.65],
}  # fmt: skip
COSTS = [
    {
        "varies": varies,
        "rank": rank,
        "tokens": 512,
        "width": 512,
        "micro_batches": 1,
        "ratio": ratio,
        "model_ratio": ratio - 0.1,
        "low": ratio - 0.05,
        "high": ratio + 0.05,
    }
    for varies in bench_costs.AXES
    for rank, ratio in ((8, 0.6), (256, 1.1))
]


def test_without_a_bench_one_sentence_says_how_to_make_it(tmp_path, capsys) -> None:
    bench_figure.show_bench(tmp_path / "none.json")
    assert "make bench" in capsys.readouterr().out


def test_a_recorded_bench_is_drawn_over_dense_adamw_and_said_in_words(tmp_path) -> None:
    picture = bench_figure.bench_picture(RECORD)
    assert "LoGRA r = 16 takes 0.50 of the seconds and 0.40 of the memory" in picture.caption
    names = [text.get_text() for text in picture.figure.axes[0].get_yticklabels()]
    assert names == ["dense AdamW", "LoGRA r = 16", "LoGRA r = 16 (KL probe)"]
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(RECORD), encoding="utf-8")
    bench_figure.show_bench(path)


def test_one_pass_is_compared_with_dense_adamw_in_one_pass() -> None:
    caption = bench_figure.bench_picture(RECORD | {"figures": [ONE_PASS]}).caption
    assert "both in one pass: r16 0.62 (0.60 to 0.65)." in caption


def test_the_cost_curves_say_from_which_rank_on_nothing_is_saved(tmp_path, capsys) -> None:
    picture = bench_costs.cost_picture(RECORD | {"costs": COSTS})
    assert "from rank 256 on LoGRA is no faster" in picture.caption and "+0.10 to +0.10" in picture.caption
    assert [len(axes.lines) for axes in picture.figure.axes] == [3, 3, 3, 3]
    bench_costs.show_costs(tmp_path / "none.json")
    assert "make bench" in capsys.readouterr().out


def test_a_bench_without_its_reference_is_refused() -> None:
    with pytest.raises(KeyError, match="make bench"):
        bench_figure.bench_picture(RECORD | {"arms": {"logra r16": arm(0.5, 0.4)}})


def test_every_arm_of_the_bench_has_a_name() -> None:
    from bench.settings import ARMS

    known = {label for setting in ARMS for label in bench_figure.label(setting.name).split()}
    assert not known & {setting.arm for setting in ARMS}
